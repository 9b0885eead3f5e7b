"""From the bytes of a fetched partition to records. Pure.

A `Fetched` is what one answer brought for one partition. Its batches are checked, filtered and unpacked one
by one when records are taken from it; records are made a batch at a time, since that is what is fast.

Positions move over everything that is not a record of the reader's: markers, aborted data, batches that
compaction emptied, gaps [CLI-34].
"""

from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Final, NamedTuple

from tallystick.client.isolation import AbortedData
from tallystick.client.regular import is_plain, read_regular
from tallystick.kernel.ids import TopicPartition
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
    read_header,
)
from tallystick.protocol.records.record import decode_headers, iter_section, long_varint
from tallystick.protocol.records.section import unpack_section

# A time so far from the batch's that adding it may overflow.
_TIME_MAX: Final = 2**60


class ConsumerRecord(NamedTuple):
    """A record as it is handed to the application.

    Attributes:
        timestamp_ms: milliseconds since the epoch, set by whoever `timestamp_type` says.
        headers: names and values in the order they were sent; a name may come twice.
        leader_epoch: of the partition's leader that took the record; None if the log does not say.
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


class Fetched:
    """One partition of one answer.

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
        """Args:
        data: the record batches; the last one may be cut off.
        aborted: producer and first offset of aborted transactions; None for a reader of everything.
        """
        self.partition, self.position = partition, position
        self.leader_epoch: int | None = None
        self._data, self._at = memoryview(data), 0
        self._aborted = None if aborted is None else AbortedData(aborted)
        self._read = check_batch if check_crcs else read_header
        self._ready: deque[ConsumerRecord] = deque()
        self._after = position

    def take(self, most: int) -> list[ConsumerRecord]:
        """The next records, up to `most`; none when this is used up.

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
                break  # it is met again when what came before it has been used
            ready = self._ready
            if len(ready) <= most - len(taken):
                taken += ready
                ready.clear()
            else:
                taken += [ready.popleft() for _ in range(most - len(taken))]
        if self._ready:
            self.position = self._ready[0].offset
        else:
            self.position = max(self.position, self._after)
        return taken

    @property
    def exhausted(self) -> bool:
        """Nothing is left to take."""
        return not self._ready and len(self._data) - self._at < HEADER_SIZE

    def _next_batch(self) -> bool:
        """Unpack batches up to one with something to take. False at the end."""
        while True:
            header = self._whole_header()
            if header is None:
                if self._data and not self._at:
                    raise CorruptBatch(f"{len(self._data)} bytes do not hold one whole batch")
                self._at = len(self._data)
                return False
            at = self._at
            self._read(self._data, at)
            hidden = (
                header.is_control if self._aborted is None else self._aborted.hides(header, self._data, at)
            )
            if not hidden and header.next_offset > self.position:
                epoch = header.partition_leader_epoch
                self.leader_epoch = None if epoch < 0 else epoch
                records = decode_consumed(self._data, at, header, self.partition)
                if records and records[0].offset < self.position:
                    records = [record for record in records if record.offset >= self.position]
                self._ready = deque(records)
            self._at = at + header.size_bytes
            self._after = max(self._after, header.next_offset)
            if self._ready:
                return True

    def _whole_header(self) -> BatchHeader | None:
        """The header of the next batch, if all of that batch is here."""
        left = len(self._data) - self._at
        if left < HEADER_SIZE:
            return None
        header = read_header(self._data, self._at)
        return header if header.size_bytes <= left else None


def decode_consumed(
    buf: Buffer, at: int, header: BatchHeader, partition: TopicPartition
) -> list[ConsumerRecord]:
    """All records of the batch at `at`.

    Raises: InvalidBatch, CorruptBatch.
    Cost: about 400 ns a record of a regular batch, 600 ns of a plain one, 1.1 us of any other.
    """
    section = unpack_section(buf, at, header)
    epoch = None if header.partition_leader_epoch < 0 else header.partition_leader_epoch
    origin = _Origin(partition.topic, partition.partition, header.timestamp_type, epoch)
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
    """What all records of a batch share."""

    topic: str
    partition: int
    timestamp_type: TimestampType
    epoch: int | None


def _read_plain(section: bytes, header: BatchHeader, origin: _Origin) -> list[ConsumerRecord] | None:
    """As `_read_thoroughly`, for short numbers and offsets that count up; None for anything else [CLI-37].

    Written out, since nothing in a consumer runs more often.
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
    """Whatever a batch may hold. Raises: InvalidBatch."""
    topic, number, kind, epoch = origin
    records: list[ConsumerRecord] = []
    for offset, time, key, value, headers in iter_section(section, header):
        records.append(ConsumerRecord(topic, number, offset, time, kind, key, value, headers, epoch))
    return records
