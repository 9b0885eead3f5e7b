"""The recipe of a dual write, step by step, and the recipe of its recovery. One of each, for both drivers.

Normal processing, as in KIP-939: begin the database's transaction, then Kafka's; the user's rows and records;
prepare Kafka; record the prepared transaction beside the rows; commit the database; commit Kafka. The commit
of the database is the one moment at which both are decided [DW-7]. Hence:

- What fails before it takes both halves back.
- While its own outcome is not known, nothing is done to Kafka's half, which stays prepared: only a claim can
  tell, and that is recovery's [DW-3].
- What fails after it leaves a half to be finished, and recovery finishes it.

Recovery claims before it reads, and reads before it asks Kafka [DW-5]; then it describes before it
initialises. A cluster's half is finished only after every verdict that would halt has been ruled out, and
only if the row is still ours once the id is initialised [DW-9]: the claim keeps earlier writers from
deciding, that look finds out later ones, and who comes after it initialises the id after us.

A session stands in one place (`Standing`); after anything that left a half open it is UNSETTLED, and nothing
but recovery is legal, which throws the producers away and makes others: there is one way to recover.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from threading import Lock
from typing import Final, Generic, TypeVar

from tallystick.admin.model import TransactionDescription
from tallystick.client.config import CLIENT_SETTINGS, ROLE_SETTINGS, ProducerConfig
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
from tallystick.client.modes import Mode, Seen
from tallystick.client.prepared import PreparedTxnState
from tallystick.client.transactions import Completion
from tallystick.dualwrite.driving import Recipe, do
from tallystick.dualwrite.errors import (
    CommitUnknown,
    Fenced,
    ForeignCluster,
    Halted,
    LogBehind,
    NotRecovered,
    NotVisible,
    TooLate,
    Torn,
)
from tallystick.dualwrite.halves import Describing, MakeAdmin, MakeProducer, P, Storing, Transacting
from tallystick.dualwrite.model import NOTHING, StoredState
from tallystick.dualwrite.recovery import VERDICTS, Finding, Recovered, Report, Shown, Verdict, find
from tallystick.kernel.check import check
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace

_log = logging.getLogger("tallystick.dualwrite")

VISIBLE_MS_MAX: Final = 30_000
"""How long `wait_visible` waits for the markers."""
LATEST_SHARE: Final = 0.75
"""Of transaction.timeout.ms, where the cluster keeps to it: later than that the database is not committed."""
_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_DECIDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})
_ADMIN_SETTINGS: Final = {**CLIENT_SETTINGS, **ROLE_SETTINGS["admin"]}

D = TypeVar("D", bound=Transacting)


class Standing(Enum):
    """Where a writer stands; the value is what an error says of it."""

    NEW = "it has not been recovered"
    READY = "it is ready"
    IN_TRANSACTION = "it is in a transaction"
    RECOVERING = "it is being recovered"
    UNSETTLED = "a transaction before was left open"
    CLOSED = "it is closed"


class Branch(Generic[P]):
    """One cluster's half: a transactional id, its producer and its row."""

    def __init__(self, cluster: str, config: Mapping[str, object]) -> None:
        two_phase = {"transaction.two.phase.commit.enable": True} if not _says_how_to_keep(config) else {}
        self.cluster = cluster
        self.config: Mapping[str, object] = {**config, **two_phase}
        parsed = ProducerConfig.parse(self.config)
        if parsed.transactional_id is None:
            raise BadConfig("transactional.id: must be set: it names this writer in the database, too")
        if not parsed.modes:
            raise BadConfig("transaction.two.phase.commit.enable or tallystick.modes: one must be set")
        self.id: str = parsed.transactional_id
        self.strongest = Mode(parsed.modes[0])
        self.timeout_ms = parsed.transaction_timeout_ms
        self.admin: Describing | None = None
        self.cluster_id: str | None = None
        self.row: StoredState | None = None
        self._producer: P | None = None
        self.in_transaction = False

    @property
    def admin_config(self) -> Mapping[str, object]:
        """What an administrator of the same cluster is told."""
        return {name: value for name, value in self.config.items() if name in _ADMIN_SETTINGS}

    @property
    def producer(self) -> P:
        check(self._producer is not None, "a producer before recover()")
        assert self._producer is not None
        return self._producer

    def use(self, producer: P | None) -> None:
        self._producer = producer
        self.in_transaction = False

    def give_up(self) -> P | None:
        """The producer, if there is one; it is not ours any more."""
        producer, self._producer = self._producer, None
        self.in_transaction = False
        return producer

    def claimed(self) -> StoredState:
        check(self.row is not None, "a row before recover()")
        assert self.row is not None
        return self.row


def _says_how_to_keep(config: Mapping[str, object]) -> bool:
    return bool({"transaction.two.phase.commit.enable", "tallystick.modes"} & config.keys())


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
        self, store: Storing[D], configs: Mapping[str, Mapping[str, object]], making: Making[P]
    ) -> None:
        """Raises: BadConfig with all problems of the first cluster that has any."""
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

    @property
    def name(self) -> str:
        return ", ".join([branch.id for branch in self._in_order])

    def _enter(self, into: Standing, *allowed: Standing) -> None:
        with self._lock:
            if self.standing not in allowed:
                raise NotRecovered(f"{self.name}: {self._why_not()}")
            self.standing = into

    def _why_not(self) -> str:
        match self.standing:
            case Standing.NEW | Standing.UNSETTLED:
                return f"{self.standing.value}: call recover() first"
            case Standing.IN_TRANSACTION:
                return "it is in a transaction, and has one at a time; a WriterPool has more"
            case standing:
                return str(standing.value)

    # ------------------------------------------------------------------------------ recovery

    def recover(self, *, accept_torn: bool = False) -> Recipe[Report]:
        """Bring both halves of every id to the same end.

        Order: claims, in the database; descriptions; halting verdicts; only then anything in Kafka.
        """
        self._enter(Standing.RECOVERING, Standing.NEW, Standing.READY, Standing.UNSETTLED)
        try:
            yield from self._drop_producers()
            report = yield from self._recovered(accept_torn=accept_torn)
        except BaseException:
            self.standing = Standing.UNSETTLED
            raise
        self.standing = Standing.READY
        return report

    def _recovered(self, *, accept_torn: bool) -> Recipe[Report]:
        for branch in self._in_order:
            branch.row = yield from do("claim", branch.id, partial(self._store.claim, branch.id))
        shown = []
        for branch in self._in_order:
            shown.append((yield from self._show(branch)))
        halves = list(zip(self._in_order, shown, strict=True))
        for branch, each in halves:
            _check_halt(branch.claimed(), each)
        ids, torn = [], []
        for branch, each in halves:
            try:
                ids.append((yield from self._finish(branch, each, accept_torn=accept_torn)))
            except Torn as exc:  # the other clusters are brought to their end first
                torn.append(exc)
        if torn:
            raise Torn("; ".join(each.args[0] for each in torn))
        return Report(tuple(ids))

    def look(self) -> Recipe[Report]:
        """What recovery would find, and change nothing: neither claim nor init. It may be old news."""
        ids = []
        for branch in self._in_order:
            row = yield from do("read", branch.id, partial(self._store.read_state, branch.id))
            if row is None:
                row = StoredState(transactional_id=branch.id, owner="")
            shown = yield from self._show(branch)
            finding = find(row, shown)
            verdict = VERDICTS[finding, branch.strongest]
            ids.append(_recovered(row, shown, finding, verdict, f"would {_WOULD[verdict]}"))
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
                return Shown(seen=_seen(answers.found[branch.id]), cluster_id=cluster.cluster_id)
            case IdExpired():
                return Shown(seen=None, cluster_id=cluster.cluster_id)
            case NotAuthorized() | NotSupported() as why:
                _log.info("%s: cannot be described: %s", branch.id, why.what())
                return Shown(seen=None, visible=False, cluster_id=cluster.cluster_id)
            case failure:
                raise failure

    def _finish(self, branch: Branch[P], shown: Shown, *, accept_torn: bool) -> Recipe[Recovered]:
        row = branch.claimed()
        finding = find(row, shown)
        token = row.pending
        if finding is Finding.FORCED:
            if not accept_torn:
                raise Torn(_torn(row))
            token = NOTHING
        if finding in (Finding.FINISHED, Finding.FORCED):
            yield from self._settle(branch)  # before init wipes out the proof
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
            raise Torn(_torn(row)) from exc
        if not branch.claimed().settled:
            yield from self._settle(branch)
        return _recovered(row, shown, finding, verdict, _DID[done])

    def _check_owner(self, branch: Branch[P]) -> Recipe[None]:
        """Raises: Fenced if the row was claimed since: then what is open may be decided, and is not ours."""
        row = branch.claimed()
        now = yield from do("check owner", branch.id, partial(self._store.read_state, branch.id))
        if now is None or now.owner != row.owner:
            raise Fenced(branch.id, row.owner, "gone" if now is None else now.owner)

    def _settle(self, branch: Branch[P]) -> Recipe[None]:
        """Note that both halves are finished. Not needed for any outcome: it keeps what init wipes out."""
        row = branch.claimed()
        if not row.state or row.settled:
            return
        settled = replace(row, settled=True)
        txn: D = yield from do("begin settling", branch.id, self._store.begin)
        try:
            yield from do("settle", branch.id, partial(txn.record, settled))
            yield from do("commit settled", branch.id, txn.commit)
        except BaseException:
            yield from self._rolled_back(txn)
            raise
        branch.row = settled

    def _drop_producers(self) -> Recipe[None]:
        """Close what was used before; what is prepared or in doubt stays as it is [CLI-62]."""
        for branch in self._in_order:
            producer = branch.give_up()
            if producer is None:
                continue
            try:
                yield from do("close producer", branch.id, producer.close)
            except (ClientError, InDoubt) as exc:
                _log.warning("%s: its former producer did not close: %s", branch.id, exc)

    # ---------------------------------------------------------------------------- a transaction

    def begin(self) -> Recipe[D]:
        """Begin both halves."""
        self._enter(Standing.IN_TRANSACTION, Standing.READY)
        try:
            yield from self._renew()
        except BaseException:
            self.standing = Standing.UNSETTLED
            raise
        self._started_at_ms = self._making.clock.now_ms()
        self._began_ms = self._making.clock.monotonic_ms()
        txn: D | None = None
        try:
            txn = yield from do("begin database", "", self._store.begin)
            for branch in self._in_order:
                yield from do("begin", branch.id, branch.producer.begin_transaction)
                branch.in_transaction = True
        except BaseException as exc:  # a producer that cannot begin is of no more use
            yield from self._back_out(txn, lost=isinstance(exc, ClientError))
            raise
        return txn

    def _renew(self) -> Recipe[None]:
        """Be sure that no producer initialises its id, which ends what is open, where another has claimed it.

        Most transactions hand the next pair on. Where one did not, or mode `resume` has recovered, a producer
        initialises as it begins. In `resume` nothing can do better than to look before that [DW-9].
        """
        stale = [branch for branch in self._in_order if branch.producer.needs_claim]
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
        try:
            rows = yield from self._prepare(txn)
        except BaseException as exc:
            yield from self._back_out(txn, lost=_is_lost(exc))
            raise
        self.standing = Standing.UNSETTLED
        try:
            yield from do("commit database", "", txn.commit)
        except CommitUnknown as exc:
            yield from self._rolled_back(txn)
            raise InDoubt(
                f"{self.name}: whether the database committed is not known: {exc}; recover() finds out"
            ) from exc
        except Exception as exc:  # by the contract of a store: it certainly did not commit
            yield from self._back_out(txn, lost=isinstance(exc, Fenced))
            raise
        except BaseException as exc:
            exc.add_note(f"{self.name}: whether both halves are committed is not known: recover() finds out")
            yield from self._rolled_back(txn)
            raise
        for branch, row in rows:
            branch.row = row
        yield from self._commit_kafka()
        self.standing = Standing.READY
        if wait_visible:
            for branch, row in rows:
                yield from self._seen_by_readers(branch, row.state)

    def rollback(self, txn: D, cause: BaseException) -> Recipe[None]:
        """Take both halves back, because the block has raised `cause`."""
        yield from self._back_out(txn, lost=_is_lost(cause))

    def _prepare(self, txn: D) -> Recipe[list[tuple[Branch[P], StoredState]]]:
        if self.standing is Standing.CLOSED:
            raise NotRecovered(f"{self.name}: {self._why_not()}; neither half is committed")
        rows = []
        for branch in self._in_order:
            token = yield from do("prepare", branch.id, branch.producer.prepare_transaction)
            rows.append((branch, self._row(branch, token)))
        for branch, row in rows:
            yield from do("record", branch.id, partial(txn.record, row))
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
            former_producer_ids=row.after(token),
            cluster_id=branch.cluster_id,
            transaction_version=branch.producer.transaction_version,
            started_at_ms=self._started_at_ms,
            timeout_ms=None if branch.producer.mode is Mode.TWO_PHASE else branch.timeout_ms,
        )

    def _commit_kafka(self) -> Recipe[None]:
        """The database has decided: every cluster is told, also after one of them failed."""
        torn: list[DecisionExpired] = []
        doubts: list[Exception] = []
        for branch in self._in_order:
            try:
                yield from do("commit", branch.id, branch.producer.commit_transaction)
                branch.in_transaction = False
            except DecisionExpired as exc:
                torn.append(exc)
            except (ClientError, InDoubt) as exc:
                doubts.append(exc)
            except BaseException as exc:
                exc.add_note(f"{self.name}: the database has committed: recover() finishes Kafka's half")
                raise
        if torn:
            raise Torn("; ".join(map(str, torn))) from torn[0]
        if doubts:
            raise InDoubt(
                f"{self.name}: the database has committed, and Kafka's half is to be finished by recover(): "
                + "; ".join(map(str, doubts))
            ) from doubts[0]

    def _back_out(self, txn: D | None, *, lost: bool = False) -> Recipe[None]:
        """Take back what nobody has decided. What cannot be reached now is left to recovery.

        Args:
            lost: the id is another's by now: only a claim makes it ours again.
        """
        closed = self.standing is Standing.CLOSED
        self.standing = Standing.UNSETTLED
        clean = (txn is None or (yield from self._rolled_back(txn))) and not lost
        for branch in self._in_order:
            if not branch.in_transaction:
                continue
            try:
                yield from do("abort", branch.id, branch.producer.abort_transaction)
                branch.in_transaction = False
            except (ClientError, InDoubt) as exc:
                _log.warning("%s: its transaction could not be aborted: %s", branch.id, exc)
                clean = False
        if closed:
            self.standing = Standing.CLOSED
        elif clean:
            self.standing = Standing.READY

    def _rolled_back(self, txn: D) -> Recipe[bool]:
        """End the database's half; True if that went well. Its failure hides no other."""
        try:
            yield from do("roll back", "", txn.rollback)
        except Exception as exc:
            _log.warning("%s: the database's transaction could not be rolled back: %s", self.name, exc)
            return False
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
        """End the clients. What nobody has decided on is aborted, what is prepared is left to recovery."""
        self.standing = Standing.CLOSED
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
    return isinstance(cause, Fenced | AbortRequired)


_DID: Final = {
    Completion.COMMITTED: "committed it in Kafka",
    Completion.ABORTED: "aborted it in Kafka",
    Completion.NOTHING_IN_DOUBT: "nothing to do",
    Completion.UNVERIFIED: "nothing to do",
}
_WOULD: Final = {
    Verdict.NOTHING: "do nothing",
    Verdict.COMMIT: "commit it in Kafka",
    Verdict.ABORT: "abort it in Kafka",
    Verdict.COMPARE: "commit exactly what the database names, abort anything else",
    Verdict.ALLOW: "do nothing",
    Verdict.TEAR: "raise Torn",
    Verdict.HALT: "halt",
}


def _recovered(row: StoredState, shown: Shown, finding: Finding, verdict: Verdict, did: str) -> Recovered:
    return Recovered(
        transactional_id=row.transactional_id,
        state=row.state,
        in_doubt=PreparedTxnState.of(shown.open),
        finding=finding,
        verdict=verdict,
        did=did,
    )


def _seen(told: TransactionDescription) -> Seen | None:
    if told.writer.producer_id < 0:  # made, and never initialised
        return None
    forced = frozenset(each.writer for each in told.forced_outcomes if each.partition is None)
    return Seen(state=told.state, identity=told.writer, forced=forced)


def _check_halt(row: StoredState, shown: Shown) -> None:
    """Raises: Halted for a verdict that is the same in every mode. Nothing was changed in Kafka."""
    finding = find(row, shown)
    if any(VERDICTS[finding, mode] is not Verdict.HALT for mode in Mode):
        return
    seen = "nothing" if shown.seen is None else f"{shown.seen.state} {shown.seen.identity}"
    text = (
        f"{row.transactional_id}: {finding.value} [{finding.name}]: the database has "
        f"{row.state or 'nothing'} of cluster {row.cluster_id}, cluster {shown.cluster_id} has {seen}; "
        "neither commit nor abort is right"
    )
    raise ForeignCluster(text) if finding is Finding.FOREIGN else LogBehind(text)


def _torn(row: StoredState) -> str:
    return (
        f"{row.transactional_id}: the database has committed {row.state}, and the cluster has aborted it: by "
        "transaction.timeout.ms or an operator. Send its records again or take its rows back, then "
        "recover(accept_torn=True)"
    )
