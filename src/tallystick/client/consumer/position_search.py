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

from tallystick.client.consumer.errors import PositionUnknown
from tallystick.client.consumer.fetch_state import (
    EARLIEST_MS,
    LATEST_MS,
    Position,
    PositionSource,
    SubscriptionState,
)
from tallystick.client.consumer.offset_requests import OffsetRequests
from tallystick.client.errors import TimedOut
from tallystick.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from tallystick.client.retry import Deadline
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger("tallystick.consumer")

_TIMESTAMP_BY_SOURCE: Final = {PositionSource.EARLIEST: EARLIEST_MS, PositionSource.LATEST: LATEST_MS}


class PositionSearch:
    """Position searches of one consumer, on its loop. Life cycle.

    Create, `start_searches` repeatedly, `cancel`.
    """

    def __init__(
        self,
        offsets: OffsetRequests,
        tracks: SubscriptionState,
        group_id: str | None,
        limit: Callable[[], Deadline],
        news: Callable[[], None],
    ) -> None:
        """Create a locator without searches.

        Args:
            limit: returns the deadline for a search that begins now.
            news: called when a position was found, and when a search has ended.
        """
        self._offsets, self._subscriptions, self._group_id = offsets, tracks, group_id
        self._make_deadline, self._notify = limit, news
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
            sought = self._subscriptions.find_missing_positions(where).items()
            fresh = {at: serial for at, serial in sought if self._under_search.get(at) != (where, serial)}
            if fresh:
                self._under_search |= {at: (where, serial) for at, serial in fresh.items()}
                # In a fresh context: the limits of a search that led to this one do not apply.
                search = asyncio.get_running_loop().create_task(self._search(where, fresh), context=Context())
                self._searches.add(search)
                search.add_done_callback(partial(self._on_search_done, where, fresh))

    def _on_search_done(
        self, where: PositionSource, asked: Mapping[TopicPartition, int], search: "asyncio.Task[None]"
    ) -> None:
        self._searches.discard(search)
        for at, serial in asked.items():
            if self._under_search.get(at) == (where, serial):
                del self._under_search[at]
        if not search.cancelled():
            self._failure = self._failure or search.exception()
        self._notify()

    async def _search(self, where: PositionSource, asked: Mapping[TopicPartition, int]) -> None:
        def wanted(at: TopicPartition) -> bool:
            return self._subscriptions.is_position_missing(at, asked[at], where)

        tell = partial(self._apply_answers, asked)
        try:
            if where is not PositionSource.COMMITTED:
                await self._offsets.list_offsets(
                    dict.fromkeys(asked, _TIMESTAMP_BY_SOURCE[where]), self._make_deadline(), tell, wanted
                )
            elif self._group_id is not None:
                await self._offsets.fetch_committed(
                    self._group_id, asked, self._make_deadline(), tell, wanted
                )
            else:
                tell(dict.fromkeys(asked))
        except TimedOut as exc:
            # KIP-447: an open transaction holds back a group's pending offsets until it ends.
            _log.warning("positions are still unknown: %s", exc)

    def _apply_answers(
        self,
        asked: Mapping[TopicPartition, int],
        told: Mapping[TopicPartition, OffsetAndMetadata | None]
        | Mapping[TopicPartition, OffsetAndTimestamp | None],
    ) -> None:
        unknown = [
            at
            for at, found in told.items()
            if not self._subscriptions.set_found_position(at, asked[at], _to_position(found))
        ]
        self._notify()
        for at in unknown:
            raise PositionUnknown(at.topic, at.partition, "no offset is committed")
        self._begin_searches()


def _to_position(found: OffsetAndMetadata | OffsetAndTimestamp | None) -> Position | None:
    return None if found is None else Position(found.offset, found.leader_epoch)
