"""One log's directory: new segments, the small files next to them, and whether the disk failed.

Used by `loader` before there is a log, and by the log afterwards.
"""

from collections.abc import Callable
from typing import Final

from tallystick.storage.checkpoints.checkpoint_text import format_epochs
from tallystick.storage.checkpoints.leader_epochs import LeaderEpochCache
from tallystick.storage.checkpoints.snapshots import encode_snapshot
from tallystick.storage.disk.fs import (
    FileSystem,
    LogOffline,
    StorageFailure,
    is_disk_full,
    is_transient,
    replace_file,
)
from tallystick.storage.disk.reserve import SpaceGuard
from tallystick.storage.segments.log_segment import OpenSegmentCache, SegmentReader
from tallystick.storage.segments.segment_files import SegmentFiles, TransactionIndexFile
from tallystick.storage.segments.segment_scan import SNAPSHOT_SUFFIX, make_file_name
from tallystick.storage.state.producer_state import ProducerStateManager
from tallystick.storage.state.transaction_index import AbortedTxn

LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"


class LogFiles:
    """The files of one log. Owned by the log; made by the code that opens it."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        space_guard: SpaceGuard,
        segment_cache: OpenSegmentCache,
        on_offline: Callable[[LogOffline], None],
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.failure: StorageFailure | None = None
        self.are_epochs_saved = True
        self._space_guard = space_guard
        self._segment_cache = segment_cache
        self._on_offline = on_offline

    def make_path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def make_segment_reader(self, base_offset: int, index_interval_bytes: int) -> SegmentReader:
        """Make the reader of a segment, without touching a file."""
        files = SegmentFiles(self.fs, self.directory, base_offset)
        return SegmentReader(files, index_interval_bytes, self._segment_cache)

    def write_with_reserve(self, write: Callable[[], None]) -> None:
        """Run `write`; on a full disk, release a piece of the reserve and run it once more [RSV-1]."""
        try:
            write()
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            self._space_guard.release(1)
            write()

    def take_offline(self, reason: str) -> LogOffline:
        """Take the log offline: the state of the disk is unknown, so everything is refused [LOG-4]."""
        failure = LogOffline(self.directory, reason)
        if self.failure is None:
            self.failure = failure
            self._on_offline(failure)
        return failure

    def save_snapshot(self, producers: ProducerStateManager, offset: int) -> None:
        """Write a producer snapshot as of `offset`. Raises OSError."""
        path = self.make_path(make_file_name(offset, SNAPSHOT_SUFFIX))
        if self.fs.exists(path):
            self.fs.remove(path)
        file = self.fs.open_append(path)
        try:
            file.write([encode_snapshot(producers.take_snapshot())])
        finally:
            file.close()

    def save_epochs(self, epochs: LeaderEpochCache) -> None:
        """Write the leader epoch checkpoint; after a crash a stale one is rebuilt from the log.

        Raises: LogOffline.
        """
        text, path = format_epochs(epochs.entries).encode(), self.make_path(LEADER_EPOCH_FILE)
        self.are_epochs_saved = True
        try:
            self.write_with_reserve(lambda: replace_file(self.fs, path, text))
        except OSError as exc:
            if not is_transient(exc):
                raise self.take_offline(f"{LEADER_EPOCH_FILE} cannot be written: {exc}") from exc
            self.are_epochs_saved = False

    def save_aborted_txn(self, index: TransactionIndexFile, txn: AbortedTxn) -> None:
        """Add an aborted transaction to the index of the segment that holds its marker.

        Raises: LogOffline.
        """
        index.append(txn)
        try:
            self.write_with_reserve(index.write)
        except OSError as exc:
            # The entry is in memory and is written before the segment closes; recovery finds the marker.
            if not is_transient(exc):
                raise self.take_offline(
                    f"the index of aborted transactions cannot be written: {exc}"
                ) from exc
