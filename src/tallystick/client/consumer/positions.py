"""Positions of a consumer, as its user sees and changes them: seek, pause, rewind."""

import asyncio
from collections.abc import Iterable
from uuid import UUID

from tallystick.client.consumer.fetch_state import (
    Position,
    PositionSource,
    SoughtRange,
    SubscriptionState,
    to_position,
)
from tallystick.client.consumer.offset_requests import CallDeadlines
from tallystick.client.consumer.position_search import PositionSearch
from tallystick.client.errors import Closed, IllegalState, TimedOut
from tallystick.client.offsets import Offsets, normalize_offsets
from tallystick.kernel.ids import TopicPartition


class ConsumerPositions:
    """Positions in the assigned partitions. Created and closed by the consumer's engine."""

    def __init__(
        self,
        subscriptions: SubscriptionState,
        search: PositionSearch,
        deadlines: CallDeadlines,
        progress: asyncio.Event,
    ) -> None:
        """Create positions without partitions.

        Args:
            search: looks for unknown positions; ends with this.
            progress: set when `poll` or `position` may be able to go on.
        """
        self._subscriptions, self._search = subscriptions, search
        self._deadlines, self._progress = deadlines, progress
        self._rewind_pending = False
        self._is_closed = False

    # ------------------------------------------------------------------------ for the user

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return self._subscriptions.paused_partitions

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions; fetched data is kept for `resume`."""
        for partition in self._require_assigned(partitions):
            self._subscriptions[partition].is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        for partition in self._require_assigned(partitions):
            self._subscriptions[partition].is_paused = False
        self._progress.set()

    def seek(
        self,
        partition: TopicPartition,
        offset: int,
        leader_epoch: int | None = None,
        *,
        until: int | None = None,
        topic_id: UUID | None = None,
    ) -> None:
        """Continue with the record at `offset`, or the first one after it."""
        if offset < 0:
            raise IllegalState(f"seek to offset {offset}: negative")
        (at,) = self._require_assigned([partition])
        self._subscriptions.seek(
            at, Position(offset, leader_epoch), SoughtRange(until=until, topic_id=topic_id)
        )

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek to the first available record; in all assigned partitions if none are given."""
        for partition in self._require_assigned(partitions) or self._subscriptions.assigned_partitions:
            self._subscriptions.seek(partition, PositionSource.EARLIEST, SoughtRange())

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek past the last record; under `read_committed`, to the last stable offset."""
        for partition in self._require_assigned(partitions) or self._subscriptions.assigned_partitions:
            self._subscriptions.seek(partition, PositionSource.LATEST, SoughtRange())

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Return records from `offset` on again; records returned before it may still be committed."""
        (at,) = self._require_assigned([partition])
        self._subscriptions.go_back(at, Position(offset))

    def rewind(self) -> None:
        """From the next `poll` on, return records again that were returned and never committed [CLI-68].

        Not at once: a user who still holds the records may process and commit them.
        """
        self._require_open()
        self._rewind_pending = True

    def note_committed(self, offsets: Offsets) -> None:
        """Record offsets that a transaction committed for the group, for `rewind` to stop at."""
        self._require_open()
        self._subscriptions.note_committed(
            {at: to_position(offset) for at, offset in normalize_offsets(offsets).items()}
        )

    def pin(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise PositionUnknown for a position outside the log, whatever `auto.offset.reset` says.

        Holds until the partitions are assigned anew. For callers that store positions elsewhere.
        """
        for partition in self._require_assigned(partitions):
            self._subscriptions[partition].is_pinned = True

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record `poll` would return. Raises: TimedOut, PositionUnknown."""
        (at,) = self._require_assigned([partition])
        deadline = self._deadlines.start(timeout_ms)
        while at in self._subscriptions:
            if (next_one := self._subscriptions.collect_consumed().get(at)) is not None:
                return next_one.offset
            self._progress.clear()
            self._search.start_searches()
            try:
                async with asyncio.timeout(self._deadlines.compute_remaining_s(deadline)):
                    await self._progress.wait()
            except TimeoutError:
                doing = f"find the position in {at}"
                raise TimedOut(deadline.limit_name, deadline.length_ms, doing) from None
        raise IllegalState(f"{at} is no longer assigned")

    # ---------------------------------------------------------------------- for the engine

    def rewind_if_due(self) -> None:
        """Carry out a `rewind` that was called for."""
        if self._rewind_pending:
            self._rewind_pending = False
            self._subscriptions.rewind()

    def close(self) -> None:
        """Cancel the searches, and refuse further calls."""
        self._is_closed = True
        self._search.cancel()

    def _require_assigned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._require_open()
        partition_list = list(partitions)
        foreign = [str(at) for at in partition_list if at not in self._subscriptions]
        if foreign:
            raise IllegalState(f"not assigned to this consumer: {', '.join(foreign)}")
        return partition_list

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer was closed")
