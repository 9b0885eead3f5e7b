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
from tallystick.client.consumer.fetch_state import EARLIEST_MS, LATEST_MS, Position, Seeking, Tracks
from tallystick.client.consumer.offset_requests import OffsetRequests
from tallystick.client.errors import TimedOut
from tallystick.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from tallystick.client.retry import Deadline
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger("tallystick.consumer")

_TIMES: Final = {Seeking.EARLIEST: EARLIEST_MS, Seeking.LATEST: LATEST_MS}


class Locator:
    """Position searches of one consumer, on its loop. Life cycle: create, `look` repeatedly, `cancel`."""

    def __init__(
        self,
        offsets: OffsetRequests,
        tracks: Tracks,
        group_id: str | None,
        limit: Callable[[], Deadline],
        news: Callable[[], None],
    ) -> None:
        """Create a locator without searches.

        Args:
            limit: returns the deadline for a search that begins now.
            news: called when a position was found, and when a search has ended.
        """
        self._offsets, self._tracks, self._group_id = offsets, tracks, group_id
        self._limit, self._news = limit, news
        self._searches: set[asyncio.Task[None]] = set()
        self._sought: dict[TopicPartition, tuple[Seeking, int]] = {}
        self._failure: BaseException | None = None

    def look(self) -> None:
        """Begin searches for unknown positions that have none.

        Raises: the error of a search since the last call; the next call searches its partitions again.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._begin()

    def cancel(self) -> None:
        """Cancel all searches."""
        for search in self._searches:
            search.cancel()

    def _begin(self) -> None:
        for where in Seeking:
            sought = self._tracks.sought(where).items()
            fresh = {at: serial for at, serial in sought if self._sought.get(at) != (where, serial)}
            if fresh:
                self._sought |= {at: (where, serial) for at, serial in fresh.items()}
                # In a fresh context: the limits of a search that led to this one do not apply.
                search = asyncio.get_running_loop().create_task(self._search(where, fresh), context=Context())
                self._searches.add(search)
                search.add_done_callback(partial(self._ended, where, fresh))

    def _ended(
        self, where: Seeking, asked: Mapping[TopicPartition, int], search: "asyncio.Task[None]"
    ) -> None:
        self._searches.discard(search)
        for at, serial in asked.items():
            if self._sought.get(at) == (where, serial):
                del self._sought[at]
        if not search.cancelled():
            self._failure = self._failure or search.exception()
        self._news()

    async def _search(self, where: Seeking, asked: Mapping[TopicPartition, int]) -> None:
        def wanted(at: TopicPartition) -> bool:
            return self._tracks.seeks(at, asked[at], where)

        tell = partial(self._place, asked)
        try:
            if where is not Seeking.COMMITTED:
                await self._offsets.of_logs(dict.fromkeys(asked, _TIMES[where]), self._limit(), tell, wanted)
            elif self._group_id is not None:
                await self._offsets.of_group(self._group_id, asked, self._limit(), tell, wanted)
            else:
                tell(dict.fromkeys(asked))
        except TimedOut as exc:
            # KIP-447: an open transaction holds back a group's pending offsets until it ends.
            _log.warning("positions are still unknown: %s", exc)

    def _place(
        self,
        asked: Mapping[TopicPartition, int],
        told: Mapping[TopicPartition, OffsetAndMetadata | None]
        | Mapping[TopicPartition, OffsetAndTimestamp | None],
    ) -> None:
        unknown = [
            at for at, found in told.items() if not self._tracks.found(at, asked[at], _position(found))
        ]
        self._news()
        for at in unknown:
            raise PositionUnknown(at.topic, at.partition, "no offset is committed")
        self._begin()


def _position(found: OffsetAndMetadata | OffsetAndTimestamp | None) -> Position | None:
    return None if found is None else Position(found.offset, found.leader_epoch)
