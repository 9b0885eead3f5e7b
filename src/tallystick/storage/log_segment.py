"""One segment with its files: appended to while it is the last, then only read.

The indexes of the last segment live in memory and are written at roll, checkpoint and close: they can always
be rebuilt from the log, so a crash may lose them, and an append costs one system call.
A closed segment may have its file and indexes unloaded; `OpenSegmentCache` bounds how many stay open in all
logs.
"""

from collections import OrderedDict
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tallystick.kernel.limits import MIB
from tallystick.protocol.records import HEADER_SIZE, LOG_OVERHEAD, BatchHeader
from tallystick.storage import segment_scan as naming
from tallystick.storage.fs import File, FileSystem
from tallystick.storage.indexes import NO_TIMESTAMP, OffsetIndex, TimeIndex, fits_relative_offset
from tallystick.storage.malformed import MalformedFile
from tallystick.storage.recovery import CorruptLog
from tallystick.storage.segment_scan import SegmentScanner, make_file_name
from tallystick.storage.transaction_index import AbortedTxn, TransactionIndex, decode_aborted, encode_aborted

# Bytes read to scan from an index entry to a batch: an index interval and the header after it.
_SCAN_BYTES: Final = 8192

_SPAN: Final = Struct(">qi11xi")  # base offset, length, …, last offset delta
_SPAN_SIZE: Final = _SPAN.size


class OpenSegmentCache:
    """Closed segments whose file and indexes are open; the least recently used are unloaded [LOG-9]."""

    def __init__(self, files_max: int = 256, index_bytes_max: int = 16 * MIB) -> None:
        self._files_max = files_max
        self._index_bytes_max = index_bytes_max
        self._index_bytes = 0
        self._segments: OrderedDict[LogSegment, int] = OrderedDict()

    def touch(self, segment: "LogSegment") -> None:
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        size = segment.index_bytes
        self._segments[segment] = size
        self._index_bytes += size
        while len(self._segments) > 1 and (
            len(self._segments) > self._files_max or self._index_bytes > self._index_bytes_max
        ):
            oldest, size = self._segments.popitem(last=False)
            self._index_bytes -= size
            oldest.unload()

    def discard(self, segment: "LogSegment") -> None:
        self._index_bytes -= self._segments.pop(segment, 0)


class LogSegment:
    """The files of one base offset. Owned by its log, used by one thread; `sync` may run in another."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        index_interval_bytes: int,
        residents: OpenSegmentCache,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self.base_offset = base_offset
        self.size = 0
        self.is_active = False
        self.is_unsynced = False  # bytes were written since the last sync began
        self._is_syncing = False
        self.rolling_timestamp: int | None = None
        self.transaction_index: TransactionIndex | None = None
        self._unwritten_aborted: list[AbortedTxn] = []
        self._index_interval_bytes = index_interval_bytes
        self._cache = residents
        self._file: File | None = None
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._largest_timestamp: tuple[int, int] | None = None  # timestamp, last offset of its batch
        self._corruption: CorruptLog | None = None
        self._bytes_since_entry = 0
        self._entries_written = [0, 0]  # number of index entries in the files

    # -- files ------------------------------------------------------------------------------------------

    def make_path(self, suffix: str) -> str:
        return f"{self._directory}/{make_file_name(self.base_offset, suffix)}"

    def create(self) -> None:
        """Create the empty files of the last segment."""
        self._file = self._fs.open_append(self.make_path(naming.LOG_SUFFIX))
        self._index, self._time_index, self.transaction_index = OffsetIndex(), TimeIndex(), TransactionIndex()
        self._largest_timestamp = (NO_TIMESTAMP, self.base_offset)
        self.is_active = True
        for suffix in (naming.INDEX_SUFFIX, naming.TIME_INDEX_SUFFIX):
            self._fs.open_append(self.make_path(suffix)).close()

    def open_active(self) -> None:
        """Open an existing segment as the last one, so that it can grow."""
        self._file = self._fs.open_append(self.make_path(naming.LOG_SUFFIX))
        self.size = self._file.size()
        self._load_indexes()
        self.is_active = True
        first = self._file.pread(HEADER_SIZE, 0)
        if len(first) == HEADER_SIZE:
            self.rolling_timestamp = int.from_bytes(first[35:43], "big", signed=True)
        self._cache.discard(self)

    def become_active(self) -> None:
        """Make this the last segment, which will grow; called after a scan."""
        self.is_active = True
        self._cache.discard(self)

    def truncate_to(self, size: int) -> None:
        """Truncate the file to the valid size found by a scan, and sync it. Raises OSError."""
        self.file.truncate(size)
        self.file.sync()

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._fs.open_append(self.make_path(naming.LOG_SUFFIX))
            self._cache.touch(self)
        return self._file

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load_indexes()
            self._cache.touch(self)
        assert self._index is not None  # for the type checker: _load_indexes sets it
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
            self._cache.touch(self)
        assert self._time_index is not None  # as above
        return self._time_index

    @property
    def index_bytes(self) -> int:
        return sum(index.size_bytes for index in (self._index, self._time_index) if index is not None)

    def _load_indexes(self) -> None:
        """Load the indexes from their files, or rebuild them from the log if missing or implausible."""
        index = OffsetIndex.decode(self._read_file(naming.INDEX_SUFFIX))
        times = TimeIndex.decode(self._read_file(naming.TIME_INDEX_SUFFIX))
        if index is None or times is None or (index.positions and index.positions[-1] >= self.size):
            self._rebuild_valid_segment()
            return
        self._index, self._time_index = index, times
        self._entries_written = [len(index), len(times)]
        last = times.last_entry
        self._largest_timestamp = (
            (last[0], self.base_offset + last[1]) if last else (NO_TIMESTAMP, self.base_offset)
        )
        self._bytes_since_entry = self.size - index.positions[-1] if index.positions else self.size

    def _rebuild_valid_segment(self) -> None:
        """Rebuild the indexes of a segment that was found valid before: there is nothing to cut."""
        if self._corruption is None:
            scanner = SegmentScanner(self.file.pread, self.size, self.base_offset)
            for _ in self.rebuild_indexes(scanner):
                pass
            if (bad := scanner.fault) is None:
                self.finish_rebuild(scanner.valid_end)
                return
            self._index = self._time_index = self._largest_timestamp = None
            self._corruption = CorruptLog(
                self.make_path(naming.LOG_SUFFIX), bad.position, bad.expected, bad.found
            )
        raise self._corruption

    def _read_file(self, suffix: str) -> bytes | None:
        path = self.make_path(suffix)
        return self._fs.read_bytes(path) if self._fs.exists(path) else None

    def rebuild_indexes(self, scanner: SegmentScanner) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Rebuild the indexes from every valid batch, and yield each; `finish_rebuild` must follow."""
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._entries_written = [0, 0]
        self._largest_timestamp, self._bytes_since_entry, self.rolling_timestamp = (
            (NO_TIMESTAMP, self.base_offset),
            0,
            None,
        )
        for position, header, data in scanner.iter_batches():
            self._update_indexes(header, header.base_offset, position)
            yield header, data

    def finish_rebuild(self, valid_end: int) -> None:
        """Set the segment's end to that of the scan, and write its indexes."""
        self.size = valid_end
        self.complete_indexes()

    def load_transaction_index(self) -> TransactionIndex:
        """Return aborted transactions whose marker is in this segment, loading them if needed."""
        if self.transaction_index is None:
            try:
                txns, _ = decode_aborted(
                    self._read_file(naming.TXN_INDEX_SUFFIX) or b"", self.make_path(naming.TXN_INDEX_SUFFIX)
                )
            except MalformedFile:
                txns = []
            self.transaction_index = TransactionIndex(txns)
        return self.transaction_index

    def add_aborted_txn(self, txn: AbortedTxn) -> None:
        """Add an entry in memory; `write_transaction_index` must follow before the segment is closed."""
        self.load_transaction_index().append(txn)
        self._unwritten_aborted.append(txn)

    def write_transaction_index(self) -> None:
        """Write the new entries. On OSError, which it raises, the file is restored as far as possible."""
        if not self._unwritten_aborted:
            return
        file = self._fs.open_append(self.make_path(naming.TXN_INDEX_SUFFIX))
        size = file.size()
        try:
            file.write([encode_aborted(txn) for txn in self._unwritten_aborted])
        except OSError:
            file.truncate(size)
            raise
        finally:
            file.close()
        self._unwritten_aborted.clear()

    def reset_transaction_index(self) -> None:
        """Forget the entries before a scan that finds them all again."""
        if self._fs.exists(self.make_path(naming.TXN_INDEX_SUFFIX)):
            self._fs.remove(self.make_path(naming.TXN_INDEX_SUFFIX))
        self.transaction_index = TransactionIndex()
        self._unwritten_aborted.clear()

    def write_indexes(self) -> None:
        """Write the entries of the indexes in memory that are not in their files yet."""
        self.write_transaction_index()
        for slot, (suffix, index) in enumerate(
            ((naming.INDEX_SUFFIX, self._index), (naming.TIME_INDEX_SUFFIX, self._time_index))
        ):
            if index is None:
                continue
            file = self._fs.open_append(self.make_path(suffix))
            try:
                expected = self._entries_written[slot] * (index.size_bytes // max(1, len(index)))
                if file.size() != expected:
                    file.truncate(expected)  # an earlier write failed half-way
                file.write([index.encode_from(self._entries_written[slot])])
            finally:
                file.close()
            self._entries_written[slot] = len(index)

    def sync(self) -> None:
        """Block until the log bytes written so far are on disk. Any thread."""
        if not self.is_unsynced:
            return
        # Either flag is set until the end, so that the file is not closed meanwhile. An append during
        # the sync sets `is_unsynced` again.
        self._is_syncing = True
        self.is_unsynced = False
        try:
            self.file.sync()
        finally:
            self._is_syncing = False

    def sync_indexes(self) -> None:
        """Block until the index files are on disk, before the recovery point passes this segment."""
        for suffix in (naming.INDEX_SUFFIX, naming.TIME_INDEX_SUFFIX, naming.TXN_INDEX_SUFFIX):
            if self._fs.exists(self.make_path(suffix)):
                file = self._fs.open_append(self.make_path(suffix))
                try:
                    file.sync()
                finally:
                    file.close()

    def _complete_time_index(self) -> None:
        # As Kafka does, the greatest timestamp of the segment is the last entry, interval or not.
        assert self._largest_timestamp is not None
        assert self._time_index is not None
        self._time_index.maybe_append(
            self._largest_timestamp[0], self._largest_timestamp[1] - self.base_offset
        )

    def become_inactive(self) -> None:
        """Complete the indexes of a segment that will not grow any more; from now on it is only read."""
        self.complete_indexes()
        self.is_active = False
        self._cache.touch(self)

    def complete_indexes(self) -> None:
        """Bring the index files up to date, including the greatest timestamp, as Kafka does on close."""
        self._complete_time_index()
        self.write_indexes()

    def unload(self) -> None:
        """Close the file and drop the indexes, unless they are in use."""
        if self.is_active or self.is_unsynced or self._is_syncing:
            return
        if self._file is not None:
            self._file.close()
        self._file = self._index = self._time_index = None

    def close(self) -> None:
        self._cache.discard(self)
        self.is_active = self.is_unsynced = False
        self.unload()

    def rename_to_deleted(self) -> list[str]:
        """Rename the files to `.deleted`; return the paths left to remove. Raises OSError."""
        self.close()
        paths = [
            path for suffix in naming.SEGMENT_SUFFIXES if self._fs.exists(path := self.make_path(suffix))
        ]
        for path in paths:
            self._fs.rename(path, f"{path}{naming.DELETED_SUFFIX}")
        return [f"{path}{naming.DELETED_SUFFIX}" for path in paths]

    def remove(self) -> None:
        """Delete the files, the log first: an index without its log is removed at the next start."""
        self.close()
        for suffix in naming.SEGMENT_SUFFIXES:
            if self._fs.exists(self.make_path(suffix)):
                self._fs.remove(self.make_path(suffix))

    # -- appending ---------------------------------------------------------------------------------------

    def should_roll(self, size: int, last_offset: int, segment_bytes: int, segment_index_bytes: int) -> bool:
        """Return True if these bytes need a new segment. Source: LogSegment.shouldRoll."""
        assert self._index is not None
        assert self._time_index is not None
        return self.size > 0 and (
            self.size + size > segment_bytes
            or not fits_relative_offset(last_offset, self.base_offset)
            or self._index.size_bytes + 8 > segment_index_bytes
            or self._time_index.size_bytes + 24 > segment_index_bytes
        )

    def append(self, data: bytearray, headers: list[tuple[int, BatchHeader]], first_offset: int) -> None:
        """Write batches in one call, then update the indexes.

        Raises OSError with the file in an unknown state after `size`.
        """
        assert self._file is not None
        try:
            self._file.write([data])
        finally:
            self.is_unsynced = True  # a failed write may have changed the file, too
        offset = first_offset
        for at, header in headers:
            self._update_indexes(header, offset, self.size + at)
            offset += header.last_offset_delta + 1
        self.size += len(data)

    def _update_indexes(self, header: BatchHeader, base_offset: int, position: int) -> None:
        last_offset = base_offset + header.last_offset_delta
        if position == 0:
            self.rolling_timestamp = header.max_timestamp
        assert self._largest_timestamp is not None
        if header.max_timestamp > self._largest_timestamp[0]:
            self._largest_timestamp = (header.max_timestamp, last_offset)
        if self._bytes_since_entry > self._index_interval_bytes:
            assert self._index is not None
            assert self._time_index is not None
            self._index.append(last_offset - self.base_offset, position)
            self._time_index.maybe_append(
                self._largest_timestamp[0], self._largest_timestamp[1] - self.base_offset
            )
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.batch_length + LOG_OVERHEAD

    def undo_append(self) -> None:
        """Truncate the file to its size before a failed write. Raises OSError."""
        assert self._file is not None
        try:
            self._file.truncate(self.size)
        finally:
            # Until the cut is synced, power loss can bring the bytes back: after a roll they would be
            # damage in a segment that counts as valid [LOG-3].
            self.is_unsynced = True

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def largest_timestamp(self) -> tuple[int, int]:
        """The greatest timestamp and the last offset of its batch; (-1, base) if none."""
        if self._largest_timestamp is None:
            self._load_indexes()
            self._cache.touch(self)
        assert self._largest_timestamp is not None
        return self._largest_timestamp

    def iter_batch_spans(
        self, position: int, until: int | None = None
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield (position, size, base offset, last offset) of each batch from a batch's start on."""
        end = self.size if until is None else until
        read, chunk, start = self.file.pread, b"", position
        while position + HEADER_SIZE <= end:
            at = position - start
            if at + _SPAN_SIZE > len(chunk):
                start, at = position, 0
                chunk = read(min(_SCAN_BYTES, end - position), position)
                if len(chunk) < _SPAN_SIZE:
                    return
            base_offset, length, delta = _SPAN.unpack_from(chunk, at)
            if length < HEADER_SIZE - LOG_OVERHEAD:
                # Going on would loop for ever.
                expected = f"a batch length of at least {HEADER_SIZE - LOG_OVERHEAD}"
                raise CorruptLog(self.make_path(naming.LOG_SUFFIX), position, expected, str(length))
            yield position, length + LOG_OVERHEAD, base_offset, base_offset + delta
            position += length + LOG_OVERHEAD

    def find_position(self, offset: int) -> int:
        """Return the start of the batch that holds `offset`, or of the next one; the size if none does."""
        if not self.size:
            return 0
        start = self.index.find_position(offset - self.base_offset)
        for position, _, _, last_offset in self.iter_batch_spans(start):
            if last_offset >= offset:
                return position
        return self.size

    def find_end(self, at: int, limit: int) -> tuple[int, int]:
        """Return the end of the last batch that lies in [at, limit), and the offset after it; `at` if none.

        Uses the index and a few headers, so that the bytes are then read once and not copied.
        """
        end, next_offset = at, -1
        for position, size, base_offset, last_offset in self.iter_batch_spans(
            max(at, self.index.find_position_before(limit))
        ):
            if position + size > limit:
                return (position, base_offset) if position > at else (at, -1)
            end, next_offset = position + size, last_offset + 1
        return end, next_offset
