"""Processing of commands about transactional ids, from the decision to the markers.

This module branches on the contents of a Step and on the table PENDING_POLICIES, never on the state of a
transaction; the meaning of a command is defined in `decide`. A marker is retried until its partition has it
or is gone (`marker_sender`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Final

from tallystick.broker.coordinator.append_errors import (
    append_or_refuse,
    decide_or_refuse,
    translate_append_error,
)
from tallystick.broker.coordinator.reload import CoordinatorRefusals
from tallystick.broker.coordinator.runtime import (
    CommandQueue,
    CoordinatorRuntime,
    PendingCommand,
    PendingWrite,
    answer,
    answer_all,
)
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.codec import encode_batch_of, partition_for
from tallystick.broker.txn.history import TransactionHistory
from tallystick.broker.txn.loader import TransactionLogLoader
from tallystick.broker.txn.machine.apply import TxnEntryTable, apply_event
from tallystick.broker.txn.machine.commands import (
    AddPartitionsByLeader,
    PendingPolicy,
    TxnAnswer,
    TxnCommand,
    TxnEnv,
    TxnStep,
    find_pending_policy,
)
from tallystick.broker.txn.machine.consistency import decide_replace_producer_id
from tallystick.broker.txn.machine.decide import CONCURRENT_TRANSACTIONS, decide, refuse_while_pending
from tallystick.broker.txn.machine.end_txn import find_missing_markers
from tallystick.broker.txn.machine.model import TxnEntry, TxnForcedOutcome
from tallystick.broker.txn.marker_sender import MarkerSender, MarkerWriter
from tallystick.broker.txn.ports import TransactionStatePartition, TransactionStateTopic, TxnSettings
from tallystick.broker.txn.producer_id_pool import NO_PRODUCER_ID, ProducerIdPool
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, ProducerId, TransactionalId
from tallystick.kernel.value import replace
from tallystick.storage.state.producer_state import AppendOrigin

_log = logging.getLogger("tallystick.transactions")

REFUSALS: Final = CoordinatorRefusals.for_topic(TRANSACTION_STATE_TOPIC)
NO_TRANSACTION_STATE_TOPIC: Final = Reject(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "__transaction_state does not exist yet; retry"
)

AnswerFuture = asyncio.Future[TxnAnswer]
PendingTxnCommand = PendingCommand[TxnCommand, TxnAnswer]


class TransactionLogic:
    """The entries, and the execution of Steps: log, markers, producer ids. Lives on the loop."""

    def __init__(
        self,
        topic: TransactionStateTopic,
        markers: MarkerWriter,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
        settings: Callable[[], TxnSettings],
        clock: Clock,
        *,
        tick: Callable[[], int],
        on_forced_outcome: Callable[[TxnForcedOutcome], None],
    ) -> None:
        """Create the logic with its runtime, marker sender, producer id pool and loader.

        Args:
            settings: returns the current settings; called at every decision, so it must be cheap.
            tick: see `CoordinatorRuntime`.
            on_forced_outcome: called once a transaction has ended without its client, durably.
        """
        self._topic = topic
        self._settings = settings
        self._on_forced_outcome = on_forced_outcome
        self.runtime: CoordinatorRuntime[TransactionalId, TxnCommand, TxnAnswer] = CoordinatorRuntime(
            TRANSACTION_STATE_TOPIC,
            topic,
            self,
            clock,
            _log,
            tick=tick,
            answer_timeout_ms=lambda: settings().answer_timeout_ms,
        )
        self.entries = TxnEntryTable(self.partition_for)
        self.history = TransactionHistory()
        self.marker_sender = MarkerSender(markers, self.runtime, self.entries)
        self.producer_id_pool = ProducerIdPool(new_producer_id, self._decide_with_producer_id)
        self.loader = TransactionLogLoader(
            self.runtime,
            self.entries,
            self.history,
            get_coordinator_epoch=self.get_coordinator_epoch,
            send_markers=self._send_markers,
            move=self._replace_producer_id,
        )
        # The last record of each id that took effect before it was durable, until it is found durable.
        self._unsynced_offsets: dict[TransactionalId, Offset] = {}
        # Commands that arrived while the previous transaction's markers were in flight; decided again after.
        self._waiting_for_completion: dict[TransactionalId, deque[PendingTxnCommand]] = {}

    def begin_shutdown(self) -> None:
        """Refuse new commands and those that wait undecided."""
        self.runtime.begin_shutdown()
        self.producer_id_pool.close()
        answer_all(self.producer_id_pool.iter_waiting(), REFUSALS.stopped)
        for queue in self._waiting_for_completion.values():
            answer_all(queue, REFUSALS.stopped)

    def partition_for(self, key: TransactionalId) -> int:
        """Return the partition of `__transaction_state` that keeps the id."""
        return _partition_for_cached(key, self._topic.partition_count)

    def get_coordinator_epoch(self, transactional_id: TransactionalId) -> int:
        """Return the coordinator epoch for markers: the leader epoch of the partition that keeps the id."""
        partition = self._find_partition(self.partition_for(transactional_id))
        return 0 if partition is None else partition.leader_epoch

    def _find_partition(self, index: int) -> TransactionStatePartition | None:
        partitions = self._topic.list_partitions()
        return partitions[index] if index < len(partitions) else None

    # ---- called by the runtime

    def enqueue_or_answer(
        self,
        key: TransactionalId,
        pending: PendingTxnCommand,
        command_queue: CommandQueue[TxnCommand, TxnAnswer],
    ) -> None:
        """Answer or queue a command that arrives while a Step is pending [TXN-5]."""
        match find_pending_policy(pending.command):
            case PendingPolicy.REFUSE | PendingPolicy.CHECK_IDENTITY:
                answer(pending, refuse_while_pending(self.entries.get(key), pending.command))
            case PendingPolicy.DECIDE_AT_ONCE:
                self.runtime.decide_commands(key, (pending,))
            case PendingPolicy.WAIT | PendingPolicy.MERGE:
                self.runtime.enqueue(command_queue.waiting, pending)

    def decide(self, key: TransactionalId, group: Sequence[PendingTxnCommand]) -> PendingWrite | None:
        """Decide; then carry out the Step, or append its records and carry it out when durable [TXN-1]."""
        command = _merge_commands(group)
        env = self._build_env(key)
        step = decide_or_refuse(lambda: decide(self.entries.get(key), command, env))
        if isinstance(step, Reject):
            self._reject_or_queue(key, group, step)
            return None
        if step.uses_spare_id and not self.producer_id_pool.take():
            for pending in group:
                self.runtime.set_deadline(pending)
            self.producer_id_pool.add_waiting(key, group)
            return None
        durable = self._append(key, step, env) if step.records else None
        if isinstance(durable, Reject):
            if step.uses_spare_id:
                self.producer_id_pool.put_back(env.spare_producer_id)
            answer_all(group, durable)
            return None
        if durable is None:
            self._execute_step(key, group, step)
            return None
        return PendingWrite(durable, partial(self._execute_step, key, group, step))

    def take_next_commands(
        self, key: TransactionalId, queue: deque[PendingTxnCommand]
    ) -> list[PendingTxnCommand]:
        """Handle one command, or several that differ only in their partitions."""
        group: list[PendingTxnCommand] = []
        while queue:
            pending = queue[0]
            if pending.future.done():
                queue.popleft()  # overdue, therefore answered: it must not take effect
            elif not group or _may_merge(group[0].command, pending.command):
                group.append(queue.popleft())
            else:
                break
        return group

    def on_idle(self, key: TransactionalId) -> None:
        """Do nothing: no work waits for an idle key."""

    def build_timeout_answer(self, command: TxnCommand) -> TxnAnswer:
        """Return a retriable error.

        A command that may merge is retried as is; for the others the client looks up the coordinator first.
        """
        return (
            CONCURRENT_TRANSACTIONS
            if find_pending_policy(command) is PendingPolicy.MERGE
            else REFUSALS.timed_out
        )

    def is_lost(self, index: int) -> bool:
        """See `TransactionLogLoader.is_lost`."""
        return self.loader.is_lost(index)

    def unload(self, index: int) -> None:
        """Forget the ids of a partition, and refuse the commands held for the end of their transactions."""
        self.entries.remove_partition(index)
        for name in [name for name in self._waiting_for_completion if self.partition_for(name) == index]:
            answer_all(self._waiting_for_completion.pop(name), REFUSALS.lost)

    async def load(self, index: int) -> None:
        """See `TransactionLogLoader.load`."""
        await self.loader.load(index)

    def on_loaded(self, index: int) -> None:
        """See `TransactionLogLoader.on_loaded`."""
        self.loader.on_loaded(index)

    # ---- deciding

    def _decide_with_producer_id(
        self, transactional_id: TransactionalId, group: Sequence[PendingTxnCommand]
    ) -> None:
        self.runtime.decide_queued(transactional_id, deque(group))

    def _build_env(self, transactional_id: TransactionalId) -> TxnEnv:
        return TxnEnv(
            transactional_id=transactional_id,
            config=self._settings().config,
            now_ms=self.runtime.timer.now_ms(),
            spare_producer_id=self.producer_id_pool.next_id,
        )

    def _reject_or_queue(
        self, transactional_id: TransactionalId, group: Sequence[PendingTxnCommand], why: Reject
    ) -> None:
        """Reject the callers; queue those that may wait for the previous transaction to complete [TXN-5]."""
        if (
            why is not CONCURRENT_TRANSACTIONS
            or find_pending_policy(group[0].command) is not PendingPolicy.MERGE
        ):
            answer_all(group, why)
            return
        queue = self._waiting_for_completion.setdefault(transactional_id, deque())
        for pending in group:
            self.runtime.enqueue(queue, pending)

    def _append(
        self, transactional_id: TransactionalId, step: TxnStep, env: TxnEnv
    ) -> "asyncio.Future[None] | Reject | None":
        """Append a Step's records in one batch, and return the future that the Step must wait for, if any."""
        partition = self._find_partition(self.partition_for(transactional_id))
        if partition is None:
            return NO_TRANSACTION_STATE_TOPIC
        origin = AppendOrigin.COORDINATOR if step.may_be_refused else AppendOrigin.DECISION
        result = append_or_refuse(
            lambda: encode_batch_of(step.records, env.now_ms, env.config.transaction_version),
            lambda batch: partition.append(batch, origin),
        )
        if isinstance(result, Reject):
            return translate_append_error(result)
        if step.needs_durable:
            return partition.when_durable(result.last_offset)
        self._unsynced_offsets[transactional_id] = result.last_offset
        return None

    def _execute_step(
        self, transactional_id: TransactionalId, group: Sequence[PendingTxnCommand], step: TxnStep
    ) -> None:
        """Apply, then reply, then send markers [TXN-1]."""
        if step.events:
            entry = before = self.entries.get(transactional_id)
            for event in step.events:
                entry = apply_event(entry, event)
            self.entries.put(transactional_id, entry)
            self.history.note_applied(step.records, group[0].requester, self.runtime.timer.now_ms)
            if entry is None:
                self._unsynced_offsets.pop(transactional_id, None)
            if (
                entry is not None
                and entry.forced_outcomes
                and (before is None or before.forced_outcomes != entry.forced_outcomes)
            ):
                self._on_forced_outcome(entry.forced_outcomes[-1])
        answer_all(group, step.reply)
        if step.marker_request is not None:
            self.marker_sender.send(
                transactional_id, step.marker_request, self.get_coordinator_epoch(transactional_id)
            )
        elif step.records and transactional_id in self._waiting_for_completion:
            self.runtime.decide_queued(transactional_id, self._waiting_for_completion.pop(transactional_id))

    async def _replace_producer_id(self, transactional_id: TransactionalId) -> Reject | None:
        """Give the id's client another producer id, at the end of loading."""
        if not await self.producer_id_pool.wait_for_refill():
            return NO_PRODUCER_ID
        env = self._build_env(transactional_id)
        step = decide_replace_producer_id(self.entries.by_id[transactional_id], env)
        if isinstance(step, Reject):
            return step
        self.producer_id_pool.take()
        durable = self._append(transactional_id, step, env)
        if isinstance(durable, Reject):
            return durable
        if durable is not None:
            await durable
        for event in step.events:
            self.entries.put(transactional_id, apply_event(None, event))
        self.history.note_applied(step.records, None, self.runtime.timer.now_ms)
        return None

    # ---- records that took effect before they were durable

    def when_durable(self, transactional_id: TransactionalId) -> "asyncio.Future[None] | None":
        """Return a future, done when everything that took effect for the id is durable; None: it is.

        The future fails with the sync's exception; the partition of the log is lost then.
        """
        offset = self._unsynced_offsets.get(transactional_id)
        if offset is None:
            return None
        index = self.partition_for(transactional_id)
        partition = self._find_partition(index)
        durable = None if partition is None else partition.when_durable(offset)
        if durable is None:
            del self._unsynced_offsets[transactional_id]
        else:
            durable.add_done_callback(partial(self._fail_if_unsynced, index))
        return durable

    def list_unsynced(self) -> "list[asyncio.Future[None]]":
        """Return futures that are done when everything that took effect is durable."""
        futures = map(self.when_durable, tuple(self._unsynced_offsets))
        return [durable for durable in futures if durable is not None]

    def _fail_if_unsynced(self, index: int, durable: "asyncio.Future[None]") -> None:
        failure = None if durable.cancelled() else durable.exception()
        if failure is not None:
            self.runtime.fail_partition_once(index, failure)

    # ---- markers

    def _send_markers(self, entry: TxnEntry) -> None:
        send = find_missing_markers(entry)
        if send is not None:
            transactional_id = entry.transactional_id
            self.marker_sender.send(transactional_id, send, self.get_coordinator_epoch(transactional_id))


def make_pending(command: TxnCommand, requester: RequestContext | None = None) -> PendingTxnCommand:
    """Return a command with a future for its answer."""
    return PendingCommand(command, asyncio.get_running_loop().create_future(), requester=requester)


def _may_merge(first: TxnCommand, other: TxnCommand) -> bool:
    return (
        isinstance(first, AddPartitionsByLeader)
        and isinstance(other, AddPartitionsByLeader)
        and replace(first, partitions=other.partitions) == other
    )


def _merge_commands(group: Sequence[PendingTxnCommand]) -> TxnCommand:
    """Return the one command that has the effect of the whole group."""
    first = group[0].command
    if len(group) == 1 or not isinstance(first, AddPartitionsByLeader):
        return first
    partition_sets = [
        pending.command.partitions for pending in group if isinstance(pending.command, AddPartitionsByLeader)
    ]
    return replace(first, partitions=frozenset().union(*partition_sets))


_partition_for_cached = lru_cache(maxsize=1 << 14)(partition_for)
