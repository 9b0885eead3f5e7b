"""Deletion from the start of a log: DeleteRecords and whole segments for retention.

The producer snapshot at the base offset of the new first segment is made durable first, because it could not
be rebuilt afterwards [LOG-10]. Then the log start offset is made durable, and segments go oldest first: a
crash in between leaves segments below the start, which the next opening removes [LOG-6]. Segments leave by a
rename to `.deleted`; the files are removed later in the background, or at the next opening.
"""

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.storage.fs import StorageFailure, is_out_of_descriptors, is_transient, make_disk_full
from tallystick.storage.log import Log
from tallystick.storage.segments.segment_scan import SNAPSHOT_SUFFIX, make_file_name, parse_file_name


def delete_records_before(log: Log, offset: Offset) -> Reject | None:
    """Move the log start to `offset`, as DeleteRecords asks, and delete whole segments below it.

    Durable when it returns. Rejects with OFFSET_OUT_OF_RANGE above the high watermark.
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
    """Delete the first `count` segments, for retention; never the last one. Raises: StorageFailure."""
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
