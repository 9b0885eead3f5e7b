"""Fetches the records of a page: without a group, so that nothing is left behind on the cluster.

A page costs at most BYTES_MAX, beyond which one batch may go, and READ_MS_MAX.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from tallystick.admin.aio import Admin
from tallystick.admin.topics import EARLIEST, LATEST
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.console.collect.failures import describe_failure
from tallystick.console.lookup.recent import RecentAnswers, TooManyQuestions
from tallystick.console.lookup.record_page import (
    RECORDS_MAX,
    BrowsedRecord,
    RecordPage,
    RecordQuery,
    cut_to_batches,
    read_stable,
    read_unstable,
)
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.value import replace
from tallystick.protocol.messages.data.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tallystick.protocol.records import RecordsError, decode_records, iter_headers

BYTES_MAX: Final = 4 * MIB
FETCH_BYTES: Final = 256 * KIB
READ_MS_MAX: Final = 5_000
KEEP_MS: Final = 3_000
"""An open page asks again for each snapshot, and what it shows has rarely changed."""

KEPT_MAX: Final = 20
DOWNLOADS_MAX: Final = 2
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
FETCH_BY_NAME_VERSION: Final = 12
"""Fetch version 13 and later name topics by id (KIP-516)."""


class RecordBrowser:
    """Reads over an Admin and a Cluster, which their owner closes. Belongs to one event loop."""

    def __init__(self, admin: Admin, cluster: Cluster, clock: Clock) -> None:
        self._admin, self._cluster = admin, cluster
        self._pages: RecentAnswers[RecordQuery, RecordPage] = RecentAnswers(
            self._read, clock, keep_ms=KEEP_MS, kept_max=KEPT_MAX
        )
        self._downloads = asyncio.Semaphore(DOWNLOADS_MAX)

    async def browse(self, query: RecordQuery) -> RecordPage:
        """Return a page of records; what keeps it from being read is in it."""
        try:
            return await self._pages.find(query)
        except TooManyQuestions as exc:
            return RecordPage(partition=query.partition, failure=f"records: {exc}")

    async def download(self, at: TopicPartition, offset: int, *, is_key: bool) -> bytes | None:
        """Return the whole value of one record, or its key; None if there is none.

        Raises: ClientError, RecordsError; TimeoutError.
        """
        async with asyncio.timeout(READ_MS_MAX / 1000), self._downloads:
            data = (await self._fetch(at, offset, READ_UNCOMMITTED, size=1)).records or b""
            if next(iter_headers(data), None) is None:
                return None
            record = next((each for each in decode_records(data) if each.offset == offset), None)
            return None if record is None else record.key if is_key else record.value

    async def close(self) -> None:
        """End what is being read."""
        await self._pages.close()

    async def _read(self, query: RecordQuery) -> RecordPage:
        page = RecordPage(partition=query.partition)
        try:
            async with asyncio.timeout(READ_MS_MAX / 1000):
                page = await self._find_place(query)
                if page.first is not None:
                    page = await self._fill(page)
        except TimeoutError:
            page = replace(page, is_cut=True, failure=f"records: not read within {READ_MS_MAX} ms")
        except (ClientError, RecordsError) as exc:
            page = replace(page, failure=f"records: {describe_failure(exc)}")
        return page

    async def _find_place(self, query: RecordQuery) -> RecordPage:
        """Find where the page begins in the partition."""
        at = query.partition
        start = await self._list_offset(at, EARLIEST) or 0
        end = await self._list_offset(at, LATEST) or 0
        first: int | None = query.offset
        if query.time_ms is not None and first is None:
            first = await self._list_offset(at, query.time_ms)
            first = end if first is None else first
        if first is None:
            first = end - RECORDS_MAX
        return RecordPage(partition=at, first=min(max(first, start), end), start=start, end=end)

    async def _list_offset(self, at: TopicPartition, time_ms: int) -> int | None:
        offset = (await self._admin.list_offsets({at: time_ms})).one(at)
        return None if offset is None else offset.offset

    async def _fill(self, page: RecordPage) -> RecordPage:
        """Read committed and aborted records up to the last stable offset, and then what is behind it."""
        at, position, records = page.partition, page.first or 0, list[BrowsedRecord]()
        bytes_left, last_stable = BYTES_MAX, position
        while bytes_left > 0 and len(records) < RECORDS_MAX:
            data = await self._fetch(at, position, READ_COMMITTED, min(FETCH_BYTES, bytes_left))
            last_stable = data.last_stable_offset
            aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
            taken = data.records or b""
            bytes_left -= len(taken)
            next_position = _take(read_stable(taken, position, aborted), records, position)
            if next_position == position:
                break
            position = next_position
        if bytes_left > 0 and len(records) < RECORDS_MAX and position < (page.end or 0):
            position = max(position, last_stable)  # compaction may have left nothing before it
            data_behind = await self._fetch_unstable(at, position, bytes_left)
            # Asked for after the records: what is not open then has ended, and its marker is behind them.
            open_starts = await self._find_open(at)
            position = _take(read_unstable(data_behind, position, open_starts), records, position)
        return replace(
            page,
            records=tuple(records[:RECORDS_MAX]),
            next_offset=records[RECORDS_MAX].offset if len(records) > RECORDS_MAX else position,
            last_stable=last_stable,
            is_cut=len(records) < RECORDS_MAX and position < (page.end or 0),
        )

    async def _fetch_unstable(self, at: TopicPartition, position: int, size: int) -> bytes:
        """Fetch whole batches from an offset to the end, or the first `size` bytes of them.

        A record's outcome is in the marker behind it, which may be far away.
        """
        data = b""
        while len(data) < size:
            fetched = await self._fetch(at, position, READ_UNCOMMITTED, min(FETCH_BYTES, size - len(data)))
            batches = cut_to_batches(bytes(fetched.records or b""))
            if not batches.data or batches.next_offset <= position:
                break
            data, position = data + batches.data, batches.next_offset
        return data

    async def _find_open(self, at: TopicPartition) -> dict[int, int]:
        """Return the first offset of each open transaction of a partition, by producer id."""
        producers = (await self._admin.describe_producers([at])).one(at)
        return {
            each.identity.producer_id: each.txn_start_offset
            for each in producers
            if each.txn_start_offset is not None
        }

    async def _fetch(self, at: TopicPartition, offset: int, isolation: int, size: int) -> PartitionData:
        """Fetch batches from an offset on, the first one even if it is larger than `size`."""
        partition = FetchPartition(partition=at.partition, fetch_offset=offset, partition_max_bytes=size)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=size,
            isolation_level=isolation,
            topics=(FetchTopic(topic=at.topic, partitions=(partition,)),),
        )

        async def attempt() -> PartitionData:
            node = await self._cluster.find_leader(at)
            answer = await self._cluster.send(node, request, FetchResponse, max_version=FETCH_BY_NAME_VERSION)
            if answer.error_code:
                raise build_broker_error("Fetch", at, answer.error_code)
            (data,) = (each for topic in answer.responses for each in topic.partitions)
            if data.error_code:
                raise build_broker_error("Fetch", at, data.error_code)
            return data

        deadline = self._cluster.start_deadline("the limit of a page", READ_MS_MAX)
        return await self._cluster.run_with_retries("Fetch", at, attempt, deadline)


def _take(
    batches: Iterable[tuple[int, list[BrowsedRecord]]], records: list[BrowsedRecord], position: int
) -> int:
    """Take batches until the page is full; return the offset after them."""
    for next_offset, some in batches:
        records += some
        position = next_offset
        if len(records) >= RECORDS_MAX:
            break
    return position
