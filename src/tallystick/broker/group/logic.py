"""Processing of commands about groups, from the decision to the answers of the members.

This module branches on the contents of a Step, never on the state of a group; the meaning of a command is
defined in `decide`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from tallystick.broker.coordinator.append_errors import decide_or_refuse
from tallystick.broker.coordinator.reload import CoordinatorRefusals
from tallystick.broker.coordinator.runtime import (
    CommandQueue,
    CoordinatorRuntime,
    PendingCommand,
    PendingWrite,
    answer,
    answer_all,
)
from tallystick.broker.group.codec import count_records, decode_batches, partition_for
from tallystick.broker.group.group_writer import (
    CommandBatch,
    FindRefusal,
    GroupWriter,
    GuardedCommand,
    PendingGroupCommand,
    refuse_nothing,
)
from tallystick.broker.group.machine.apply import GroupTable
from tallystick.broker.group.machine.commands import (
    CommitOffsets,
    CommitTxnOffsets,
    DeleteTopicOffsets,
    GroupAnswer,
    GroupCommand,
    GroupEnv,
    GroupStep,
    JoinGroup,
    StartSessions,
)
from tallystick.broker.group.machine.decide import decide
from tallystick.broker.group.machine.events import (
    DurableEvent,
    GenerationStarted,
    GroupStored,
    RebalancePrepared,
)
from tallystick.broker.group.machine.model import ClassicGroup, ClockReading, GroupConfig, Ticket
from tallystick.broker.group.ports import OffsetsTopic
from tallystick.broker.group.timeouts import GroupTimeouts
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, Offset
from tallystick.storage.log.log import NO_GUARD, TxnGuard

log = logging.getLogger("tallystick.groups")

REPLAY_CHUNK_BYTES: Final = 256 * 1024
# About a millisecond of work; in between, the loop serves other requests.
EVENTS_PER_SLICE: Final = 64
# Commits that share a batch.
BATCH_OFFSETS_MAX: Final = 256
# Characters of metadata: at four bytes each they stay below the default of max.message.bytes.
BATCH_METADATA_MAX: Final = 128 * 1024

REFUSALS: Final = CoordinatorRefusals.for_topic(CONSUMER_OFFSETS_TOPIC)

AnswerFuture = asyncio.Future[GroupAnswer]


class ParkedRequests:
    """JoinGroup and SyncGroup requests that wait for other members, by ticket. Lives on the loop."""

    def __init__(self) -> None:
        self._futures: dict[Ticket, AnswerFuture] = {}
        self._last_ticket = 0
        self._closing_answer: Reject | None = None

    def create_ticket(self) -> Ticket:
        """Return a ticket for a request that may be parked."""
        self._last_ticket += 1
        return Ticket(self._last_ticket)

    def park(self, ticket: Ticket, future: AnswerFuture) -> None:
        """Keep a request until its ticket is answered."""
        if future.done():
            return
        if self._closing_answer is not None:
            future.set_result(self._closing_answer)
        else:
            self._futures[ticket] = future

    def answer(self, ticket: Ticket | None, answer: GroupAnswer) -> None:
        """Answer a request, if it is parked."""
        future = None if ticket is None else self._futures.pop(ticket, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self, answer: Reject) -> None:
        """Answer all parked requests, and those parked from now on."""
        self._closing_answer = answer
        for ticket in list(self._futures):
            self.answer(ticket, answer)


class CommitBatchLimit:
    """Room left in a batch that holds `first`: consecutive commits share one, as far as they fit."""

    def __init__(self, first: GroupCommand) -> None:
        self._is_open = True
        self._offset_count = self._metadata_size = 0
        self.try_add(first)

    def try_add(self, command: GroupCommand) -> bool:
        """Return whether the command joins the batch; one that does not closes it, so that order is kept."""
        if not isinstance(command, CommitOffsets | CommitTxnOffsets) or not self._is_open:
            self._is_open = False
            return False
        self._offset_count += len(command.offsets)
        self._metadata_size += sum(len(offset.metadata) for offset in command.offsets.values())
        self._is_open = self._offset_count <= BATCH_OFFSETS_MAX and self._metadata_size <= BATCH_METADATA_MAX
        return self._is_open


class GroupLogic:
    """The groups, and the execution of Steps: log, parked requests, timeouts. Lives on the loop.

    config  the current settings
    """

    def __init__(
        self,
        topic: OffsetsTopic,
        config: GroupConfig,
        clock: Clock,
        new_id: Callable[[], str],
        tick: Callable[[], int],
    ) -> None:
        """Create the logic with its runtime, writer, parked requests and timeouts.

        Args:
            new_id: returns a unique suffix for a member id.
            tick: see `CoordinatorRuntime`.
        """
        self.config = config
        self._topic = topic
        self._create_id_suffix = new_id
        self.runtime: CoordinatorRuntime[GroupId, GuardedCommand, GroupAnswer] = CoordinatorRuntime(
            CONSUMER_OFFSETS_TOPIC,
            topic,
            self,
            clock,
            log,
            tick=tick,
            answer_timeout_ms=lambda: self.config.offset_commit_timeout_ms,
        )
        self.runtime.reloader.mark_loading(range(len(topic.list_partitions())))
        self.groups: dict[GroupId, ClassicGroup] = {}
        self.parked_requests = ParkedRequests()
        self.writer = GroupWriter(
            lambda: GroupTable(self.groups),
            self.runtime.fail_partition,
            self._execute_step,
            self.runtime.timer,
        )
        self.timeouts = GroupTimeouts(
            self.groups,
            self.runtime.timer,
            self.submit,
            self.runtime.command_queues.__contains__,
            lambda: self.config.offsets_retention_check_interval_ms,
        )
        self._soft_table = GroupTable(self.groups)  # for Steps without records
        self._deleted_topics: dict[int, set[str]] = {}  # topics deleted while a partition was off
        self._tasks: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """Cancel the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def track_task(self, task: "asyncio.Task[Any]") -> None:
        """Hold on to a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def submit(self, group_id: GroupId, command: GroupCommand) -> "asyncio.Future[GroupAnswer | Reject]":
        """Run a command that the coordinator itself issues."""
        pending = make_pending(command)
        self.runtime.submit_internal(group_id, pending)
        return pending.future

    def delete_topic_offsets(self, topic: str) -> None:
        """Drop a deleted topic's offsets in every group, so that a new topic of the name inherits none."""
        for index in self.runtime.reloader.unavailable_indexes:
            self._deleted_topics.setdefault(index, set()).add(topic)
        self._delete_offsets_of_topic(topic, list(self.groups))

    def _delete_offsets_of_topic(self, topic: str, group_ids: Sequence[GroupId]) -> None:
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None and any(each.topic == topic for each in group.iter_partitions()):
                self.submit(group_id, DeleteTopicOffsets(topics=frozenset({topic})))

    def partition_for(self, key: GroupId) -> int:
        """Return the partition of `__consumer_offsets` that keeps the group."""
        return partition_for(key, self._topic.partition_count)

    # ---- called by the runtime

    def enqueue_or_answer(
        self,
        key: GroupId,
        pending: PendingGroupCommand,
        command_queue: CommandQueue[GuardedCommand, GroupAnswer],
    ) -> None:
        """Queue a command: those of a group are decided in order of arrival [GRP-1]."""
        self.runtime.enqueue(command_queue.waiting, pending)

    def decide(self, key: GroupId, group: Sequence[PendingGroupCommand]) -> PendingWrite | None:
        """Decide; carry out immediately, or append, and carry out when the records are durable [GRP-1].

        Commits do not depend on each other. Plain ones share a batch; a transactional batch belongs to one
        producer.
        """
        parts: list[CommandBatch] = []
        for pending in group:
            step = self._decide_one(key, pending)
            if step is None:
                continue
            if _is_plain_commit(pending) and parts and _is_plain_commit(parts[-1][0][0]):
                parts[-1].append((pending, step))
            else:
                parts.append([(pending, step)])
        if not parts:
            return None
        index, partitions = self.partition_for(key), self._topic.list_partitions()
        if index < len(partitions):
            applied_future = self.writer.append(key, index, parts, partitions[index])
            if self.is_lost(index):
                answer_all(group, REFUSALS.lost)
            return None if applied_future is None else PendingWrite(applied_future, _do_nothing)
        task = asyncio.get_running_loop().create_task(self._create_topic_and_append(key, index, parts))
        self.track_task(task)
        return PendingWrite(task, _do_nothing)

    def _decide_one(self, group_id: GroupId, pending: PendingGroupCommand) -> GroupStep | None:
        """Return the Step if it has records to append; otherwise carry it out."""
        command = pending.command.command
        now = ClockReading(self.runtime.timer.now_ms(), self.runtime.timer.monotonic_ms())
        env = GroupEnv(
            group_id=group_id, config=self.config, now=now, member_id_suffix=self._create_id_suffix()
        )
        step = decide_or_refuse(lambda: decide(self.groups.get(group_id), command, env))
        if isinstance(step, Reject):
            answer(pending, step)
            return None
        if step.records:
            return step
        self._execute_step(group_id, pending, step, None)
        return None

    async def _create_topic_and_append(
        self, group_id: GroupId, index: int, parts: Sequence[CommandBatch]
    ) -> object:
        """Append the first records of all, after creating the topic."""
        losses = self.runtime.reloader.loss_counts[index]
        partition = await self._topic.ensure_partition(index)
        if self.runtime.reloader.loss_counts[index] != losses:
            return None
        applied_future = self.writer.append(group_id, index, parts, partition)
        return None if applied_future is None else await applied_future

    def take_next_commands(
        self, key: GroupId, queue: deque[PendingGroupCommand]
    ) -> Sequence[PendingGroupCommand]:
        """Handle one command; or a commit, and the commits queued directly behind it."""
        first = queue.popleft()
        if first.future.done():
            return ()  # its deadline passed while it queued: it was answered, so it must not take effect
        group = [first]
        room = CommitBatchLimit(first.command.command)
        while queue and key in self.groups and room.try_add(queue[0].command.command):
            pending = queue.popleft()
            if not pending.future.done():
                group.append(pending)
        return group

    def on_idle(self, key: GroupId) -> None:
        """Schedule the group's timeouts, which wait for its writes to end."""
        self.timeouts.schedule(key)

    def build_timeout_answer(self, command: GuardedCommand) -> GroupAnswer:
        """Return a retriable error: the client finds its coordinator again."""
        return REFUSALS.timed_out

    def is_lost(self, index: int) -> bool:
        """Return whether the partition has to be read back."""
        return self.runtime.reloader.is_lost(index)

    def unload(self, index: int) -> None:
        """Forget the groups of a partition, and refuse their parked requests."""
        self.writer.stop_applying(index)
        for group_id in [name for name in self.groups if self.partition_for(name) == index]:
            self.timeouts.clear_backoff(group_id)
            for member in self.groups.pop(group_id).members.values():
                for ticket in (member.awaiting_join, member.awaiting_sync):
                    self.parked_requests.answer(ticket, REFUSALS.lost)

    async def load(self, index: int) -> None:
        """Replay the log into an empty table; its groups become visible once all of it is applied."""
        table = GroupTable({})
        async for piece in self.runtime.read_log(index, REPLAY_CHUNK_BYTES):
            for number, entry in enumerate(decode_batches(piece)):
                table.replay_event(entry)
                if number % EVENTS_PER_SLICE == 0:
                    await asyncio.sleep(0)
        groups, table.groups = table.groups, self.groups
        self.groups.update(groups)
        self.writer.install_table(index, table)

    def on_loaded(self, index: int) -> None:
        """Start the sessions of the partition's members; drop offsets of topics deleted meanwhile."""
        group_ids = [name for name in self.groups if self.partition_for(name) == index]
        for group_id in group_ids:
            self.submit(group_id, StartSessions())
        for topic in self._deleted_topics.pop(index, ()):
            self._delete_offsets_of_topic(topic, group_ids)

    def _execute_step(
        self, group_id: GroupId, pending: PendingGroupCommand, step: GroupStep, at: Offset | None
    ) -> None:
        """Apply, then reply, then answer parked requests [GRP-1]."""
        command = pending.command.command
        table = self._soft_table if at is None else self.writer.get_table(self.partition_for(group_id))
        for event in step.events:
            table.apply_event(group_id, event, at)
            if at is not None and isinstance(event, DurableEvent):
                at = Offset(at + count_records(event))
        if step.reply is not None:
            answer(pending, step.reply)
        else:
            ticket = getattr(command, "ticket", None)
            if ticket is not None:
                self.parked_requests.park(ticket, pending.future)
        for send in step.parked_answers:
            self.parked_requests.answer(send.ticket, send.answer)
        _log_rebalance(group_id, command, step)
        self.timeouts.schedule_after(group_id, step.events)


def _do_nothing() -> None:
    """Do nothing: the records were already applied in log order."""


def _is_plain_commit(pending: PendingGroupCommand) -> bool:
    return isinstance(pending.command.command, CommitOffsets)


def make_pending(
    command: GroupCommand, guard: TxnGuard = NO_GUARD, find_refusal: FindRefusal = refuse_nothing
) -> PendingGroupCommand:
    """Return a command with a future for its answer."""
    return PendingCommand(
        GuardedCommand(command, guard, find_refusal), asyncio.get_running_loop().create_future()
    )


def _log_rebalance(group_id: GroupId, command: GroupCommand, step: GroupStep) -> None:
    """Log why a group rebalanced, and the result, in one line each (KIP-800)."""
    for event in step.events:
        match event:
            case RebalancePrepared():
                reason = command.reason if isinstance(command, JoinGroup) else None
                log.info("group %s rebalances after %s: %s", group_id, type(command).__name__, reason or "-")
            case GenerationStarted(generation=generation, protocol_name=protocol):
                log.info("group %s: generation %d with protocol %s", group_id, generation, protocol)
            case GroupStored(generation=generation, members=members):
                log.info("group %s: generation %d stored, %d members", group_id, generation, len(members))
            case _:
                pass
