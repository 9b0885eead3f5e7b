"""The files of one segment: their names, the log file's batches, and its indexes.

`FileRecords` is the log file, `SegmentIndexes` the two sparse indexes in memory with what their files already
hold, `TransactionIndexFile` the aborted transactions. The phases of a segment in `log_segment` are made of
these.

Source: Kafka's FileRecords; LogSegment, for what an index entry is made of.
"""

import logging
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from tallystick.kernel.value import Value
from tallystick.protocol.records import HEADER_SIZE, LOG_OVERHEAD, BatchHeader
from tallystick.storage.checkpoints.checkpoint_text import MalformedFile
from tallystick.storage.disk.fs import CorruptLog, File, FileSystem, replace_file
from tallystick.storage.segments.indexes import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    OffsetIndex,
    TimeIndex,
)
from tallystick.storage.segments.segment_scan import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    make_file_name,
)
from tallystick.storage.state.transaction_index import (
    AbortedTxn,
    TransactionIndex,
    decode_aborted,
    encode_aborted,
)

_log = logging.getLogger("tallystick.storage")

# Bytes read to scan from an index entry to a batch: an index interval and the header after it.
_SCAN_BYTES: Final = 8192

_SPAN: Final = Struct(">qi11xi")  # base offset, length, …, last offset delta
_SPAN_SIZE: Final = _SPAN.size


class SegmentFiles(Value):
    """The names of one base offset in a log's directory."""

    fs: FileSystem
    directory: str
    base_offset: int

    def make_path(self, suffix: str) -> str:
        return f"{self.directory}/{make_file_name(self.base_offset, suffix)}"

    def open_append(self, suffix: str) -> File:
        return self.fs.open_append(self.make_path(suffix))

    def read(self, suffix: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        path = self.make_path(suffix)
        return self.fs.read_bytes(path) if self.fs.exists(path) else None

    def sync_indexes(self) -> None:
        """Block until the index files are on disk, before the recovery point passes this segment."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            if self.fs.exists(self.make_path(suffix)):
                file = self.open_append(suffix)
                try:
                    file.sync()
                finally:
                    file.close()

    def rename_to_deleted(self) -> list[str]:
        """Rename the files to `.deleted`; return the paths left to remove. Raises OSError."""
        paths = [path for suffix in SEGMENT_SUFFIXES if self.fs.exists(path := self.make_path(suffix))]
        for path in paths:
            self.fs.rename(path, f"{path}{DELETED_SUFFIX}")
        return [f"{path}{DELETED_SUFFIX}" for path in paths]

    def remove(self) -> None:
        """Delete the files, the log first: an index without its log is removed at the next start."""
        for suffix in SEGMENT_SUFFIXES:
            if self.fs.exists(self.make_path(suffix)):
                self.fs.remove(self.make_path(suffix))


class FileRecords:
    """The batches of a log file, which is opened by its first use and may be closed again."""

    def __init__(self, files: SegmentFiles, on_open: Callable[[], None]) -> None:
        self._files = files
        self._on_open = on_open
        self._file: File | None = None
        self._is_syncing = False
        self.size = 0
        self.is_unsynced = False  # bytes were written since the last sync began

    @property
    def file(self) -> File:
        file = self._file
        if file is None:
            file = self.open()
            self._on_open()
        return file

    def open(self) -> File:
        """Open the file without telling that it is open: it will not be closed for want of use."""
        file = self._file
        if file is None:
            file = self._file = self._files.open_append(LOG_SUFFIX)
        return file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def must_stay_open(self) -> bool:
        """Whether bytes are still to be synced, or are being synced by another thread."""
        return self.is_unsynced or self._is_syncing

    def append(self, data: bytearray) -> None:
        """Write batches in one call. Raises OSError with the file in an unknown state after `size`."""
        file = self._file or self.file
        try:
            file.write([data])
        finally:
            self.is_unsynced = True  # a failed write may have changed the file, too
        self.size += len(data)

    def undo_append(self) -> None:
        """Truncate the file to its size before a failed write. Raises OSError."""
        try:
            self.file.truncate(self.size)
        finally:
            # Until the cut is synced, power loss can bring the bytes back: after a roll they would be
            # damage in a segment that counts as valid [LOG-3].
            self.is_unsynced = True

    def sync(self) -> None:
        """Block until the bytes written so far are on disk. Any thread."""
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

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

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
                raise CorruptLog(self._files.make_path(LOG_SUFFIX), position, expected, str(length))
            yield position, length + LOG_OVERHEAD, base_offset, base_offset + delta
            position += length + LOG_OVERHEAD


class SegmentIndexes:
    """Offset and time index in memory. Their files get new entries at roll, checkpoint and close."""

    def __init__(self, files: SegmentFiles, interval_bytes: int) -> None:
        """Create empty indexes. `interval_bytes`: bytes of log between two entries."""
        self._files = files
        self._interval_bytes = interval_bytes
        self.offsets = OffsetIndex()
        self.times = TimeIndex()
        self.largest_timestamp = (NO_TIMESTAMP, files.base_offset)  # and the last offset of its batch
        self._bytes_since_entry = 0
        self._offset_entries_written = self._time_entries_written = 0

    @classmethod
    def load(cls, files: SegmentFiles, interval_bytes: int, log_size: int) -> "SegmentIndexes | None":
        """Load the indexes from their files; return None if they are missing or implausible."""
        offsets = OffsetIndex.decode(files.read(INDEX_SUFFIX))
        times = TimeIndex.decode(files.read(TIME_INDEX_SUFFIX))
        if offsets is None or times is None or (offsets.positions and offsets.positions[-1] >= log_size):
            return None
        indexes = cls(files, interval_bytes)
        indexes.offsets, indexes.times = offsets, times
        indexes._offset_entries_written, indexes._time_entries_written = len(offsets), len(times)
        if (last := times.last_entry) is not None:
            indexes.largest_timestamp = (last[0], files.base_offset + last[1])
        indexes._bytes_since_entry = log_size - offsets.positions[-1] if offsets.positions else log_size
        return indexes

    @property
    def size_bytes(self) -> int:
        return self.offsets.size_bytes + self.times.size_bytes

    def is_full(self, index_bytes_max: int) -> bool:
        """Return whether a file would be too long with more entries. Source: LogSegment.shouldRoll."""
        return (len(self.offsets.offsets) + 1) * OFFSET_ENTRY_SIZE > index_bytes_max or (
            len(self.times.offsets) + 2
        ) * TIME_ENTRY_SIZE > index_bytes_max

    def add_batch(self, header: BatchHeader, base_offset: int, position: int) -> None:
        """Add an entry for a batch if enough bytes of log lie behind the last one."""
        last_offset = base_offset + header.last_offset_delta
        if header.max_timestamp > self.largest_timestamp[0]:
            self.largest_timestamp = (header.max_timestamp, last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append(last_offset - self._files.base_offset, position)
            self._add_largest_timestamp()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.batch_length + LOG_OVERHEAD

    def _add_largest_timestamp(self) -> None:
        timestamp, offset = self.largest_timestamp
        self.times.maybe_append(timestamp, offset - self._files.base_offset)

    def complete(self) -> None:
        """Make the segment's greatest timestamp the last entry, interval or not, as Kafka does."""
        self._add_largest_timestamp()

    def write(self) -> None:
        """Write the entries that are not in the files yet. Raises OSError."""
        first_unwritten = self._offset_entries_written
        self._write(
            INDEX_SUFFIX, first_unwritten * OFFSET_ENTRY_SIZE, self.offsets.encode_from(first_unwritten)
        )
        self._offset_entries_written = len(self.offsets)
        first_unwritten = self._time_entries_written
        self._write(
            TIME_INDEX_SUFFIX, first_unwritten * TIME_ENTRY_SIZE, self.times.encode_from(first_unwritten)
        )
        self._time_entries_written = len(self.times)

    def _write(self, suffix: str, expected_size: int, data: bytes) -> None:
        file = self._files.open_append(suffix)
        try:
            if file.size() != expected_size:
                file.truncate(expected_size)  # an earlier write failed half-way
            file.write([data])
        finally:
            file.close()


class TransactionIndexFile:
    """The aborted transactions whose marker is in a segment, loaded by their first use."""

    def __init__(self, files: SegmentFiles, find_again: Callable[[], list[AbortedTxn]]) -> None:
        """Create an index that is not loaded.

        Args:
            find_again: finds the entries in the log when the file is damaged. Raises CorruptLog, OSError.
        """
        self._files = files
        self._find_again = find_again
        self._failure: CorruptLog | None = None
        self._index: TransactionIndex | None = None
        self._unwritten: list[AbortedTxn] = []

    def load(self) -> TransactionIndex:
        """Return the entries, from the file if they are not in memory; a damaged file is rebuilt.

        Raises: CorruptLog if it cannot be: without its entries aborted records would be shown; OSError.
        """
        if self._index is not None:
            return self._index
        txns = self._read()
        if txns is None:
            return self.restore()
        self._index = TransactionIndex(txns)
        return self._index

    def repair(self) -> None:
        """Rebuild a damaged file; keep nothing in memory otherwise. Raises: CorruptLog, OSError."""
        if self._index is None and self._read() is None:
            self.restore()

    @property
    def is_missing(self) -> bool:
        """Whether the file is missing, and was not looked at while it was there."""
        return self._index is None and not self._files.fs.exists(self._files.make_path(TXN_INDEX_SUFFIX))

    def _read(self) -> list[AbortedTxn] | None:
        """Return the entries of the file, none if there is no file; None if it is damaged."""
        data = self._files.read(TXN_INDEX_SUFFIX) or b""
        try:
            txns, size = decode_aborted(data, self._files.make_path(TXN_INDEX_SUFFIX))
        except MalformedFile:
            return None
        # The file was synced, or is rebuilt after a crash: a torn entry is damage, and so are zeros.
        is_whole = size == len(data) and all(
            max(txn.first_offset + 1, self._files.base_offset) <= txn.last_offset for txn in txns
        )
        return txns if is_whole else None

    def restore(self) -> TransactionIndex:
        """Rebuild the index from the log, in memory and in the file. Raises: CorruptLog, OSError."""
        if self._failure is not None:
            raise self._failure
        try:
            txns = self._find_again()
        except CorruptLog as exc:
            self._failure = exc  # a scan is not repeated for each read
            raise
        is_due = bool(txns) or not self.is_missing
        index = self._index = TransactionIndex(txns)
        if is_due:
            path = self._files.make_path(TXN_INDEX_SUFFIX)
            _log.warning("%s is damaged or missing; %d entries were found again in the log", path, len(txns))
            replace_file(self._files.fs, path, b"".join(map(encode_aborted, txns)))
        return index

    def append(self, txn: AbortedTxn) -> None:
        """Add an entry in memory; `write` must follow before the segment is closed."""
        self.load().append(txn)
        self._unwritten.append(txn)

    def write(self) -> None:
        """Write the new entries. On OSError, which it raises, the file is restored as far as possible."""
        if not self._unwritten:
            return
        file = self._files.open_append(TXN_INDEX_SUFFIX)
        size = file.size()
        try:
            file.write([encode_aborted(txn) for txn in self._unwritten])
        except OSError:
            file.truncate(size)
            raise
        finally:
            file.close()
        self._unwritten.clear()

    def begin(self) -> None:
        """Begin without entries: the segment is new."""
        self._index = TransactionIndex()

    def reset(self) -> None:
        """Forget the entries before a scan that finds them all again."""
        if self._files.fs.exists(self._files.make_path(TXN_INDEX_SUFFIX)):
            self._files.fs.remove(self._files.make_path(TXN_INDEX_SUFFIX))
        self._index = TransactionIndex()
        self._unwritten.clear()
