"""Decoding of fetched bytes into records, or into columns of them. Pure.

A `CompletedFetch` is one partition's part of one response. Its batches are checked, filtered and unpacked
one by one when records are taken from it. Records are made a batch at a time, because that is fast, and
columns of many batches at once.

Positions move past everything that is not returned to the consumer: markers, aborted data, batches that
compaction emptied, gaps [CLI-34].
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, NamedTuple

from tallystick.client.serializers import K, V
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    ControlType,
    CorruptBatch,
    Headers,
    RecordsError,
    TimestampType,
    check_batch,
    native,
    read_header,
    read_marker,
)
from tallystick.protocol.records.record import iter_section
from tallystick.protocol.records.section import decompress_section

# Columns are made of batches that unpack to this many bytes, plus one batch.
_COLUMN_BYTES: Final = 64 * MIB


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """A record as the application receives it.

    Attributes:
        key, value: bytes, or what the consumer's deserializers make of them.
        timestamp_ms: milliseconds since the epoch, set by the producer or the broker, see `timestamp_type`.
        headers: names and values in the order they were sent; a name may occur twice.
        leader_epoch: of the partition leader that wrote the record; None if the log does not say.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: K | None
    value: V | None
    headers: Headers
    leader_epoch: int | None


class AbortedTransactions:
    """Aborted transactions in one partition of a response; asked about its batches in order.

    A Fetch response names the aborted transactions that overlap its data: a producer id and the offset where
    its transaction began. A transaction is open from its first offset until the ABORT marker of its producer;
    data batches of an open aborted transaction are left out [CLI-33]. A producer has one transaction at a
    time, so its id is enough. Markers are left out at every isolation level.

    Source: KIP-98 "Consumer"; CompletedFetch.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Take the aborted transactions of a response.

        Args:
            aborted: producer id and first offset of each, in any order.
        """
        self._upcoming = sorted(
            ((first_offset, producer) for producer, first_offset in aborted), reverse=True
        )
        self._open_producer_ids: set[int] = set()

    def is_hidden(self, header: BatchHeader, buf: Buffer, at: int) -> bool:
        """Return whether the batch at `at` is hidden from the consumer.

        Raises: InvalidBatch for a malformed marker.
        """
        last_offset = header.last_offset
        while self._upcoming and self._upcoming[-1][0] <= last_offset:
            self._open_producer_ids.add(self._upcoming.pop()[1])
        if header.is_control:
            if header.producer_id in self._open_producer_ids:
                marker = read_marker(buf, at)
                if marker is not None and marker.control_type is ControlType.ABORT:
                    self._open_producer_ids.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open_producer_ids


class _VisibleBatch(NamedTuple):
    """A batch with data for the consumer; `previous_end_offset` is the offset after everything before it."""

    at: int
    header: BatchHeader
    previous_end_offset: int
    section: bytes | None = None


class CompletedFetch:
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
        self._data, self._cursor = memoryview(data), 0
        self._aborted = None if aborted is None else AbortedTransactions(aborted)
        self._read_header = check_batch if check_crcs else read_header
        # Batches that are not hidden, which is decided once and in order, until they are used up.
        self._visible_batches: deque[_VisibleBatch] = deque()
        self._scanned_offset = position
        self._ready_records: deque[ConsumerRecord] = deque()
        self._ready_batch: _VisibleBatch | None = None

    def take_records(self, most: int) -> list[ConsumerRecord]:
        """Return the next records, up to `most`; none when this is used up.

        Raises: RecordsError. The position is then that of the bad batch, and stays.
        """
        records: list[ConsumerRecord] = []
        while len(records) < most:
            try:
                if not self._ready_records and not self._decode_next_batch():
                    break
            except RecordsError:
                if not records:
                    raise
                break  # raised by the next call, after the records before it
            ready_records = self._ready_records
            if len(ready_records) <= most - len(records):
                records += ready_records
                ready_records.clear()
            else:
                records += [ready_records.popleft() for _ in range(most - len(records))]
        self.position = self._ready_records[0].offset if self._ready_records else self._next_position()
        return records

    def take_columns(self, most: int) -> native.Table | None:
        """Take like `take_records`, in columns; a table without rows when this is used up.

        Return None where columns cannot be made: without the codec's extension, and for batches that it does
        not vouch for. Nothing is taken then, and `take_records` returns the records, or raises their error
        [CLI-70].

        Raises: RecordsError, as `take_records`.
        """
        if native.codec is None:
            return None
        if self._ready_records and self._ready_batch is not None:
            self._visible_batches.appendleft(self._ready_batch)
            self._ready_records.clear()
        while True:
            batches = self._unpack_batches(most)
            table = native.codec.columns([self._build_native_part(batch) for batch in batches], most)
            if table is None:
                self._visible_batches.extendleft(reversed(batches))
                return None
            rows, rows_left = table[:2]
            if rows_left:
                self._visible_batches.appendleft(batches[-1])
            if rows:
                self._note_leader_epoch(batches[-1])
                self.position = max(self.position, memoryview(table[2][0]).cast("q")[rows - 1] + 1)
            self.position = self._next_position()
            if rows or self.is_exhausted:
                return table

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left to take."""
        return (
            not self._ready_records
            and not self._visible_batches
            and len(self._data) - self._cursor < HEADER_SIZE
        )

    def _next_position(self) -> int:
        """Return the position when no record is ready."""
        return max(
            self.position,
            self._visible_batches[0].previous_end_offset if self._visible_batches else self._scanned_offset,
        )

    def _decode_next_batch(self) -> bool:
        """Make records of batches up to one that has some. Return False at the end."""
        while not self._ready_records and (self._visible_batches or self._find_visible_batch()):
            batch = self._visible_batches[0]
            records = decode_consumer_records(
                self._data, batch.at, batch.header, self.partition, batch.section
            )
            if records and records[0].offset < self.position:
                records = [record for record in records if record.offset >= self.position]
            self._visible_batches.popleft()
            self._note_leader_epoch(batch)
            self._ready_records, self._ready_batch = deque(records), batch._replace(section=None)
        return bool(self._ready_records)

    def _unpack_batches(self, most: int) -> list[_VisibleBatch]:
        """Return the next batches, with at least `most` records if there are that many. Raises.

        As `take_records`.
        """
        batches: list[_VisibleBatch] = []
        records = size = 0
        try:
            while (
                records < most
                and size < _COLUMN_BYTES
                and (self._visible_batches or self._find_visible_batch())
            ):
                batch = self._visible_batches[0]
                section = batch.section or decompress_section(self._data, batch.at, batch.header)
                batches.append(batch._replace(section=section))
                self._visible_batches.popleft()
                records, size = records + batch.header.record_count, size + len(section)
        except RecordsError:
            if not batches:
                raise
        return batches

    def _build_native_part(self, batch: _VisibleBatch) -> native.BatchRun:
        kind, at, section = batch.header.timestamp_type, self.partition, batch.section or b""
        topic = at.topic.encode()
        return section, native.make_native_batch(batch.header), topic, at.partition, kind, self.position

    def _note_leader_epoch(self, batch: _VisibleBatch) -> None:
        epoch = batch.header.partition_leader_epoch
        self.leader_epoch = None if epoch < 0 else epoch

    def _find_visible_batch(self) -> bool:
        """Look for the next batch with records for the consumer. Return False at the end."""
        while (header := self._read_whole_header()) is not None:
            at = self._cursor
            self._read_header(self._data, at)
            is_hidden = (
                header.is_control
                if self._aborted is None
                else self._aborted.is_hidden(header, self._data, at)
            )
            before, self._scanned_offset = self._scanned_offset, max(self._scanned_offset, header.next_offset)
            self._cursor = at + header.size_bytes
            if not is_hidden and header.next_offset > self.position:
                self._visible_batches.append(_VisibleBatch(at, header, before))
                return True
        if self._data and not self._cursor:
            raise CorruptBatch(f"{len(self._data)} bytes do not hold one whole batch")
        self._cursor = len(self._data)
        return False

    def _read_whole_header(self) -> BatchHeader | None:
        """Return the header of the next batch; None if the batch is not complete."""
        size_left = len(self._data) - self._cursor
        if size_left < HEADER_SIZE:
            return None
        header = read_header(self._data, self._cursor)
        return header if header.size_bytes <= size_left else None


def decode_consumer_records(
    buf: Buffer, at: int, header: BatchHeader, partition: TopicPartition, section: bytes | None = None
) -> list[ConsumerRecord]:
    """Return all records of the batch at `at`.

    Args:
        section: its records, if they were unpacked before.
    Raises: InvalidBatch, CorruptBatch.
    Cost: about 150 ns a record with the codec's extension, 1.1 us without it.
    """
    if section is None:
        section = decompress_section(buf, at, header)
    topic, number, kind = partition.topic, partition.partition, header.timestamp_type
    epoch = None if header.partition_leader_epoch < 0 else header.partition_leader_epoch
    if native.codec is not None:
        records = native.codec.records(
            section, native.make_native_batch(header), ConsumerRecord, (topic, number, kind, epoch)
        )
        if records is not None:
            return records
    return [
        ConsumerRecord(topic, number, offset, timestamp, kind, key, value, headers, epoch)
        for offset, timestamp, key, value, headers in iter_section(section, header)
    ]
