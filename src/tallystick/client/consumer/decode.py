"""Decoding of fetched bytes into records, or into columns of them. Pure.

A `Fetched` is one partition's part of one response. Its batches are checked, filtered and unpacked one by one
when records are taken from it. Records are made a batch at a time, because that is fast, and columns of many
batches at once.

Positions move past everything that is not returned to the consumer: markers, aborted data, batches that
compaction emptied, gaps [CLI-34].
"""

from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Final, NamedTuple

from tallystick.client.consumer.isolation import AbortedData
from tallystick.client.consumer.regular_records import is_plain, read_regular
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    CorruptBatch,
    Headers,
    InvalidBatch,
    RecordsError,
    TimestampType,
    check_batch,
    native,
    read_header,
)
from tallystick.protocol.records.record import decode_headers, iter_section, long_varint
from tallystick.protocol.records.section import unpack_section

# A time delta so large that adding it may overflow.
_TIME_MAX: Final = 2**60
# Columns are made of batches that unpack to this many bytes, plus one batch.
_COLUMN_BYTES: Final = 64 * MIB


class ConsumerRecord(NamedTuple):
    """A record as the application receives it.

    Attributes:
        timestamp_ms: milliseconds since the epoch, set by the producer or the broker, see `timestamp_type`.
        headers: names and values in the order they were sent; a name may occur twice.
        leader_epoch: of the partition leader that wrote the record; None if the log does not say.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int | None


class _Batch(NamedTuple):
    """A batch with data for the consumer; `before` is the offset after everything before it."""

    at: int
    header: BatchHeader
    before: int
    section: bytes | None = None


class Fetched:
    """One partition of one Fetch response.

    position      the next offset to be taken; a batch may begin before it
    leader_epoch  of the batch the last record was taken from; None before the first
    """

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        data: Buffer,
        aborted: Iterable[tuple[int, int]] | None,
        *,
        check_crcs: bool = True,
    ) -> None:
        """Take one partition's bytes, to be read from `position` on.

        Args:
            data: the record batches; the last one may be cut off.
            aborted: producer id and first offset of aborted transactions; None to read everything.
        """
        self.partition, self.position = partition, position
        self.leader_epoch: int | None = None
        self._data, self._at = memoryview(data), 0
        self._aborted = None if aborted is None else AbortedData(aborted)
        self._read = check_batch if check_crcs else read_header
        # Batches that are not hidden, which is decided once and in order, until they are used up.
        self._found: deque[_Batch] = deque()
        self._passed = position
        self._ready: deque[ConsumerRecord] = deque()
        self._ready_of: _Batch | None = None

    def take(self, most: int) -> list[ConsumerRecord]:
        """Return the next records, up to `most`; none when this is used up.

        Raises: RecordsError. The position is then that of the bad batch, and stays.
        """
        taken: list[ConsumerRecord] = []
        while len(taken) < most:
            try:
                if not self._ready and not self._next_batch():
                    break
            except RecordsError:
                if not taken:
                    raise
                break  # raised by the next call, after the records before it
            ready = self._ready
            if len(ready) <= most - len(taken):
                taken += ready
                ready.clear()
            else:
                taken += [ready.popleft() for _ in range(most - len(taken))]
        self.position = self._ready[0].offset if self._ready else self._behind()
        return taken

    def take_columns(self, most: int) -> native.Table | None:
        """Take like `take`, in columns; a table without rows when this is used up.

        Return None where columns cannot be made: without the codec's extension, and for batches that it does
        not vouch for. Nothing is taken then, and `take` returns the records, or raises their error [CLI-70].

        Raises: RecordsError, as `take`.
        """
        if native.codec is None:
            return None
        if self._ready and self._ready_of is not None:
            self._found.appendleft(self._ready_of)
            self._ready.clear()
        while True:
            batches = self._unpacked(most)
            table = native.codec.columns([self._part(batch) for batch in batches], most)
            if table is None:
                self._found.extendleft(reversed(batches))
                return None
            rows, left = table[:2]
            if left:
                self._found.appendleft(batches[-1])
            if rows:
                self._came_from(batches[-1])
                self.position = max(self.position, memoryview(table[2][0]).cast("q")[rows - 1] + 1)
            self.position = self._behind()
            if rows or self.exhausted:
                return table

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to take."""
        return not self._ready and not self._found and len(self._data) - self._at < HEADER_SIZE

    def _behind(self) -> int:
        """Return the position when no record is ready."""
        return max(self.position, self._found[0].before if self._found else self._passed)

    def _next_batch(self) -> bool:
        """Make records of batches up to one that has some. Return False at the end."""
        while not self._ready and (self._found or self._find()):
            batch = self._found[0]
            records = decode_consumed(self._data, batch.at, batch.header, self.partition, batch.section)
            if records and records[0].offset < self.position:
                records = [record for record in records if record.offset >= self.position]
            self._found.popleft()
            self._came_from(batch)
            self._ready, self._ready_of = deque(records), batch._replace(section=None)
        return bool(self._ready)

    def _unpacked(self, most: int) -> list[_Batch]:
        """Return the next batches, with at least `most` records if there are that many. Raises: as `take`."""
        batches: list[_Batch] = []
        records = size = 0
        try:
            while records < most and size < _COLUMN_BYTES and (self._found or self._find()):
                batch = self._found[0]
                section = batch.section or unpack_section(self._data, batch.at, batch.header)
                batches.append(batch._replace(section=section))
                self._found.popleft()
                records, size = records + batch.header.record_count, size + len(section)
        except RecordsError:
            if not batches:
                raise
        return batches

    def _part(self, batch: _Batch) -> native.Part:
        kind, here, section = batch.header.timestamp_type, self.partition, batch.section or b""
        topic = here.topic.encode()
        return section, native.batch_of(batch.header), topic, here.partition, kind, self.position

    def _came_from(self, batch: _Batch) -> None:
        epoch = batch.header.partition_leader_epoch
        self.leader_epoch = None if epoch < 0 else epoch

    def _find(self) -> bool:
        """Look for the next batch with records for the consumer. Return False at the end."""
        while (header := self._whole_header()) is not None:
            at = self._at
            self._read(self._data, at)
            hidden = (
                header.is_control if self._aborted is None else self._aborted.hides(header, self._data, at)
            )
            before, self._passed = self._passed, max(self._passed, header.next_offset)
            self._at = at + header.size_bytes
            if not hidden and header.next_offset > self.position:
                self._found.append(_Batch(at, header, before))
                return True
        if self._data and not self._at:
            raise CorruptBatch(f"{len(self._data)} bytes do not hold one whole batch")
        self._at = len(self._data)
        return False

    def _whole_header(self) -> BatchHeader | None:
        """Return the header of the next batch; None if the batch is not complete."""
        left = len(self._data) - self._at
        if left < HEADER_SIZE:
            return None
        header = read_header(self._data, self._at)
        return header if header.size_bytes <= left else None


def decode_consumed(
    buf: Buffer, at: int, header: BatchHeader, partition: TopicPartition, section: bytes | None = None
) -> list[ConsumerRecord]:
    """Return all records of the batch at `at`.

    Args:
        section: its records, if they were unpacked before.
    Raises: InvalidBatch, CorruptBatch.
    Cost: about 150 ns a record with the codec's extension; without it 400 of a regular batch, 600 of a plain
        one, 1.1 us of any other.
    """
    if section is None:
        section = unpack_section(buf, at, header)
    epoch = None if header.partition_leader_epoch < 0 else header.partition_leader_epoch
    origin = _Origin(partition.topic, partition.partition, header.timestamp_type, epoch)
    if native.codec is not None:
        records = native.codec.records(section, native.batch_of(header), ConsumerRecord, origin)
        if records is not None:
            return records
    if is_plain(header):
        columns = read_regular(section, header)
        if columns is not None:
            times, keys, values = columns
            place = repeat(origin.topic), repeat(origin.partition)
            offsets = range(header.base_offset, header.next_offset)
            kind, last = repeat(origin.timestamp_type), (repeat(()), repeat(epoch))
            rows = zip(*place, offsets, times, kind, keys, values, *last, strict=False)
            return list(map(tuple.__new__, repeat(ConsumerRecord), rows))
        records = _read_plain(section, header, origin)
        if records is not None:
            return records
    return _read_thoroughly(section, header, origin)


class _Origin(NamedTuple):
    """Fields that all records of a batch share."""

    topic: str
    partition: int
    timestamp_type: TimestampType
    epoch: int | None


def _read_plain(section: bytes, header: BatchHeader, origin: _Origin) -> list[ConsumerRecord] | None:
    """Read like `_read_thoroughly`, for short numbers and consecutive offsets; else return None [CLI-37].

    Inlined, since nothing in a consumer runs more often.
    """
    topic, number, kind, epoch = origin
    new, here, none = tuple.__new__, ConsumerRecord, ()
    records: list[ConsumerRecord] = []
    add = records.append
    at, base, expected = 0, header.base_timestamp, 0
    try:
        for offset in range(header.base_offset, header.next_offset):
            raw = section[at]
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
            end = at + 1 + (raw >> 1)
            if raw & 1 or raw > 0x3FFF:
                return None
            raw = section[at := at + 2]  # past the attributes
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
                if raw > 0x3FFF:
                    raw, at = long_varint(section, at - 1)
                    if raw > _TIME_MAX:
                        return None
            time = base + ((raw >> 1) ^ -(raw & 1))
            raw = section[at := at + 1]
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
                if raw > 0x3FFF:
                    raw, at = long_varint(section, at - 1)
            if raw != expected:
                return None
            expected += 2
            key, raw = None, section[at := at + 1]
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
            at += 1
            if not raw & 1:
                key = section[at : (at := at + (raw >> 1))]
            value, raw = None, section[at]
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
            at += 1
            if not raw & 1:
                value = section[at : (at := at + (raw >> 1))]
            if at + 1 != end or section[at]:
                if at >= end or not section[at]:
                    return None
                headers = decode_headers(section, at, end)
                add(new(here, (topic, number, offset, time, kind, key, value, headers, epoch)))
            else:
                add(new(here, (topic, number, offset, time, kind, key, value, none, epoch)))
            at = end
    except (IndexError, InvalidBatch):
        return None
    return records if at == len(section) else None


def _read_thoroughly(section: bytes, header: BatchHeader, origin: _Origin) -> list[ConsumerRecord]:
    """Return the records of any batch. Raises: InvalidBatch."""
    topic, number, kind, epoch = origin
    records: list[ConsumerRecord] = []
    for offset, time, key, value, headers in iter_section(section, header):
        records.append(ConsumerRecord(topic, number, offset, time, kind, key, value, headers, epoch))
    return records
