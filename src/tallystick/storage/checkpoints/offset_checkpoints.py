"""The three offset checkpoints of a data directory: recovery points, log starts, and cleaned offsets.

Source: Kafka's OffsetCheckpointFile, LogManager.checkpointLogRecoveryOffsets, checkpointLogStartOffsets.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Final

from tallystick.kernel.ids import TopicPartition
from tallystick.storage.checkpoints.checkpoint_text import format_offsets, parse_offsets
from tallystick.storage.fs import FileSystem, is_disk_full, replace_file
from tallystick.storage.log import Log
from tallystick.storage.malformed import MalformedFile
from tallystick.storage.reserve import SpaceGuard

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE: Final = "cleaner-offset-checkpoint"


class OffsetCheckpoints:
    """The offsets and their files. Owned by the data directory.

    The methods that write block, and may run in any thread. `cleaner_offsets` is changed by the cleaner.
    """

    def __init__(self, fs: FileSystem, directory: str, space_guard: SpaceGuard) -> None:
        self._fs = fs
        self._directory = directory
        self._space_guard = space_guard
        # Held while checkpoints are written, so that an older one never replaces a newer one [LOG-6].
        self._lock = threading.Lock()
        self.recovery_points = self._load(RECOVERY_POINT_FILE)
        self.log_starts = self._load(LOG_START_FILE)
        self.cleaner_offsets = self._load(CLEANER_OFFSET_FILE)

    def _load(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self._directory}/{name}"
        if not self._fs.exists(path):
            return {}
        try:
            return parse_offsets(self._fs.read_bytes(path).decode(), path)
        except (MalformedFile, UnicodeDecodeError):
            return {}  # logs are then scanned from their start: slow but correct

    def retain(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all other partitions, in memory: they were deleted."""
        for offsets in (self.recovery_points, self.log_starts, self.cleaner_offsets):
            for topic_partition in offsets.keys() - partitions:
                del offsets[topic_partition]

    def forget_topic(self, topic: str, retained: Collection[TopicPartition]) -> None:
        """Forget a deleted topic's partitions except `retained` ones; write the files. Raises OSError."""
        with self._lock:
            for offsets in (self.recovery_points, self.log_starts, self.cleaner_offsets):
                for each in [each for each in offsets if each.topic == topic and each not in retained]:
                    offsets.pop(each, None)
            # Before the name is reused: the old log's recovery point would make the new log look corrupt.
            self._save(RECOVERY_POINT_FILE, self.recovery_points)
            self._save(LOG_START_FILE, self.log_starts)
            self._save(CLEANER_OFFSET_FILE, dict(self.cleaner_offsets))

    def save(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Write recovery points, log start offsets and cleaned offsets. Raises OSError."""
        with self._lock:
            for topic_partition, log in list(logs.items()):  # a copy: the loop's thread goes on
                if log.failure is None:
                    self.recovery_points[topic_partition] = log.recovery_point
            self._save(RECOVERY_POINT_FILE, self.recovery_points)
            self._save_log_starts(logs)
            self._save(CLEANER_OFFSET_FILE, dict(self.cleaner_offsets))

    def save_log_starts(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Write the log start offsets. Raises OSError."""
        with self._lock:
            self._save_log_starts(logs)

    def _save_log_starts(self, logs: Mapping[TopicPartition, Log]) -> None:
        for topic_partition, log in list(logs.items()):
            if log.log_start_offset or topic_partition in self.log_starts:
                self.log_starts[topic_partition] = log.log_start_offset
        self._save(LOG_START_FILE, self.log_starts)

    def _save(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Write a checkpoint; on a full disk, with a piece of the reserve [RSV-1].

        Otherwise nothing could be deleted from a full disk.
        """
        path, data = f"{self._directory}/{name}", format_offsets(offsets).encode()
        try:
            replace_file(self._fs, path, data)
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            self._space_guard.release(len(data))
            replace_file(self._fs, path, data)
