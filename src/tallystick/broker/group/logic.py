"""Processing of commands about groups, from the decision to the answers of the members.

This module branches on the contents of a Step, never on the state of a group; the meaning of a command is
defined in `decide`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from tallystick.broker.coordinator.refused_appends import decide_or_refuse
from tallystick.broker.coordinator.reload import Refusals
from tallystick.broker.coordinator.runtime import CoordinatorRuntime, Lane, Pending, Write, answer, answer_all
from tallystick.broker.group.codec import decode_batches, partition_of, record_count
from tallystick.broker.group.commit_batch import BatchRoom
from tallystick.broker.group.machine.commands import (
    Answer,
    Command,
    CommitOffsets,
    Env,
    ForgetPartitions,
    Join,
    Revive,
    Step,
)
from tallystick.broker.group.machine.decide import decide
from tallystick.broker.group.machine.events import (
    DurableEvent,
    GenerationStarted,
    GroupStored,
    RebalancePrepared,
)
from tallystick.broker.group.machine.model import Group, GroupConfig, Now
from tallystick.broker.group.machine.table import GroupTable
from tallystick.broker.group.parked import ParkedRequests
from tallystick.broker.group.ports import OffsetsTopic
from tallystick.broker.group.timeouts import GroupTimeouts
from tallystick.broker.group.writing import (
    GroupRequest,
    GroupWriter,
    Part,
    PendingRequest,
    Refusal,
    no_refusal,
)
from tallystick.broker.partitions.topics import GROUP_OFFSETS
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, Offset
from tallystick.storage.log import NO_GUARD, TxnGuard

log = logging.getLogger("tallystick.groups")

REPLAY_CHUNK_BYTES: Final = 256 * 1024
# About a millisecond of work; in between, the loop serves other requests.
REPLAYED_PER_SLICE: Final = 64

REFUSALS: Final = Refusals.of(GROUP_OFFSETS)


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
        self._new_id = new_id
        self.runtime: CoordinatorRuntime[GroupId, GroupRequest, Answer] = CoordinatorRuntime(
            GROUP_OFFSETS,
            topic,
            self,
            clock,
            log,
            tick=tick,
            answer_timeout_ms=lambda: self.config.offset_commit_timeout_ms,
        )
        self.runtime.partitions.begin(range(len(topic.existing())))
        self.groups: dict[GroupId, Group] = {}
        self.parked = ParkedRequests()
        self.writer = GroupWriter(
            lambda: GroupTable(self.groups), self.runtime.lose, self._finish, self.runtime.timer
        )
        self.timeouts = GroupTimeouts(
            self.groups,
            self.runtime.timer,
            self.submit,
            self.runtime.lanes.__contains__,
            lambda: self.config.offsets_retention_check_interval_ms,
        )
        self._in_memory = GroupTable(self.groups)  # for Steps without records
        self._forgotten: dict[int, set[str]] = {}  # topics deleted while a partition was off
        self._tasks: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """Cancel the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep(self, task: "asyncio.Task[Any]") -> None:
        """Hold on to a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def submit(self, group_id: GroupId, command: Command) -> "asyncio.Future[Answer | Reject]":
        """Run a command that the coordinator itself issues."""
        pending = pending_of(command)
        self.runtime.take_in(group_id, pending)
        return pending.future

    def forget_topic(self, topic: str) -> None:
        """Drop a deleted topic's offsets in every group, so that a new topic of the name inherits none."""
        for index in self.runtime.partitions.indexes:
            self._forgotten.setdefault(index, set()).add(topic)
        self._forget(topic, list(self.groups))

    def _forget(self, topic: str, group_ids: Sequence[GroupId]) -> None:
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None and any(each.topic == topic for each in group.all_partitions()):
                self.submit(group_id, ForgetPartitions(topics=frozenset({topic})))

    def partition_of(self, key: GroupId) -> int:
        """Return the partition of `__consumer_offsets` that keeps the group."""
        return partition_of(key, self._topic.partition_count)

    # ---- called by the runtime

    def meet(self, key: GroupId, pending: PendingRequest, lane: Lane[GroupRequest, Answer]) -> None:
        """Queue a command: those of a group are decided in order of arrival [GRP-1]."""
        self.runtime.enqueue(lane.queue, pending)

    def decide(self, key: GroupId, group: Sequence[PendingRequest]) -> Write | None:
        """Decide; carry out at once, or append, and carry out when the records are durable [GRP-1].

        Commits do not depend on each other. Plain ones share a batch; a transactional batch belongs to one
        producer.
        """
        parts: list[Part] = []
        for pending in group:
            step = self._decide(key, pending)
            if step is None:
                continue
            if _is_plain_commit(pending) and parts and _is_plain_commit(parts[-1][0][0]):
                parts[-1].append((pending, step))
            else:
                parts.append([(pending, step)])
        if not parts:
            return None
        index, existing = self.partition_of(key), self._topic.existing()
        if index < len(existing):
            applied = self.writer.append(key, index, parts, existing[index])
            if self.is_lost(index):
                answer_all(group, REFUSALS.lost)
            return None if applied is None else Write(applied, _nothing)
        task = asyncio.get_running_loop().create_task(self._append_when_made(key, index, parts))
        self.keep(task)
        return Write(task, _nothing)

    def _decide(self, group_id: GroupId, pending: PendingRequest) -> Step | None:
        """Return the Step if it has records to append; otherwise carry it out."""
        command = pending.command.command
        now = Now(self.runtime.timer.now_ms(), self.runtime.timer.monotonic_ms())
        env = Env(group_id=group_id, config=self.config, now=now, spare_id=self._new_id())
        step = decide_or_refuse(lambda: decide(self.groups.get(group_id), command, env))
        if isinstance(step, Reject):
            answer(pending, step)
            return None
        if step.append:
            return step
        self._finish(group_id, pending, step, None)
        return None

    async def _append_when_made(self, group_id: GroupId, index: int, parts: Sequence[Part]) -> object:
        """Append the first records of all, after creating the topic."""
        losses = self.runtime.partitions.losses[index]
        partition = await self._topic.partition(index)
        if self.runtime.partitions.losses[index] != losses:
            return None
        applied = self.writer.append(group_id, index, parts, partition)
        return None if applied is None else await applied

    def next_group(self, key: GroupId, queue: deque[PendingRequest]) -> Sequence[PendingRequest]:
        """Take one command; or a commit, and the commits queued directly behind it."""
        first = queue.popleft()
        if first.future.done():
            return ()  # its deadline passed while it queued: it was answered, so it must not take effect
        group = [first]
        room = BatchRoom(first.command.command)
        while queue and key in self.groups and room.takes(queue[0].command.command):
            pending = queue.popleft()
            if not pending.future.done():
                group.append(pending)
        return group

    def became_idle(self, key: GroupId) -> None:
        """Schedule the group's timeouts, which wait for its writes to end."""
        self.timeouts.schedule(key)

    def overdue(self, command: GroupRequest) -> Answer:
        """Return a retriable error: the client finds its coordinator again."""
        return REFUSALS.slow

    def is_lost(self, index: int) -> bool:
        """Return whether the partition has to be read back."""
        return self.runtime.partitions.is_lost(index)

    def discard(self, index: int) -> None:
        """Forget the groups of a partition, and refuse their parked requests."""
        self.writer.close(index)
        for group_id in [name for name in self.groups if self.partition_of(name) == index]:
            self.timeouts.forget(group_id)
            for member in self.groups.pop(group_id).members.values():
                for ticket in (member.awaiting_join, member.awaiting_sync):
                    self.parked.answer(ticket, REFUSALS.lost)

    async def read_back(self, index: int) -> None:
        """Replay the log into an empty table; its groups become visible once all of it is applied."""
        table = GroupTable({})
        async for piece in self.runtime.replay(index, REPLAY_CHUNK_BYTES):
            for number, entry in enumerate(decode_batches(piece)):
                table.replay(entry)
                if number % REPLAYED_PER_SLICE == 0:
                    await asyncio.sleep(0)
        found, table.groups = table.groups, self.groups
        self.groups.update(found)
        self.writer.take_over(index, table)

    def resume(self, index: int) -> None:
        """Start the sessions of the partition's members; drop offsets of topics deleted meanwhile."""
        group_ids = [name for name in self.groups if self.partition_of(name) == index]
        for group_id in group_ids:
            self.submit(group_id, Revive())
        for topic in self._forgotten.pop(index, ()):
            self._forget(topic, group_ids)

    def _finish(self, group_id: GroupId, pending: PendingRequest, step: Step, at: Offset | None) -> None:
        """Apply, then reply, then answer parked requests [GRP-1]."""
        command = pending.command.command
        table = self._in_memory if at is None else self.writer.table(self.partition_of(group_id))
        for event in step.then_apply:
            table.apply(group_id, event, at)
            if at is not None and isinstance(event, DurableEvent):
                at = Offset(at + record_count(event))
        if step.then_reply is not None:
            answer(pending, step.then_reply)
        else:
            ticket = getattr(command, "ticket", None)
            if ticket is not None:
                self.parked.park(ticket, pending.future)
        for send in step.then_send:
            self.parked.answer(send.ticket, send.answer)
        _report(group_id, command, step)
        self.timeouts.plan(group_id, step.then_apply)


def _nothing() -> None:
    """Do nothing: the records were already applied in log order."""


def _is_plain_commit(pending: PendingRequest) -> bool:
    return isinstance(pending.command.command, CommitOffsets)


def pending_of(command: Command, guard: TxnGuard = NO_GUARD, refused: Refusal = no_refusal) -> PendingRequest:
    """Return a command with a future for its answer."""
    return Pending(GroupRequest(command, guard, refused), asyncio.get_running_loop().create_future())


def _report(group_id: GroupId, command: Command, step: Step) -> None:
    """Log why a group rebalanced, and the result, in one line each (KIP-800)."""
    for event in step.then_apply:
        match event:
            case RebalancePrepared():
                reason = command.reason if isinstance(command, Join) else None
                log.info("group %s rebalances after %s: %s", group_id, type(command).__name__, reason or "-")
            case GenerationStarted(generation=generation, protocol_name=protocol):
                log.info("group %s: generation %d with protocol %s", group_id, generation, protocol)
            case GroupStored(generation=generation, members=members):
                log.info("group %s: generation %d stored, %d members", group_id, generation, len(members))
            case _:
                pass
