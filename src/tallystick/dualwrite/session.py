"""Recipes of a dual write and of its recovery, shared by the blocking and the asyncio driver.

Normal processing, as in KIP-939: begin the database's transaction, then Kafka's; write the user's rows and
records; prepare Kafka; record the prepared transaction beside the rows; commit the database; commit Kafka.
The commit of the database is the single moment at which both are decided [DW-7]. Hence:

- A failure before it rolls back both halves.
- While its outcome is unknown, Kafka's half is left alone and stays prepared: only a claim can determine the
  outcome, and that is up to recovery [DW-3]. The outcome is known when the step has returned, or has raised
  NotCommitted. An exception from a signal handler may arrive after COMMIT was answered, and proves nothing.
- A failure after it leaves one half unfinished, and recovery finishes it.

Recovery claims before it reads the row, and reads the row before it asks Kafka [DW-5]; then it describes the
id before it initialises it. A cluster's half is finished only after every halting verdict has been ruled out,
and only if the row is still ours once the id is initialised [DW-9]: the claim keeps earlier writers from
deciding, that check detects later ones, and a writer that claims after the check initialises the id after us.

A session is in one state (`Standing`). After anything that left a half open it is UNSETTLED, and only
recovery is legal; it discards the producers and creates new ones, so there is one way to recover.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from threading import Lock
from typing import Final, Generic, TypeVar

from tallystick.client.errors import (
    AbortRequired,
    BrokerRefused,
    ClientError,
    DecisionExpired,
    IdExpired,
    NotAuthorized,
    NotSupported,
)
from tallystick.client.errors import Fenced as FencedInKafka
from tallystick.client.transactions.modes import Mode, Seen
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite import conclusions
from tallystick.dualwrite.branch import Branch
from tallystick.dualwrite.drivers import Recipe, do
from tallystick.dualwrite.errors import (
    DatabaseBehind,
    DualWriteError,
    Fenced,
    Halted,
    NotCommitted,
    NotRecovered,
    NotVisible,
    Outcome,
    TooLate,
    Torn,
    WriteInDoubt,
)
from tallystick.dualwrite.forks import Home, leave_to_parent
from tallystick.dualwrite.model import NOTHING, StoredState
from tallystick.dualwrite.offsets import SentOffsets
from tallystick.dualwrite.ports import MakeAdmin, MakeProducer, P, Storing, Transacting
from tallystick.dualwrite.recovery import VERDICTS, Finding, Recovered, Report, Shown, Verdict, find
from tallystick.dualwrite.row_lock import begin_briefly, look_under_lock
from tallystick.kernel.check import check
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import InDoubt, TallystickError
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace

_log = logging.getLogger("tallystick.dualwrite")

VISIBLE_MS_MAX: Final = 30_000
"""Maximum time that `wait_visible` waits for the transaction markers."""
LATEST_SHARE: Final = 0.75
"""Share of transaction.timeout.ms, where it applies, after which the database is no longer committed."""
_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_DECIDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})

D = TypeVar("D", bound=Transacting)


class Standing(Enum):
    """The state of a writer. The value is its text in errors."""

    NEW = "it has not been recovered"
    READY = "it is ready"
    IN_TRANSACTION = "it is in a transaction"
    RECOVERING = "it is being recovered"
    UNSETTLED = "a transaction before was left open"
    CLOSED = "it is closed"


_WITHIN: Final = frozenset({Standing.IN_TRANSACTION, Standing.RECOVERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Making(Generic[P]):
    """Factories and clock of a session; the only difference between the blocking and asyncio facades.

    pause  sleeps for a number of seconds
    """

    producer: MakeProducer[P]
    admin: MakeAdmin
    pause: Callable[[float], object]
    clock: Clock


class Session(Generic[D, P]):
    """A writer's transactions, one after the other. Its methods are recipes, run by a driver."""

    def __init__(
        self,
        store: Storing[D],
        configs: Mapping[str, Mapping[str, object]],
        making: Making[P],
        *,
        alone: bool = True,
    ) -> None:
        """Create a session for one or more clusters.

        Args:
            alone: its ids belong to no pool.
        Raises: BadConfig with all problems of the first cluster that has any.
        """
        self._alone = alone
        self.standing = Standing.NEW
        self.branches: Mapping[str, Branch[P]] = {
            cluster: Branch(cluster, config) for cluster, config in configs.items()
        }
        ids = [branch.id for branch in self.branches.values()]
        if not ids or len(set(ids)) != len(ids):
            raise BadConfig(f"transactional.id: every cluster needs one of its own, not {', '.join(ids)}")
        # The same order everywhere, so that two writers never deadlock on each other's rows.
        self._in_order: Sequence[Branch[P]] = sorted(self.branches.values(), key=lambda branch: branch.id)
        self._store = store
        self._making = making
        self._lock = Lock()
        self._started_at_ms = self._began_ms = 0
        self.home = Home()
        self._block: object = None
        self._database: D | None = None  # begun and, as far as known, not ended
        self._in_doubt: WriteInDoubt | None = None
        self.offsets = SentOffsets()
        self._outcome = Outcome.NOT_COMMITTED  # of the last block or the open one
        self._deciding: Mapping[str, PreparedTxnState] = {}

    @property
    def name(self) -> str:
        return ", ".join([branch.id for branch in self._in_order])

    def _enter(self, into: Standing, *allowed: Standing, block: object) -> None:
        self.check_process()  # first: after fork() the lock may be held by a thread that does not exist here
        with self._lock:
            if self.standing not in allowed:
                raise NotRecovered(f"{self.name}: {self._why_not()}")
            self.home.enter(self.name)
            self._block = block
            self.standing = into

    def leave(self, block: object) -> None:
        """Leave the call that entered with `block`, however it ended. Does nothing if it already finished.

        An interrupt may have occurred outside any recipe; the session is then UNSETTLED and needs recovery.
        """
        if self._block is not block:
            return
        if self.home.is_elsewhere:
            self.offsets.forget()
            return
        if self.standing in _WITHIN:
            self.standing = Standing.UNSETTLED
        self.offsets.conclude(self._outcome)

    @property
    def ready(self) -> bool:
        """Whether a transaction can begin in this process."""
        return self.standing is Standing.READY and not self.home.is_elsewhere

    def check_process(self) -> None:
        """Raise NotYours in a forked child of the process that uses this writer."""
        self.home.check(f"{self.name}: this writer")

    def _why_not(self) -> str:
        match self.standing:
            case Standing.NEW | Standing.UNSETTLED:
                return f"{self.standing.value}: call recover() first"
            case Standing.IN_TRANSACTION:
                return "it is in a transaction, and has one at a time; a WriterPool has more"
            case standing:
                return str(standing.value)

    # ------------------------------------------------------------------------------ recovery

    def recover(self, *, accept_torn: bool = False, block: object = None) -> Recipe[Report]:
        """Bring both halves of every id to the same outcome.

        Order: claims in the database; descriptions; halting verdicts; only then any change in Kafka.
        """
        self._enter(Standing.RECOVERING, Standing.NEW, Standing.READY, Standing.UNSETTLED, block=block)
        try:
            if self._database is not None:  # its locks would block the claim
                yield from self._rolled_back(self._database)
            yield from self._drop_producers()
            report = yield from self._recovered(accept_torn=accept_torn)
        except BaseException:
            self.standing = Standing.UNSETTLED
            raise
        self.standing = Standing.READY
        return report

    def _recovered(self, *, accept_torn: bool) -> Recipe[Report]:
        known = {branch.id: branch.row for branch in self._in_order}
        try:
            report = yield from self._recovered_from(known, accept_torn=accept_torn)
        except BaseException:
            for branch in self._in_order:  # the next recovery compares with it too
                branch.row = known[branch.id] or branch.row
            raise
        return report

    def _recovered_from(
        self, known: Mapping[str, StoredState | None], *, accept_torn: bool
    ) -> Recipe[Report]:
        for branch in self._in_order:
            branch.row = yield from do("claim", branch.id, partial(self._store.claim, branch.id))
        self._tell_outcome(known)
        halves: list[tuple[Branch[P], Shown, Finding]] = []
        for branch in self._in_order:
            shown = yield from self._show(branch)
            halves.append((branch, shown, find(_as_finished(branch), shown, known[branch.id])))
        for branch, shown, finding in halves:
            conclusions.check_halt(branch.claimed(), shown, finding)
        ids: list[Recovered] = []
        differ: list[Torn | DatabaseBehind] = []
        for branch, shown, finding in halves:
            try:
                ids.append((yield from self._finish(branch, shown, finding, accept_torn=accept_torn)))
            except (Torn, DatabaseBehind) as exc:  # finish the other clusters first
                differ.append(exc)
        if differ:
            raise type(differ[0])("; ".join(map(str, differ)))
        return Report(tuple(ids))

    def _tell_outcome(self, known: Mapping[str, StoredState | None]) -> None:
        """Determine the outcome of the transaction in doubt from the rows, which are all claimed.

        It is committed if every row names it. It is not, and never will be, if a row is as it was before. A
        row of another writer, which held the id in between, may follow either outcome: that stays UNKNOWN.
        """
        doubt, self._in_doubt = self._in_doubt, None
        states = self._deciding if doubt is None else doubt.states
        if not states:
            return
        rows = {branch.id: branch.claimed().state for branch in self._in_order}
        outcome = Outcome.UNKNOWN
        if all(rows[each] == state for each, state in states.items()):
            outcome = Outcome.COMMITTED
        elif any((before := known[each]) is not None and rows[each] == before.state for each in states):
            outcome = Outcome.NOT_COMMITTED
        if doubt is not None and outcome is not Outcome.UNKNOWN:
            doubt.settle(outcome)
        if self._outcome is Outcome.UNKNOWN:
            self._outcome = outcome
        self.offsets.conclude(self._outcome)

    def look(self) -> Recipe[Report]:
        """Report what recovery would find, without claim, InitProducerId or any change. May be outdated."""
        self.home.enter(f"{self.name}: this writer")
        ids = []
        for branch in self._in_order:
            row = yield from do("read", branch.id, partial(self._store.read_state, branch.id))
            if row is None:
                row = StoredState(transactional_id=branch.id, owner="")
            shown = yield from self._show(branch)
            finding = find(row, shown)
            verdict = VERDICTS[finding, branch.strongest]
            ids.append(
                conclusions.recovered(row, shown, finding, verdict, f"would {conclusions.WOULD[verdict]}")
            )
        return Report(tuple(ids))

    def _show(self, branch: Branch[P]) -> Recipe[Shown]:
        admin = branch.admin
        if admin is None:
            admin = branch.admin = self._making.admin(branch.admin_config)
        cluster = yield from do("describe cluster", branch.id, admin.describe_cluster)
        branch.cluster_id = cluster.cluster_id
        answers = yield from do("describe", branch.id, partial(admin.describe_transactions, [branch.id]))
        match answers.failures.get(branch.id):
            case None:
                return Shown(
                    seen=conclusions.seen_of(answers.found[branch.id]), cluster_id=cluster.cluster_id
                )
            case IdExpired():
                return Shown(seen=None, cluster_id=cluster.cluster_id)
            case NotAuthorized() | NotSupported() as why:
                _log.info("%s: cannot be described: %s", branch.id, why.what())
                return Shown(seen=None, visible=False, cluster_id=cluster.cluster_id)
            case failure:
                raise failure

    def _finish(
        self, branch: Branch[P], shown: Shown, finding: Finding, *, accept_torn: bool
    ) -> Recipe[Recovered]:
        row = branch.claimed()
        token = _as_finished(branch).pending
        if finding in _DIFFER:
            if not accept_torn:
                raise _DIFFER[finding](row, shown.seen)
            token = NOTHING
        if finding in _SETTLED_FIRST or not token:
            yield from self._note(branch, settled=True)  # before InitProducerId erases the proof
        elif finding in (Finding.DECIDED, Finding.UNSEEN):
            yield from self._note(branch, settled=False)
        producer = self._making.producer(branch.config)
        branch.use(producer)
        # KIP-939: keepPreparedTxn=true fences the former producer and leaves its prepared transaction open.
        yield from do("init", branch.id, partial(producer.init_transactions, True))
        mode = producer.mode
        check(mode is not None, "a recovered producer without a mode")
        assert mode is not None
        yield from self._check_owner(branch)
        verdict = VERDICTS[finding, mode]
        if verdict is Verdict.HALT:
            raise Halted(f"{branch.id}: {finding.value}, and mode {mode.value} rests on what it shows")
        try:
            # KIP-939: completeTransaction commits if `token` names the transaction in doubt, else aborts.
            done = yield from do("complete", branch.id, partial(producer.complete_transaction, token))
        except DecisionExpired as exc:
            raise conclusions.torn(row) from exc
        yield from self._note(branch, settled=True)
        branch.finished = branch.claimed().state
        return conclusions.recovered(row, shown, finding, verdict, conclusions.DID[done])

    def _check_owner(self, branch: Branch[P]) -> Recipe[None]:
        """Raise Fenced if another writer has claimed the row: it may have decided the open transaction."""
        row = branch.claimed()
        yield from do("check owner", branch.id, partial(look_under_lock, self._store, row))

    def _note(self, branch: Branch[P], *, settled: bool) -> Recipe[None]:
        """Record in the row that both halves are finished, or that Kafka's half is about to be.

        No outcome depends on it: it preserves what InitProducerId erases.
        """
        row = branch.claimed()
        if not row.state or row.settled or (row.completing and not settled):
            return
        noted = replace(row, settled=settled, completing=row.completing or not settled)
        try:
            briefly = partial(begin_briefly, self._store)
            txn = yield from do("begin settling", branch.id, partial(self._open, briefly))
            yield from do("settle", branch.id, partial(txn.record, noted, row))
            yield from do("commit settled", branch.id, txn.commit)
            self._database = None
        except BaseException as exc:
            if self._database is not None:
                yield from self._rolled_back(self._database)
            if isinstance(exc, NotCommitted):
                raise exc.cause from exc
            raise
        branch.row = noted

    def _drop_producers(self) -> Recipe[None]:
        """Close the current producers; transactions prepared or in doubt stay as they are [CLI-62]."""
        for branch in self._in_order:
            row, producer = branch.row, branch.give_up()
            if producer is None:
                continue
            # An abort would hide how `row` ended: recovery notes that first, then ends what is open [DW-13].
            abort = producer.mode is not Mode.TWO_PHASE or row is None or not row.pending
            try:
                yield from do("close producer", branch.id, partial(producer.close, abort=abort))
            except (ClientError, InDoubt) as exc:
                _log.warning("%s: its former producer did not close: %s", branch.id, exc)

    # ---------------------------------------------------------------------------- a transaction

    def begin(self, block: object = None) -> Recipe[D]:
        """Begin both halves. The caller must call `leave(block)` at the very end."""
        self._enter(Standing.IN_TRANSACTION, Standing.READY, block=block)
        self._outcome, self._deciding = Outcome.NOT_COMMITTED, {}
        try:
            yield from self._renew()
        except BaseException:
            self.standing = Standing.UNSETTLED
            raise
        self._started_at_ms = self._making.clock.now_ms()
        self._began_ms = self._making.clock.monotonic_ms()
        try:
            txn = yield from do("begin database", "", partial(self._open, self._store.begin))
            for branch in self._in_order:
                yield from do("begin", branch.id, branch.producer.begin_transaction)
                branch.in_transaction = True
        except BaseException:  # a producer that cannot begin, or may have begun, is unusable
            yield from self._back_out(self._database, lost=self._database is not None)
            raise
        return txn

    def _open(self, begin: "Callable[[], D | Awaitable[D]]") -> "D | Awaitable[D]":
        """Begin in the database, and keep the transaction before any interrupt so that it is released."""
        self._database = begun = begin()  # type: ignore[assignment]
        if not inspect.isawaitable(begun):
            return begun
        self._database = None
        return self._opened(begun)

    async def _opened(self, begun: "Awaitable[D]") -> D:
        self._database = txn = await begun
        return txn

    def _renew(self) -> Recipe[None]:
        """Ensure that no producer initialises an id, ending its transaction, after another writer's claim.

        Most transactions return the next producer epoch. After one that did not, or after recovery in mode
        `resume`, a producer calls InitProducerId when it begins. In `resume` a check of the owner before that
        is the best possible [DW-9]. A transaction left open by a failed block is ended the same way [DW-13].
        """
        stale = [branch for branch in self._in_order if branch.in_transaction or branch.producer.needs_claim]
        for branch in stale:
            yield from self._check_owner(branch)
        if any(branch.producer.mode is not Mode.RESUME for branch in stale):
            yield from self._drop_producers()
            yield from self._recovered(accept_torn=False)

    def commit(self, txn: D, *, wait_visible: bool = False) -> Recipe[None]:
        """Commit both halves [DW-7].

        Raises: the failure, if it came before the database's commit; both halves are rolled back. InDoubt
            when that commit or one in Kafka has an unknown outcome. Torn if the cluster had aborted.
        """
        if self._is_forked(txn):
            self.check_process()
        try:
            rows = yield from self._prepare(txn)
        except BaseException as exc:
            yield from self._back_out(txn, lost=_is_lost(exc))
            raise
        self.standing = Standing.UNSETTLED
        refusal = yield from self._commit_database(txn, rows)
        if refusal is not None:
            yield from self._back_out(txn, lost=_is_lost(refusal))
            raise refusal
        for branch, row in rows:
            branch.row = row
        yield from self._commit_kafka(rows)
        self.standing = Standing.READY
        if wait_visible:
            for branch, row in rows:
                yield from self._seen_by_readers(branch, row.state)

    def _commit_database(self, txn: D, rows: "Rows[P]") -> Recipe[Exception | None]:
        """Commit the database; return None, or the reason why it certainly did not commit [DW-3]."""
        self._deciding, self._outcome = self._states(rows), Outcome.UNKNOWN
        try:
            yield from do("commit database", "", txn.commit)
        except NotCommitted as exc:
            self._outcome = Outcome.NOT_COMMITTED
            return exc.cause
        except Exception as exc:  # lost answer or time limit: it may have committed
            doubt = self._doubt(f"whether the database committed is not known: {told(exc)}", rows)
            yield from self._rolled_back(txn)
            raise doubt from exc
        except BaseException as exc:
            exc.add_note(f"{self.name}: whether both halves are committed is not known: recover() finds out")
            yield from self._rolled_back(txn)
            raise
        self._database = None
        self._outcome = Outcome.COMMITTED
        return None

    def _states(self, rows: "Rows[P]") -> Mapping[str, PreparedTxnState]:
        """Return the transactions that the rows name, for clusters to which records were sent."""
        return {branch.id: row.state for branch, row in rows if row is not branch.claimed() and row.state}

    def _doubt(self, text: str, rows: "Rows[P]") -> WriteInDoubt:
        """Create the error to raise; the next recovery sets its outcome."""
        self._in_doubt = WriteInDoubt(f"{self.name}: {text}; recover() finds out", self._states(rows))
        return self._in_doubt

    def rollback(self, txn: D, cause: BaseException) -> Recipe[None]:
        """Roll back both halves because the block raised `cause`."""
        if self._is_forked(txn):
            return
        yield from self._back_out(txn, lost=_is_lost(cause))

    def _is_forked(self, txn: D) -> bool:
        """Return whether this is a forked child; both halves then belong to the parent [DW-11]."""
        if not self.home.is_elsewhere:
            return False
        leave_to_parent(txn)
        abandon = getattr(txn, "abandon", None)
        if abandon is not None:
            abandon()
        return True

    def _prepare(self, txn: D) -> "Recipe[Rows[P]]":
        if self.standing is Standing.CLOSED:
            raise NotRecovered(f"{self.name}: {self._why_not()}; neither half is committed")
        rows = []
        for branch in self._in_order:
            token = yield from do("prepare", branch.id, branch.producer.prepare_transaction)
            rows.append((branch, self._row(branch, token)))
        for branch, row in rows:
            yield from do("record", branch.id, partial(txn.record, row, branch.claimed()))
        for branch, row in rows:
            if row is not branch.claimed():
                self._check_time(row)
        return rows

    def _check_time(self, row: StoredState) -> None:
        """Raise TooLate while both halves can still be rolled back [DW-10]."""
        took_ms = self._making.clock.monotonic_ms() - self._began_ms
        if row.timeout_ms is not None and took_ms > row.timeout_ms * LATEST_SHARE:
            raise TooLate(row.transactional_id, took_ms, row.timeout_ms)

    def _row(self, branch: Branch[P], token: PreparedTxnState) -> StoredState:
        """Build the row for `token`; unchanged if nothing was sent, and still recorded as the fence."""
        row = branch.claimed()
        if not token:
            return row
        return replace(
            row,
            state=token,
            settled=False,
            completing=False,
            notes=True,
            alone=self._alone,
            former_producer_ids=row.after(token),
            cluster_id=branch.cluster_id,
            transaction_version=branch.producer.transaction_version,
            started_at_ms=self._started_at_ms,
            # KIP-939: the coordinator never aborts a two-phase commit transaction by timeout.
            timeout_ms=None if branch.producer.mode is Mode.TWO_PHASE else branch.timeout_ms,
        )

    def _commit_kafka(self, rows: "Rows[P]") -> Recipe[None]:
        """Commit in every cluster after the database has decided, even if one of them fails."""
        torn: list[DecisionExpired] = []
        doubts: list[Exception] = []
        for branch in self._in_order:
            try:
                yield from do("commit", branch.id, branch.producer.commit_transaction)
                branch.in_transaction = False
                branch.finished = branch.claimed().state
            except DecisionExpired as exc:
                torn.append(exc)
            except Exception as exc:  # from the client, or from a signal handler
                doubts.append(exc)
            except BaseException as exc:
                exc.add_note(f"{self.name}: the database has committed: recover() finishes Kafka's half")
                raise
        if torn:
            raise Torn("; ".join(map(str, torn))) from torn[0]
        if doubts:
            text = "the database has committed, and Kafka's half is to be finished by recover(): "
            states = {branch.id: row.state for branch, row in rows if row.state}
            doubt = WriteInDoubt(f"{self.name}: {text}" + "; ".join(map(told, doubts)), states)
            doubt.settle(Outcome.COMMITTED)
            raise doubt from doubts[0]

    def _back_out(self, txn: D | None, *, lost: bool = False) -> Recipe[None]:
        """Roll back undecided halves. A half that cannot be reached now is left to recovery.

        Args:
            lost: another writer may own the id by now; only a claim takes it back.
        """
        closed = self.standing is Standing.CLOSED
        self.standing = Standing.UNSETTLED
        clean = (txn is None or (yield from self._rolled_back(txn))) and not lost
        clean = (yield from self._abort_open()) and clean
        if closed:
            self.standing = Standing.CLOSED
        elif clean:
            self.standing = Standing.READY

    def _abort_open(self) -> Recipe[bool]:
        """Abort open Kafka transactions where that hides nothing; return False if recovery is needed."""
        clean = True
        for branch in self._in_order:
            if not branch.in_transaction:
                continue
            try:
                if not (yield from self._may_abort(branch)):
                    continue
                yield from do("abort", branch.id, branch.producer.abort_transaction)
                branch.in_transaction = False
            except (DualWriteError, ClientError, InDoubt) as exc:
                _log.warning("%s: its transaction could not be aborted: %s", branch.id, exc)
                clean = False
        return clean

    def _may_abort(self, branch: Branch[P]) -> Recipe[bool]:
        """Record that the previous transaction is finished, before an abort hides it in the cluster [DW-13].

        Returns: False if that failed and nothing else ends the open transaction; it then stays open, and the
            next transaction of this writer, or a recovery, records it first.
        Raises: Fenced and other DualWriteErrors: another writer must end the transaction.
        """
        try:
            if _as_finished(branch).settled:
                yield from self._note(branch, settled=True)
        except DualWriteError:
            raise
        except Exception as exc:
            _log.warning("%s: it could not be noted that its last one is finished: %s", branch.id, told(exc))
            return branch.producer.mode is not Mode.TWO_PHASE
        return True

    def _rolled_back(self, txn: D) -> Recipe[bool]:
        """Roll back the database's half; return whether it succeeded. A failure is only logged."""
        try:
            yield from do("roll back", "", txn.rollback)
        except Exception as exc:
            _log.warning("%s: the database's transaction could not be rolled back: %s", self.name, exc)
            return False
        self._database = None
        return True

    def _seen_by_readers(self, branch: Branch[P], token: PreparedTxnState) -> Recipe[None]:
        """Wait until the transaction markers are written, so that read_committed consumers see records."""
        if not token:
            return
        admin, clock = branch.admin, self._making.clock
        check(admin is not None, "a committed transaction without an administrator")
        assert admin is not None
        give_up_at = clock.monotonic_ms() + VISIBLE_MS_MAX
        pauses = iter(_PAUSES_S)
        while True:
            try:
                answers = yield from do("look", branch.id, partial(admin.describe_transactions, [branch.id]))
                state = answers.one(branch.id).state
            except ClientError as exc:
                raise NotVisible(f"{branch.id}: {token} is committed; not looked at: {exc}") from exc
            if state not in _DECIDING:
                return
            if clock.monotonic_ms() > give_up_at:
                raise NotVisible(
                    f"{branch.id}: {token} is committed, and after {VISIBLE_MS_MAX} ms not visible"
                )
            yield from do("pause", branch.id, partial(self._making.pause, next(pauses, _PAUSES_S[-1])))

    def close(self) -> Recipe[None]:
        """Close the clients. Prepared transactions are left to recovery; undecided ones are aborted.

        An abort is skipped if it would hide how the previous transaction ended and that cannot be recorded
        [DW-13]. In a forked child nothing is ended, because everything belongs to the parent.
        """
        if self.home.is_elsewhere:
            leave_to_parent((self._database, self._store))
            self.standing = Standing.CLOSED
            return
        within = self.standing in _WITHIN  # its open database transaction would block _abort_open's note
        self.standing = Standing.CLOSED
        if not within and self._database is not None:  # its locks would outlive this writer
            yield from self._rolled_back(self._database)
        # Once the database was asked to commit, its row decides, and only a claim may ask it [DW-3].
        if not within and self._outcome is Outcome.NOT_COMMITTED:
            yield from self._abort_open()
        yield from self._drop_producers()
        for branch in self._in_order:
            admin, branch.admin = branch.admin, None
            if admin is not None:
                yield from do("close admin", branch.id, admin.close)


def _is_lost(cause: BaseException) -> bool:
    """Return whether another writer may own the id by now, so that later transactions would fail too.

    KIP-890 lets a producer abort after INVALID_PRODUCER_EPOCH, but here the epoch would stay too old.
    """
    if isinstance(cause, BrokerRefused):
        return isinstance(cause, FencedInKafka) or cause.code == ErrorCode.INVALID_PRODUCER_EPOCH
    return isinstance(cause, Fenced | AbortRequired | DatabaseBehind)


Rows = list[tuple[Branch[P], StoredState]]
"""Each cluster's branch with the row to record for it."""

# Errors for halves that differ for good; an operator repairs them and passes accept_torn.
_DIFFER: Final[Mapping[Finding, Callable[[StoredState, Seen | None], Torn | DatabaseBehind]]] = {
    Finding.FORCED: lambda row, _: conclusions.torn(row),
    Finding.OVERRULED: conclusions.overruled,
    Finding.BEHIND: conclusions.behind,
}
_SETTLED_FIRST: Final = frozenset({Finding.FINISHED, Finding.STALE, *_DIFFER})


def _as_finished(branch: Branch[P]) -> StoredState:
    """Return the row, as settled if this writer has itself seen both halves committed."""
    row = branch.claimed()
    return replace(row, settled=True) if row.state == branch.finished else row


def told(exc: Exception) -> str:
    """Return an exception's message, or its repr if that says more."""
    return str(exc) if isinstance(exc, TallystickError) and str(exc) else repr(exc)
