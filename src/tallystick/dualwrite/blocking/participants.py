# Generated from dualwrite/aio/participants.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""Steps on both sides of a block: the store, the producers, and the clusters' administration.

*Store.* A row's owner is checked under its lock, so that proxies and clusters send the check to the primary
[DW-9]. A plain SELECT may be answered by a lagging replica (pgpool-II's load balancing, ProxySQL's and
MaxScale's read/write split, Galera with `wsrep_sync_wait=0`). So the check records the row unchanged, under
its owner, in a transaction that is then rolled back.

*Kafka.* The database's commit decides both sides [DW-7], so a writer may return from its block before Kafka
has answered. A commit that was started and not answered is *pending*: the next transaction of the writer, its
recovery, its close and `wait_committed` wait for it [DW-17]. The answer is never dropped: a success is
recorded as the end of both sides, a failure is raised where it is awaited. If nothing awaits it, the client
has logged it, and the row in the database tells the next recovery of it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from tallystick.admin.client import Admin
from tallystick.client.blocking.producer import Producer
from tallystick.client.blocking.producer_runner import PendingCommit
from tallystick.client.errors import ClientError, DecisionExpired, IdExpired, NotAuthorized, NotSupported
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.block.branch import ClusterBranch
from tallystick.dualwrite.block.steps import StepRunner
from tallystick.dualwrite.errors import HeuristicMixed, NotCommitted, NotVisible, Outcome, WriteInDoubt
from tallystick.dualwrite.rules import conclusions
from tallystick.dualwrite.rules.conclusions import describe_error
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import ClusterSide, to_txn_state
from tallystick.dualwrite.stores.base import Store, StoreTransaction
from tallystick.kernel.clock import Clock
from tallystick.kernel.value import replace


class KafkaCommit:
    """Commits the transactions of all clusters of a writer, once the database has committed."""

    def __init__(self, branches: Sequence[ClusterBranch[Producer]], steps: StepRunner, ids_text: str) -> None:
        self._branches = branches
        self._steps = steps
        self._ids_text = ids_text
        self._pending: list[tuple[ClusterBranch[Producer], PendingCommit]] = []

    @property
    def is_pending(self) -> bool:
        """Whether a commit was started whose answer was not waited for."""
        return bool(self._pending)

    def commit(self) -> None:
        """Commit in every cluster, even if one of them fails.

        Raises: HeuristicMixed; WriteInDoubt, whose outcome is COMMITTED.
        """
        self._finish_all(self._branches, self._commit, is_of_this_block=True)

    def start(self) -> None:
        """Start to commit in every cluster, even if one of them fails. Raises: WriteInDoubt."""
        self._finish_all(self._branches, self._start, is_of_this_block=True)

    def wait(self) -> None:
        """Wait for what was started. An interrupted wait can be repeated.

        Raises: as `commit`, once; recovery finishes what failed.
        """
        self._finish_all([branch for branch, _ in self._pending], self._wait_for)

    def _finish_all(
        self,
        branches: Sequence[ClusterBranch[Producer]],
        finish: Callable[[ClusterBranch[Producer]], None],
        *,
        is_of_this_block: bool = False,
    ) -> None:
        expiries: dict[str, DecisionExpired] = {}
        doubts: list[Exception] = []
        states = {branch.id: branch.require_row().state for branch in branches}
        for branch in branches:
            try:
                finish(branch)
            except DecisionExpired as exc:
                expiries[branch.id] = exc
            except Exception as exc:  # from the client, or from a signal handler
                if any(at is branch for at, _ in self._pending):  # the wait alone has ended
                    raise
                doubts.append(exc)
        if expiries:
            # The client's own text is about the Kafka transaction alone, where nothing has happened.
            missing = {each: states[each] for each in expiries}
            text = "; ".join(conclusions.describe_mixed(each, state) for each, state in missing.items())
            raise HeuristicMixed(text, missing, is_of_this_block=is_of_this_block) from next(
                iter(expiries.values())
            )
        self._raise_doubts(doubts, states)

    def _raise_doubts(
        self,
        doubts: Sequence[Exception],
        states: Mapping[str, PreparedTxnState],
    ) -> None:
        if doubts:
            text = "the database has committed, and the Kafka transaction is to be finished by recover(): "
            doubt = WriteInDoubt(
                f"{self._ids_text}: {text}" + "; ".join(map(describe_error, doubts)),
                {each: state for each, state in states.items() if state},
            )
            doubt.set_outcome(Outcome.COMMITTED)
            raise doubt from doubts[0]

    def _commit(self, branch: ClusterBranch[Producer]) -> None:
        with self._noting_interrupts():
            self._steps.run("commit", branch.id, branch.producer.commit_transaction)
            branch.mark_finished()

    def _start(self, branch: ClusterBranch[Producer]) -> None:
        with self._noting_interrupts():
            pending = self._steps.run("start commit", branch.id, branch.producer.start_commit)
            self._pending.append((branch, pending))

    @contextmanager
    def _noting_interrupts(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            raise
        except BaseException as exc:
            exc.add_note(
                f"{self._ids_text}: the database has committed: recover() finishes the Kafka transaction"
            )
            raise

    def _wait_for(self, branch: ClusterBranch[Producer]) -> None:
        (pending,) = [each for at, each in self._pending if at is branch]
        try:
            self._steps.run("confirm commit", branch.id, pending.wait)
        except Exception:
            if pending.is_done:
                self._forget(pending)
            raise
        branch.mark_finished()
        self._forget(pending)

    def _forget(self, pending: PendingCommit) -> None:
        self._pending = [each for each in self._pending if each[1] is not pending]


D = TypeVar("D", bound=StoreTransaction)
FindKeys = Callable[[StoredState], Sequence[IdempotencyKey]]

_log = logging.getLogger("tallystick.dualwrite")


class StoreClient(Generic[D]):
    """A writer's use of its store: one transaction at a time."""

    def __init__(self, store: Store[D], steps: StepRunner, ids_text: str) -> None:
        self._store = store
        self._steps = steps
        self._ids_text = ids_text
        self.transaction: D | None = None  # begun and, as far as known, not ended

    def claim(self, branch: ClusterBranch[Producer]) -> None:
        """Take over the row of an id [DW-1]."""
        branch.row = self._steps.run("claim", branch.id, self._store.claim, branch.id)

    def read(self, transactional_id: str) -> StoredState:
        """Return the row of an id, without a claim; an empty one if there is none."""
        row = self._steps.run("read", transactional_id, self._store.read_state, transactional_id)
        return StoredState(transactional_id=transactional_id, owner="") if row is None else row

    def find_keys(self, row: StoredState) -> Sequence[IdempotencyKey]:
        """Return the idempotency keys that were committed with a row's transaction.

        None in a store without them. They are for a text, so a failure is logged.
        """
        store = getattr(self._store, "wrapped_store", self._store)
        find: FindKeys | None = getattr(store, "find_idempotency_keys", None)
        if find is None:
            return ()
        try:
            return self._steps.run("find keys", row.transactional_id, find, row)
        except Exception as exc:  # of the database's driver
            _log.warning("%s: its idempotency keys could not be read: %s", row.transactional_id, exc)
            return ()

    def check_owner(self, branch: ClusterBranch[Producer]) -> None:
        """Raise WriterFenced if another writer has claimed the row and may have decided the transaction."""
        self._steps.run("check owner", branch.id, self._check_owner_locked, branch.require_row())

    def record_settled(self, branch: ClusterBranch[Producer], *, settled: bool) -> None:
        """Record in the row that both sides are finished, or that the Kafka transaction is about to be.

        No outcome depends on it: it preserves what InitProducerId erases.
        """
        row = branch.require_row()
        if not row.state or row.settled or (row.completing and not settled):
            return
        self._record(branch, replace(row, settled=settled, completing=row.completing or not settled))

    def record_known(self, branch: ClusterBranch[Producer]) -> None:
        """Record in a row without a transaction that a recovery has ended: once in the life of an id.

        Nothing is open under the id then, so that a later transaction is not that of another database.
        """
        row = branch.require_row()
        if not row.state and not row.known:
            self._record(branch, replace(row, known=True))

    def _record(self, branch: ClusterBranch[Producer], new_row: StoredState) -> None:
        row = branch.require_row()
        try:
            txn = self._steps.run("begin settling", branch.id, self._open, self._begin_briefly)
            self._steps.run("settle", branch.id, txn.record, new_row, row)
            self._steps.run("commit settled", branch.id, txn.commit)
            self.transaction = None
        except BaseException as exc:
            self.roll_back_open()
            if isinstance(exc, NotCommitted):
                raise exc.cause from exc
            raise
        branch.row = new_row

    def begin(self) -> D:
        """Begin the transaction for the user's rows."""
        return self._steps.run("begin database", "", self._open, self._store.begin)

    def roll_back_open(self) -> bool:
        """Roll back what is open, whose locks would block a claim; return whether nothing is left."""
        return self.transaction is None or self.roll_back(self.transaction)

    def roll_back(self, txn: D) -> bool:
        """Roll back the database transaction; return whether it succeeded. A failure is only logged."""
        try:
            self._steps.run("roll back", "", txn.rollback)
        except Exception as exc:
            _log.warning("%s: the database's transaction could not be rolled back: %s", self._ids_text, exc)
            return False
        self.transaction = None
        return True

    def _open(self, begin: Callable[[], D]) -> D:
        """Begin in the database, and keep the transaction before any interrupt so that it is released."""
        self.transaction = txn = begin()
        return txn

    def _begin_briefly(self) -> D:
        """Begin a transaction on a state row alone, with a limited wait for its lock if the store can.

        A client whose host is gone may hold that lock for hours. `begin_briefly` is an optional method of a
        store that limits the wait; `begin` is used otherwise.
        """
        begin: Callable[[], D] = getattr(self._store, "begin_briefly", self._store.begin)
        return begin()

    def _check_owner_locked(self, row: StoredState) -> None:
        txn: D | None = None
        try:
            txn = self._begin_briefly()
            txn.record(row)
        finally:
            if txn is not None:
                txn.rollback()


_log = logging.getLogger("tallystick.dualwrite")

VISIBLE_MS_MAX: Final = 30_000
"""Maximum time that `wait_visible` waits for the transaction markers."""
_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_MARKERS_PENDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})


class ClusterViews:
    """The clusters' views of a writer's ids; opens an administrator for each cluster on first use."""

    def __init__(
        self,
        create_admin: Callable[[Mapping[str, object]], Admin],
        pause: Callable[[float], object],
        clock: Clock,
        steps: StepRunner,
    ) -> None:
        self._create_admin = create_admin
        self._pause = pause
        self._clock = clock
        self._steps = steps
        self._admins: dict[str, Admin] = {}

    def _get_admin(self, branch: ClusterBranch[Producer]) -> Admin:
        if branch.id not in self._admins:
            self._admins[branch.id] = self._create_admin(branch.admin_config)
        return self._admins[branch.id]

    def describe(self, branch: ClusterBranch[Producer]) -> ClusterSide:
        """Describe the transaction of a branch's id, as far as the cluster lets this client see it."""
        return self.describe_id(branch, branch.id)

    def describe_id(self, branch: ClusterBranch[Producer], transactional_id: str) -> ClusterSide:
        """Describe the transaction of any id in the cluster of a branch."""
        admin = self._get_admin(branch)
        cluster = self._steps.run("describe cluster", branch.id, admin.describe_cluster)
        branch.cluster_id = cluster.cluster_id
        describing = admin.describe_transactions
        answers = self._steps.run("describe", transactional_id, describing, [transactional_id])
        match answers.failures.get(transactional_id):
            case None:
                return ClusterSide(
                    txn_state=to_txn_state(answers.found[transactional_id]),
                    cluster_id=cluster.cluster_id,
                )
            case IdExpired():
                return ClusterSide(txn_state=None, cluster_id=cluster.cluster_id)
            case NotAuthorized() | NotSupported() as why:
                _log.info("%s: cannot be described: %s", transactional_id, why.what())
                return ClusterSide(txn_state=None, is_visible=False, cluster_id=cluster.cluster_id)
            case failure:
                raise failure

    def wait_for_markers(self, branch: ClusterBranch[Producer], token: PreparedTxnState) -> None:
        """Wait until the transaction markers are written, so that read_committed consumers see records."""
        if not token:
            return
        admin = self._get_admin(branch)
        give_up_at = self._clock.monotonic_ms() + VISIBLE_MS_MAX
        pauses = iter(_PAUSES_S)
        while True:
            try:
                answers = self._steps.run("look", branch.id, admin.describe_transactions, [branch.id])
                state = answers.one(branch.id).state
            except ClientError as exc:
                raise NotVisible(f"{branch.id}: {token} is committed; not looked at: {exc}") from exc
            if state not in _MARKERS_PENDING:
                return
            if self._clock.monotonic_ms() > give_up_at:
                raise NotVisible(
                    f"{branch.id}: {token} is committed, and after {VISIBLE_MS_MAX} ms not visible"
                )
            self._steps.run("pause", branch.id, self._pause, next(pauses, _PAUSES_S[-1]))

    def close(self) -> None:
        """Close the administrators."""
        for transactional_id in sorted(self._admins):
            admin = self._admins.pop(transactional_id)
            self._steps.run("close admin", transactional_id, admin.close)
