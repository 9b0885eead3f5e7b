"""The recipe of a dual write.

Normal processing, as in KIP-939: begin the database's transaction, then Kafka's; write the user's rows and
records; prepare Kafka; record the prepared transaction next to the rows; commit the database; commit Kafka.
The commit of the database is the single moment at which both are decided [DW-7]. Hence:

- A failure before it rolls back both sides.
- While its outcome is unknown, the Kafka transaction is left alone and stays prepared: only a claim can
  determine the outcome, and that is up to recovery [DW-3]. The outcome is known when the step has returned,
  or has raised NotCommitted. An exception from a signal handler may arrive after COMMIT was answered, and
  proves nothing.
- A failure after it leaves one side unfinished, and recovery finishes it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from tallystick.admin.aio import Admin
from tallystick.client.aio.producer import Producer
from tallystick.client.errors import ClientError
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.aio.key_check import AsyncKeyCheck
from tallystick.dualwrite.aio.participants import AsyncClusterViews, AsyncKafkaCommit, AsyncStoreClient
from tallystick.dualwrite.aio.recovery_recipe import AsyncRecovery
from tallystick.dualwrite.block.branch import ClusterBranch, never_expires, recovers_by_description
from tallystick.dualwrite.block.life import BlockOutcome, WriterLife, WriterState
from tallystick.dualwrite.block.steps import AsyncStepRunner, Wait, check_wait
from tallystick.dualwrite.errors import (
    DualWriteError,
    HeuristicMixed,
    NotCommitted,
    NotRecovered,
    Outcome,
    RecoveryHalted,
    TransactionTooOld,
    WriteInDoubt,
)
from tallystick.dualwrite.forks import leak_reference
from tallystick.dualwrite.rules.conclusions import describe_error, may_be_fenced, name_earlier
from tallystick.dualwrite.rules.idempotency import IdempotencyKey, KeyResult
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import Report
from tallystick.dualwrite.stores.base import AsyncStore, AsyncStoreTransaction
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value, replace
from tallystick.metrics.dual_writes import WriteEvent

_log = logging.getLogger("tallystick.dualwrite")

COMMIT_DEADLINE_SHARE: Final = 0.75
"""Share of transaction.timeout.ms, where it applies, after which the database is no longer committed."""

D = TypeVar("D", bound=AsyncStoreTransaction)

BranchRows = list[tuple[ClusterBranch[Producer], StoredState]]
"""Each cluster's branch with the row to record for it."""


class AsyncSessionFactories(Value, kw_only=True):
    """Factories and clock of a session.

    pause  sleeps for a number of seconds
    """

    create_producer: Callable[[Mapping[str, object]], Producer]
    create_admin: Callable[[Mapping[str, object]], Admin]
    pause: Callable[[float], Awaitable[object]]
    clock: Clock


class AsyncDualWriteSession(Generic[D]):
    """A writer's transactions, one after the other."""

    def __init__(
        self,
        store: AsyncStore[D],
        configs: Mapping[str, Mapping[str, object]],
        factories: AsyncSessionFactories,
        steps: AsyncStepRunner,
        *,
        alone: bool = True,
        wait: Wait = "committed",
    ) -> None:
        """Create a session for one or more clusters.

        Args:
            alone: its ids belong to no pool.
            wait: what `commit` waits for.
        Raises: BadConfig with all problems of the first cluster that has any.
        """
        self._is_alone = alone
        self._waits_for_kafka = check_wait(wait) == "committed"
        self.branches: Mapping[str, ClusterBranch[Producer]] = {
            cluster: ClusterBranch(cluster, config) for cluster, config in configs.items()
        }
        ids = [branch.id for branch in self.branches.values()]
        if not ids or len(set(ids)) != len(ids):
            raise BadConfig(f"transactional.id: every cluster needs one of its own, not {', '.join(ids)}")
        if len(ids) > getattr(store, "ids_max", len(ids)):
            raise BadConfig(f"clusters: a commit of a {type(store).__name__} records one id, not {len(ids)}")
        # The same order everywhere, so that two writers never deadlock on each other's rows.
        self._branches_by_id: Sequence[ClusterBranch[Producer]] = sorted(
            self.branches.values(), key=lambda branch: branch.id
        )
        self.life = WriterLife(", ".join([branch.id for branch in self._branches_by_id]))
        self.outcome = BlockOutcome()
        self._kafka = AsyncKafkaCommit(self._branches_by_id, steps, self.life.ids_text)
        self._factories = factories
        self._steps = steps
        self._started_at_ms = self._began_ms = 0
        self._database = AsyncStoreClient(store, steps, self.life.ids_text)
        self._clusters = AsyncClusterViews(factories.create_admin, factories.pause, factories.clock, steps)
        self._keys = AsyncKeyCheck(
            self._branches_by_id,
            database=self._database,
            clusters=self._clusters,
            pause=factories.pause,
            clock=factories.clock,
            steps=steps,
        )
        self._recovery = AsyncRecovery(
            self._branches_by_id,
            database=self._database,
            clusters=self._clusters,
            create_producer=factories.create_producer,
            outcome=self.outcome,
            steps=steps,
        )

    def leave(self, block: object) -> None:
        """Leave the call that entered with `block`, however it ended. Does nothing if it already finished.

        An interrupt may have occurred outside any recipe; the session is then UNSETTLED and needs recovery.
        """
        if not self.life.is_used_by(block):
            return
        if self.life.is_forked_child:
            self.outcome.offsets.clear()
            return
        self.life.mark_unsettled()
        self.outcome.apply_to_offsets()

    async def recover(self, *, accept_mixed: bool = False, block: object = None) -> Report:
        """Bring both sides of every id to the same outcome."""
        self.life.enter(
            WriterState.RECOVERING, WriterState.NEW, WriterState.READY, WriterState.UNSETTLED, block=block
        )
        try:
            await self._database.roll_back_open()
            await self._wait_before_recovery()
            await self._recovery.drop_producers()
            report = await self._recovery.recover(accept_mixed=accept_mixed)
        except BaseException:
            self.life.state = WriterState.UNSETTLED
            self._steps.emit(WriteEvent.RECOVERY_FAILED)
            raise
        self.life.state = WriterState.READY
        self._steps.emit(WriteEvent.RECOVERED)
        return report

    async def inspect(self) -> Report:
        """Report what recovery would find, without claim, InitProducerId or any change. May be outdated."""
        self.life.claim_process()
        return await self._recovery.inspect()

    async def begin(self, block: object = None) -> D:
        """Begin both sides. The caller must call `leave(block)` at the very end."""
        self.life.enter(WriterState.IN_TRANSACTION, WriterState.READY, block=block)
        if self._kafka.is_pending:
            await self._wait_before_begin()
        self.outcome.start_block()
        try:
            await self._renew_producers()
        except (HeuristicMixed, RecoveryHalted) as exc:
            self.life.state = WriterState.UNSETTLED
            raise name_earlier(self.life.ids_text, exc) from exc
        except BaseException:
            self.life.state = WriterState.UNSETTLED
            raise
        self._started_at_ms = self._factories.clock.now_ms()
        self._began_ms = self._factories.clock.monotonic_ms()
        try:
            txn = await self._database.begin()
            for branch in self._branches_by_id:
                await self._steps.run("begin", branch.id, branch.producer.begin_transaction)
                branch.in_transaction = True
        except BaseException:  # a producer that cannot begin, or may have begun, is unusable
            database_txn = self._database.transaction
            await self._roll_back_both(database_txn, lost=database_txn is not None)
            raise
        return txn

    async def wait_committed(self, block: object = None) -> None:
        """Wait for the last Kafka transaction. Raises: as `commit`, after the database's commit."""
        if not self._kafka.is_pending:
            return
        self.life.enter(WriterState.IN_TRANSACTION, WriterState.READY, block=block)
        try:
            await self._kafka.wait()
        except (HeuristicMixed, WriteInDoubt):
            self.life.state = WriterState.UNSETTLED
            raise
        except BaseException:
            self.life.state = WriterState.READY
            raise
        self.life.state = WriterState.READY

    async def _wait_before_begin(self) -> None:
        """Wait for the end of the transaction before, whose block has ended.

        Where it failed, the transaction is left open, and `_renew_producers` finishes it as a recovery does.
        Its doubt is not raised: it is not that of the block that begins.
        Raises: NotRecovered if the outcome is mixed, or where recovery is by description: only recover()
            may look for another writer.
        """
        try:
            await self._kafka.wait()
        except WriteInDoubt as exc:
            _log.warning("the transaction before: %s", exc)
            if any(recovers_by_description(branch.producer.mode) for branch in self._branches_by_id):
                self.life.state = WriterState.UNSETTLED
                raise NotRecovered(f"{self.life.ids_text}: {self.life.explain_state()}") from exc
        except HeuristicMixed as exc:
            self.life.state = WriterState.UNSETTLED
            raise name_earlier(self.life.ids_text, exc) from exc
        except BaseException:  # nothing was begun, and the answer is still waited for
            self.life.state = WriterState.READY
            raise

    async def _wait_before_recovery(self) -> None:
        """Wait for a pending commit before recovery, so that recovery sees its outcome."""
        try:
            await self._kafka.wait()
        except (HeuristicMixed, WriteInDoubt) as exc:
            _log.warning("%s", exc)

    async def _renew_producers(self) -> None:
        """Ensure that no producer initialises an id, ending its transaction, after another writer's claim.

        Most transactions return the next producer epoch. After one that did not, or after recovery by
        description, a producer calls InitProducerId when it begins. There a check of the owner before that,
        and the producer's own look at the id, are the best possible [DW-9]. A transaction left open by a
        failed block is ended the same way [DW-13].
        """
        stale = [
            branch for branch in self._branches_by_id if branch.in_transaction or branch.producer.needs_claim
        ]
        for branch in stale:
            await self._database.check_owner(branch)
        if any(
            branch.in_transaction or not recovers_by_description(branch.producer.mode) for branch in stale
        ):
            await self._recovery.drop_producers()
            await self._recovery.recover(accept_mixed=False)

    async def check_key(self, kept: KeyResult) -> None:
        """Return if what was committed with a key is committed in Kafka [DW-28]. Raises: as AsyncKeyCheck."""
        await self._keys.check(kept)

    async def commit(
        self, txn: D, *, wait_visible: bool = False, key: IdempotencyKey | None = None, result: str = ""
    ) -> None:
        """Commit both sides [DW-7].

        Args:
            key: the idempotency key that `result` is stored with.
        Raises: the failure, if it came before the database's commit; both sides are rolled back. InDoubt
            when that commit or one in Kafka has an unknown outcome. HeuristicMixed if the cluster had
            aborted.
        """
        if self._leave_if_forked(txn):
            self.life.check_process()
        try:
            rows = await self._prepare(txn, key, result)
        except BaseException as exc:
            await self._roll_back_both(txn, lost=may_be_fenced(exc))
            raise
        self.life.state = WriterState.UNSETTLED
        refusal = await self._commit_database(txn, rows)
        if refusal is not None:
            await self._roll_back_both(txn, lost=may_be_fenced(refusal))
            raise refusal
        for branch, row in rows:
            branch.mark_decided(row)
        await self._commit_kafka(wait=self._waits_for_kafka or wait_visible)
        self.life.state = WriterState.READY
        if wait_visible:
            for branch, row in rows:
                await self._clusters.wait_for_markers(branch, row.state)

    async def _commit_database(self, txn: D, rows: BranchRows) -> Exception | None:
        """Commit the database; return None, or the reason why it certainly did not commit [DW-3]."""
        self.outcome.start_commit(self._sent_states(rows))
        try:
            await self._steps.run("commit database", "", txn.commit)
        except NotCommitted as exc:
            self.outcome.value = Outcome.NOT_COMMITTED
            return exc.cause
        except Exception as exc:  # lost answer or time limit: it may have committed
            text = f"whether the database committed is not known: {describe_error(exc)}; recover() finds out"
            doubt = self.outcome.create_doubt(f"{self.life.ids_text}: {text}")
            self._steps.emit(WriteEvent.IN_DOUBT)
            await self._database.roll_back(txn)
            raise doubt from exc
        except BaseException as exc:
            exc.add_note(
                f"{self.life.ids_text}: whether both sides are committed is not known: recover() finds out"
            )
            self._steps.emit(WriteEvent.IN_DOUBT)
            await self._database.roll_back(txn)
            raise
        self._database.transaction = None
        self.outcome.value = Outcome.COMMITTED
        self._steps.emit(WriteEvent.COMMITTED)
        return None

    async def _commit_kafka(self, *, wait: bool) -> None:
        """Commit the Kafka transaction, or start to. Raises: as AsyncKafkaCommit."""
        try:
            await (self._kafka.commit() if wait else self._kafka.start())
        except WriteInDoubt as doubt:
            self.outcome.doubt = doubt
            raise

    def _sent_states(self, rows: BranchRows) -> Mapping[str, PreparedTxnState]:
        """Return the transactions that the rows name, for clusters to which records were sent."""
        return {branch.id: row.state for branch, row in rows if row is not branch.require_row() and row.state}

    async def rollback(self, txn: D, cause: BaseException) -> None:
        """Roll back both sides because the block raised `cause`."""
        if self._leave_if_forked(txn):
            return
        await self._roll_back_both(txn, lost=may_be_fenced(cause))

    def _leave_if_forked(self, txn: D) -> bool:
        """Return whether this is a forked child; both sides then belong to the parent [DW-11]."""
        if not self.life.is_forked_child:
            return False
        leak_reference(txn)
        abandon = getattr(txn, "abandon", None)
        if abandon is not None:
            abandon()
        return True

    async def _prepare(self, txn: D, key: IdempotencyKey | None, result: str) -> BranchRows:
        if self.life.state is WriterState.CLOSED:
            raise NotRecovered(
                f"{self.life.ids_text}: {self.life.explain_state()}; neither side is committed"
            )
        rows = []
        for branch in self._branches_by_id:
            token = await self._steps.run("prepare", branch.id, branch.producer.prepare_transaction)
            rows.append((branch, self._build_row(branch, token)))
        if key is not None:
            keyed: Any = txn
            stored = KeyResult(key, result, self._sent_states(rows)).format()
            await self._steps.run("store result", "", keyed.store_result, key, stored)
        for branch, row in rows:
            await self._steps.run("record", branch.id, txn.record, row, branch.require_row())
        for branch, row in rows:
            if row is not branch.require_row():
                self._check_time(row)
        return rows

    def _check_time(self, row: StoredState) -> None:
        """Raise TransactionTooOld while both sides can still be rolled back [DW-10]."""
        took_ms = self._factories.clock.monotonic_ms() - self._began_ms
        if row.timeout_ms is not None and took_ms > row.timeout_ms * COMMIT_DEADLINE_SHARE:
            raise TransactionTooOld(row.transactional_id, took_ms, row.timeout_ms)

    def _build_row(self, branch: ClusterBranch[Producer], token: PreparedTxnState) -> StoredState:
        """Build the row for `token`; unchanged if nothing was sent, and still recorded as the fence."""
        row = branch.require_row()
        if not token:
            return row
        return replace(
            row,
            state=token,
            settled=False,
            completing=False,
            # An earlier client that recovery has not fenced may abort one of its own without a note.
            notes=not recovers_by_description(branch.producer.mode),
            alone=self._is_alone,
            former_producer_ids=row.former_ids_before(token),
            cluster_id=branch.cluster_id,
            transaction_version=branch.producer.transaction_version,
            started_at_ms=self._started_at_ms,
            # KIP-939: the coordinator never aborts a two-phase commit transaction by timeout.
            timeout_ms=None if never_expires(branch.producer.mode) else branch.timeout_ms,
        )

    async def _roll_back_both(self, txn: D | None, *, lost: bool = False) -> None:
        """Roll back undecided sides. A transaction that cannot be reached now is left to recovery.

        Args:
            lost: another writer may own the id by now; only a claim takes it back.
        """
        is_closed = self.life.state is WriterState.CLOSED
        self.life.state = WriterState.UNSETTLED
        self._steps.emit(WriteEvent.ROLLED_BACK)
        is_clean = (txn is None or await self._database.roll_back(txn)) and not lost
        is_clean = await self._abort_open() and is_clean
        if is_closed:
            self.life.state = WriterState.CLOSED
        elif is_clean:
            self.life.state = WriterState.READY

    async def _abort_open(self) -> bool:
        """Abort open Kafka transactions where that hides nothing; return False if recovery is needed."""
        clean = True
        for branch in self._branches_by_id:
            if not branch.in_transaction or branch.is_decided:  # [DW-17]
                continue
            try:
                if not await self._may_abort(branch):
                    continue
                await self._steps.run("abort", branch.id, branch.producer.abort_transaction)
                branch.in_transaction = False
            except (DualWriteError, ClientError, InDoubt) as exc:
                _log.warning("%s: its transaction could not be aborted: %s", branch.id, exc)
                clean = False
        return clean

    async def _may_abort(self, branch: ClusterBranch[Producer]) -> bool:
        """Record that the previous transaction is finished, before an abort hides it in the cluster [DW-13].

        Returns: False if that failed and nothing else ends the open transaction; it then stays open, and the
            next transaction of this writer, or a recovery, records it first.
        Raises: WriterFenced and other DualWriteErrors: another writer must end the transaction.
        """
        try:
            if branch.row_as_finished().settled:
                await self._database.record_settled(branch, settled=True)
        except DualWriteError:
            raise
        except Exception as exc:
            _log.warning(
                "%s: it could not be noted that its last one is finished: %s", branch.id, describe_error(exc)
            )
            return not never_expires(branch.producer.mode)
        return True

    async def close(self) -> None:
        """Close the clients. Prepared transactions are left to recovery; undecided ones are aborted.

        An abort is skipped if it would hide how the previous transaction ended and that cannot be recorded
        [DW-13]. In a forked child nothing is ended, because everything belongs to the parent.
        Raises: HeuristicMixed or WriteInDoubt, with everything closed, if the Kafka transaction of the last
            transaction failed after its block had ended.
        """
        if self.life.is_forked_child:
            leak_reference(self._database)
            leak_reference(self._kafka)
            self.life.state = WriterState.CLOSED
            return
        within = self.life.is_busy  # its open database transaction would block _abort_open's note
        self.life.state = WriterState.CLOSED
        failure: Exception | None = None
        try:
            await self._kafka.wait()
        except (HeuristicMixed, WriteInDoubt) as exc:
            failure = exc
        if not within:  # its locks would outlive this writer
            await self._database.roll_back_open()
        # Once the database was asked to commit, its row decides, and only a claim may ask it [DW-3].
        if not within and self.outcome.value is Outcome.NOT_COMMITTED:
            await self._abort_open()
        await self._recovery.drop_producers()
        await self._clusters.close()
        if failure is not None:
            raise failure
