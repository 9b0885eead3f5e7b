"""One partition's log: append, roll, sync. The only module that appends to a log.

A log is a list of segments; the last one grows. `append` returns when the bytes are with the operating
system; `sync` puts them on disk in another thread and advances `synced_end`. Under `flush.policy=ack` the
high watermark is `synced_end`, so power loss cannot take back what was read or acknowledged [LOG-1].

Used by one thread (the loop), apart from `sync`, which any one other thread may call at any time.
Reads are in `reader`, opening and repair in `loader`, batch validation in `state.validation`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchHeader, EncodedBatch, patch_offset_and_epoch, read_marker
from tallystick.storage.checkpoints.leader_epochs import LeaderEpochCache
from tallystick.storage.disk.fs import (
    DiskFull,
    LogOffline,
    OutOfDescriptors,
    StorageFailure,
    is_out_of_descriptors,
    is_transient,
    make_disk_full,
)
from tallystick.storage.disk.reserve import SpaceGuard
from tallystick.storage.log.files import LogFiles
from tallystick.storage.log.reader import LogReader
from tallystick.storage.segments.log_segment import (
    ActiveSegment,
    ClosedSegment,
    OpenSegmentCache,
    SegmentReader,
)
from tallystick.storage.segments.segment_scan import SNAPSHOT_SUFFIX, make_file_name, parse_file_name
from tallystick.storage.state.producer_state import (
    AppendOrigin,
    DuplicateBatch,
    ProducerStateManager,
    VerificationStateEntry,
    update_producers,
)
from tallystick.storage.state.validation import (
    LogConfig,
    PrevalidatedBatch,
    check_batches,
    check_encoded_batch,
)


def remove_files_now(log: "Log", paths: list[str]) -> None:
    """Remove discarded files immediately. Raises: OSError."""
    for path in paths:
        log.fs.remove(path)


class LogHooks(Value, kw_only=True):
    """Callbacks to the owner of a log, and resources shared among its logs."""

    space_guard: SpaceGuard
    segment_cache: OpenSegmentCache
    # A segment was closed: sync the log soon, whatever the flush policy.
    request_sync: Callable[["Log"], None] = lambda log: None
    # Segments are about to be deleted: make the log start offset durable first.
    before_delete: Callable[["Log"], None] = lambda log: None
    # Files that no log uses now. Removal may take long, so it belongs off the loop.
    discard_files: Callable[["Log", list[str]], None] = remove_files_now
    # The log went offline: the state of the disk is unknown. Any thread; once per log.
    on_offline: Callable[[LogOffline], None] = lambda failure: None


class TxnGuard(Value):
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


NO_GUARD: Final = TxnGuard()


class LoadedLog(Value, kw_only=True):
    """A log as it was found or created on disk, from which a `Log` is made. Source: LoadedLogOffsets.

    is_directory_unsynced  the names of its files are not known to be on disk
    """

    closed_segments: Sequence[ClosedSegment] = ()
    active_segment: ActiveSegment
    log_start_offset: Offset
    log_end_offset: Offset
    producer_state_manager: ProducerStateManager
    leader_epochs: LeaderEpochCache
    is_directory_unsynced: bool = False


class Log:
    """A partition's records. Made by `loader.open_log` or `create_log`; closed by its owner."""

    def __init__(
        self,
        files: LogFiles,
        topic_partition: TopicPartition,
        config: LogConfig,
        hooks: LogHooks,
        loaded_log: LoadedLog,
    ) -> None:
        """Take over a log whose content is on disk."""
        self.files = files
        self.fs = files.fs
        self.directory = files.directory
        self.topic_partition = topic_partition
        self.config = config
        self.hooks = hooks
        self.active_segment = loaded_log.active_segment
        self.producer_state_manager = loaded_log.producer_state_manager
        self.leader_epochs = loaded_log.leader_epochs
        start, end = loaded_log.log_start_offset, loaded_log.log_end_offset
        self.reader = LogReader(self.directory, config, loaded_log.producer_state_manager, start, end)
        self.replace_closed_segments(loaded_log.closed_segments)
        self.recovery_point = end
        # Closed segments whose files are not all synced.
        self.unsynced_closed_segments: list[ClosedSegment] = []
        self.is_directory_unsynced = loaded_log.is_directory_unsynced
        self.sync_lock = threading.Lock()  # held while files are synced, closed or removed [LOG-5]
        self._is_closed = False
        # (offset, segment, position) of the log end: one value, so that the loop and the syncing thread never
        # see half of the other's change.
        self._tail = (end, self.active_segment, self.active_segment.size)
        self.reader.mark_synced(end, self.active_segment.reader.records, self.active_segment.size)

    # -- what is known ----------------------------------------------------------------------------------

    @property
    def failure(self) -> StorageFailure | None:
        """The reason why the log is offline, if it is."""
        return self.files.failure

    @property
    def log_start_offset(self) -> Offset:
        return self.reader.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self.reader.log_end_offset

    @property
    def segments(self) -> Sequence[SegmentReader]:
        """All segments, oldest first, the active one last."""
        return self.reader.segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.reader.segments)

    def update_config(self, config: LogConfig) -> None:
        """Apply changed settings."""
        self.config = self.reader.config = config

    def find_epoch_end(self, epoch: LeaderEpoch) -> tuple[int, Offset] | None:
        """Return the last epoch up to `epoch` and the offset where it ended; None if unknown."""
        entry = self.leader_epochs.find_end_offset(epoch, self.log_end_offset)
        return None if entry is None else (entry.epoch, Offset(entry.end_offset))

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
        if self.files.failure is not None:
            raise self.files.failure
        if isinstance(batches, EncodedBatch) and origin is not AppendOrigin.CLIENT:
            validated = check_encoded_batch(batches, self.config, origin, now_ms)
        else:
            is_prevalidated = isinstance(batches, PrevalidatedBatch)
            validated = check_batches(
                bytearray(batches), self.config, origin, now_ms, is_prevalidated=is_prevalidated
            )
        if isinstance(validated, Reject):
            return validated
        data, headers = validated
        answer = self._check_producer(data, headers[0][1], origin, guard)
        if answer is not None:
            return answer
        reader, epochs = self.reader, self.leader_epochs
        first = next_offset = reader.log_end_offset
        for at, header in headers:
            patch_offset_and_epoch(data, at, next_offset, leader_epoch)
            next_offset = Offset(next_offset + header.last_offset_delta + 1)
        # Markers may use the reserve as internal topics do: a decided transaction must complete [RSV-1].
        internal = self.config.internal or headers[0][1].is_control or origin is AppendOrigin.DECISION
        try:
            self._write(data, headers, next_offset - 1, now_ms, internal=internal)
            if (
                leader_epoch != epochs.latest_epoch
                and leader_epoch >= 0
                and epochs.assign(leader_epoch, first)
            ):
                self.files.save_epochs(epochs)
            self._apply_append(data, headers, first, guard.transaction_version)
            self._set_log_end(next_offset)
        except StorageFailure:
            raise
        except Exception as exc:  # the file may be ahead of memory: the next batch would reuse its offsets
            raise self.take_offline(
                f"a batch may be in the file, but the state after it could not be updated: {exc!r}"
            ) from exc
        timestamp_ms = now_ms if self.config.message_timestamp_type else -1
        return AppendResult(first, Offset(next_offset - 1), timestamp_ms, reader.log_start_offset)

    def _set_log_end(self, offset: Offset) -> None:
        """Set the log end; the last segment now ends with the record before `offset`."""
        active = self.active_segment
        self.reader.log_end_offset = offset
        self._tail = (offset, active, active.reader.records.size)

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
        check = self.producer_state_manager.check_batch(header, origin, guard.verification)
        if isinstance(check, DuplicateBatch):
            log_append_time_ms = check.timestamp_ms if self.config.message_timestamp_type else -1
            base, last = Offset(check.base_offset), Offset(check.last_offset)
            return AppendResult(base, last, log_append_time_ms, self.log_start_offset, duplicate=True)
        return check if isinstance(check, Reject) else None

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
            raise DiskFull(self.directory, f"no room for {len(data)} bytes, apart from the disk reserve")
        try:
            self._roll_and_write(data, headers, last_offset, now_ms)
        except DiskFull as full:
            if not internal or isinstance(full, OutOfDescriptors):
                raise
            try:
                self.hooks.space_guard.release(len(data))
            except OSError as exc:
                raise self.take_offline(f"the disk reserve cannot be released: {exc}") from exc
            self._roll_and_write(data, headers, last_offset, now_ms)

    def _roll_and_write(
        self, data: bytearray, headers: list[tuple[int, BatchHeader]], last_offset: int, now_ms: int
    ) -> None:
        config, active, end = self.config, self.active_segment, self.reader.log_end_offset
        # KIP-33, LogSegment.timeWaitedForRoll: the age is the new batch's timestamp less the segment's first.
        since = active.rolling_timestamp
        age = 0 if since is None else headers[-1][1].max_timestamp - since
        if (age > config.roll_ms and active.size) or (
            active.should_roll(len(data), last_offset, config.segment_bytes, config.segment_index_bytes)
        ):
            self.roll(now_ms)
            active = self.active_segment
        try:
            active.append(data, headers, end)
        except OSError as exc:
            self._undo_write(active, exc)

    def _undo_write(self, active: ActiveSegment, cause: OSError) -> None:
        """Remove what a failed write may have left in the file, or take the log offline [LOG-4]."""
        try:
            active.undo_append()
        except OSError as exc:
            raise self.take_offline(
                f"a write failed ({cause}), and its bytes cannot be removed ({exc})"
            ) from exc
        if is_transient(cause):
            raise make_disk_full(self.directory, "a write failed", cause) from cause
        raise StorageFailure(self.directory, f"a write failed: {cause}") from cause

    def take_offline(self, reason: str) -> LogOffline:
        """Take the log offline: the state of the disk is unknown, so everything is refused [LOG-4]."""
        return self.files.take_offline(reason)

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
                aborted_txn = update_producers(
                    self.producer_state_manager,
                    header,
                    batch,
                    offset,
                    transaction_version=transaction_version,
                )
                if aborted_txn is not None:
                    self.files.save_aborted_txn(self.active_segment.reader.transaction_index, aborted_txn)
            offset += header.last_offset_delta + 1

    def begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Start a leader epoch at the log end; durable before it is announced. Raises: LogOffline."""
        if self.leader_epochs.assign(leader_epoch, self.log_end_offset):
            self.files.save_epochs(self.leader_epochs)

    # -- rolling and syncing -------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Close the last segment and start one at the log end.

        Order: under `ack` the closed segment and its name are on disk before the new one exists, so that
            damage in a closed segment is never a lost write [LOG-3]. Under other policies a sync is
            requested.
        Raises: DiskFull, StorageFailure, LogOffline.
        """
        last_segment = self.active_segment
        if not last_segment.size:
            return
        try:
            self.files.save_snapshot(self.producer_state_manager, self.log_end_offset)
            if self.config.flush_policy == "ack":
                self._sync_closing(last_segment)
            new = self.make_segment_reader(self.log_end_offset)
            try:
                segment = ActiveSegment.create(new)
                closed_segment = last_segment.roll()
            except OSError:
                # The segment kept in use may grow past the new file's base offset, so the file must go.
                ClosedSegment(new, 0).remove()
                raise
        except OSError as exc:
            if is_transient(exc):
                raise make_disk_full(self.directory, "no room for a new segment", exc) from exc
            raise self.take_offline(f"a new segment cannot be started: {exc}") from exc
        with self.sync_lock:
            self.unsynced_closed_segments.append(closed_segment)
            self.is_directory_unsynced = True
        self.closed_segments.append(closed_segment)
        self.active_segment = segment
        self.reader.add_segment(segment.reader)
        self._set_log_end(self.log_end_offset)
        self.hooks.request_sync(self)

    def _sync_closing(self, last_segment: ActiveSegment) -> None:
        with self.sync_lock:  # also waits for the other thread's sync of this segment
            try:
                if self.is_directory_unsynced:
                    self.is_directory_unsynced = False
                    self.fs.sync_dir(self.directory)
                last_segment.flush()
            except OSError as exc:
                if is_out_of_descriptors(exc):
                    self.is_directory_unsynced = True
                    raise
                raise self.take_offline(f"a sync failed: {exc}") from exc
            if not self.is_directory_unsynced and not self.unsynced_closed_segments:
                self.reader.mark_synced(self.log_end_offset, last_segment.reader.records, last_segment.size)

    def make_segment_reader(self, base_offset: int) -> SegmentReader:
        """Make the reader of a segment of this log, without touching a file."""
        return self.files.make_segment_reader(base_offset, self.config.index_interval_bytes)

    def sync(self) -> Offset:
        """Sync everything appended so far; return the end offset that is now on disk.

        Blocks; any thread. Order: names first, then segments oldest first, so that `synced_end` never
            passes an earlier byte that is not on disk [LOG-1].
        Raises: LogOffline, never to be retried: after a failed sync the kernel may mark pages clean that are
            not on disk. OutOfDescriptors: a file could not be opened; try again.
        """
        with self.sync_lock:
            if self.files.failure is not None:
                raise self.files.failure
            if self._is_closed:
                return self.reader.synced_end  # requested before the close; the directory may be gone
            end, active, position = self._tail
            closed_segments = list(self.unsynced_closed_segments)
            try:
                if self.is_directory_unsynced:
                    self.is_directory_unsynced = False
                    self.fs.sync_dir(self.directory)
                for segment in closed_segments:
                    segment.sync()
                active.flush()
            except OSError as exc:
                if is_out_of_descriptors(exc):
                    self.is_directory_unsynced = True
                    raise make_disk_full(self.directory, "a file cannot be opened to sync it", exc) from exc
                raise self.take_offline(f"a sync failed: {exc}") from exc
            del self.unsynced_closed_segments[: len(closed_segments)]
            self.reader.mark_synced(end, active.reader.records, position)
            self.recovery_point = end
            return end

    # -- the list of segments, for deletion and the cleaner -------------------------------------------------

    def replace_closed_segments(self, segments: Sequence[ClosedSegment]) -> None:
        """Replace the closed segments, whose readers may not use the old ones from now on."""
        self.closed_segments = list(segments)
        self.reader.replace_segments([*(segment.reader for segment in segments), self.active_segment.reader])

    # -- the end -------------------------------------------------------------------------------------------

    def flush_indexes(self) -> None:
        """Bring the last segment's index files up to date. Raises OSError."""
        if not self.files.are_epochs_saved:
            self.files.save_epochs(self.leader_epochs)
        self.active_segment.write_indexes()

    def close(self, *, clean: bool) -> None:
        """Close the files; with `clean`, sync everything first, so that the next start needs no scan.

        Raises: LogOffline, StorageFailure.
        """
        if clean and self.files.failure is None:
            self._sync_for_clean_start()
        with self.sync_lock:
            self._is_closed = True
            for segment in self.reader.segments:
                segment.close()

    def _sync_for_clean_start(self) -> None:
        files, active = self.files, self.active_segment
        try:
            files.write_with_reserve(active.complete_indexes)
            files.write_with_reserve(
                lambda: files.save_snapshot(self.producer_state_manager, self.log_end_offset)
            )
            self.is_directory_unsynced = True
            self.unsynced_closed_segments.append(ClosedSegment(active.reader, active.size))
        except OSError as exc:
            raise self.take_offline(f"the log cannot be closed cleanly: {exc}") from exc
        self.sync()


def delete_records_before(log: Log, offset: Offset) -> Reject | None:
    """Move the log start to `offset`, as DeleteRecords asks, and delete whole segments below it.

    Durable when it returns, in the order of `delete_oldest_segments`. Rejects with OFFSET_OUT_OF_RANGE above
    the high watermark.
    Raises: StorageFailure.
    """
    if log.failure is not None:
        raise log.failure
    # KIP-107: records are deleted up to the high watermark, never above it.
    if not 0 <= offset <= log.reader.high_watermark:
        return Reject(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"records before {offset} cannot be deleted: the high watermark is {log.reader.high_watermark};"
            " nothing was deleted",
        )
    if offset > log.log_start_offset:
        bases = [segment.base_offset for segment in log.segments]
        count = sum(next_base <= offset for next_base in bases[1:])
        _sync_first_snapshot(log, count)
        _move_start(log, offset)
        _remove_segments(log, count)
    return None


def delete_oldest_segments(log: Log, count: int) -> None:
    """Delete the first `count` segments, for retention; never the last one. Raises: StorageFailure.

    Order: the producer snapshot at the new first segment is durable first, because it could not be rebuilt
        afterwards [LOG-10]; then the log start offset, and segments go oldest first. A crash in between
        leaves segments below the start, which the next opening removes [LOG-6]. Segments leave by a rename
        to `.deleted`; the files are removed later in the background, or at the next opening.
    """
    if log.failure is not None:
        raise log.failure
    check(0 <= count < len(log.segments), f"{count} of {len(log.segments)} segments are to be deleted")
    if not count:
        return
    _sync_first_snapshot(log, count)
    _move_start(log, Offset(max(log.log_start_offset, log.segments[count].base_offset)))
    _remove_segments(log, count)


def _sync_first_snapshot(log: Log, count: int) -> None:
    """Sync the snapshot that recovery begins with once the first `count` segments are gone.

    An older snapshot could have a transaction open whose marker is deleted with them.
    """
    path = f"{log.directory}/{make_file_name(log.segments[count].base_offset, SNAPSHOT_SUFFIX)}"
    if not count or not log.fs.exists(path):
        return
    try:
        file = log.fs.open_append(path)
    except OSError as exc:
        if is_transient(exc):
            raise make_disk_full(log.directory, "a snapshot cannot be opened to sync it", exc) from exc
        raise StorageFailure(log.directory, f"a snapshot cannot be opened: {exc}") from exc
    try:
        file.sync()
        log.fs.sync_dir(log.directory)
    except OSError as exc:
        if is_out_of_descriptors(exc):
            raise make_disk_full(log.directory, "a file cannot be opened to sync it", exc) from exc
        raise log.take_offline(f"a sync failed: {exc}") from exc
    finally:
        file.close()


def _move_start(log: Log, offset: Offset) -> None:
    reader = log.reader
    before, reader.log_start_offset = reader.log_start_offset, offset
    try:
        log.hooks.before_delete(log)
    except OSError as exc:
        # Not durable: a later call for the same offset must write it again.
        reader.log_start_offset = before
        if is_transient(exc):
            raise make_disk_full(log.directory, "the log start offset cannot be written", exc) from exc
        raise StorageFailure(log.directory, f"the log start offset cannot be written: {exc}") from exc
    if log.leader_epochs.truncate_from_start(offset):
        log.files.save_epochs(log.leader_epochs)


def _remove_segments(log: Log, count: int) -> None:
    if not count:
        return
    segments = log.closed_segments[:count]
    log.replace_closed_segments(log.closed_segments[count:])
    first = log.segments[0].base_offset
    try:
        with log.sync_lock:
            log.unsynced_closed_segments = [
                segment for segment in log.unsynced_closed_segments if segment not in segments
            ]
            paths = [path for segment in segments for path in segment.rename_to_deleted()]
            for name in log.fs.listdir(log.directory):
                file = parse_file_name(name)
                if file and file.suffix == SNAPSHOT_SUFFIX and file.base_offset < first:
                    log.fs.remove(f"{log.directory}/{name}")
            log.is_directory_unsynced = True
        log.hooks.discard_files(log, paths)
    except OSError as exc:
        raise log.take_offline(f"segments cannot be deleted: {exc}") from exc
