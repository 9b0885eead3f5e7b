"""One segment in the two phases of its life: `ActiveSegment` grows, `ClosedSegment` can only go.

Both hold a `SegmentReader`, which stays the same when a segment is rolled, so that reads and syncs in
progress need not know of it.

The indexes of the active segment live in memory and are written at roll, checkpoint and close: they can
always be rebuilt from the log, so a crash may lose them, and an append costs one system call.
A closed segment may have its file and indexes unloaded; `OpenSegmentCache` bounds how many stay open in all
logs.
"""

from collections import OrderedDict
from collections.abc import Iterator

from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import MIB
from tallystick.protocol.records import HEADER_SIZE, BatchHeader, RecordsError
from tallystick.protocol.records.control import ControlType, read_marker
from tallystick.storage.checkpoints.checkpoint_text import MalformedFile
from tallystick.storage.checkpoints.snapshots import decode_snapshot
from tallystick.storage.disk.fs import CorruptLog, File
from tallystick.storage.segments.indexes import OffsetIndex, TimeIndex
from tallystick.storage.segments.segment_files import (
    FileRecords,
    SegmentFiles,
    SegmentIndexes,
    TransactionIndexFile,
)
from tallystick.storage.segments.segment_scan import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    ReadAt,
    SegmentScanner,
)
from tallystick.storage.state.producer_state import ProducerStateManager, update_producers
from tallystick.storage.state.transaction_index import AbortedTxn, TransactionIndex


class OpenSegmentCache:
    """Closed segments whose file and indexes are open; the least recently used are unloaded [LOG-9]."""

    def __init__(self, files_max: int = 256, index_bytes_max: int = 16 * MIB) -> None:
        self._files_max = files_max
        self._index_bytes_max = index_bytes_max
        self._index_bytes = 0
        self._segments: OrderedDict[SegmentReader, int] = OrderedDict()

    def touch(self, segment: "SegmentReader") -> None:
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

    def discard(self, segment: "SegmentReader") -> None:
        self._index_bytes -= self._segments.pop(segment, 0)


class SegmentReader:
    """The reads of one segment, in either phase; file and indexes are loaded when they are needed.

    Owned by the segment, used by one thread, apart from `records.sync`.
    """

    def __init__(self, files: SegmentFiles, index_interval_bytes: int, cache: OpenSegmentCache) -> None:
        self.files = files
        self.base_offset = files.base_offset
        self.records = FileRecords(files, self._touch)
        self.transaction_index = TransactionIndexFile(
            files, lambda: _find_aborted_txns(files, self.file.pread, self.size)
        )
        self._index_interval_bytes = index_interval_bytes
        self._cache = cache
        self._indexes: SegmentIndexes | None = None
        self._unloaded_timestamp: tuple[int, int] | None = None  # kept when the indexes are unloaded
        self._corruption: CorruptLog | None = None

    # -- what is loaded ------------------------------------------------------------------------------------

    def _touch(self) -> None:
        self._cache.touch(self)

    def pin(self) -> SegmentIndexes:
        """Load everything and keep it, because the segment will grow; return the indexes."""
        self.records.open()
        indexes = self._indexes or self._load_indexes()
        self._cache.discard(self)
        return indexes

    def pin_for_reads(self) -> None:
        """Load everything that a read needs and keep it, because the names are about to go."""
        _ = self.records.file, self._get_indexes(), self.load_transaction_index()
        self._cache.discard(self)

    def unpin(self) -> None:
        """Allow unloading again: the segment will no longer grow."""
        self._cache.touch(self)

    def unload(self) -> None:
        """Close the file and drop the indexes, unless they are in use."""
        if self.records.must_stay_open:
            return
        self.records.close()
        if self._indexes is not None:
            self._unloaded_timestamp = self._indexes.largest_timestamp
        self._indexes = None

    def close(self) -> None:
        self._cache.discard(self)
        self.records.is_unsynced = False
        self.unload()

    def begin(self) -> SegmentIndexes:
        """Begin without records: return the empty indexes of a new segment, which is pinned."""
        self.records.open()
        self.transaction_index.begin()
        self._indexes = self.make_empty_indexes()
        return self._indexes

    def make_empty_indexes(self) -> SegmentIndexes:
        return SegmentIndexes(self.files, self._index_interval_bytes)

    def replace_indexes(self, indexes: SegmentIndexes, size: int) -> None:
        """Set the segment's end and indexes to those of a scan, and write the indexes."""
        self.records.size = size
        self._indexes = indexes
        indexes.complete()
        self.transaction_index.write()
        indexes.write()

    @property
    def index_bytes(self) -> int:
        return 0 if self._indexes is None else self._indexes.size_bytes

    def _get_indexes(self) -> SegmentIndexes:
        indexes = self._indexes
        if indexes is None:
            indexes = self._load_indexes()
            self._cache.touch(self)
        return indexes

    def _load_indexes(self) -> SegmentIndexes:
        """Load the indexes from their files, or rebuild them from the log if missing or implausible."""
        indexes = SegmentIndexes.load(self.files, self._index_interval_bytes, self.size)
        if indexes is None:
            return self._rebuild_indexes()
        self._indexes = indexes
        return indexes

    def _rebuild_indexes(self) -> SegmentIndexes:
        """Rebuild the indexes of a segment that was found valid before: there is nothing to cut."""
        if self._corruption is None:
            scanner = SegmentScanner(self.file.pread, self.size, self.base_offset)
            indexes = self.make_empty_indexes()
            for position, header, _ in scanner.iter_batches():
                indexes.add_batch(header, header.base_offset, position)
            if (bad := scanner.fault) is None:
                if self._are_index_files_missing():
                    # Someone removed all that can be rebuilt. First this one: the others tell that it is due.
                    self.transaction_index.restore()
                self.replace_indexes(indexes, scanner.valid_end)
                return indexes
            self._corruption = CorruptLog(
                self.files.make_path(LOG_SUFFIX), bad.position, bad.expected, bad.found
            )
        raise self._corruption

    def _are_index_files_missing(self) -> bool:
        """Return whether there is no index at all: one without aborted transactions lacks the last only."""
        return self.transaction_index.is_missing and not self.files.fs.exists(
            self.files.make_path(INDEX_SUFFIX)
        )

    # -- reading -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return self.records.size

    @property
    def file(self) -> File:
        return self.records.file

    @property
    def index(self) -> OffsetIndex:
        return self._get_indexes().offsets

    @property
    def time_index(self) -> TimeIndex:
        return self._get_indexes().times

    @property
    def largest_timestamp(self) -> tuple[int, int]:
        """The greatest timestamp and the last offset of its batch; (-1, base) if none."""
        if self._indexes is None and self._unloaded_timestamp is not None:
            return self._unloaded_timestamp
        return self._get_indexes().largest_timestamp

    def load_transaction_index(self) -> TransactionIndex:
        """Return aborted transactions whose marker is in this segment, loading them if needed.

        Raises: CorruptLog, OSError.
        """
        if self._are_index_files_missing():
            self._load_indexes()
        return self.transaction_index.load()

    def repair_transaction_index(self) -> None:
        """Rebuild the file if it is damaged, for another process to read. Raises: CorruptLog, OSError."""
        if self._are_index_files_missing():
            self._load_indexes()
        self.transaction_index.repair()

    def iter_batch_spans(
        self, position: int, until: int | None = None
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield (position, size, base offset, last offset) of each batch from a batch's start on."""
        return self.records.iter_batch_spans(position, until)

    def find_position(self, offset: int) -> int:
        """Return the start of the batch that holds `offset`, or of the next one; the size if none does."""
        if not self.records.size:
            return 0
        start = self.index.find_position(offset - self.base_offset)
        for position, _, _, last_offset in self.records.iter_batch_spans(start):
            if last_offset >= offset:
                return position
        return self.records.size

    def find_end(self, at: int, limit: int) -> tuple[int, int]:
        """Return the end of the last batch that lies in [at, limit), and the offset after it; `at` if none.

        Uses the index and a few headers, so that the bytes are then read once and not copied.
        """
        end, next_offset = at, -1
        for position, size, base_offset, last_offset in self.records.iter_batch_spans(
            max(at, self.index.find_position_before(limit))
        ):
            if position + size > limit:
                return (position, base_offset) if position > at else (at, -1)
            end, next_offset = position + size, last_offset + 1
        return end, next_offset


class ClosedSegment:
    """A segment that does not grow: it is read, recovered, replaced by a compacted one, or deleted."""

    def __init__(self, reader: SegmentReader, size: int) -> None:
        self.reader = reader
        self.base_offset = reader.base_offset
        reader.records.size = size

    def activate(self) -> "ActiveSegment":
        """Make this the last segment of its log, which can grow. Raises OSError, CorruptLog."""
        indexes = self.reader.pin()
        # Before anything is appended: an index that has to be rebuilt must not hold the marker to be added.
        self.reader.load_transaction_index()
        # As Kafka's loadFirstBatchTimestamp: the age of a segment counts from its first batch.
        first = self.reader.file.pread(HEADER_SIZE, 0)
        since = int.from_bytes(first[35:43], "big", signed=True) if len(first) == HEADER_SIZE else None
        return ActiveSegment(self.reader, indexes, since)

    def iter_recovered_batches(self, scanner: SegmentScanner) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield every valid batch of a scan. After the last one, end and indexes are those of the scan."""
        indexes = self.reader.make_empty_indexes()
        for position, header, data in scanner.iter_batches():
            indexes.add_batch(header, header.base_offset, position)
            yield header, data
        self.reader.replace_indexes(indexes, scanner.valid_end)

    def truncate_to(self, size: int) -> None:
        """Truncate the file to the valid size found by a scan, and sync it. Raises OSError."""
        self.reader.file.truncate(size)
        self.reader.file.sync()

    def sync(self) -> None:
        """Block until log and indexes are on disk. Any thread."""
        self.reader.records.sync()
        self.reader.files.sync_indexes()

    def close(self) -> None:
        self.reader.close()

    def rename_to_deleted(self) -> list[str]:
        """Rename the files to `.deleted`; return the paths left to remove. Raises OSError."""
        self.close()
        return self.reader.files.rename_to_deleted()

    def remove(self) -> None:
        """Delete the files. Raises OSError."""
        self.close()
        self.reader.files.remove()


class ActiveSegment:
    """The last segment of a log, which is appended to. Owned by its log, used by one thread."""

    def __init__(
        self, reader: SegmentReader, indexes: SegmentIndexes, rolling_timestamp: int | None = None
    ) -> None:
        """Take over a pinned segment. `rolling_timestamp`: that of the first batch, if there is one."""
        self.reader = reader
        self.base_offset = reader.base_offset
        self.rolling_timestamp = rolling_timestamp
        self._indexes = indexes
        self._records = reader.records

    @classmethod
    def create(cls, reader: SegmentReader) -> "ActiveSegment":
        """Create the empty files of a new segment. Raises OSError; some files may then exist."""
        indexes = reader.begin()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            reader.files.open_append(suffix).close()
        return cls(reader, indexes)

    @property
    def size(self) -> int:
        return self._records.size

    def should_roll(self, size: int, last_offset: int, segment_bytes: int, segment_index_bytes: int) -> bool:
        """Return True if these bytes need a new segment. Source: LogSegment.shouldRoll."""
        start = self._records.size
        return start > 0 and (
            start + size > segment_bytes
            or last_offset - self.base_offset > INT32_MAX
            or self._indexes.is_full(segment_index_bytes)
        )

    def append(self, data: bytearray, headers: list[tuple[int, BatchHeader]], first_offset: int) -> None:
        """Write batches in one call, then update the indexes.

        Raises OSError with the file in an unknown state after `size`.
        """
        start = self._records.size
        self._records.append(data)
        if not start:
            self.rolling_timestamp = headers[0][1].max_timestamp
        offset = first_offset
        add_batch = self._indexes.add_batch
        for at, header in headers:
            add_batch(header, offset, start + at)
            offset += header.last_offset_delta + 1

    def undo_append(self) -> None:
        """Truncate the file to its size before a failed write. Raises OSError."""
        self._records.undo_append()

    def flush(self) -> None:
        """Block until the log bytes written so far are on disk. Any thread."""
        self._records.sync()

    def write_indexes(self) -> None:
        """Write the entries of the indexes in memory that are not in their files yet."""
        self.reader.transaction_index.write()
        self._indexes.write()

    def complete_indexes(self) -> None:
        """Bring the index files up to date, including the greatest timestamp, as Kafka does on close."""
        self._indexes.complete()
        self.write_indexes()

    def roll(self) -> ClosedSegment:
        """Complete the indexes and end this phase. Raises OSError; the segment is then still active."""
        self.complete_indexes()
        self.reader.unpin()
        return ClosedSegment(self.reader, self.size)


def _find_aborted_txns(files: SegmentFiles, read: ReadAt, size: int) -> list[AbortedTxn]:
    """Return the aborted transactions whose marker is in a segment with a damaged or missing index.

    A marker says which producer it ends, not where that producer's transaction began: that is in the
    producer state at the segment's base, which its `.snapshot` holds, and in the batches from there on.

    Source: Kafka's LogSegment.recover, which rebuilds the transaction index with the others.

    Raises: CorruptLog if the log is damaged, or if it has such markers and the snapshot is gone: aborted
        records would be shown as committed. OSError.

    Cost: the whole segment is read.
    """
    path = files.make_path(LOG_SUFFIX)
    producers = _load_producers(files)
    scanner = SegmentScanner(read, size, files.base_offset)
    aborted_txns: list[AbortedTxn] = []
    for position, header, data in scanner.iter_batches():
        if header.producer_id < 0:
            continue
        try:
            if producers is None:
                _refuse_abort(files, header, data)
            elif txn := update_producers(producers, header, data, header.base_offset):
                aborted_txns.append(txn)
        except RecordsError as exc:
            raise CorruptLog(path, position, "a readable batch", exc.reason) from exc
    if (bad := scanner.fault) is not None:
        raise CorruptLog(path, bad.position, bad.expected, bad.found)
    return aborted_txns


def _load_producers(files: SegmentFiles) -> ProducerStateManager | None:
    """Return the producers as of the segment's base, None if they are not known."""
    data = files.read(SNAPSHOT_SUFFIX)
    if data is None:
        return None if files.base_offset else ProducerStateManager()
    try:
        return ProducerStateManager.from_snapshot(decode_snapshot(data, files.make_path(SNAPSHOT_SUFFIX)))
    except MalformedFile:
        return None


def _refuse_abort(files: SegmentFiles, header: BatchHeader, data: memoryview) -> None:
    marker = read_marker(data) if header.is_control else None
    if marker is not None and marker.control_type is ControlType.ABORT:
        raise CorruptLog(
            files.make_path(TXN_INDEX_SUFFIX),
            0,
            f"the transaction that the marker at offset {header.base_offset} aborted",
            f"a damaged or missing file, and no usable {files.make_path(SNAPSHOT_SUFFIX)} to rebuild it",
        )
