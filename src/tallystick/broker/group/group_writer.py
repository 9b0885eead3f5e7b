"""Writing of group records to `__consumer_offsets`, applied in log order."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tallystick.broker.coordinator.append_errors import append_or_refuse, translate_append_error
from tallystick.broker.coordinator.log_order import AppendOrder
from tallystick.broker.coordinator.runtime import PendingCommand, answer_all
from tallystick.broker.group.codec import count_records, decode_batches, encode_batch_of
from tallystick.broker.group.machine.apply import GroupTable
from tallystick.broker.group.machine.commands import CommitTxnOffsets, GroupAnswer, GroupCommand, GroupStep
from tallystick.broker.group.ports import OffsetsPartition
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, Offset
from tallystick.storage.log.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin

# Refusals of a batch because of its content.
_CONTENT_ERRORS: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)

FindRefusal = Callable[[], Reject | None]
AppliedFuture = asyncio.Future[bool]


def refuse_nothing() -> None:
    """Refuse nothing."""


@dataclass(slots=True, eq=False)
class GuardedCommand:
    """A command of a group, with what the append of a transactional commit needs.

    find_refusal  called just before the append: returns a reason to refuse it after all
    """

    command: GroupCommand
    guard: TxnGuard = NO_GUARD
    find_refusal: FindRefusal = refuse_nothing


PendingGroupCommand = PendingCommand[GuardedCommand, GroupAnswer]
# Requests, with their Steps, whose records become one batch.
CommandBatch = list[tuple[PendingGroupCommand, GroupStep]]


@dataclass(slots=True)
class _PartitionShard:
    """One partition: its groups, and the appends that are not applied yet."""

    table: GroupTable
    append_order: AppendOrder


class GroupWriter:
    """Writer of all partitions. Lives on the loop, owned by the group coordinator."""

    def __init__(
        self,
        tables: Callable[[], GroupTable],
        on_lost: Callable[[int, Exception], None],
        finish: Callable[[GroupId, PendingGroupCommand, GroupStep, Offset | None], None],
        clock: Clock,
    ) -> None:
        """Create a writer without partitions.

        Args:
            tables: returns a table of all groups, for a partition that has none.
            lost: called with a partition whose state is in doubt.
            finish: carries out a Step whose records are durable, at their offset.
        """
        self._create_table = tables
        self._on_lost = on_lost
        self._execute_step = finish
        self._clock = clock
        self._shards: dict[int, _PartitionShard] = {}

    def get_table(self, index: int) -> GroupTable:
        """Return the groups of a partition."""
        return self._get_shard(index).table

    def install_table(self, index: int, table: GroupTable) -> None:
        """Install the table that was read from a partition's log."""
        self._shards[index] = _PartitionShard(table, AppendOrder(partial(self._on_lost, index)))

    def stop_applying(self, index: int) -> None:
        """Apply nothing more of the appends to a partition."""
        self._get_shard(index).append_order.close()

    def _get_shard(self, index: int) -> _PartitionShard:
        if index not in self._shards:
            self.install_table(index, self._create_table())
        return self._shards[index]

    def append(
        self,
        group_id: GroupId,
        index: int,
        parts: Sequence[CommandBatch],
        partition: OffsetsPartition | Reject,
    ) -> AppliedFuture | None:
        """Append every part before waiting for any, so that they share a sync.

        Returns:
            A future, done when the last part is applied; None: all are applied, or refused.

        Raises:
            LogOffline: the log is offline.
        """
        turns = [self._append_batch(group_id, index, part, partition) for part in parts]
        return next((turn for turn in reversed(turns) if turn is not None and not turn.done()), None)

    def _append_batch(
        self, group_id: GroupId, index: int, part: CommandBatch, partition: OffsetsPartition | Reject
    ) -> AppliedFuture | None:
        """Append one batch. Returns None if it was refused, with its commands."""
        first = part[0][0].command
        producer = first.command.identity if isinstance(first.command, CommitTxnOffsets) else None
        events = tuple(event for _, step in part for event in step.records)
        outcome: tuple[AppendResult, AppliedFuture] | Reject
        if isinstance(partition, Reject):
            outcome = partition
        elif (refusal := first.find_refusal()) is not None:
            outcome = refusal
        else:
            encode = partial(encode_batch_of, events, self._clock.now_ms(), producer)
            finish = partial(self._execute_steps, group_id, part)
            outcome = self._append_in_turn(index, partition, encode, first.guard, finish)
        if not isinstance(outcome, Reject):
            return outcome[1]
        if outcome.code in _CONTENT_ERRORS and len(part) > 1:
            # Too large together, or one of them cannot be written: retry them one by one.
            turns = [self._append_batch(group_id, index, [one], partition) for one in part]
            return next((turn for turn in reversed(turns) if turn is not None), None)
        answer_all((pending for pending, _ in part), translate_append_error(outcome))
        return None

    def _append_in_turn(
        self,
        index: int,
        partition: OffsetsPartition,
        encode: Callable[[], bytes],
        guard: TxnGuard,
        apply: Callable[[Offset], None],
    ) -> tuple[AppendResult, AppliedFuture] | Reject:
        """Append now, apply when it is this append's turn [GRP-7]. Raises: LogOffline."""
        result = append_or_refuse(
            encode, lambda batch: partition.append(batch, AppendOrigin.COORDINATOR, guard)
        )
        if isinstance(result, Reject):
            return result
        turn = partial(apply, Offset(result.base_offset))
        return result, self._get_shard(index).append_order.apply_when_durable(
            partition.when_durable(result.last_offset), turn
        )

    def append_marker(
        self, index: int, partition: OffsetsPartition, batch: bytes, guard: TxnGuard
    ) -> tuple[AppendResult, AppliedFuture] | Reject:
        """Append an end marker; the transaction ends in the groups when the marker is applied.

        Raises:
            LogOffline: the log is offline.
        """
        table = self.get_table(index)

        def end_transaction(_: Offset) -> None:
            for entry in decode_batches(batch):
                table.replay_event(entry)

        return self._append_in_turn(index, partition, lambda: batch, guard, end_transaction)

    def _execute_steps(self, group_id: GroupId, part: CommandBatch, at: Offset) -> None:
        for pending, step in part:
            self._execute_step(group_id, pending, step, at)
            at = Offset(at + sum(map(count_records, step.records)))
