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

A session is in one state (`WriterState`). After anything that left a half open it is UNSETTLED, and only
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
from tallystick.client.transactions.modes import Mode, TxnDescription
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite import conclusions
from tallystick.dualwrite.branch import ClusterBranch
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
from tallystick.dualwrite.forks import OwningProcess, leak_reference
from tallystick.dualwrite.model import NOTHING, StoredState
from tallystick.dualwrite.offsets import OffsetsOfBlock
from tallystick.dualwrite.ports import AdminFactory, P, ProducerFactory, StorePort, StoreTransactionPort
from tallystick.dualwrite.recipes import Recipe, run_step
from tallystick.dualwrite.recovery import (
    VERDICTS,
    ClusterHalf,
    Finding,
    RecoveredId,
    Report,
    Verdict,
    compare_halves,
)
from tallystick.dualwrite.row_lock import begin_briefly, check_owner_locked
from tallystick.kernel.check import require
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import InDoubt, TallystickError
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace

_log = logging.getLogger("tallystick.dualwrite")

VISIBLE_MS_MAX: Final = 30_000
"""Maximum time that `wait_visible` waits for the transaction markers."""
COMMIT_DEADLINE_SHARE: Final = 0.75
"""Share of transaction.timeout.ms, where it applies, after which the database is no longer committed."""
_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_MARKERS_PENDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})

D = TypeVar("D", bound=StoreTransactionPort)


class WriterState(Enum):
    """The state of a writer. The value is its text in errors."""

    NEW = "it has not been recovered"
    READY = "it is ready"
    IN_TRANSACTION = "it is in a transaction"
    RECOVERING = "it is being recovered"
    UNSETTLED = "a transaction before was left open"
    CLOSED = "it is closed"


_BUSY: Final = frozenset({WriterState.IN_TRANSACTION, WriterState.RECOVERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFactories(Generic[P]):
    """Factories and clock of a session; the only difference between the blocking and asyncio facades.

    pause  sleeps for a number of seconds
    """

    create_producer: ProducerFactory[P]
    create_admin: AdminFactory
    pause: Callable[[float], object]
    clock: Clock


class DualWriteSession(Generic[D, P]):
    """A writer's transactions, one after the other. Its methods are recipes, run by a driver."""

    def __init__(
        self,
        store: StorePort[D],
        configs: Mapping[str, Mapping[str, object]],
        making: SessionFactories[P],
        *,
        alone: bool = True,
    ) -> None:
        """Create a session for one or more clusters.

        Args:
            alone: its ids belong to no pool.
        Raises: BadConfig with all problems of the first cluster that has any.
        """
        self._is_alone = alone
        self.state = WriterState.NEW
        self.branches: Mapping[str, ClusterBranch[P]] = {
            cluster: ClusterBranch(cluster, config) for cluster, config in configs.items()
        }
        ids = [branch.id for branch in self.branches.values()]
        if not ids or len(set(ids)) != len(ids):
            raise BadConfig(f"transactional.id: every cluster needs one of its own, not {', '.join(ids)}")
        # The same order everywhere, so that two writers never deadlock on each other's rows.
        self._branches_by_id: Sequence[ClusterBranch[P]] = sorted(
            self.branches.values(), key=lambda branch: branch.id
        )
        self._store = store
        self._factories = making
        self._lock = Lock()
        self._started_at_ms = self._began_ms = 0
        self.owning_process = OwningProcess()
        self._block: object = None
        self._database: D | None = None  # begun and, as far as known, not ended
        self._pending_doubt: WriteInDoubt | None = None
        self.offsets = OffsetsOfBlock()
        self._outcome = Outcome.NOT_COMMITTED  # of the last block or the open one
        self._states_at_commit: Mapping[str, PreparedTxnState] = {}

    @property
    def ids_text(self) -> str:
        return ", ".join([branch.id for branch in self._branches_by_id])

    def _enter(self, into: WriterState, *allowed: WriterState, block: object) -> None:
        self.check_process()  # first: after fork() the lock may be held by a thread that does not exist here
        with self._lock:
            if self.state not in allowed:
                raise NotRecovered(f"{self.ids_text}: {self._explain_state()}")
            self.owning_process.claim_process(self.ids_text)
            self._block = block
            self.state = into

    def leave(self, block: object) -> None:
        """Leave the call that entered with `block`, however it ended. Does nothing if it already finished.

        An interrupt may have occurred outside any recipe; the session is then UNSETTLED and needs recovery.
        """
        if self._block is not block:
            return
        if self.owning_process.is_forked_child:
            self.offsets.clear()
            return
        if self.state in _BUSY:
            self.state = WriterState.UNSETTLED
        self.offsets.apply_outcome(self._outcome)

    @property
    def is_ready(self) -> bool:
        """Whether a transaction can begin in this process."""
        return self.state is WriterState.READY and not self.owning_process.is_forked_child

    def check_process(self) -> None:
        """Raise NotYours in a forked child of the process that uses this writer."""
        self.owning_process.check_process(f"{self.ids_text}: this writer")

    def _explain_state(self) -> str:
        match self.state:
            case WriterState.NEW | WriterState.UNSETTLED:
                return f"{self.state.value}: call recover() first"
            case WriterState.IN_TRANSACTION:
                return "it is in a transaction, and has one at a time; a WriterPool has more"
            case state:
                return str(state.value)

    # ------------------------------------------------------------------------------ recovery

    def recover(self, *, accept_torn: bool = False, block: object = None) -> Recipe[Report]:
        """Bring both halves of every id to the same outcome.

        Order: claims in the database; descriptions; halting verdicts; only then any change in Kafka.
        """
        self._enter(
            WriterState.RECOVERING, WriterState.NEW, WriterState.READY, WriterState.UNSETTLED, block=block
        )
        try:
            if self._database is not None:  # its locks would block the claim
                yield from self._roll_back_database(self._database)
            yield from self._drop_producers()
            report = yield from self._recover_branches(accept_torn=accept_torn)
        except BaseException:
            self.state = WriterState.UNSETTLED
            raise
        self.state = WriterState.READY
        return report

    def _recover_branches(self, *, accept_torn: bool) -> Recipe[Report]:
        known = {branch.id: branch.row for branch in self._branches_by_id}
        try:
            report = yield from self._recover_known(known, accept_torn=accept_torn)
        except BaseException:
            for branch in self._branches_by_id:  # the next recovery compares with it too
                branch.row = known[branch.id] or branch.row
            raise
        return report

    def _recover_known(self, known: Mapping[str, StoredState | None], *, accept_torn: bool) -> Recipe[Report]:
        for branch in self._branches_by_id:
            branch.row = yield from run_step("claim", branch.id, partial(self._store.claim, branch.id))
        self._resolve_doubt(known)
        halves: list[tuple[ClusterBranch[P], ClusterHalf, Finding]] = []
        for branch in self._branches_by_id:
            shown = yield from self._describe_branch(branch)
            halves.append((branch, shown, compare_halves(_row_as_finished(branch), shown, known[branch.id])))
        for branch, shown, finding in halves:
            conclusions.raise_if_halted(branch.require_row(), shown, finding)
        ids: list[RecoveredId] = []
        differ: list[Torn | DatabaseBehind] = []
        for branch, shown, finding in halves:
            try:
                ids.append((yield from self._finish_branch(branch, shown, finding, accept_torn=accept_torn)))
            except (Torn, DatabaseBehind) as exc:  # finish the other clusters first
                differ.append(exc)
        if differ:
            raise type(differ[0])("; ".join(map(str, differ)))
        return Report(tuple(ids))

    def _resolve_doubt(self, known: Mapping[str, StoredState | None]) -> None:
        """Determine the outcome of the transaction in doubt from the rows, which are all claimed.

        It is committed if every row names it. It is not, and never will be, if a row is as it was before. A
        row of another writer, which held the id in between, may follow either outcome: that stays UNKNOWN.
        """
        doubt, self._pending_doubt = self._pending_doubt, None
        states = self._states_at_commit if doubt is None else doubt.states
        if not states:
            return
        rows = {branch.id: branch.require_row().state for branch in self._branches_by_id}
        outcome = Outcome.UNKNOWN
        if all(rows[each] == state for each, state in states.items()):
            outcome = Outcome.COMMITTED
        elif any((before := known[each]) is not None and rows[each] == before.state for each in states):
            outcome = Outcome.NOT_COMMITTED
        if doubt is not None and outcome is not Outcome.UNKNOWN:
            doubt.set_outcome(outcome)
        if self._outcome is Outcome.UNKNOWN:
            self._outcome = outcome
        self.offsets.apply_outcome(self._outcome)

    def look(self) -> Recipe[Report]:
        """Report what recovery would find, without claim, InitProducerId or any change. May be outdated."""
        self.owning_process.claim_process(f"{self.ids_text}: this writer")
        ids = []
        for branch in self._branches_by_id:
            row = yield from run_step("read", branch.id, partial(self._store.read_state, branch.id))
            if row is None:
                row = StoredState(transactional_id=branch.id, owner="")
            shown = yield from self._describe_branch(branch)
            finding = compare_halves(row, shown)
            verdict = VERDICTS[finding, branch.strongest_mode]
            ids.append(
                conclusions.report_line(
                    row, shown, finding, verdict, f"would {conclusions.ACTION_PLANNED[verdict]}"
                )
            )
        return Report(tuple(ids))

    def _describe_branch(self, branch: ClusterBranch[P]) -> Recipe[ClusterHalf]:
        admin = branch.admin
        if admin is None:
            admin = branch.admin = self._factories.create_admin(branch.admin_config)
        cluster = yield from run_step("describe cluster", branch.id, admin.describe_cluster)
        branch.cluster_id = cluster.cluster_id
        answers = yield from run_step(
            "describe", branch.id, partial(admin.describe_transactions, [branch.id])
        )
        match answers.failures.get(branch.id):
            case None:
                return ClusterHalf(
                    txn_state=conclusions.to_txn_state(answers.found[branch.id]),
                    cluster_id=cluster.cluster_id,
                )
            case IdExpired():
                return ClusterHalf(txn_state=None, cluster_id=cluster.cluster_id)
            case NotAuthorized() | NotSupported() as why:
                _log.info("%s: cannot be described: %s", branch.id, why.what())
                return ClusterHalf(txn_state=None, is_visible=False, cluster_id=cluster.cluster_id)
            case failure:
                raise failure

    def _finish_branch(
        self, branch: ClusterBranch[P], shown: ClusterHalf, finding: Finding, *, accept_torn: bool
    ) -> Recipe[RecoveredId]:
        row = branch.require_row()
        token = _row_as_finished(branch).pending
        if finding in _CONTRADICTION_ERRORS:
            if not accept_torn:
                raise _CONTRADICTION_ERRORS[finding](row, shown.txn_state)
            token = NOTHING
        if finding in _SETTLED_FIRST or not token:
            yield from self._record_settled(branch, settled=True)  # before InitProducerId erases the proof
        elif finding in (Finding.DECIDED, Finding.UNSEEN):
            yield from self._record_settled(branch, settled=False)
        producer = self._factories.create_producer(branch.config)
        branch.set_producer(producer)
        # KIP-939: keepPreparedTxn=true fences the former producer and leaves its prepared transaction open.
        yield from run_step("init", branch.id, partial(producer.init_transactions, True))
        mode = require(producer.mode, "a recovered producer without a mode")
        yield from self._check_owner(branch)
        verdict = VERDICTS[finding, mode]
        if verdict is Verdict.HALT:
            raise Halted(f"{branch.id}: {finding.value}, and mode {mode.value} rests on what it shows")
        try:
            # KIP-939: completeTransaction commits if `token` names the transaction in doubt, else aborts.
            done = yield from run_step("complete", branch.id, partial(producer.complete_transaction, token))
        except DecisionExpired as exc:
            raise conclusions.torn_error(row) from exc
        yield from self._record_settled(branch, settled=True)
        branch.last_finished = branch.require_row().state
        return conclusions.report_line(row, shown, finding, verdict, conclusions.ACTION_DONE[done])

    def _check_owner(self, branch: ClusterBranch[P]) -> Recipe[None]:
        """Raise Fenced if another writer has claimed the row: it may have decided the open transaction."""
        row = branch.require_row()
        yield from run_step("check owner", branch.id, partial(check_owner_locked, self._store, row))

    def _record_settled(self, branch: ClusterBranch[P], *, settled: bool) -> Recipe[None]:
        """Record in the row that both halves are finished, or that Kafka's half is about to be.

        No outcome depends on it: it preserves what InitProducerId erases.
        """
        row = branch.require_row()
        if not row.state or row.settled or (row.completing and not settled):
            return
        noted = replace(row, settled=settled, completing=row.completing or not settled)
        try:
            briefly = partial(begin_briefly, self._store)
            txn = yield from run_step("begin settling", branch.id, partial(self._open_database, briefly))
            yield from run_step("settle", branch.id, partial(txn.record, noted, row))
            yield from run_step("commit settled", branch.id, txn.commit)
            self._database = None
        except BaseException as exc:
            if self._database is not None:
                yield from self._roll_back_database(self._database)
            if isinstance(exc, NotCommitted):
                raise exc.cause from exc
            raise
        branch.row = noted

    def _drop_producers(self) -> Recipe[None]:
        """Close the current producers; transactions prepared or in doubt stay as they are [CLI-62]."""
        for branch in self._branches_by_id:
            row, producer = branch.row, branch.detach_producer()
            if producer is None:
                continue
            # An abort would hide how `row` ended: recovery notes that first, then ends what is open [DW-13].
            abort = producer.mode is not Mode.TWO_PHASE or row is None or not row.pending
            try:
                yield from run_step("close producer", branch.id, partial(producer.close, abort=abort))
            except (ClientError, InDoubt) as exc:
                _log.warning("%s: its former producer did not close: %s", branch.id, exc)

    # ---------------------------------------------------------------------------- a transaction

    def begin(self, block: object = None) -> Recipe[D]:
        """Begin both halves. The caller must call `leave(block)` at the very end."""
        self._enter(WriterState.IN_TRANSACTION, WriterState.READY, block=block)
        self._outcome, self._states_at_commit = Outcome.NOT_COMMITTED, {}
        try:
            yield from self._renew_producers()
        except BaseException:
            self.state = WriterState.UNSETTLED
            raise
        self._started_at_ms = self._factories.clock.now_ms()
        self._began_ms = self._factories.clock.monotonic_ms()
        try:
            txn = yield from run_step("begin database", "", partial(self._open_database, self._store.begin))
            for branch in self._branches_by_id:
                yield from run_step("begin", branch.id, branch.producer.begin_transaction)
                branch.in_transaction = True
        except BaseException:  # a producer that cannot begin, or may have begun, is unusable
            yield from self._roll_back_both(self._database, lost=self._database is not None)
            raise
        return txn

    def _open_database(self, begin: "Callable[[], D | Awaitable[D]]") -> "D | Awaitable[D]":
        """Begin in the database, and keep the transaction before any interrupt so that it is released."""
        self._database = begun = begin()  # type: ignore[assignment]
        if not inspect.isawaitable(begun):
            return begun
        self._database = None
        return self._await_database(begun)

    async def _await_database(self, begun: "Awaitable[D]") -> D:
        self._database = txn = await begun
        return txn

    def _renew_producers(self) -> Recipe[None]:
        """Ensure that no producer initialises an id, ending its transaction, after another writer's claim.

        Most transactions return the next producer epoch. After one that did not, or after recovery in mode
        `resume`, a producer calls InitProducerId when it begins. In `resume` a check of the owner before that
        is the best possible [DW-9]. A transaction left open by a failed block is ended the same way [DW-13].
        """
        stale = [
            branch for branch in self._branches_by_id if branch.in_transaction or branch.producer.needs_claim
        ]
        for branch in stale:
            yield from self._check_owner(branch)
        if any(branch.producer.mode is not Mode.RESUME for branch in stale):
            yield from self._drop_producers()
            yield from self._recover_branches(accept_torn=False)

    def commit(self, txn: D, *, wait_visible: bool = False) -> Recipe[None]:
        """Commit both halves [DW-7].

        Raises: the failure, if it came before the database's commit; both halves are rolled back. InDoubt
            when that commit or one in Kafka has an unknown outcome. Torn if the cluster had aborted.
        """
        if self._leave_if_forked(txn):
            self.check_process()
        try:
            rows = yield from self._prepare(txn)
        except BaseException as exc:
            yield from self._roll_back_both(txn, lost=_may_be_fenced(exc))
            raise
        self.state = WriterState.UNSETTLED
        refusal = yield from self._commit_database(txn, rows)
        if refusal is not None:
            yield from self._roll_back_both(txn, lost=_may_be_fenced(refusal))
            raise refusal
        for branch, row in rows:
            branch.row = row
        yield from self._commit_kafka(rows)
        self.state = WriterState.READY
        if wait_visible:
            for branch, row in rows:
                yield from self._wait_for_markers(branch, row.state)

    def _commit_database(self, txn: D, rows: "BranchRows[P]") -> Recipe[Exception | None]:
        """Commit the database; return None, or the reason why it certainly did not commit [DW-3]."""
        self._states_at_commit, self._outcome = self._sent_states(rows), Outcome.UNKNOWN
        try:
            yield from run_step("commit database", "", txn.commit)
        except NotCommitted as exc:
            self._outcome = Outcome.NOT_COMMITTED
            return exc.cause
        except Exception as exc:  # lost answer or time limit: it may have committed
            doubt = self._create_doubt(
                f"whether the database committed is not known: {describe_error(exc)}", rows
            )
            yield from self._roll_back_database(txn)
            raise doubt from exc
        except BaseException as exc:
            exc.add_note(
                f"{self.ids_text}: whether both halves are committed is not known: recover() finds out"
            )
            yield from self._roll_back_database(txn)
            raise
        self._database = None
        self._outcome = Outcome.COMMITTED
        return None

    def _sent_states(self, rows: "BranchRows[P]") -> Mapping[str, PreparedTxnState]:
        """Return the transactions that the rows name, for clusters to which records were sent."""
        return {branch.id: row.state for branch, row in rows if row is not branch.require_row() and row.state}

    def _create_doubt(self, text: str, rows: "BranchRows[P]") -> WriteInDoubt:
        """Create the error to raise; the next recovery sets its outcome."""
        self._pending_doubt = WriteInDoubt(
            f"{self.ids_text}: {text}; recover() finds out", self._sent_states(rows)
        )
        return self._pending_doubt

    def rollback(self, txn: D, cause: BaseException) -> Recipe[None]:
        """Roll back both halves because the block raised `cause`."""
        if self._leave_if_forked(txn):
            return
        yield from self._roll_back_both(txn, lost=_may_be_fenced(cause))

    def _leave_if_forked(self, txn: D) -> bool:
        """Return whether this is a forked child; both halves then belong to the parent [DW-11]."""
        if not self.owning_process.is_forked_child:
            return False
        leak_reference(txn)
        abandon = getattr(txn, "abandon", None)
        if abandon is not None:
            abandon()
        return True

    def _prepare(self, txn: D) -> "Recipe[BranchRows[P]]":
        if self.state is WriterState.CLOSED:
            raise NotRecovered(f"{self.ids_text}: {self._explain_state()}; neither half is committed")
        rows = []
        for branch in self._branches_by_id:
            token = yield from run_step("prepare", branch.id, branch.producer.prepare_transaction)
            rows.append((branch, self._build_row(branch, token)))
        for branch, row in rows:
            yield from run_step("record", branch.id, partial(txn.record, row, branch.require_row()))
        for branch, row in rows:
            if row is not branch.require_row():
                self._check_time(row)
        return rows

    def _check_time(self, row: StoredState) -> None:
        """Raise TooLate while both halves can still be rolled back [DW-10]."""
        took_ms = self._factories.clock.monotonic_ms() - self._began_ms
        if row.timeout_ms is not None and took_ms > row.timeout_ms * COMMIT_DEADLINE_SHARE:
            raise TooLate(row.transactional_id, took_ms, row.timeout_ms)

    def _build_row(self, branch: ClusterBranch[P], token: PreparedTxnState) -> StoredState:
        """Build the row for `token`; unchanged if nothing was sent, and still recorded as the fence."""
        row = branch.require_row()
        if not token:
            return row
        return replace(
            row,
            state=token,
            settled=False,
            completing=False,
            notes=True,
            alone=self._is_alone,
            former_producer_ids=row.former_ids_before(token),
            cluster_id=branch.cluster_id,
            transaction_version=branch.producer.transaction_version,
            started_at_ms=self._started_at_ms,
            # KIP-939: the coordinator never aborts a two-phase commit transaction by timeout.
            timeout_ms=None if branch.producer.mode is Mode.TWO_PHASE else branch.timeout_ms,
        )

    def _commit_kafka(self, rows: "BranchRows[P]") -> Recipe[None]:
        """Commit in every cluster after the database has decided, even if one of them fails."""
        torn: list[DecisionExpired] = []
        doubts: list[Exception] = []
        for branch in self._branches_by_id:
            try:
                yield from run_step("commit", branch.id, branch.producer.commit_transaction)
                branch.in_transaction = False
                branch.last_finished = branch.require_row().state
            except DecisionExpired as exc:
                torn.append(exc)
            except Exception as exc:  # from the client, or from a signal handler
                doubts.append(exc)
            except BaseException as exc:
                exc.add_note(f"{self.ids_text}: the database has committed: recover() finishes Kafka's half")
                raise
        if torn:
            raise Torn("; ".join(map(str, torn))) from torn[0]
        if doubts:
            text = "the database has committed, and Kafka's half is to be finished by recover(): "
            states = {branch.id: row.state for branch, row in rows if row.state}
            doubt = WriteInDoubt(f"{self.ids_text}: {text}" + "; ".join(map(describe_error, doubts)), states)
            doubt.set_outcome(Outcome.COMMITTED)
            raise doubt from doubts[0]

    def _roll_back_both(self, txn: D | None, *, lost: bool = False) -> Recipe[None]:
        """Roll back undecided halves. A half that cannot be reached now is left to recovery.

        Args:
            lost: another writer may own the id by now; only a claim takes it back.
        """
        closed = self.state is WriterState.CLOSED
        self.state = WriterState.UNSETTLED
        clean = (txn is None or (yield from self._roll_back_database(txn))) and not lost
        clean = (yield from self._abort_open()) and clean
        if closed:
            self.state = WriterState.CLOSED
        elif clean:
            self.state = WriterState.READY

    def _abort_open(self) -> Recipe[bool]:
        """Abort open Kafka transactions where that hides nothing; return False if recovery is needed."""
        clean = True
        for branch in self._branches_by_id:
            if not branch.in_transaction:
                continue
            try:
                if not (yield from self._may_abort(branch)):
                    continue
                yield from run_step("abort", branch.id, branch.producer.abort_transaction)
                branch.in_transaction = False
            except (DualWriteError, ClientError, InDoubt) as exc:
                _log.warning("%s: its transaction could not be aborted: %s", branch.id, exc)
                clean = False
        return clean

    def _may_abort(self, branch: ClusterBranch[P]) -> Recipe[bool]:
        """Record that the previous transaction is finished, before an abort hides it in the cluster [DW-13].

        Returns: False if that failed and nothing else ends the open transaction; it then stays open, and the
            next transaction of this writer, or a recovery, records it first.
        Raises: Fenced and other DualWriteErrors: another writer must end the transaction.
        """
        try:
            if _row_as_finished(branch).settled:
                yield from self._record_settled(branch, settled=True)
        except DualWriteError:
            raise
        except Exception as exc:
            _log.warning(
                "%s: it could not be noted that its last one is finished: %s", branch.id, describe_error(exc)
            )
            return branch.producer.mode is not Mode.TWO_PHASE
        return True

    def _roll_back_database(self, txn: D) -> Recipe[bool]:
        """Roll back the database's half; return whether it succeeded. A failure is only logged."""
        try:
            yield from run_step("roll back", "", txn.rollback)
        except Exception as exc:
            _log.warning("%s: the database's transaction could not be rolled back: %s", self.ids_text, exc)
            return False
        self._database = None
        return True

    def _wait_for_markers(self, branch: ClusterBranch[P], token: PreparedTxnState) -> Recipe[None]:
        """Wait until the transaction markers are written, so that read_committed consumers see records."""
        if not token:
            return
        admin, clock = branch.admin, self._factories.clock
        admin = require(admin, "a committed transaction without an administrator")
        give_up_at = clock.monotonic_ms() + VISIBLE_MS_MAX
        pauses = iter(_PAUSES_S)
        while True:
            try:
                answers = yield from run_step(
                    "look", branch.id, partial(admin.describe_transactions, [branch.id])
                )
                state = answers.one(branch.id).state
            except ClientError as exc:
                raise NotVisible(f"{branch.id}: {token} is committed; not looked at: {exc}") from exc
            if state not in _MARKERS_PENDING:
                return
            if clock.monotonic_ms() > give_up_at:
                raise NotVisible(
                    f"{branch.id}: {token} is committed, and after {VISIBLE_MS_MAX} ms not visible"
                )
            yield from run_step(
                "pause", branch.id, partial(self._factories.pause, next(pauses, _PAUSES_S[-1]))
            )

    def close(self) -> Recipe[None]:
        """Close the clients. Prepared transactions are left to recovery; undecided ones are aborted.

        An abort is skipped if it would hide how the previous transaction ended and that cannot be recorded
        [DW-13]. In a forked child nothing is ended, because everything belongs to the parent.
        """
        if self.owning_process.is_forked_child:
            leak_reference((self._database, self._store))
            self.state = WriterState.CLOSED
            return
        within = self.state in _BUSY  # its open database transaction would block _abort_open's note
        self.state = WriterState.CLOSED
        if not within and self._database is not None:  # its locks would outlive this writer
            yield from self._roll_back_database(self._database)
        # Once the database was asked to commit, its row decides, and only a claim may ask it [DW-3].
        if not within and self._outcome is Outcome.NOT_COMMITTED:
            yield from self._abort_open()
        yield from self._drop_producers()
        for branch in self._branches_by_id:
            admin, branch.admin = branch.admin, None
            if admin is not None:
                yield from run_step("close admin", branch.id, admin.close)


def _may_be_fenced(cause: BaseException) -> bool:
    """Return whether another writer may own the id by now, so that later transactions would fail too.

    KIP-890 lets a producer abort after INVALID_PRODUCER_EPOCH, but here the epoch would stay too old.
    """
    if isinstance(cause, BrokerRefused):
        return isinstance(cause, FencedInKafka) or cause.code == ErrorCode.INVALID_PRODUCER_EPOCH
    return isinstance(cause, Fenced | AbortRequired | DatabaseBehind)


BranchRows = list[tuple[ClusterBranch[P], StoredState]]
"""Each cluster's branch with the row to record for it."""

# Errors for halves that differ for good; an operator repairs them and passes accept_torn.
_CONTRADICTION_ERRORS: Final[
    Mapping[Finding, Callable[[StoredState, TxnDescription | None], Torn | DatabaseBehind]]
] = {
    Finding.FORCED: lambda row, _: conclusions.torn_error(row),
    Finding.OVERRULED: conclusions.overruled_error,
    Finding.BEHIND: conclusions.database_behind_error,
}
_SETTLED_FIRST: Final = frozenset({Finding.FINISHED, Finding.STALE, *_CONTRADICTION_ERRORS})


def _row_as_finished(branch: ClusterBranch[P]) -> StoredState:
    """Return the row, as settled if this writer has itself seen both halves committed."""
    row = branch.require_row()
    return replace(row, settled=True) if row.state == branch.last_finished else row


def describe_error(exc: Exception) -> str:
    """Return an exception's message, or its repr if that says more."""
    return str(exc) if isinstance(exc, TallystickError) and str(exc) else repr(exc)
