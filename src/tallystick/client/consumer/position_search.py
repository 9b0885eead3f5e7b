"""Position search: finds the positions of a consumer's partitions in the background.

Partitions whose search begins at the same time and in the same way share one search. Searches do not wait for
each other, and each partition's answer applies as it arrives. A partition that is sought elsewhere, or read
no longer, is no longer asked for, so a deleted partition delays only its own position.

    committed    OffsetFetch; without a committed offset auto.offset.reset decides, which is another search
    earliest, latest    ListOffsets
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import Context
from functools import partial
from typing import Final

from tallystick.client.consumer.fetch_state import (
    EARLIEST_MS,
    LATEST_MS,
    PositionSource,
    SubscriptionState,
    to_position,
)
from tallystick.client.consumer.offset_requests import CallDeadlines, GroupOffsetRequests, LogOffsetRequests
from tallystick.client.errors import PositionUnknown, TimedOut
from tallystick.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger("tallystick.consumer")

_TIMESTAMP_BY_SOURCE: Final = {PositionSource.EARLIEST: EARLIEST_MS, PositionSource.LATEST: LATEST_MS}


class PositionSearch:
    """Position searches of one consumer, on its loop. Life cycle.

    Create, `start_searches` repeatedly, `cancel`.
    """

    def __init__(
        self,
        subscriptions: SubscriptionState,
        log_offsets: LogOffsetRequests,
        group_offsets: GroupOffsetRequests | None,
        deadlines: CallDeadlines,
        notify: Callable[[], None],
    ) -> None:
        """Create a search that looks for nothing.

        Args:
            group_offsets: None without a group, which then has no committed offsets.
            notify: called when a position was found, and when a search has ended.
        """
        self._subscriptions, self._log_offsets, self._group_offsets = (
            subscriptions,
            log_offsets,
            group_offsets,
        )
        self._deadlines, self._notify = deadlines, notify
        self._searches: set[asyncio.Task[None]] = set()
        self._under_search: dict[TopicPartition, tuple[PositionSource, int]] = {}
        self._failure: BaseException | None = None

    def start_searches(self) -> None:
        """Begin searches for unknown positions that have none.

        Raises: the error of a search since the last call; the next call searches its partitions again.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._begin_searches()

    def cancel(self) -> None:
        """Cancel all searches."""
        for search in self._searches:
            search.cancel()

    def _begin_searches(self) -> None:
        for where in PositionSource:
            missing_positions = self._subscriptions.find_missing_positions(where).items()
            new_serials = {
                at: serial
                for at, serial in missing_positions
                if self._under_search.get(at) != (where, serial)
            }
            if new_serials:
                self._under_search |= {at: (where, serial) for at, serial in new_serials.items()}
                # In a fresh context: the limits of a search that led to this one do not apply.
                search = asyncio.get_running_loop().create_task(
                    self._search(where, new_serials), context=Context()
                )
                self._searches.add(search)
                search.add_done_callback(partial(self._on_search_done, where, new_serials))

    def _on_search_done(
        self, where: PositionSource, serials: Mapping[TopicPartition, int], search: "asyncio.Task[None]"
    ) -> None:
        self._searches.discard(search)
        for at, serial in serials.items():
            if self._under_search.get(at) == (where, serial):
                del self._under_search[at]
        if not search.cancelled():
            self._failure = self._failure or search.exception()
        self._notify()

    async def _search(self, where: PositionSource, serials: Mapping[TopicPartition, int]) -> None:
        def is_wanted(at: TopicPartition) -> bool:
            return self._subscriptions.is_position_missing(at, serials[at], where)

        tell = partial(self._apply_answers, serials)
        try:
            if where is not PositionSource.COMMITTED:
                times = dict.fromkeys(serials, _TIMESTAMP_BY_SOURCE[where])
                await self._log_offsets.list_offsets(times, self._deadlines.start(), tell, is_wanted)
            elif self._group_offsets is not None:
                await self._group_offsets.fetch_committed(serials, self._deadlines.start(), tell, is_wanted)
            else:
                tell(dict.fromkeys(serials))
        except TimedOut as exc:
            # KIP-447: an open transaction holds back a group's pending offsets until it ends.
            _log.warning("positions are still unknown: %s", exc)

    def _apply_answers(
        self,
        serials: Mapping[TopicPartition, int],
        answers: Mapping[TopicPartition, OffsetAndMetadata | None]
        | Mapping[TopicPartition, OffsetAndTimestamp | None],
    ) -> None:
        unknown = [
            at
            for at, offset in answers.items()
            if not self._subscriptions.set_found_position(
                at, serials[at], None if offset is None else to_position(offset)
            )
        ]
        self._notify()
        for at in unknown:
            raise PositionUnknown(at.topic, at.partition, "no offset is committed")
        self._begin_searches()
