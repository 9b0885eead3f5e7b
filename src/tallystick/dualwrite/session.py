"""The recipe of a dual write, step by step, and the recipe of its recovery. One of each, for both drivers.

Normal processing, as in KIP-939: begin the database's transaction, then Kafka's; the user's rows and records;
prepare Kafka; record the prepared transaction beside the rows; commit the database; commit Kafka. The commit
of the database is the one moment at which both are decided [DW-7]. Hence:

- What fails before it takes both halves back.
- While its own outcome is not known, nothing is done to Kafka's half, which stays prepared: only a claim can
  tell, and that is recovery's [DW-3]. It is known when the step has returned, or has raised NotCommitted; an
  exception out of a signal's handler may come when COMMIT was answered, and says nothing.
- What fails after it leaves a half to be finished, and recovery finishes it.

Recovery claims before it reads, and reads before it asks Kafka [DW-5]; then it describes before it
initialises. A cluster's half is finished only after every verdict that would halt has been ruled out, and
only if the row is still ours once the id is initialised [DW-9]: the claim keeps earlier writers from
deciding, that look finds out later ones, and who comes after it initialises the id after us.

A session stands in one place (`Standing`); after anything that left a half open it is UNSETTLED, and nothing
but recovery is legal, which throws the producers away and makes others: there is one way to recover.
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
"""How long `wait_visible` waits for the markers."""
LATEST_SHARE: Final = 0.75
"""Of transaction.timeout.ms, where the cluster keeps to it: later than that the database is not committed."""
_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_DECIDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})

D = TypeVar("D", bound=Transacting)


class Standing(Enum):
    """Where a writer stands; the value is what an error says of it."""

    NEW = "it has not been recovered"
    READY = "it is ready"
    IN_TRANSACTION = "it is in a transaction"
    RECOVERING = "it is being recovered"
    UNSETTLED = "a transaction before was left open"
    CLOSED = "it is closed"


_WITHIN: Final = frozenset({Standing.IN_TRANSACTION, Standing.RECOVERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Making(Generic[P]):
    """How a session makes what it needs; the difference between the two facades.

    pause  waits for some seconds
    """

    producer: MakeProducer[P]
    admin: MakeAdmin
    pause: Callable[[float], object]
    clock: Clock


class Session(Generic[D, P]):
    """A writer's transactions, one after the other. Its methods are recipes: a driver runs them."""

    def __init__(
        self,
        store: Storing[D],
        configs: Mapping[str, Mapping[str, object]],
        making: Making[P],
        *,
        alone: bool = True,
    ) -> None:
        """Args:
        alone: its ids are of no pool.
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
        # In one order everywhere, so that two writers never wait for each other's rows.
        self._in_order: Sequence[Branch[P]] = sorted(self.branches.values(), key=lambda branch: branch.id)
        self._store = store
        self._making = making
        self._lock = Lock()
        self._started_at_ms = self._began_ms = 0
        self.home = Home()
        self._block: object = None
        self._database: D | None = None  # begun and not ended, as far as is known
        self._in_doubt: WriteInDoubt | None = None
        self.offsets = SentOffsets()
        self._outcome = Outcome.NOT_COMMITTED  # of the last block, or the one that is open
        self._deciding: Mapping[str, PreparedTxnState] = {}

    @property
    def name(self) -> str:
        return ", ".join([branch.id for branch in self._in_order])

    def _enter(self, into: Standing, *allowed: Standing, block: object) -> None:
        self.check_process()  # first: who holds the lock may not have been copied
        with self._lock:
            if self.standing not in allowed:
                raise NotRecovered(f"{self.name}: {self._why_not()}")
            self.home.enter(self.name)
            self._block = block
            self.standing = into

    def leave(self, block: object) -> None:
        """The call that entered with `block` is over, however it ended. Does nothing when all was done.

        An interrupt may have come where no recipe heard of it; then only recovery knows what to do.
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
        """Can a transaction begin, in this process?"""
        return self.standing is Standing.READY and not self.home.is_elsewhere

    def check_process(self) -> None:
        """Raises: NotYours in a child of the process that uses this writer."""
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
        """Bring both halves of every id to the same end.

        Order: claims, in the database; descriptions; halting verdicts; only then anything in Kafka.
        """
        self._enter(Standing.RECOVERING, Standing.NEW, Standing.READY, Standing.UNSETTLED, block=block)
        try:
            if self._database is not None:  # its locks would keep the claim waiting
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
            for branch in self._in_order:  # the next recovery compares with it, too
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
            except (Torn, DatabaseBehind) as exc:  # the other clusters are brought to their end first
                differ.append(exc)
        if differ:
            raise type(differ[0])("; ".join(map(str, differ)))
        return Report(tuple(ids))

    def _tell_outcome(self, known: Mapping[str, StoredState | None]) -> None:
        """Every row is claimed: what was in doubt was committed if they name it.

        It was not, and never will be, if a row is as it was before. Any other row is of another writer, which
        had the id in between, and may have come after either: that stays UNKNOWN.
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
        """What recovery would find, and change nothing: neither claim nor init. It may be old news."""
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
            yield from self._note(branch, settled=True)  # before init wipes out the proof
        elif finding in (Finding.DECIDED, Finding.UNSEEN):
            yield from self._note(branch, settled=False)
        producer = self._making.producer(branch.config)
        branch.use(producer)
        yield from do("init", branch.id, partial(producer.init_transactions, True))
        mode = producer.mode
        check(mode is not None, "a recovered producer without a mode")
        assert mode is not None
        yield from self._check_owner(branch)
        verdict = VERDICTS[finding, mode]
        if verdict is Verdict.HALT:
            raise Halted(f"{branch.id}: {finding.value}, and mode {mode.value} rests on what it shows")
        try:
            done = yield from do("complete", branch.id, partial(producer.complete_transaction, token))
        except DecisionExpired as exc:
            raise conclusions.torn(row) from exc
        yield from self._note(branch, settled=True)
        branch.finished = branch.claimed().state
        return conclusions.recovered(row, shown, finding, verdict, conclusions.DID[done])

    def _check_owner(self, branch: Branch[P]) -> Recipe[None]:
        """Raises: Fenced if the row was claimed since: then what is open may be decided, and is not ours."""
        row = branch.claimed()
        yield from do("check owner", branch.id, partial(look_under_lock, self._store, row))

    def _note(self, branch: Branch[P], *, settled: bool) -> Recipe[None]:
        """Note that both halves are finished, or that the other one is about to be.

        Not needed for any outcome: it keeps what InitProducerId wipes out.
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
        """Close what was used before; what is prepared or in doubt stays as it is [CLI-62]."""
        for branch in self._in_order:
            row, producer = branch.row, branch.give_up()
            if producer is None:
                continue
            # What an abort would hide is noted by recovery, which then ends what is open [DW-13].
            abort = producer.mode is not Mode.TWO_PHASE or row is None or not row.pending
            try:
                yield from do("close producer", branch.id, partial(producer.close, abort=abort))
            except (ClientError, InDoubt) as exc:
                _log.warning("%s: its former producer did not close: %s", branch.id, exc)

    # ---------------------------------------------------------------------------- a transaction

    def begin(self, block: object = None) -> Recipe[D]:
        """Begin both halves. Whoever calls it calls `leave(block)` at the very end."""
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
        except BaseException:  # a producer that cannot begin, or may have begun, is of no more use
            yield from self._back_out(self._database, lost=self._database is not None)
            raise
        return txn

    def _open(self, begin: "Callable[[], D | Awaitable[D]]") -> "D | Awaitable[D]":
        """Begin in the database; noted before anything can interrupt, so that it is given back."""
        self._database = begun = begin()  # type: ignore[assignment]
        if not inspect.isawaitable(begun):
            return begun
        self._database = None
        return self._opened(begun)

    async def _opened(self, begun: "Awaitable[D]") -> D:
        self._database = txn = await begun
        return txn

    def _renew(self) -> Recipe[None]:
        """Be sure that no producer initialises its id, which ends what is open, where another has claimed it.

        Most transactions hand the next pair on. Where one did not, or mode `resume` has recovered, a producer
        initialises as it begins. In `resume` nothing can do better than to look before that [DW-9]. What a
        failed block has left open is ended in the same way [DW-13].
        """
        stale = [branch for branch in self._in_order if branch.in_transaction or branch.producer.needs_claim]
        for branch in stale:
            yield from self._check_owner(branch)
        if any(branch.producer.mode is not Mode.RESUME for branch in stale):
            yield from self._drop_producers()
            yield from self._recovered(accept_torn=False)

    def commit(self, txn: D, *, wait_visible: bool = False) -> Recipe[None]:
        """Decide both halves [DW-7].

        Raises: whatever failed before the database's commit, and both are taken back. InDoubt when that, or
            a commit in Kafka, has an unknown outcome: recover() finds out. Torn if the cluster had aborted.
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
        """Why the database certainly did not commit; None if it did [DW-3]."""
        self._deciding, self._outcome = self._states(rows), Outcome.UNKNOWN
        try:
            yield from do("commit database", "", txn.commit)
        except NotCommitted as exc:
            self._outcome = Outcome.NOT_COMMITTED
            return exc.cause
        except Exception as exc:  # the answer was lost, or a time limit has struck: it may have committed
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
        """What the rows name, where anything was sent."""
        return {branch.id: row.state for branch, row in rows if row is not branch.claimed() and row.state}

    def _doubt(self, text: str, rows: "Rows[P]") -> WriteInDoubt:
        """What is raised, and is told the outcome by the next recovery."""
        self._in_doubt = WriteInDoubt(f"{self.name}: {text}; recover() finds out", self._states(rows))
        return self._in_doubt

    def rollback(self, txn: D, cause: BaseException) -> Recipe[None]:
        """Take both halves back, because the block has raised `cause`."""
        if self._is_forked(txn):
            return
        yield from self._back_out(txn, lost=_is_lost(cause))

    def _is_forked(self, txn: D) -> bool:
        """Is this a child of the process that began? Then both halves are the parent's [DW-11]."""
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
        """Raises: TooLate while both halves can still be taken back [DW-10]."""
        took_ms = self._making.clock.monotonic_ms() - self._began_ms
        if row.timeout_ms is not None and took_ms > row.timeout_ms * LATEST_SHARE:
            raise TooLate(row.transactional_id, took_ms, row.timeout_ms)

    def _row(self, branch: Branch[P], token: PreparedTxnState) -> StoredState:
        """The row that goes with `token`; as it was, where nothing was sent: it is still the fence."""
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
            timeout_ms=None if branch.producer.mode is Mode.TWO_PHASE else branch.timeout_ms,
        )

    def _commit_kafka(self, rows: "Rows[P]") -> Recipe[None]:
        """The database has decided: every cluster is told, also after one of them failed."""
        torn: list[DecisionExpired] = []
        doubts: list[Exception] = []
        for branch in self._in_order:
            try:
                yield from do("commit", branch.id, branch.producer.commit_transaction)
                branch.in_transaction = False
                branch.finished = branch.claimed().state
            except DecisionExpired as exc:
                torn.append(exc)
            except Exception as exc:  # the client's, or out of a signal's handler
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
        """Take back what nobody has decided. What cannot be reached now is left to recovery.

        Args:
            lost: the id is another's by now: only a claim makes it ours again.
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
        """Abort what is open in Kafka, where that hides nothing; False if it has to be recovered."""
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
        """Note that the transaction before is finished: an abort hides that in the cluster [DW-13].

        Where that cannot be noted, and nothing else ends what is open, it is left so: the next transaction of
        this writer, or a recovery, notes first. Raises: Fenced and its like: it is for another to end.
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
        """End the database's half; True if that went well. Its failure hides no other."""
        try:
            yield from do("roll back", "", txn.rollback)
        except Exception as exc:
            _log.warning("%s: the database's transaction could not be rolled back: %s", self.name, exc)
            return False
        self._database = None
        return True

    def _seen_by_readers(self, branch: Branch[P], token: PreparedTxnState) -> Recipe[None]:
        """Wait until the markers are written: then every reader of committed records is past them."""
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
        """End the clients. What is prepared is left to recovery; what nobody has decided on is aborted.

        Unless that would hide how the transaction before it ended, and it cannot be noted [DW-13]. In a
        forked child nothing is ended: all of it is the parent's.
        """
        if self.home.is_elsewhere:
            leave_to_parent((self._database, self._store))
            self.standing = Standing.CLOSED
            return
        within = self.standing in _WITHIN  # its transaction of the database is open, and would be waited for
        self.standing = Standing.CLOSED
        # Once the database was asked to commit, its row decides, and only a claim may ask it [DW-3].
        if not within and self._outcome is Outcome.NOT_COMMITTED:
            yield from self._abort_open()
        yield from self._drop_producers()
        for branch in self._in_order:
            admin, branch.admin = branch.admin, None
            if admin is not None:
                yield from do("close admin", branch.id, admin.close)


def _is_lost(cause: BaseException) -> bool:
    """May the id be another's by now? Then no later transaction of this writer would do any better.

    An epoch that is too old can be aborted (KIP-890): there is nothing to abort, and it stays too old.
    """
    if isinstance(cause, BrokerRefused):
        return isinstance(cause, FencedInKafka) or cause.code == ErrorCode.INVALID_PRODUCER_EPOCH
    return isinstance(cause, Fenced | AbortRequired | DatabaseBehind)


Rows = list[tuple[Branch[P], StoredState]]
"""Each cluster's half, and the row that is recorded for it."""

# What is said of halves that differ for good; a person repairs them, and says so.
_DIFFER: Final[Mapping[Finding, Callable[[StoredState, Seen | None], Torn | DatabaseBehind]]] = {
    Finding.FORCED: lambda row, _: conclusions.torn(row),
    Finding.OVERRULED: conclusions.overruled,
    Finding.BEHIND: conclusions.behind,
}
_SETTLED_FIRST: Final = frozenset({Finding.FINISHED, Finding.STALE, *_DIFFER})


def _as_finished(branch: Branch[P]) -> StoredState:
    """The row; settled, if this writer itself has seen both halves of it committed."""
    row = branch.claimed()
    return replace(row, settled=True) if row.state == branch.finished else row


def told(exc: Exception) -> str:
    """What an exception says; its class where that says more."""
    return str(exc) if isinstance(exc, TallystickError) and str(exc) else repr(exc)
