"""One partition's log: append, read, sync. The only module that writes a log.

A log is a list of segments; the last one grows. `append` returns when the bytes are with the operating
system; `sync` puts them on disk in another thread and advances `synced_end`. Under `flush.policy=ack` the
high watermark is `synced_end`, so power loss cannot take back what was read or acknowledged [LOG-1].

Used by one thread (the loop), apart from `sync`, which any one other thread may call at any time.
Opening and repair are in `log_loader`, batch validation in `validation`, deletion in `log_start`.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    RecordsError,
    iter_records,
    patch_offset_and_epoch,
    read_header,
    read_marker,
)
from tallystick.storage.checkpoints import format_epochs
from tallystick.storage.fs import (
    DiskFull,
    FileSystem,
    LogOffline,
    OutOfDescriptors,
    StorageFailure,
    is_disk_full,
    is_out_of_descriptors,
    is_transient,
    make_disk_full,
    replace_file,
)
from tallystick.storage.leader_epochs import LeaderEpochCache
from tallystick.storage.log_segment import LogSegment, OpenSegmentCache
from tallystick.storage.producer_state import (
    AppendOrigin,
    DuplicateBatch,
    ProducerStateManager,
    VerificationStateEntry,
)
from tallystick.storage.recovery import CorruptLog, RecoveryReport
from tallystick.storage.reserve import SpaceGuard, UnlimitedSpace
from tallystick.storage.segment_scan import SNAPSHOT_SUFFIX, make_file_name
from tallystick.storage.snapshots import encode_snapshot
from tallystick.storage.transaction_index import AbortedTxn, collect_aborted_txns
from tallystick.storage.validation import LogConfig, PrevalidatedBatch, check_batches

__all__ = [
    "NO_GUARD",
    "AppendOrigin",
    "AppendResult",
    "CorruptLog",
    "DiskFull",
    "Log",
    "LogConfig",
    "LogHooks",
    "LogOffline",
    "ReadResult",
    "RecoveryReport",
    "SpaceGuard",
    "StorageFailure",
    "TxnGuard",
    "UnlimitedSpace",
]

LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
# Read positions kept: next offset of a recent read -> segment and position, for the reader's next fetch.
_READ_POSITIONS_MAX: Final = 64


def remove_files_now(log: "Log", paths: list[str]) -> None:
    """Remove discarded files at once. Raises: OSError."""
    for path in paths:
        log.fs.remove(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHooks:
    """Callbacks to the owner of a log, and resources shared among its logs."""

    space_guard: SpaceGuard
    segment_cache: OpenSegmentCache
    # A segment was closed: sync the log soon, whatever the flush policy.
    request_sync: Callable[["Log"], None] = lambda log: None
    # Segments are about to be deleted: make the log start offset durable first.
    before_delete: Callable[["Log"], None] = lambda log: None
    # Files that no log uses any more. Removal may take long, so it belongs off the loop.
    discard_files: Callable[["Log", list[str]], None] = remove_files_now
    # The log went offline: the state of the disk is unknown. Any thread; once per log.
    on_offline: Callable[["Log", LogOffline], None] = lambda log, failure: None


@dataclass(frozen=True, slots=True)
class TxnGuard:
    """The caller's knowledge of the transaction of a batch or marker. Source: KIP-890, KIP-664.

    verification         for the first batch: the guard the coordinator was asked with
    transaction_version  for a marker: the version whose epoch rules it follows
    txn_start_offset     for a marker sent by no coordinator: the only transaction it may end
    """

    verification: VerificationStateEntry | None = None
    transaction_version: int = 2
    txn_start_offset: int | None = None


@dataclass(slots=True)
class AppendResult:
    """The offsets of appended batches; `duplicate` if they were there already."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int  # -1 for CreateTime
    log_start_offset: Offset
    duplicate: bool = False


@dataclass(slots=True)
class ReadResult:
    """Whole batches; the first holds the requested offset or is the next one after it."""

    data: bytes


_EMPTY: Final = b""
NO_GUARD: Final = TxnGuard()


class Log:
    """A partition's records. Made by `log_loader.open_log` or `create_log`; closed by its owner."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        hooks: LogHooks,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.hooks = hooks
        self.segments: list[LogSegment] = []
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.recovery_point = Offset(0)
        self.producer_state_manager = ProducerStateManager(verification_required=config.verification_required)
        self.leader_epochs = LeaderEpochCache()
        self.failure: StorageFailure | None = None
        # Closed segments whose files are not all synced.
        self.unsynced_closed_segments: list[LogSegment] = []
        self.is_directory_unsynced = False
        self.sync_lock = threading.Lock()  # held while files are synced, closed or removed [LOG-5]
        self._base_offsets: list[int] = []
        self._read_positions: dict[int, tuple[LogSegment, int]] = {}
        self._is_closed = False
        self._are_epochs_saved = True
        # (offset, segment, position) of the synced end and of the log end. Each is one value, so that the
        # loop and the syncing thread never see half of the other's change.
        self._synced: tuple[Offset, LogSegment | None, int] = (Offset(0), None, 0)
        self._tail: tuple[Offset, LogSegment | None, int] = (Offset(0), None, 0)

    # -- what is known ----------------------------------------------------------------------------------

    @property
    def synced_end(self) -> Offset:
        """The offset below which every record is on disk."""
        return self._synced[0]

    @property
    def high_watermark(self) -> Offset:
        """The offset at and above which readers see nothing [LOG-1]."""
        return self.synced_end if self.config.flush_policy == "ack" else self.log_end_offset

    @property
    def first_unstable_offset(self) -> Offset | None:
        self.producer_state_manager.on_high_watermark_updated(self.high_watermark)
        found = self.producer_state_manager.first_unstable_offset
        return None if found is None else Offset(found)

    @property
    def last_stable_offset(self) -> Offset:
        """The offset below which every transaction is decided [LOG-2]; never below the log start."""
        unstable, high_watermark = self.first_unstable_offset, self.high_watermark
        if unstable is None or unstable > high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def active_segment(self) -> LogSegment:
        return self.segments[-1]

    # -- appending ---------------------------------------------------------------------------------------

    def append(
        self,
        batches: bytes | bytearray | memoryview,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        now_ms: int,
        leader_epoch: LeaderEpoch,
        guard: TxnGuard = NO_GUARD,
    ) -> AppendResult | Reject:
        """Append batches at the end, all or none.

        Order: everything is checked before the write, and producer state changes after it. On return the
            bytes are with the operating system; they are on disk once `synced_end` has passed them.
        Rejects with the errors of `validation` and of the producer state.
        Raises: DiskFull, StorageFailure (nothing was appended), LogOffline (unknown; the log is finished).
        """
        if self.failure is not None:
            raise self.failure
        walked = isinstance(batches, PrevalidatedBatch)
        checked = check_batches(bytearray(batches), self.config, origin, now_ms, walked=walked)
        if isinstance(checked, Reject):
            return checked
        data, headers = checked
        answer = self._check_producer(data, headers[0][1], origin, guard)
        if answer is not None:
            return answer
        first = next_offset = self.log_end_offset
        for at, header in headers:
            patch_offset_and_epoch(data, at, next_offset, leader_epoch)
            next_offset = Offset(next_offset + header.last_offset_delta + 1)
        # Markers may use the reserve as internal topics do: a decided transaction must complete [RSV-1].
        internal = self.config.internal or headers[0][1].is_control or origin is AppendOrigin.DECISION
        try:
            self._write(data, headers, next_offset - 1, now_ms, internal=internal)
            if leader_epoch != self.leader_epochs.latest_epoch and leader_epoch >= 0:
                self._begin_epoch(leader_epoch, first)
            self._apply_append(data, headers, first, guard.transaction_version)
            self.set_log_end(next_offset)
        except StorageFailure:
            raise
        except Exception as exc:  # the file may be ahead of memory: the next batch would reuse its offsets
            raise self.take_offline(f"a batch that may be written cannot be taken in: {exc!r}") from exc
        stamped = bool(self.config.message_timestamp_type)
        return AppendResult(first, Offset(next_offset - 1), now_ms if stamped else -1, self.log_start_offset)

    def set_log_end(self, offset: Offset) -> None:
        """Set the log end; the last segment now ends with the record before `offset`."""
        active = self.segments[-1]
        self.log_end_offset = offset
        self._tail = (offset, active, active.size)

    def _check_producer(
        self, data: bytearray, header: BatchHeader, origin: AppendOrigin, guard: TxnGuard
    ) -> AppendResult | Reject | None:
        """Return the answer to give instead of appending, or None to append."""
        if header.producer_id < 0:
            return None
        if header.is_control:
            marker = read_marker(data)
            if marker is None or origin is AppendOrigin.REPLICATION:
                return None
            verdict = self.producer_state_manager.check_marker(
                header, marker, guard.transaction_version, txn_start_offset=guard.txn_start_offset
            )
            return verdict if isinstance(verdict, Reject) else None
        found = self.producer_state_manager.check_batch(header, origin, guard.verification)
        if isinstance(found, DuplicateBatch):
            stamped = found.timestamp_ms if self.config.message_timestamp_type else -1
            base, last = Offset(found.base_offset), Offset(found.last_offset)
            return AppendResult(base, last, stamped, self.log_start_offset, duplicate=True)
        return found if isinstance(found, Reject) else None

    def _write(
        self,
        data: bytearray,
        headers: list[tuple[int, BatchHeader]],
        last_offset: int,
        now_ms: int,
        *,
        internal: bool,
    ) -> None:
        if not self.hooks.space_guard.may_write(len(data), internal):
            raise DiskFull(self.directory, f"no room for {len(data)} bytes beside the reserve")
        try:
            self._roll_and_write(data, headers, last_offset, now_ms)
        except DiskFull as full:
            if not internal or isinstance(full, OutOfDescriptors):
                raise
            try:
                self.hooks.space_guard.release(len(data))
            except OSError as exc:
                raise self.take_offline(f"the reserve cannot be given back: {exc}") from exc
            self._roll_and_write(data, headers, last_offset, now_ms)

    def _roll_and_write(
        self, data: bytearray, headers: list[tuple[int, BatchHeader]], last_offset: int, now_ms: int
    ) -> None:
        config, active = self.config, self.active_segment
        # LogSegment.timeWaitedForRoll: the age is the new batch's timestamp less the segment's first one.
        since = active.rolling_timestamp
        age = 0 if since is None else headers[-1][1].max_timestamp - since
        if active.size and (
            age > config.roll_ms
            or active.should_roll(len(data), last_offset, config.segment_bytes, config.segment_index_bytes)
        ):
            self.roll(now_ms)
            active = self.active_segment
        try:
            active.append(data, headers, self.log_end_offset)
        except OSError as exc:
            self._undo_write(active, exc)

    def write_with_reserve(self, write: Callable[[], None]) -> None:
        """Run `write`; on a full disk, release a piece of the reserve and run it once more [RSV-1]."""
        try:
            write()
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            self.hooks.space_guard.release(1)
            write()

    def _undo_write(self, active: LogSegment, cause: OSError) -> None:
        """Remove what a failed write may have left in the file, or take the log offline [LOG-4]."""
        try:
            active.undo_append()
        except OSError as exc:
            raise self.take_offline(f"a write failed ({cause}), and so did taking it back ({exc})") from exc
        if is_transient(cause):
            raise make_disk_full(self.directory, "a write failed", cause) from cause
        raise StorageFailure(self.directory, f"a write failed: {cause}") from cause

    def take_offline(self, reason: str) -> LogOffline:
        """Take the log offline: the state of the disk is unknown, so everything is refused [LOG-4]."""
        failure = LogOffline(self.directory, reason)
        if self.failure is None:
            self.failure = failure
            self.hooks.on_offline(self, failure)
        return failure

    def _apply_append(
        self,
        data: bytearray,
        headers: list[tuple[int, BatchHeader]],
        first_offset: int,
        transaction_version: int,
    ) -> None:
        offset = first_offset
        for at, header in headers:
            if header.producer_id >= 0:
                batch = data if at == 0 else data[at:]
                self.update_producers(
                    header, batch, offset, self.active_segment, transaction_version=transaction_version
                )
            offset += header.last_offset_delta + 1

    def update_producers(
        self,
        header: BatchHeader,
        data: bytes | bytearray | memoryview,
        offset: int,
        segment: LogSegment | None,
        *,
        transaction_version: int = 0,
    ) -> None:
        """Apply an appended batch to the producer state, live and on replay alike.

        `segment` gets the index entry of an aborted transaction; None if its index has it already.
        """
        if not header.is_control:
            self.producer_state_manager.apply_batch(header, offset, header.max_timestamp)
            return
        marker = read_marker(data)
        if marker is None:
            return
        done = self.producer_state_manager.apply_marker(
            header, marker, offset, header.max_timestamp, transaction_version=transaction_version
        )
        if done is not None and done.is_aborted and segment is not None:
            segment.add_aborted_txn(done.to_aborted_txn())
            try:
                self.write_with_reserve(segment.write_transaction_index)
            except OSError as exc:
                # The entry is in memory and is written before the segment closes; recovery finds the marker.
                if not is_transient(exc):
                    raise self.take_offline(
                        f"the index of aborted transactions cannot be written: {exc}"
                    ) from exc

    def begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Start a leader epoch at the log end; durable before it is announced. Raises: LogOffline."""
        self._begin_epoch(leader_epoch, self.log_end_offset)

    def _begin_epoch(self, leader_epoch: int, first_offset: int) -> None:
        if self.leader_epochs.assign(leader_epoch, first_offset):
            self.save_epochs()

    def save_epochs(self) -> None:
        """Write the leader epoch checkpoint; after a crash a stale one is rebuilt from the log."""
        text, path = (
            format_epochs(self.leader_epochs.entries).encode(),
            f"{self.directory}/{LEADER_EPOCH_FILE}",
        )
        self._are_epochs_saved = True
        try:
            self.write_with_reserve(lambda: replace_file(self.fs, path, text))
        except OSError as exc:
            if not is_transient(exc):
                raise self.take_offline(f"{LEADER_EPOCH_FILE} cannot be written: {exc}") from exc
            self._are_epochs_saved = False

    # -- rolling and syncing -------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Close the last segment and start one at the log end.

        Order: under `ack` the closed segment and its name are on disk before the new one exists, so that
            damage in a closed segment is never a lost write [LOG-3]. Under other policies a sync is
            requested.
        Raises: DiskFull, StorageFailure, LogOffline.
        """
        closing = self.active_segment
        if not closing.size:
            return
        try:
            self.save_snapshot()
            if self.config.flush_policy == "ack":
                self._sync_closing(closing)
            segment = self.new_segment(self.log_end_offset)
            try:
                segment.create()
                closing.become_inactive()
            except OSError:
                # The segment kept in use may grow past the new file's base offset, so the file must go.
                segment.remove()
                raise
        except OSError as exc:
            if is_transient(exc):
                raise make_disk_full(self.directory, "no room for another segment", exc) from exc
            raise self.take_offline(f"cannot start another segment: {exc}") from exc
        with self.sync_lock:
            self.unsynced_closed_segments.append(closing)
            self.is_directory_unsynced = True
        self.segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self.set_log_end(self.log_end_offset)
        self.hooks.request_sync(self)

    def _sync_closing(self, closing: LogSegment) -> None:
        with self.sync_lock:  # also waits for the other thread's sync of this segment
            try:
                if self.is_directory_unsynced:
                    self.is_directory_unsynced = False
                    self.fs.sync_dir(self.directory)
                closing.sync()
            except OSError as exc:
                if is_out_of_descriptors(exc):
                    self.is_directory_unsynced = True
                    raise
                raise self.take_offline(f"a sync failed: {exc}") from exc
            if not self.is_directory_unsynced and not self.unsynced_closed_segments:
                self._set_synced(self.log_end_offset, closing, closing.size)

    def new_segment(self, base_offset: int) -> LogSegment:
        """Make a segment object of this log, without touching a file."""
        interval = self.config.index_interval_bytes
        return LogSegment(self.fs, self.directory, base_offset, interval, self.hooks.segment_cache)

    def save_snapshot(self) -> None:
        """Write a producer snapshot at the log end. Raises OSError."""
        path = f"{self.directory}/{make_file_name(self.log_end_offset, SNAPSHOT_SUFFIX)}"
        if self.fs.exists(path):
            self.fs.remove(path)
        file = self.fs.open_append(path)
        try:
            file.write([encode_snapshot(self.producer_state_manager.take_snapshot())])
        finally:
            file.close()

    def sync(self) -> Offset:
        """Sync everything appended so far; return the end offset that is now on disk.

        Blocks; any thread. Order: names first, then segments oldest first, so that `synced_end` never
            passes an earlier byte that is not on disk [LOG-1].
        Raises: LogOffline, never to be retried: after a failed sync the kernel may mark pages clean that are
            not on disk. OutOfDescriptors: a file could not be opened; try again.
        """
        with self.sync_lock:
            if self.failure is not None:
                raise self.failure
            if self._is_closed:
                return self.synced_end  # requested before the close; the directory may be gone
            end, active, position = self._tail
            closed = list(self.unsynced_closed_segments)
            try:
                if self.is_directory_unsynced:
                    self.is_directory_unsynced = False
                    self.fs.sync_dir(self.directory)
                for segment in closed:
                    segment.sync()
                    segment.sync_indexes()
                if active is not None:
                    active.sync()
            except OSError as exc:
                if is_out_of_descriptors(exc):
                    self.is_directory_unsynced = True
                    raise make_disk_full(self.directory, "no descriptor to sync with", exc) from exc
                raise self.take_offline(f"a sync failed: {exc}") from exc
            del self.unsynced_closed_segments[: len(closed)]
            self._set_synced(end, active, position)
            self.recovery_point = end
            return end

    def _set_synced(self, end: Offset, segment: LogSegment | None, position: int) -> None:
        if end > self.synced_end:
            self._synced = (end, segment, position)

    def mark_synced(self) -> None:
        """Mark everything as synced; the caller has put it on disk."""
        self.recovery_point = self.log_end_offset
        self._synced = (self.log_end_offset, self.active_segment, self.active_segment.size)

    # -- reading --------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upper: int, min_one: bool = True) -> ReadResult | Reject:
        """Read whole batches from one segment, from the batch that holds `offset`, below `upper`.

        Args:
            upper: the first offset not to return; a batch that reaches it is left out.
            min_one: return the first batch even when it is longer than `max_bytes`.
        Rejects with OFFSET_OUT_OF_RANGE.
        Raises: StorageFailure.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            return Reject(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, the log has {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset >= upper:
            return ReadResult(_EMPTY)
        try:
            return ReadResult(self._read(offset, max_bytes, min(upper, self.log_end_offset), min_one))
        except OSError as exc:
            raise StorageFailure(self.directory, f"a read failed: {exc}") from exc

    def _read(self, offset: int, max_bytes: int, upper: int, min_one: bool) -> bytes:
        known = self._read_positions.pop(offset, None)
        slot = bisect_right(self._base_offsets, known[0].base_offset if known else offset) - 1
        segment, at = known or (self.segments[max(0, slot)], -1)
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

    def _find_read_limit(self, segment: LogSegment, slot: int, upper: int) -> int:
        """Return the position up to which a segment may be read."""
        if upper >= self.log_end_offset or (
            slot + 1 < len(self._base_offsets) and upper >= self._base_offsets[slot + 1]
        ):
            return segment.size
        end, last, position = self._synced
        if upper == end and last is segment:
            return position
        return segment.find_position(upper)

    def _read_segment(
        self, segment: LogSegment, at: int, limit: int, max_bytes: int, bounds: tuple[int, bool]
    ) -> bytes:
        upper, min_one = bounds
        available = limit - at
        if available <= max_bytes:
            data = segment.file.pread(available, at)
            # The next batch, whatever its size, will start at `limit`.
            self._cache_read_position(upper, segment, limit)
            return data
        end, next_offset = segment.find_end(at, at + max_bytes)
        if end > at:
            self._cache_read_position(next_offset, segment, end)
            return segment.file.pread(end - at, at)
        if not min_one:
            return _EMPTY
        _, size, _, last_offset = next(segment.iter_batch_spans(at, limit))
        self._cache_read_position(last_offset + 1, segment, at + size)
        return segment.file.pread(size, at)

    def _cache_read_position(self, offset: int, segment: LogSegment, position: int) -> None:
        if offset < 0:
            return
        readers = self._read_positions
        if len(readers) >= _READ_POSITIONS_MAX:
            del readers[next(iter(readers))]
        readers[offset] = (segment, position)

    def collect_aborted_txns(self, lo: int, hi: int) -> tuple[AbortedTxn, ...]:
        """Return aborted transactions with records in [lo, hi), for read_committed consumers to skip."""
        slot = max(0, bisect_right(self._base_offsets, lo) - 1)
        return tuple(
            collect_aborted_txns(
                (segment.load_transaction_index() for segment in self.segments[slot:]), lo, hi
            )
        )

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
            for header, data in self._iter_batches_from(segment, start):
                if header.max_timestamp < timestamp_ms:
                    continue
                found = self._find_first_record(data, timestamp_ms, self.log_start_offset)
                if found is not None:
                    return Offset(found[0]), found[1], header.partition_leader_epoch
        return None

    def find_max_timestamp(self) -> tuple[Offset, int, int] | None:
        """Return offset, timestamp and leader epoch of the record with the greatest timestamp, or None."""
        best: LogSegment | None = None
        for segment in self.segments:
            if segment.size and (best is None or segment.largest_timestamp[0] > best.largest_timestamp[0]):
                best = segment
        if best is None or best.largest_timestamp[0] < 0:
            return None
        timestamp, last_offset = best.largest_timestamp
        for header, data in self._iter_batches_from(best, last_offset):
            found = self._find_first_record(data, timestamp, self.log_start_offset)
            return (Offset(found[0]), found[1], header.partition_leader_epoch) if found else None
        return None

    def _iter_batches_from(self, segment: LogSegment, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield header and bytes of each batch from the one that holds `offset`, reading on demand."""
        try:
            for position, size, _, _ in segment.iter_batch_spans(segment.find_position(offset)):
                head = read_header(segment.file.pread(HEADER_SIZE, position))
                yield head, segment.file.pread(size, position)
        except (OSError, RecordsError) as exc:
            raise StorageFailure(self.directory, f"a read failed: {exc}") from exc

    def _find_first_record(self, data: bytes, timestamp_ms: int, offset_min: int) -> tuple[int, int] | None:
        for record in iter_records(data):
            if record.timestamp_ms >= timestamp_ms and record.offset >= offset_min:
                return record.offset, record.timestamp_ms
        return None

    def find_epoch_end(self, epoch: LeaderEpoch) -> tuple[int, Offset] | None:
        """Return the last epoch up to `epoch` and the offset where it ended; None if unknown."""
        found = self.leader_epochs.find_end_offset(epoch, self.log_end_offset)
        return None if found is None else (found.epoch, Offset(found.end_offset))

    # -- the list of segments, for loading, trimming and the cleaner --------------------------------------

    def replace_segments(self, segments: list[LogSegment]) -> None:
        """Replace the segment list and forget read positions, which point into the old one."""
        check(bool(segments), "a log has at least one segment")
        self.segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]
        self._read_positions.clear()

    # -- the end -------------------------------------------------------------------------------------------

    def flush_indexes(self) -> None:
        """Bring the last segment's index files up to date. Raises OSError."""
        if not self._are_epochs_saved:
            self.save_epochs()
        self.active_segment.write_indexes()

    def close(self, *, clean: bool) -> None:
        """Close the files; with `clean_log`, sync everything first, so that the next start needs no scan.

        Raises: LogOffline, StorageFailure.
        """
        if clean and self.failure is None:
            try:
                self.write_with_reserve(self.active_segment.complete_indexes)
                self.write_with_reserve(self.save_snapshot)
                self.is_directory_unsynced = True
                self.unsynced_closed_segments.append(self.active_segment)
            except OSError as exc:
                raise self.take_offline(f"cannot be closed cleanly: {exc}") from exc
            self.sync()
        with self.sync_lock:
            self._is_closed = True
            for segment in self.segments:
                segment.close()
