"""Rules for running work again, and the pauses between runs. Pure: no clock, database or random numbers.

Work is repeated only if it is certain that nothing of its transaction is committed, and if another run
may end differently:

- the database refused it because of another transaction: a deadlock, a serialization failure;
- the connection to the database was lost before COMMIT was sent, such as one that had been idle in a pool;
- Kafka refused something before the decision, and may not refuse it the next time;
- it was in doubt, and recovery has found that nothing is committed.

A transaction in doubt is recovered first. If it is committed, its result is that of the run in doubt. If its
outcome stays unknown, the error is raised, and the work is never repeated [DW-3].
"""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final

from tallystick.client.errors import (
    AbortRequired,
    BrokerRefused,
    ClientError,
    ConnectionLost,
    DecisionExpired,
    Fenced,
    TimedOut,
    Unreachable,
)
from tallystick.dualwrite.errors import (
    CommitUnknown,
    DualWriteError,
    HeuristicMixed,
    LeaseLost,
    NoFreeId,
    NotRecovered,
    NotVisible,
    Outcome,
    TransactionTooOld,
    WriteInDoubt,
    WriterFenced,
)
from tallystick.dualwrite.rules.refusals import is_conflict, is_connection_lost
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

ATTEMPTS_MAX: Final = 1000
DOUBLINGS_MAX: Final = 32
KEY_CONFLICTS_MAX: Final = 10
"""Runs that may fail at the key in addition to all others: after each, another call has ended."""


class Retry(Value, kw_only=True):
    """Number of runs of the work, and the pauses between them.

    The pause before run n + 1 is drawn from 0 up to `backoff_ms * 2 ** (n - 1)`, at most `backoff_max_ms`:
    transactions that met in a deadlock do not meet again.

    attempts        number of runs in all, 1..1000
    backoff_ms      longest pause before the second run; 0 for no pause
    backoff_max_ms  longest pause of all
    random          returns a number from 0 up to but not including 1; the operating system's if None
    """

    attempts: int = 5
    backoff_ms: int = 20
    backoff_max_ms: int = 1000
    random: Callable[[], float] | None = None

    def check(self) -> None:
        """Raise BadConfig with all problems unless the values are in range."""
        problems = []
        if not 1 <= self.attempts <= ATTEMPTS_MAX:
            problems.append(f"attempts: {self.attempts} is not 1..{ATTEMPTS_MAX}")
        if self.backoff_ms < 0:
            problems.append(f"backoff_ms: {self.backoff_ms} is not 0 or more")
        if self.backoff_max_ms < self.backoff_ms:
            problems.append(
                f"backoff_max_ms: {self.backoff_max_ms} is less than backoff_ms, {self.backoff_ms}"
            )
        if problems:
            raise BadConfig("; ".join(problems))

    def pause_ms(self, run_count: int, fraction: float) -> float:
        """Return the milliseconds to wait after run number `run_count`, counted from 1.

        Args:
            fraction: the random number, from 0 up to but not including 1.
        """
        longest_ms = self.backoff_ms << min(run_count - 1, DOUBLINGS_MAX)
        return fraction * min(longest_ms, self.backoff_max_ms)


DEFAULT_RETRY: Final = Retry()


def to_retry(retry: Retry | int) -> Retry:
    """Return the checked rule that `retry` stands for.

    Args:
        retry: a number is that of the repetitions, without the first run.
    Raises: BadConfig; ValueError for a negative number.
    """
    if isinstance(retry, int):
        if retry < 0:
            raise ValueError(f"retries: {retry} is not 0 or more")
        retry = Retry(attempts=retry + 1)
    retry.check()
    return retry


class Failure(Enum):
    """Outcome of a failed run in the database and in Kafka, as far as its exception tells."""

    CONFLICT = "neither side is committed: the database refused it because of another transaction"
    LOST_CONNECTION = "neither side is committed: the database's connection was lost before COMMIT was sent"
    REFUSED_BY_KAFKA = "neither side is committed: Kafka refused it for now, before the decision"
    NOT_COMMITTED = "neither side is committed: recovery has found that out"
    COMMITTED = "both sides are committed: recovery has found that out"
    IN_DOUBT = "not known: recovery can find out"
    UNKNOWN = "not known, and recovery has not found out"
    OTHER = "another run would end the same, or do again what is committed"


class NextStep(Enum):
    """Action after a failed run."""

    RUN_AGAIN = auto()
    RECOVER = auto()
    RETURN = auto()  # the result of the run in doubt
    RAISE = auto()


# A failure while runs are left, and after the last one.
_NEXT_STEPS: Final = {
    Failure.CONFLICT: (NextStep.RUN_AGAIN, NextStep.RAISE),
    Failure.LOST_CONNECTION: (NextStep.RUN_AGAIN, NextStep.RAISE),
    Failure.REFUSED_BY_KAFKA: (NextStep.RUN_AGAIN, NextStep.RAISE),
    Failure.NOT_COMMITTED: (NextStep.RUN_AGAIN, NextStep.RAISE),
    Failure.COMMITTED: (NextStep.RETURN, NextStep.RETURN),
    Failure.IN_DOUBT: (NextStep.RECOVER, NextStep.RECOVER),
    Failure.UNKNOWN: (NextStep.RAISE, NextStep.RAISE),
    Failure.OTHER: (NextStep.RAISE, NextStep.RAISE),
}
_OUTCOMES: Final = {
    Outcome.COMMITTED: Failure.COMMITTED,
    Outcome.NOT_COMMITTED: Failure.NOT_COMMITTED,
    Outcome.UNKNOWN: Failure.UNKNOWN,
}
# After these one side is committed, or may be, whatever the error was that followed.
_PERHAPS_COMMITTED: Final = (InDoubt, HeuristicMixed, NotVisible, CommitUnknown, DecisionExpired)
_OF_THE_IDS: Final = (WriterFenced, LeaseLost, NoFreeId, NotRecovered, TransactionTooOld)
_NO_ANSWER: Final = (ConnectionLost, TimedOut, Unreachable)


def decide_next_step(
    failure: BaseException, *, is_own_doubt: bool, is_recovered: bool, is_last: bool
) -> NextStep:
    """Return what follows a run that raised `failure`.

    Args:
        is_own_doubt: the commit of the run itself has raised it: not another writer, which the work or a hook
            of its session has used.
        is_recovered: recovery has been tried since.
        is_last: no run is left.
    """
    kind = classify_failure(failure, is_own_doubt=is_own_doubt, is_recovered=is_recovered)
    return _NEXT_STEPS[kind][is_last]


def classify_failure(failure: BaseException, *, is_own_doubt: bool, is_recovered: bool) -> Failure:
    """Return what an exception of `transaction()`, or of the work in it, means for both sides."""
    if isinstance(failure, WriteInDoubt) and is_own_doubt:
        return _OUTCOMES[failure.outcome()] if is_recovered else Failure.IN_DOUBT
    if any(isinstance(each, _PERHAPS_COMMITTED) for each in _causes(failure)):
        return Failure.OTHER
    refusal = _find_refusal(failure)
    if refusal is not None:
        return Failure.REFUSED_BY_KAFKA if _is_temporary(refusal) else Failure.OTHER
    if isinstance(failure, DualWriteError):
        return Failure.OTHER
    if is_conflict(failure):
        return Failure.CONFLICT
    return Failure.LOST_CONNECTION if is_connection_lost(failure) else Failure.OTHER


def is_outage(failure: BaseException) -> bool:
    """Return whether the database, Kafka or the ids were to blame, and not the work.

    Neither side is committed then, and later the same work may be. It is for callers that can wait for
    minutes, when `decide_next_step` has given up.
    """
    causes = list(_causes(failure))
    if any(isinstance(each, _PERHAPS_COMMITTED) for each in causes):
        return False
    if is_conflict(failure) or any(isinstance(each, _OF_THE_IDS) for each in causes):
        return True
    refusal = _find_refusal(failure)
    if refusal is not None:
        return isinstance(refusal, Fenced) or _is_temporary(refusal)
    return any(_is_operational(each) for each in causes)


def _is_operational(exc: BaseException) -> bool:
    """Return whether an exception of a database driver is about its operation, by the names of PEP 249."""
    names = {each.__name__ for each in type(exc).__mro__}
    return bool(names & {"OperationalError", "InterfaceError"})


def _find_refusal(exc: BaseException | None) -> ClientError | None:
    """Return the client's error that is the reason; an `AbortRequired` has another one as its cause."""
    while exc is not None:
        if isinstance(exc, ClientError) and not (
            isinstance(exc, AbortRequired) and exc.__cause__ is not None
        ):
            return exc
        exc = exc.__cause__
    return None


def _is_temporary(refusal: ClientError) -> bool:
    """Return whether Kafka may accept the same in another transaction."""
    if isinstance(refusal, BrokerRefused):
        return refusal.remedy.repeats or refusal.code == ErrorCode.TRANSACTION_ABORTABLE
    return isinstance(refusal, _NO_ANSWER)


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised for, as a traceback shows it."""
    seen: set[int] = set()
    at: BaseException | None = exc
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        if isinstance(at, NotRecovered) and at.__cause__ is not None:
            return  # that is how an earlier block has ended; of this one nothing was begun
        at = at.__cause__ if at.__cause__ is not None or at.__suppress_context__ else at.__context__
