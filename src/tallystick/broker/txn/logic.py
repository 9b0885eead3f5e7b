"""Processing of commands about transactional ids, from the decision to the markers.

This module branches on the contents of a Step and on the table WHILE_PENDING, never on the state of a
transaction; the meaning of a command is defined in `decide`. A marker is retried until its partition has it
or is gone (`marker_sender`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Final

from tallystick.broker.coordinator.refused_appends import answered, append_or_refuse, decide_or_refuse
from tallystick.broker.coordinator.reload import Refusals
from tallystick.broker.coordinator.runtime import CoordinatorRuntime, Lane, Pending, Write, answer, answer_all
from tallystick.broker.partitions.topics import TRANSACTION_STATE
from tallystick.broker.txn.codec import encode_batch_of, partition_of
from tallystick.broker.txn.entries import TxnEntries
from tallystick.broker.txn.loader import TransactionLogLoader
from tallystick.broker.txn.machine.apply import apply
from tallystick.broker.txn.machine.commands import (
    AddImplicitly,
    Answer,
    Command,
    Env,
    MarkersWritten,
    Step,
    WhilePending,
    while_pending,
)
from tallystick.broker.txn.machine.consistency import moved
from tallystick.broker.txn.machine.decide import CONCURRENT, decide, refuse_while_pending
from tallystick.broker.txn.machine.end_txn import markers_of
from tallystick.broker.txn.machine.model import Decided, ForcedOutcome, TxnEntry
from tallystick.broker.txn.marker_sender import MarkerSender, MarkerSink
from tallystick.broker.txn.ports import StatePartition, StateTopic, TxnSettings
from tallystick.broker.txn.producer_id_pool import NO_PRODUCER_ID, ProducerIdPool
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Identity, ProducerId, TransactionalId
from tallystick.kernel.value import replace
from tallystick.storage.producers import AppendOrigin

_log = logging.getLogger("tallystick.transactions")

REFUSALS: Final = Refusals.of(TRANSACTION_STATE)
NO_TOPIC: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no __transaction_state")

AnswerFuture = asyncio.Future[Answer]
PendingCommand = Pending[Command, Answer]


class TransactionLogic:
    """The entries, and the execution of Steps: log, markers, producer ids. Lives on the loop."""

    def __init__(
        self,
        topic: StateTopic,
        markers: MarkerSink,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
        settings: Callable[[], TxnSettings],
        clock: Clock,
        *,
        tick: Callable[[], int],
        forced: Callable[[ForcedOutcome], None],
    ) -> None:
        """Create the logic with its runtime, marker sender, producer id pool and loader.

        Args:
            settings: returns the current settings; called at every decision, so it must be cheap.
            tick: see `CoordinatorRuntime`.
            forced: called for every transaction that ends without its client, once that is durable.
        """
        self._topic = topic
        self._settings = settings
        self._forced = forced
        self.runtime: CoordinatorRuntime[TransactionalId, Command, Answer] = CoordinatorRuntime(
            TRANSACTION_STATE,
            topic,
            self,
            clock,
            _log,
            tick=tick,
            answer_timeout_ms=lambda: settings().answer_timeout_ms,
        )
        self.entries = TxnEntries(self.partition_of)
        self.sender = MarkerSender(markers, self, self.runtime.timer)
        self.producer_ids = ProducerIdPool(new_producer_id, self._decide_again)
        self.loader = TransactionLogLoader(
            self.runtime,
            self.entries,
            coordinator_epoch=self.coordinator_epoch,
            send_markers=self._send_markers,
            move=self._move,
        )
        # Commands that arrived while the previous transaction's markers were in flight; decided again after.
        self._held: dict[TransactionalId, deque[PendingCommand]] = {}

    def release(self) -> None:
        """Refuse new commands and those that wait undecided."""
        self.runtime.release()
        self.producer_ids.close()
        answer_all(self.producer_ids.waiting(), REFUSALS.stopped)
        for held in self._held.values():
            answer_all(held, REFUSALS.stopped)

    def partition_of(self, key: TransactionalId) -> int:
        """Return the partition of `__transaction_state` that keeps the id."""
        return _partition_of(key, self._topic.partition_count)

    def coordinator_epoch(self, transactional_id: TransactionalId) -> int:
        """Return the coordinator epoch for markers: the leader epoch of the partition that keeps the id."""
        partition = self._partition(self.partition_of(transactional_id))
        return 0 if partition is None else partition.leader_epoch

    def _partition(self, index: int) -> StatePartition | None:
        existing = self._topic.existing()
        return existing[index] if index < len(existing) else None

    # ---- called by the runtime

    def meet(self, key: TransactionalId, pending: PendingCommand, lane: Lane[Command, Answer]) -> None:
        """Answer or queue a command that arrives while a Step is pending [TXN-5]."""
        match while_pending(pending.command):
            case WhilePending.REFUSE | WhilePending.IDENTITY_FIRST:
                answer(pending, refuse_while_pending(self.entries.get(key), pending.command))
            case WhilePending.PASS:
                self.runtime.run(key, (pending,))
            case WhilePending.WAIT | WhilePending.MERGE:
                self.runtime.enqueue(lane.queue, pending)

    def decide(self, key: TransactionalId, group: Sequence[PendingCommand]) -> Write | None:
        """Decide; then carry out the Step, or append its records and carry it out when durable [TXN-1]."""
        command = _merged(group)
        env = self._env(key)
        step = decide_or_refuse(lambda: decide(self.entries.get(key), command, env))
        if isinstance(step, Reject):
            self._refuse(key, group, step)
            return None
        if step.used_spare and not self.producer_ids.take():
            for pending in group:
                self.runtime.bound(pending)
            self.producer_ids.wait(key, group)
            return None
        durable = self._append(key, step, env) if step.append else None
        if isinstance(durable, Reject):
            if step.used_spare:
                self.producer_ids.put_back(env.spare_id)
            answer_all(group, durable)
            return None
        if durable is None:
            self._finish(key, group, step)
            return None
        return Write(durable, partial(self._finish, key, group, step))

    def next_group(self, key: TransactionalId, queue: deque[PendingCommand]) -> list[PendingCommand]:
        """Take one command, or several that differ only in their partitions."""
        group: list[PendingCommand] = []
        while queue:
            pending = queue[0]
            if pending.future.done():
                queue.popleft()  # overdue, therefore answered: it must not take effect
            elif not group or _may_merge(group[0].command, pending.command):
                group.append(queue.popleft())
            else:
                break
        return group

    def became_idle(self, key: TransactionalId) -> None:
        """Do nothing: no work waits for an idle key."""

    def overdue(self, command: Command) -> Answer:
        """Return a retriable error.

        A command that may merge is retried as is; for the others the client looks up the coordinator first.
        """
        return CONCURRENT if while_pending(command) is WhilePending.MERGE else REFUSALS.slow

    def is_lost(self, index: int) -> bool:
        """See `TransactionLogLoader.is_lost`."""
        return self.loader.is_lost(index)

    def discard(self, index: int) -> None:
        """Forget the ids of a partition, and refuse the commands held for the end of their transactions."""
        self.entries.remove_partition(index)
        for name in [name for name in self._held if self.partition_of(name) == index]:
            answer_all(self._held.pop(name), REFUSALS.lost)

    async def read_back(self, index: int) -> None:
        """See `TransactionLogLoader.read_back`."""
        await self.loader.read_back(index)

    def resume(self, index: int) -> None:
        """See `TransactionLogLoader.resume`."""
        self.loader.resume(index)

    # ---- deciding

    def _decide_again(self, transactional_id: TransactionalId, group: Sequence[PendingCommand]) -> None:
        self.runtime.drain(transactional_id, deque(group))

    def _env(self, transactional_id: TransactionalId) -> Env:
        return Env(
            transactional_id=transactional_id,
            config=self._settings().config,
            now_ms=self.runtime.timer.now_ms(),
            spare_id=self.producer_ids.next_id,
        )

    def _refuse(
        self, transactional_id: TransactionalId, group: Sequence[PendingCommand], why: Reject
    ) -> None:
        """Reject the callers; queue those that may wait for the previous transaction to complete [TXN-5]."""
        if why is not CONCURRENT or while_pending(group[0].command) is not WhilePending.MERGE:
            answer_all(group, why)
            return
        held = self._held.setdefault(transactional_id, deque())
        for pending in group:
            self.runtime.enqueue(held, pending)

    def _append(
        self, transactional_id: TransactionalId, step: Step, env: Env
    ) -> "asyncio.Future[None] | Reject | None":
        """Append a Step's records in one batch, and return the future that the Step must wait for, if any."""
        partition = self._partition(self.partition_of(transactional_id))
        if partition is None:
            return NO_TOPIC
        origin = AppendOrigin.COORDINATOR if step.begins else AppendOrigin.DECISION
        appended = append_or_refuse(
            lambda: encode_batch_of(step.append, env.now_ms, env.config.transaction_version),
            lambda batch: partition.append(batch, origin),
        )
        if isinstance(appended, Reject):
            return answered(appended)
        return partition.durable(appended.last_offset) if step.needs_durable else None

    def _finish(self, transactional_id: TransactionalId, group: Sequence[PendingCommand], step: Step) -> None:
        """Apply, then reply, then send markers [TXN-1]."""
        if step.then_apply:
            entry = before = self.entries.get(transactional_id)
            for event in step.then_apply:
                entry = apply(entry, event)
            self.entries.put(transactional_id, entry)
            if entry is not None and entry.forced and (before is None or before.forced != entry.forced):
                self._forced(entry.forced[-1])
        answer_all(group, step.then_reply)
        if step.then_send is not None:
            self.sender.send(transactional_id, step.then_send, self.coordinator_epoch(transactional_id))
        elif step.append and transactional_id in self._held:
            self.runtime.drain(transactional_id, self._held.pop(transactional_id))

    async def _move(self, transactional_id: TransactionalId) -> Reject | None:
        """Give the id's client another producer id, at the end of loading."""
        if not await self.producer_ids.filled():
            return NO_PRODUCER_ID
        env = self._env(transactional_id)
        step = moved(self.entries.by_id[transactional_id], env)
        if isinstance(step, Reject):
            return step
        self.producer_ids.take()
        durable = self._append(transactional_id, step, env)
        if isinstance(durable, Reject):
            return durable
        if durable is not None:
            await durable
        for event in step.then_apply:
            self.entries.put(transactional_id, apply(None, event))
        return None

    # ---- markers

    def markers_written(self, transactional_id: TransactionalId, command: MarkersWritten) -> AnswerFuture:
        """Do as `submit`, and also while the broker is stopping: a decided transaction may be completed."""
        pending = pending_of(command)
        self.runtime.take_in(transactional_id, pending)
        return pending.future

    def is_decided(self, transactional_id: TransactionalId, marker: Identity) -> bool:
        """Return whether the id still waits for these markers."""
        entry = self.entries.get(transactional_id)
        return entry is not None and isinstance(entry.phase, Decided) and entry.phase.marker == marker

    def losses(self, transactional_id: TransactionalId) -> int:
        """Return how often the id's partition was lost."""
        return self.runtime.partitions.losses[self.partition_of(transactional_id)]

    def wake_at(self, at_ms: int) -> None:
        """Call `tick` at this monotonic time or before."""
        self.runtime.timer.arm(at_ms)

    def _send_markers(self, entry: TxnEntry) -> None:
        send = markers_of(entry)
        if send is not None:
            transactional_id = entry.transactional_id
            self.sender.send(transactional_id, send, self.coordinator_epoch(transactional_id))


def pending_of(command: Command) -> PendingCommand:
    """Return a command with a future for its answer."""
    return Pending(command, asyncio.get_running_loop().create_future())


def _may_merge(first: Command, other: Command) -> bool:
    return (
        isinstance(first, AddImplicitly)
        and isinstance(other, AddImplicitly)
        and first.identity == other.identity
    )


def _merged(group: Sequence[PendingCommand]) -> Command:
    """Return the one command that has the effect of the whole group."""
    first = group[0].command
    if len(group) == 1 or not isinstance(first, AddImplicitly):
        return first
    wanted = [pending.command.partitions for pending in group if isinstance(pending.command, AddImplicitly)]
    return replace(first, partitions=frozenset().union(*wanted))


_partition_of = lru_cache(maxsize=1 << 14)(partition_of)
