"""Taking records off the start of a log: DeleteRecords and the deletion of whole segments.

The log start offset is made durable first, and segments go oldest first: a crash in between leaves
segments below the start, which the next opening removes [LOG-6]. Segments leave by a rename to `.deleted`;
the files are removed by whoever has the time, or by the next opening.
"""

from typing import TYPE_CHECKING

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.storage.segment import SNAPSHOT, parse_file_name

if TYPE_CHECKING:
    from tallystick.storage.log import Log


def remove_now(log: "Log", paths: list[str]) -> None:
    """Discard files here and at once. Raises OSError."""
    for path in paths:
        log.fs.remove(path)


def delete_records_before(log: "Log", offset: Offset) -> Reject | None:
    if log.failure is not None:
        raise log.failure
    if not 0 <= offset <= log.high_watermark:
        return Reject(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"records before {offset} cannot be deleted, the high watermark is {log.high_watermark}",
        )
    if offset > log.log_start_offset:
        _move_start(log, offset)
        bases = [segment.base_offset for segment in log.segments]
        _remove(log, sum(following <= offset for following in bases[1:]))
    return None


def delete_oldest_segments(log: "Log", count: int) -> None:
    if log.failure is not None:
        raise log.failure
    check(0 <= count < len(log.segments), f"{count} of {len(log.segments)} segments are to be deleted")
    if not count:
        return
    _move_start(log, Offset(max(log.log_start_offset, log.segments[count].base_offset)))
    _remove(log, count)


def _move_start(log: "Log", offset: Offset) -> None:
    log.log_start_offset = offset
    log.hooks.before_delete(log)
    if log.epochs.truncate_from_start(offset):
        log.save_epochs()


def _remove(log: "Log", count: int) -> None:
    if not count:
        return
    doomed, kept = log.segments[:count], log.segments[count:]
    log.set_segments(kept)
    try:
        with log.syncing:
            log.closed_unsynced = [segment for segment in log.closed_unsynced if segment not in doomed]
            discarded = [path for segment in doomed for path in segment.detach()]
            for name in log.fs.listdir(log.directory):
                found = parse_file_name(name)
                if found and found.suffix == SNAPSHOT and found.base_offset < kept[0].base_offset:
                    log.fs.remove(f"{log.directory}/{name}")
            log.directory_unsynced = True
        log.hooks.discard(log, discarded)
    except OSError as exc:
        raise log.fail(f"segments cannot be deleted: {exc}") from exc
