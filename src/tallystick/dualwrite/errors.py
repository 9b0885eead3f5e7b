"""Errors of the dual-write library, beyond those of the database and the Kafka client.

Each error states the outcome of both sides.

    DualWriteError
      WriterFenced       another writer has claimed the id: nothing was committed
      NotRecovered       recover() must be called first; nothing was begun
      TransactionTooOld  the block took too long for its mode: nothing was committed
      ManagedByWriter    the block ended a transaction that the writer owns, or a forked child uses it
      UnsafeDurability   the database may lose acknowledged commits; nothing was begun
      BadStore           the table, path or family is missing or of another version
      CorruptRow         the row of an id is not in the format of this library
      BadResult          a result cannot be kept with its idempotency key: nothing was committed
      NotCommitted       (from stores) the database certainly did not commit; a writer raises its cause
      CommitUnknown      (from stores) the answer to a database commit was lost; a writer raises InDoubt
      RecoveryHalted     recovery found a state that it must not resolve; nothing was changed in Kafka
        LogBehind          the cluster has lost a transaction that it acknowledged
        ForeignCluster     the row was recorded with another cluster
        DatabaseBehind     the database has lost a transaction that it acknowledged and Kafka has committed
      HeuristicMixed     the database committed, and the cluster aborted its transaction: repair by hand
      NotVisible         both sides are committed; visibility to readers was not confirmed in time
      DataLoss           records that follow the database's offset are no longer in the log
      NoFreeId           every id of a pool was in use for too long
      LeaseLost          another process holds the lease of the id: nothing was claimed
    InDoubt              (kernel) a commit was sent, and its outcome is unknown: recover() determines it
      WriteInDoubt       the same for a dual write; `outcome()` returns the result once known

All errors can be pickled.
"""

from collections.abc import Mapping
from enum import Enum

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.errors import InDoubt, TallystickError


class DualWriteError(TallystickError):
    """Base class of the dual-write errors."""


class WriterFenced(DualWriteError):
    """Another writer has claimed this transactional id in the database. Close this writer or recover it."""

    def __init__(self, transactional_id: str, owner: str, found: str = "") -> None:
        super().__init__(transactional_id, owner, found)
        self.transactional_id, self.owner, self.found = transactional_id, owner, found

    def __str__(self) -> str:
        now = f"and is {self.found} now" if self.found else "and has changed"
        return (
            f"{self.transactional_id!r} was claimed by another writer: the row's owner was {self.owner} "
            f"{now}; nothing was committed in the database or in Kafka"
        )


class NotRecovered(DualWriteError):
    """A transaction was begun before recover(), or after an outcome that only recover() can resolve."""


class TransactionTooOld(DualWriteError):
    """The block came too close to transaction.timeout.ms, so both sides were rolled back."""

    def __init__(self, transactional_id: str, took_ms: int, timeout_ms: int) -> None:
        super().__init__(transactional_id, took_ms, timeout_ms)
        self.transactional_id, self.took_ms, self.timeout_ms = transactional_id, took_ms, timeout_ms

    def __str__(self) -> str:
        return (
            f"{self.transactional_id!r}: the transaction has taken {self.took_ms} ms of the "
            f"{self.timeout_ms} after which the cluster may abort it; neither side was committed. Raise "
            "transaction.timeout.ms, or do less in the block"
        )


class ManagedByWriter(DualWriteError):
    """An operation reserved to the writer, such as committing the session, or use in a forked child."""


class UnsafeDurability(DualWriteError):
    """The database may lose acknowledged commits: `setting` is `found`, and `wanted` would be safe.

    risk  the value of `allow_unsafe_durability` that allows it; empty if only `wanted` is accepted
    """

    def __init__(self, setting: str, found: str, wanted: str, risk: str = "") -> None:
        super().__init__(setting, found, wanted, risk)
        self.setting, self.found, self.wanted, self.risk = setting, found, wanted, risk

    def __str__(self) -> str:
        why = (
            f"{self.setting} is {self.found}; {self.wanted} is needed: after a crash of the database the "
            "Kafka transaction would be committed and the rows gone"
        )
        if not self.risk:
            return why
        allowing = f'allow_unsafe_durability={{"{self.risk}"}}'
        return (
            f"{why}. Where the database is known to keep its commits all the same, {allowing} of its store "
            "allows this setting alone"
        )


class BadStore(DualWriteError):
    """The table, path or column family is missing or of another version; `create()` creates it."""


class CorruptRow(DualWriteError):
    """The row of `transactional_id` cannot be read. It must never be treated as empty."""

    def __init__(self, transactional_id: str, why: str) -> None:
        super().__init__(transactional_id, why)
        self.transactional_id, self.why = transactional_id, why

    def __str__(self) -> str:
        return f"the stored state of {self.transactional_id!r} cannot be read: {self.why}"


class BadResult(DualWriteError):
    """The result of the work cannot be stored with its idempotency key; nothing was committed."""


class NotCommitted(DualWriteError):
    """A store certifies that COMMIT was not sent or was refused: the transaction had no effect [DW-3].

    A writer treats any other exception from a commit as an unknown outcome.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the database did not commit: {self.cause}"


class CommitUnknown(DualWriteError):
    """COMMIT was sent and not answered: only a claim followed by a read can determine the outcome."""


class Outcome(Enum):
    """The outcome of a dual write that was in doubt."""

    COMMITTED = "both sides are committed, or will be by recover()"
    NOT_COMMITTED = "neither side is committed"
    UNKNOWN = "not known"


class WriteInDoubt(InDoubt):
    """The outcome of a dual write is unknown until `recover()`; `outcome()` returns it from then on.

    states  the Kafka transaction of each transactional id; the database names them if it has committed.
            Empty if no records were sent: then the database commit cannot be verified.
    """

    def __init__(self, text: str, states: Mapping[str, PreparedTxnState]) -> None:
        super().__init__(text, states)
        self.states = states
        self._outcome = Outcome.UNKNOWN

    def __str__(self) -> str:
        return str(self.args[0])

    def outcome(self) -> Outcome:
        """Return the outcome as far as this writer knows it. Never repeat a write that is UNKNOWN."""
        return self._outcome

    def set_outcome(self, outcome: Outcome) -> None:
        """Set the outcome found by a recovery or by the commit itself; only the first call counts."""
        if self._outcome is Outcome.UNKNOWN:
            self._outcome = outcome


class RecoveryHalted(DualWriteError):
    """Recovery found a state that neither commit nor abort would repair. Kafka was not changed."""


class LogBehind(RecoveryHalted):
    """The cluster has lost data that it acknowledged, for example after a restored backup."""


class ForeignCluster(RecoveryHalted):
    """The row was recorded with a different cluster than the one the producer is connected to."""


class DatabaseBehind(RecoveryHalted):
    """The database has lost a commit that it acknowledged and whose records are in Kafka.

    This follows a failover to an asynchronous replica, or a restored backup. Write those rows again, or
    compensate for the records; then accept it with `tallystick transactions resolve --accept-mixed`, or
    recover(accept_mixed=True).
    """


class HeuristicMixed(DualWriteError):
    """The rows are committed and their records are not, because the cluster aborted the transaction.

    The cause is transaction.timeout.ms, in a mode weaker than two-phase commit, an operator, or another
    client that has initialised the id. Send those records again, or delete the rows.

    states            the Kafka transaction of each transactional id whose records are missing
    is_of_this_block  the rows are those of the block, or of the keyed call, that raises this. Otherwise, as
                      out of `recover()`, they are those of an earlier one
    """

    def __init__(
        self,
        text: str,
        states: Mapping[str, PreparedTxnState] | None = None,
        *,
        is_of_this_block: bool = False,
    ) -> None:
        super().__init__(text, states)
        self.states, self.is_of_this_block = states or {}, is_of_this_block

    def __str__(self) -> str:
        return str(self.args[0])


class NotVisible(DualWriteError):
    """Both sides are committed, but the transaction markers were not confirmed in time."""


class DataLoss(DualWriteError):
    """The log does not contain the database's next offset; nothing was read from the partition.

    Attributes: group; partition, its name; offset, the database's; begin and end, the log's current bounds.
    """

    def __init__(self, group: str, partition: str, offset: int, begin: int, end: int) -> None:
        super().__init__(group, partition, offset, begin, end)
        self.group, self.partition = group, partition
        self.offset, self.begin, self.end = offset, begin, end

    def __str__(self) -> str:
        if self.offset < self.begin:
            problem = (
                f"records {self.offset} to {self.begin - 1} are gone (retention, or DeleteRecords), and "
                "their rows will never be written"
            )
        else:
            problem = (
                f"the log ends at {self.end}: it was cut, or the topic was deleted and made again, and what "
                "follows is not what followed before"
            )
        return (
            f"{self.group!r} in {self.partition}: the database goes on at offset {self.offset}, and "
            f"{problem}. "
            'Put the offset in the database right, or pass on_data_loss="skip"'
        )


class NoFreeId(DualWriteError):
    """No id of the pool became free within the caller's wait time."""


class LeaseLost(DualWriteError):
    """Another pool holds the lease of this transactional id; the id was not claimed.

    The writer is of no further use. A WriterPool takes another id on its own.
    """

    def __init__(self, transactional_id: str, found: str) -> None:
        super().__init__(transactional_id, found)
        self.transactional_id, self.found = transactional_id, found

    def __str__(self) -> str:
        now = f"it is held by {self.found}" if self.found else "it is free"
        return (
            f"the lease of {self.transactional_id!r} has expired and was taken over or given back: {now}. "
            "The id was not claimed, and nothing was changed"
        )
