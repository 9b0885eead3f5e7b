"""Replacement of old segments by a compacted one, so that a crash leaves either the old or the new.

File names record the progress, and `log.loader` completes or undoes it:

    write   `<base>.*.cleaned`, whole and on disk           a crash removes them
    commit  renamed to `.swap`; the directory is synced     from here on a crash completes the swap
    detach  the old files are renamed to `.deleted`         the log goes on reading its open files
            the directory is synced
    attach  `.swap` goes, and the log reads the new one
            the directory is synced
    drop    `.deleted` files are removed once readers are done

The two syncs in between keep the disk from applying later renames before earlier ones: a new segment next to
an old one it replaces would show records twice [CLN-3]. They block, and run in another thread; `commit`,
`remove_old_files` and the syncs touch nothing that the log uses. `detach` and `attach`, renames and a few
reads, run in the log's own thread.

Source: LocalLog.replaceSegments; LogLoader.
"""

from collections.abc import Callable, Iterator

from tallystick.kernel.value import Value
from tallystick.storage.compaction.cleaner import CleanedGroup, remove_files
from tallystick.storage.disk.fs import FileSystem
from tallystick.storage.log.log import Log
from tallystick.storage.segments.log_segment import ClosedSegment
from tallystick.storage.segments.segment_scan import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    make_file_name,
)


class InlineStep(Value):
    """A step for the log's own thread."""

    run: Callable[[], None]


class BlockingStep(Value):
    """A step that blocks and may run in any thread; the next step begins after it has ended."""

    run: Callable[[], None]


class SegmentSwap:
    """One swap. Made, run and dropped by the owner of the log."""

    def __init__(self, log: Log, group: CleanedGroup) -> None:
        self._log = log
        self._fs: FileSystem = log.fs
        self._directory = log.directory
        self._group = group
        self._old: list[ClosedSegment] = []

    def iter_steps(self) -> Iterator[InlineStep | BlockingStep]:
        """Yield all steps in their required order [CLN-3].

        A failure after `commit` fails the log: its files are not what memory says, and it must be opened
        again.
        Raises from the steps: OSError, LogOffline.
        """
        yield BlockingStep(self.commit)
        yield InlineStep(self.detach)
        yield BlockingStep(self.sync)
        yield InlineStep(self.attach)
        yield BlockingStep(self.sync)

    def is_current(self) -> bool:
        """Return whether the old segments are still there, adjacent, closed and synced."""
        closed = self._log.closed_segments
        bases = [segment.base_offset for segment in closed]
        old = list(self._group.old)
        if old[0] not in bases:
            return False
        first = bases.index(old[0])
        unsynced = self._log.unsynced_closed_segments
        return bases[first : first + len(old)] == old and not any(
            segment in unsynced for segment in closed[first : first + len(old)]
        )

    def commit(self) -> None:
        self._rename(self._group.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
        self._fs.sync_dir(self._directory)

    def detach(self) -> None:
        old_offsets = frozenset(self._group.old)
        self._old = [segment for segment in self._log.closed_segments if segment.base_offset in old_offsets]
        for segment in self._old:
            segment.reader.pin_for_reads()
        for base_offset in self._group.old:
            self._rename(base_offset, "", DELETED_SUFFIX)

    def attach(self) -> None:
        self._rename(self._group.base_offset, SWAP_SUFFIX, "")
        reader = self._log.make_segment_reader(self._group.base_offset)
        new = ClosedSegment(reader, self._group.size_bytes)
        remaining_segments = [segment for segment in self._log.closed_segments if segment not in self._old]
        at = sum(segment.base_offset < new.base_offset for segment in remaining_segments)
        self._log.replace_closed_segments([*remaining_segments[:at], new, *remaining_segments[at:]])
        for segment in self._old:
            segment.close()

    def sync(self) -> None:
        self._fs.sync_dir(self._directory)

    def remove_old_files(self) -> None:
        """Remove the replaced files. Blocks; any thread. Order: after all steps, once readers are done."""
        for base_offset in self._group.old:
            remove_files(self._fs, self._directory, base_offset, DELETED_SUFFIX)
            snapshot = f"{self._directory}/{make_file_name(base_offset, SNAPSHOT_SUFFIX)}"
            if base_offset != self._group.base_offset and self._fs.exists(snapshot):
                self._fs.remove(snapshot)

    def remove_new_files(self) -> None:
        """Remove the new segment instead; only before `commit`."""
        remove_files(self._fs, self._directory, self._group.base_offset, CLEANED_SUFFIX)

    def _rename(self, base_offset: int, state: str, to: str) -> None:
        for suffix in SEGMENT_SUFFIXES:
            path = f"{self._directory}/{make_file_name(base_offset, suffix)}"
            if self._fs.exists(f"{path}{state}"):
                self._fs.rename(f"{path}{state}", f"{path}{to}")
