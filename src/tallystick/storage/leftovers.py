"""Files that an interrupted deletion, cleaning or swap has left in a log's directory. `recovery` decides."""

from collections.abc import Callable, Sequence

from tallystick.kernel.ids import INT64_MAX
from tallystick.storage.fs import FileSystem
from tallystick.storage.log_files import LogFiles
from tallystick.storage.recovery import (
    LEFTOVER_ACTIONS,
    CorruptLog,
    LeftoverAction,
    LeftoverFile,
    classify_swap_file,
)
from tallystick.storage.segments import segment_scan as naming
from tallystick.storage.segments.segment_scan import SegmentScanner, parse_file_name

# Notes what was done to a file, by its name.
RecordRepair = Callable[[str, str], None]


def remove_leftovers(files: LogFiles, record_repair: RecordRepair) -> None:
    """Remove what interrupted operations left in a log's directory, and complete a swap.

    Raises: CorruptLog, OSError.
    """
    fs, directory = files.fs, files.directory
    names = fs.listdir(directory)
    parsed = {name: file for name in names if (file := parse_file_name(name)) is not None}
    cleaned_offsets = frozenset(f.base_offset for f in parsed.values() if f.state == naming.CLEANED_SUFFIX)
    swaps: list[str] = []
    removals: list[str] = [name for name in names if name.endswith(".tmp")]
    logs = {f.base_offset for f in parsed.values() if f.suffix == naming.LOG_SUFFIX}
    for name, file in parsed.items():
        match file.state:
            case naming.DELETED_SUFFIX:
                leftover = LeftoverFile.DELETED
            case naming.CLEANED_SUFFIX:
                leftover = LeftoverFile.CLEANED
            case naming.SWAP_SUFFIX:
                leftover = classify_swap_file(file.base_offset, cleaned_offsets)
            case _:
                if file.suffix in (naming.LOG_SUFFIX, naming.SNAPSHOT_SUFFIX) or file.base_offset in logs:
                    continue
                leftover = LeftoverFile.ORPHAN_INDEX
        if LEFTOVER_ACTIONS[leftover] is LeftoverAction.RENAME:
            swaps.append(name)
        else:
            removals.append(name)
    # First: it refuses a damaged new segment, whose records may be nowhere else but in a .deleted file.
    old_offsets = _find_old_offsets(fs, directory, swaps)
    # A .cleaned file marks the .swap files beside it as an incomplete set, so it is removed after them.
    swap_removals = [name for name in removals if name.endswith(naming.SWAP_SUFFIX)]
    for batch in (swap_removals, [name for name in removals if name not in swap_removals]):
        for name in batch:
            fs.remove(f"{directory}/{name}")
            if not name.endswith(naming.DELETED_SUFFIX):  # these were only waiting for removal
                record_repair(name, "removed; an interrupted operation had left it")
        if batch:
            fs.sync_dir(directory)
    if swaps:
        _complete_swaps(fs, directory, swaps, old_offsets, record_repair)
        fs.sync_dir(directory)


def _find_old_offsets(fs: FileSystem, directory: str, swaps: Sequence[str]) -> range:
    """Return the offsets that a compaction's new segments cover. Raises: CorruptLog, OSError."""
    lowest, end = INT64_MAX, 0
    for name in swaps:
        file = parse_file_name(name)
        if file is not None and file.suffix == naming.LOG_SUFFIX:
            lowest = min(lowest, file.base_offset)
            end = max(end, _find_end_offset(fs, f"{directory}/{name}", file.base_offset))
    return range(lowest, end)


def _complete_swaps(
    fs: FileSystem, directory: str, swaps: Sequence[str], old_offsets: range, record_repair: RecordRepair
) -> None:
    """Complete a compaction: remove the segments that the new ones cover, then rename the new ones."""
    for name in fs.listdir(directory):
        file = parse_file_name(name)
        is_segment_file = file and not file.state and file.suffix in naming.SEGMENT_SUFFIXES
        if is_segment_file and file and file.base_offset in old_offsets:
            fs.remove(f"{directory}/{name}")
    fs.sync_dir(directory)  # else a crash may show a new name beside a segment it covers
    for name in swaps:
        fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(naming.SWAP_SUFFIX)}")
        record_repair(name, "renamed; the broker had stopped while a compaction was replacing segments")


def _find_end_offset(fs: FileSystem, path: str, base_offset: int) -> int:
    file = fs.open_read(path)
    try:
        scanner = SegmentScanner(file.pread, file.size(), base_offset)
        for _ in scanner.iter_batches():
            pass
        if (fault := scanner.fault) is not None:
            raise CorruptLog(path, fault.position, fault.expected, fault.found)
        return scanner.next_offset
    finally:
        file.close()
