"""Finds what a transactional producer has written, whatever has become of it: partitions, offsets, outcome.

A coordinator forgets the partitions of a transaction with its end, and a partition remembers each producer
for `producer.id.expiration.ms` (a day). So the partitions are asked first, and those that know the producer
are read from the time when the transaction began, up to a number of bytes. Nothing is left on the cluster.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from tallystick.admin.aio import Admin
from tallystick.admin.topics import EARLIEST
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import AdminConfig
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.kernel.value import Value, replace
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tallystick.protocol.records import (
    HEADER_SIZE,
    Buffer,
    ControlType,
    RecordsError,
    read_header,
    read_marker,
)

BYTES_MAX: Final = 64 * MIB
"""Bytes that are read at most, of all partitions together."""

CLOCK_SLACK_MS: Final = 60_000
"""A topic may have the broker's times instead of the producer's, which began the transaction."""

FIND_LIMIT_S: Final = 30.0
_FETCH_BYTES: Final = MIB
_LIMIT_MS: Final = 10_000
_FETCH_BY_NAME_VERSION: Final = 12
"""Fetch version 13 and later name topics by id (KIP-516)."""


class WrittenSpec(Value, kw_only=True):
    """The producer whose records are looked for.

    epoch_min, epoch_max  inclusive
    since_ms              begin of the transaction, in milliseconds since the Unix epoch; None: from the
                          first record on
    """

    producer_id: int
    epoch_min: int
    epoch_max: int
    since_ms: int | None


class WrittenRange(Value, kw_only=True):
    """The records of one transaction in one partition.

    last_offset  inclusive; others' records may lie between
    outcome      `committed`, `aborted`, or `open` if no marker was read
    """

    partition: TopicPartition
    producer_id: int
    epoch: int
    first_offset: int
    last_offset: int
    record_count: int
    outcome: str


class WrittenRecords(Value, kw_only=True):
    """The ranges that were found, by partition and offset, and why there may be more.

    gaps  by partition or request, what kept it from being read to its end
    """

    ranges: tuple[WrittenRange, ...]
    gaps: Mapping[str, str]


class WrittenFold:
    """Collects the ranges of one partition from its batches. Pure."""

    def __init__(self, spec: WrittenSpec, partition: TopicPartition) -> None:
        self._spec, self._partition = spec, partition
        self._open: WrittenRange | None = None
        self._ended: list[WrittenRange] = []

    @property
    def ranges(self) -> tuple[WrittenRange, ...]:
        return (*self._ended, *([] if self._open is None else [self._open]))

    def feed(self, data: Buffer, position: int) -> int:
        """Take the complete batches of an answer; return the offset after them, or `position` without any.

        Raises: RecordsError.
        """
        at = 0
        while len(data) - at >= HEADER_SIZE:
            header = read_header(data, at)
            batch = data[at : at + header.size_bytes]
            at += header.size_bytes
            if at > len(data):
                break
            position = max(position, header.next_offset)
            if header.producer_id != self._spec.producer_id or not header.is_transactional:
                continue
            marker = read_marker(batch)
            if marker is not None:
                self._end("committed" if marker.control_type is ControlType.COMMIT else "aborted")
            elif self._spec.epoch_min <= header.producer_epoch <= self._spec.epoch_max:
                self._add(header.producer_epoch, header.base_offset, header.last_offset, header.record_count)
        return position

    def _add(self, epoch: int, first: int, last: int, count: int) -> None:
        former = self._open
        self._open = WrittenRange(
            partition=self._partition,
            producer_id=self._spec.producer_id,
            epoch=epoch,
            first_offset=first if former is None else former.first_offset,
            last_offset=last,
            record_count=count + (0 if former is None else former.record_count),
            outcome="open",
        )

    def _end(self, outcome: str) -> None:
        if self._open is not None:
            self._ended.append(replace(self._open, outcome=outcome))
            self._open = None


async def find_written(config: Mapping[str, object], spec: WrittenSpec) -> WrittenRecords:
    """Find what a producer has written.

    Args:
        config: settings of an administration client.

    Raises: ClientError if the topics cannot be listed; TimeoutError after FIND_LIMIT_S. What else cannot be
        read is a gap of the answer.
    """
    settings = AdminConfig.parse(config)
    cluster = Cluster(settings.client)
    try:
        async with asyncio.timeout(FIND_LIMIT_S), Admin(config) as admin:
            return await _find(admin, cluster, spec)
    finally:
        await cluster.close()


async def _find(admin: Admin, cluster: Cluster, spec: WrittenSpec) -> WrittenRecords:
    topics = await admin.list_topics(internal=True)
    partitions = [TopicPartition(name, each) for name, info in topics.items() for each in info.partitions]
    producers = await admin.describe_producers(partitions)
    gaps = {str(at): str(exc) for at, exc in producers.failures.items()}
    known = sorted(
        at
        for at, states in producers.found.items()
        if any(each.identity.producer_id == spec.producer_id for each in states)
    )
    since = EARLIEST if spec.since_ms is None else max(0, spec.since_ms - CLOCK_SLACK_MS)
    starts = await admin.list_offsets(dict.fromkeys(known, since))
    gaps |= {str(at): str(exc) for at, exc in starts.failures.items()}
    reader = _RangeReader(cluster)
    ranges: list[WrittenRange] = []
    for at in known:
        start = starts.found.get(at)
        if start is None:  # nothing is so young, or it could not be asked
            continue
        fold = WrittenFold(spec, at)
        try:
            await reader.read(fold, at, start.offset)
        except (ClientError, RecordsError) as exc:
            gaps[str(at)] = str(exc)
        if reader.bytes_left <= 0:
            gaps.setdefault(str(at), f"not read to its end: more than {BYTES_MAX // MIB} MiB to read")
        ranges += fold.ranges
    return WrittenRecords(ranges=tuple(ranges), gaps=gaps)


class _RangeReader:
    """A reader of partitions with one limit of time and of bytes for all of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._deadline = cluster.start_deadline("the limit of a look at records", _LIMIT_MS)
        self.bytes_left = BYTES_MAX

    async def read(self, fold: WrittenFold, at: TopicPartition, offset: int) -> None:
        """Feed a partition from an offset to its end, or as far as the bytes suffice."""

        async def fetch() -> Buffer:
            return await self._fetch(at, offset)

        while self.bytes_left > 0:
            data = await self._cluster.run_with_retries("Fetch", at, fetch, self._deadline)
            next_offset = fold.feed(data, offset)
            if next_offset == offset:
                break
            self.bytes_left -= len(data)
            offset = next_offset

    async def _fetch(self, at: TopicPartition, offset: int) -> Buffer:
        partition = FetchPartition(
            partition=at.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        topic = FetchTopic(topic=at.topic, partitions=(partition,))
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=_FETCH_BYTES, topics=(topic,))
        node = await self._cluster.find_leader(at)
        answer = await self._cluster.send(node, request, FetchResponse, max_version=_FETCH_BY_NAME_VERSION)
        if answer.error_code:
            raise build_broker_error("Fetch", at, answer.error_code)
        (data,) = (each for some in answer.responses for each in some.partitions)
        if data.error_code:
            raise build_broker_error("Fetch", at, data.error_code)
        return data.records or b""
