"""Public face of the group coordinator: its lifecycle, its state, its commands.

Commands are processed in `logic`; queues, deadlines and lost partitions are in `broker.coordinator.runtime`.
"""

import asyncio
from collections.abc import Callable
from uuid import uuid4

from tallystick.broker.group.group_writer import FindRefusal, refuse_nothing
from tallystick.broker.group.logic import REFUSALS, GroupLogic, make_pending
from tallystick.broker.group.machine.commands import (
    AwaitPriorCommands,
    CommitTxnOffsets,
    GroupAnswer,
    GroupCommand,
)
from tallystick.broker.group.machine.model import ClassicGroup, GroupConfig, Ticket
from tallystick.broker.group.ports import OffsetsTopic
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, ProducerId
from tallystick.storage.log.log import AppendResult, TxnGuard


class GroupCoordinator:
    """Coordinator of all groups of this broker. Used from the event loop's thread only.

    Lifecycle: create, `start`, `execute` commands, `stop`.
    """

    def __init__(
        self,
        topic: OffsetsTopic,
        config: GroupConfig,
        clock: Clock,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._topic = topic
        self._logic = GroupLogic(topic, config, clock, new_id, self.tick)
        self._runtime = self._logic.runtime
        self._groups = self._logic.groups
        self.create_ticket: Callable[[], Ticket] = self._logic.parked_requests.create_ticket

    @property
    def config(self) -> GroupConfig:
        """The current settings."""
        return self._logic.config

    @config.setter
    def config(self, config: GroupConfig) -> None:
        self._logic.config = config

    # ---- life

    def start(self) -> None:
        """Begin to replay the log, and start the timers. A group answers LOADING until it is replayed."""
        self._logic.timeouts.start()
        load = self._load(len(self._topic.list_partitions()))
        self._logic.track_task(asyncio.get_running_loop().create_task(load))

    def begin_shutdown(self) -> None:
        """Answer all parked requests and refuse new commands: the broker is stopping."""
        self._runtime.begin_shutdown()
        self._logic.parked_requests.close(REFUSALS.stopped)

    async def stop(self) -> None:
        """Finish the appends in flight, answer their callers, end the tasks."""
        self.begin_shutdown()
        await self._runtime.stop()
        await self._logic.stop()

    async def _load(self, count: int) -> None:
        for index in range(count):
            await self._runtime.reloader.load(index)

    # ---- reading

    def partition_for(self, group_id: GroupId) -> int:
        """Return the partition of `__consumer_offsets` that keeps the group."""
        return self._logic.partition_for(group_id)

    def get_group(self, group_id: GroupId) -> ClassicGroup | Reject | None:
        """Return the group as of its last durable step, for reading."""
        return self.find_refusal(group_id) or self._groups.get(group_id)

    def list_groups(self) -> tuple[ClassicGroup, ...] | Reject:
        """Return all groups; refuse with LOADING while some are not known yet."""
        if self._runtime.is_stopped:
            return REFUSALS.stopped
        return REFUSALS.loading if self._runtime.reloader.is_loading else tuple(self._groups.values())

    @property
    def offline_partition_count(self) -> int:
        """Number of `__consumer_offsets` partitions to be read back; their groups are refused until then."""
        return self._runtime.reloader.lost_count

    @property
    def reload_count(self) -> int:
        """Number of times that such a partition was read back and served again."""
        return self._runtime.reloader.reload_count

    def find_refusal(self, group_id: GroupId) -> Reject | None:
        """Return why the group cannot be served now; None: it can."""
        return self._runtime.find_refusal(group_id)

    async def get_settled_group(self, group_id: GroupId) -> ClassicGroup | Reject | None:
        """Return the group once all earlier commands are applied, for a stable read (KIP-447)."""
        if group_id in self._runtime.command_queues:
            answer = await self._logic.submit(group_id, AwaitPriorCommands())
            if isinstance(answer, Reject):
                return answer
        return self.get_group(group_id)

    def list_pending_producers(self, group_id: GroupId) -> frozenset[ProducerId]:
        """Return the producers whose open transactions have offsets of the group."""
        group = self._groups.get(group_id)
        return frozenset() if group is None else frozenset(group.pending_offsets)

    # ---- commands

    async def ensure_topic(self) -> Reject | None:
        """Make sure that `__consumer_offsets` exists, so that FindCoordinator may name this broker."""
        return REFUSALS.stopped if self._runtime.is_stopped else await self._topic.ensure_exists()

    def delete_topic_offsets(self, topic: str) -> None:
        """Drop a deleted topic's offsets in every group, so that a new topic of the name inherits none."""
        self._logic.delete_topic_offsets(topic)

    async def execute(self, group_id: GroupId, command: GroupCommand) -> GroupAnswer:
        """Run one command. Returns when it is durable and applied, or refused, or overdue.

        Cancelling the caller does not undo it.
        """
        return await self._runtime.submit(group_id, make_pending(command))

    async def commit_transactional(
        self,
        group_id: GroupId,
        command: CommitTxnOffsets,
        guard: TxnGuard,
        find_refusal: FindRefusal = refuse_nothing,
    ) -> GroupAnswer:
        """Append offsets as part of a transaction; they are pending until `write_marker` ends it.

        Order: the transaction includes the group's partition, and `guard` proves that to the log.

        Args:
            refused: called when the command's turn has come; returns why its producer may no longer write.
        """
        return await self._runtime.submit(group_id, make_pending(command, guard, find_refusal))

    async def write_marker(self, index: int, batch: bytes, guard: TxnGuard) -> AppendResult | Reject:
        """Append an end marker to a partition, and end the transaction in its groups.

        Waits in no queue: a marker only changes pending offsets, and no Step depends on those (ADR 0022).
        Cancelling the caller does not undo it.

        Order: on return the marker is durable, and applied after everything before it in the partition's log,
            and before everything after it [GRP-7]. Rejects with: COORDINATOR_LOAD_IN_PROGRESS,
            COORDINATOR_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION when the partition does not exist,
            NOT_COORDINATOR when the outcome is unknown, and the log's own refusals.
        """
        if self._runtime.is_stopped:
            return REFUSALS.stopped
        if self._runtime.reloader.is_partition_loading(index):
            return REFUSALS.loading
        partitions = self._topic.list_partitions()
        if index >= len(partitions):
            return Reject(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition __consumer_offsets-{index} does not exist"
            )
        partition, offline = partitions[index], self._runtime.reloader.is_lost(index)
        try:
            outcome = self._logic.writer.append_marker(index, partition, batch, guard)
            if isinstance(outcome, Reject):
                return outcome
            result, applied_future = outcome
            if await applied_future:
                return result
            if not offline:
                return REFUSALS.lost
            # The groups are off, but the log need not be, and a transaction must be able to end. Reading
            # the log back will apply this marker.
            durable = partition.when_durable(result.last_offset)
            if durable is not None:
                await durable
            return result
        except Exception as exc:
            self._runtime.fail_partition(index, exc)
            return REFUSALS.lost

    def tick(self) -> int:
        """Run everything that is due.

        Returns:
            Monotonic milliseconds of the next deadline.
        """
        now_ms = self._runtime.timer.monotonic_ms()
        deadline_ms = self._runtime.answer_overdue(now_ms)
        self._runtime.reloader.run_due(now_ms)
        next_ms = self._logic.timeouts.run_due(now_ms)
        return next_ms if deadline_ms is None else min(deadline_ms, next_ms)
