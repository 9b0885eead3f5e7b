"""The reads of one log, and the limits up to which a reader may see it.

A `LogReader` holds what reading needs: the segments in order, where the log begins, ends, and is on disk, and
where recent reads ended. The log, which owns it, moves these limits; a read never writes.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    RecordsError,
    check_batch,
    iter_headers,
    iter_records,
    read_header,
)
from tallystick.protocol.records.batch import RECORD_COUNT_AT
from tallystick.storage.disk.fs import CorruptLog, StorageFailure
from tallystick.storage.segments.log_segment import SegmentReader
from tallystick.storage.segments.segment_files import FileRecords
from tallystick.storage.segments.segment_scan import LOG_SUFFIX
from tallystick.storage.state.producer_state import ProducerStateManager
from tallystick.storage.state.transaction_index import AbortedTxn, collect_aborted_txns
from tallystick.storage.state.validation import LogConfig

_EMPTY: Final = b""
_NO_RECORDS: Final = bytes(4)  # the record count of a batch that cleaning has emptied
# Emptied batches that one read passes over: a bound of its time.
_EMPTIED_PASSED_MAX: Final = 1000
# Read positions kept: next offset of a recent read -> segment and position, for the reader's next fetch.
_READ_POSITIONS_MAX: Final = 64


@dataclass(slots=True)
class ReadResult:
    """Whole batches; the first holds the requested offset or is the next one after it."""

    data: bytes


class LogReader:
    """The read side of a log. Owned by it, used by its thread; `mark_synced` may run in another."""

    def __init__(
        self, directory: str, config: LogConfig, producers: ProducerStateManager, start: Offset, end: Offset
    ) -> None:
        """Create the reader of a log from `start` to `end`; `replace_segments` must follow."""
        self.config = config
        self.log_start_offset = start
        self.log_end_offset = end
        self.segments: list[SegmentReader] = []
        self._directory = directory
        self._producers = producers
        self._base_offsets: list[int] = []
        self._read_positions: dict[int, tuple[SegmentReader, int]] = {}
        # (offset, file, position) of the synced end: one value, so that the loop and the syncing thread never
        # see half of the other's change.
        self._synced_position: tuple[Offset, FileRecords | None, int] = (Offset(0), None, 0)

    # -- limits ----------------------------------------------------------------------------------------

    @property
    def synced_end(self) -> Offset:
        """The offset below which every record is on disk."""
        return self._synced_position[0]

    @property
    def high_watermark(self) -> Offset:
        """The offset at and above which readers see nothing [LOG-1]."""
        return self._synced_position[0] if self.config.flush_policy == "ack" else self.log_end_offset

    @property
    def first_unstable_offset(self) -> Offset | None:
        self._producers.on_high_watermark_updated(self.high_watermark)
        unstable = self._producers.first_unstable_offset
        return None if unstable is None else Offset(unstable)

    @property
    def last_stable_offset(self) -> Offset:
        """The offset below which every transaction is decided [LOG-2]; never below the log start."""
        # KIP-98: read_committed consumers read up to the first record of an open transaction. A transaction
        # decided above the high watermark counts as open, because its marker is not visible yet.
        unstable, high_watermark = self.first_unstable_offset, self.high_watermark
        if unstable is None or unstable > high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    def mark_synced(self, end: Offset, records: FileRecords, position: int) -> None:
        """Advance the synced end, which is at `position` of a segment's file. Any thread."""
        if end > self._synced_position[0]:
            self._synced_position = (end, records, position)

    # -- segments --------------------------------------------------------------------------------------

    def replace_segments(self, segments: Sequence[SegmentReader]) -> None:
        """Replace the segment list and forget read positions, which point into the old one."""
        check(bool(segments), "a log has at least one segment")
        self.segments = list(segments)
        self._base_offsets = [segment.base_offset for segment in segments]
        self._read_positions.clear()

    def add_segment(self, segment: SegmentReader) -> None:
        """Add the segment that the log has begun."""
        self.segments.append(segment)
        self._base_offsets.append(segment.base_offset)

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upper: int, min_one: bool = True) -> ReadResult | Reject:
        """Read whole batches from one segment, from the batch that holds `offset` or later, below `upper`.

        Args:
            upper: the first offset not to return; a batch that reaches it is left out.
            min_one: return the first batch even when it is longer than `max_bytes`.
        Rejects with OFFSET_OUT_OF_RANGE.
        Raises: StorageFailure.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            return Reject(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in the log, which has {self.log_start_offset} to"
                f" {self.log_end_offset}",
            )
        if offset >= upper:
            return ReadResult(_EMPTY)
        try:
            return ReadResult(self._read_records(offset, max_bytes, min(upper, self.log_end_offset), min_one))
        except (OSError, RecordsError) as exc:
            raise StorageFailure(self._directory, f"a read failed: {exc}") from exc

    def _read_records(self, offset: int, max_bytes: int, upper: int, min_one: bool) -> bytes:
        """Read; pass over emptied batches at the front if anything follows them, else return the last one.

        Kafka has few of them. librdkafka takes an answer of nothing else for a fetch size that is too small,
        and after ten of them reports MSG_SIZE_TOO_LARGE; kafka-go and KafkaJS do not get past one.
        """
        emptied, passed_count = _EMPTY, 0
        while offset < upper:
            data = self._read(offset, max_bytes, upper, min_one)
            if data[RECORD_COUNT_AT:HEADER_SIZE] != _NO_RECORDS:
                return data or emptied
            for at, header in iter_headers(data):
                passed_count += 1
                if header.record_count or passed_count > _EMPTIED_PASSED_MAX:
                    return data[at:]
                emptied, offset = data[at : at + header.size_bytes], header.next_offset
        return emptied

    def _read(self, offset: int, max_bytes: int, upper: int, min_one: bool) -> bytes:
        cached_position = self._read_positions.pop(offset, None)
        slot = (
            bisect_right(self._base_offsets, cached_position[0].base_offset if cached_position else offset)
            - 1
        )
        segment, at = cached_position or (self.segments[max(0, slot)], -1)
        slot = max(0, slot)
        while True:
            if at < 0:
                at = segment.find_position(offset)
            limit = self._find_read_limit(segment, slot, upper)
            if at < limit:
                return self._read_segment(segment, at, limit, max_bytes, (upper, min_one))
            slot += 1
            if slot >= len(self.segments) or self._base_offsets[slot] >= upper:
                return _EMPTY
            segment, at = self.segments[slot], -1

    def _find_read_limit(self, segment: SegmentReader, slot: int, upper: int) -> int:
        """Return the position up to which a segment may be read."""
        if upper >= self.log_end_offset or (
            slot + 1 < len(self._base_offsets) and upper >= self._base_offsets[slot + 1]
        ):
            return segment.records.size
        end, records, position = self._synced_position
        if upper == end and records is segment.records:
            return position
        return segment.find_position(upper)

    def _read_segment(
        self, segment: SegmentReader, at: int, limit: int, max_bytes: int, bounds: tuple[int, bool]
    ) -> bytes:
        upper, min_one = bounds
        available = limit - at
        if available <= max_bytes:
            data = segment.records.file.pread(available, at)
            # The next batch, whatever its size, will start at `limit`.
            self._cache_read_position(upper, segment, limit)
            return data
        end, next_offset = segment.find_end(at, at + max_bytes)
        if end > at:
            self._cache_read_position(next_offset, segment, end)
            return segment.records.file.pread(end - at, at)
        if not min_one:
            return _EMPTY
        span = next(segment.iter_batch_spans(at, limit), None)
        if span is None:
            raise _make_corrupt(segment, at, f"{available} bytes")
        _, size, _, last_offset = span
        self._cache_read_position(last_offset + 1, segment, at + size)
        return segment.records.file.pread(size, at)

    def _cache_read_position(self, offset: int, segment: SegmentReader, position: int) -> None:
        if offset < 0:
            return
        positions = self._read_positions
        if len(positions) >= _READ_POSITIONS_MAX:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)

    def iter_headers(self, offset: int, data: bytes) -> Iterator[BatchHeader]:
        """Yield the header of each batch in `data`, which `read` returned for `offset`.

        Raises: CorruptLog: these bytes are ours, and no client is to blame for them.
        """
        try:
            for _, header in iter_headers(data):
                yield header
        except RecordsError as exc:
            raise self._locate_damage(offset, exc) from exc

    def check_batches(self, offset: int, data: bytes) -> None:
        """Verify the CRC and the order of each batch in `data`, which `read` returned for `offset`.

        For a reader that decides by what it reads. Others hand the bytes on, and their clients verify them.
        Raises: CorruptLog.
        """
        at, next_offset = 0, offset
        try:
            while at < len(data):
                header = check_batch(data, at)
                # The CRC does not cover the base offset. The first batch may begin before `offset`.
                if (header.base_offset if at else header.last_offset) < next_offset:
                    raise RecordsError(f"offsets {header.base_offset} to {header.last_offset}", at)
                at, next_offset = at + header.size_bytes, header.next_offset
        except RecordsError as exc:
            raise self._locate_damage(offset, exc) from exc

    def _locate_damage(self, offset: int, error: RecordsError) -> CorruptLog:
        """Return the file and the byte of a bad batch in the bytes that were read for `offset`."""
        slot = max(0, bisect_right(self._base_offsets, offset) - 1)
        segment = self.segments[slot]
        while (at := segment.find_position(offset)) >= segment.size and slot + 1 < len(self.segments):
            slot += 1
            segment = self.segments[slot]
        return _make_corrupt(segment, at + error.at, error.reason)

    def count_readable_bytes(self, offset: Offset, enough: int) -> int:
        """Return the bytes from the batch that holds `offset` to the log end; counting stops at `enough`.

        For fetches with a minimum size. Bytes not yet synced count, too.

        Raises: StorageFailure. Cost: one index lookup, and one step per segment counted.
        """
        slot = max(0, bisect_right(self._base_offsets, int(offset)) - 1)
        segment = self.segments[slot]
        try:
            count = segment.size - segment.find_position(offset)
        except OSError as exc:
            raise StorageFailure(self._directory, f"a read failed: {exc}") from exc
        while count < enough and (slot := slot + 1) < len(self.segments):
            count += self.segments[slot].size
        return count

    def collect_aborted_txns(self, lo: int, hi: int) -> tuple[AbortedTxn, ...]:
        """Return aborted transactions with records in [lo, hi), for read_committed consumers to skip.

        Raises: StorageFailure.
        """
        slot = max(0, bisect_right(self._base_offsets, lo) - 1)
        indexes = (segment.load_transaction_index() for segment in self.segments[slot:])
        try:
            return tuple(collect_aborted_txns(indexes, lo, hi))
        except OSError as exc:
            raise StorageFailure(self._directory, f"a read failed: {exc}") from exc

    # -- reading by timestamp --------------------------------------------------------------------------

    def find_offset_by_timestamp(self, timestamp_ms: int) -> tuple[Offset, int, int] | None:
        """Return offset, timestamp and leader epoch of the first record at or after a time, or None.

        Raises: StorageFailure.
        """
        for segment in self.segments:
            if segment.largest_timestamp[0] < timestamp_ms:
                continue
            start = max(
                self.log_start_offset,
                segment.base_offset + segment.time_index.find_offset_before(timestamp_ms),
            )
            for position, header, data in self._iter_batches_from(segment, start):
                if header.max_timestamp < timestamp_ms:
                    continue
                record = self._find_first_record(segment, position, data, timestamp_ms)
                if record is not None:
                    return Offset(record[0]), record[1], header.partition_leader_epoch
        return None

    def find_max_timestamp(self) -> tuple[Offset, int, int] | None:
        """Return offset, timestamp and leader epoch of the record with the greatest timestamp, or None."""
        best: SegmentReader | None = None
        for segment in self.segments:
            if segment.size and (best is None or segment.largest_timestamp[0] > best.largest_timestamp[0]):
                best = segment
        if best is None or best.largest_timestamp[0] < 0:
            return None
        timestamp, last_offset = best.largest_timestamp
        for position, header, data in self._iter_batches_from(best, last_offset):
            record = self._find_first_record(best, position, data, timestamp)
            return (Offset(record[0]), record[1], header.partition_leader_epoch) if record else None
        return None

    def _iter_batches_from(
        self, segment: SegmentReader, offset: int
    ) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """Yield position, header and bytes of each batch from the one that holds `offset` on."""
        try:
            for position, size, _, _ in segment.iter_batch_spans(segment.find_position(offset)):
                try:
                    head = read_header(segment.file.pread(HEADER_SIZE, position))
                except RecordsError as exc:
                    raise _make_corrupt(segment, position, exc.reason) from exc
                yield position, head, segment.file.pread(size, position)
        except OSError as exc:
            raise StorageFailure(self._directory, f"a read failed: {exc}") from exc

    def _find_first_record(
        self, segment: SegmentReader, position: int, data: bytes, timestamp_ms: int
    ) -> tuple[int, int] | None:
        try:
            for record in iter_records(data):
                if record.timestamp_ms >= timestamp_ms and record.offset >= self.log_start_offset:
                    return record.offset, record.timestamp_ms
        except RecordsError as exc:
            raise _make_corrupt(segment, position + exc.at, exc.reason) from exc
        return None


def _make_corrupt(segment: SegmentReader, position: int, content: str) -> CorruptLog:
    return CorruptLog(segment.files.make_path(LOG_SUFFIX), position, "a readable batch", content)
