"""A checkpoint is written in one thread while another moves the start of a log."""

import threading
from uuid import UUID

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.ids import LeaderEpoch, TopicPartition
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.checkpoints.checkpoint_text import parse_offsets
from tallystick.storage.log.log import AppendResult, delete_oldest_segments
from tallystick.storage.log_dir import LOG_START_FILE, DirectoryOptions, LogDir
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)


class Interleaved(MemoryFileSystem):
    """The other thread wants to go on just before a checkpoint takes its name."""

    other: threading.Thread | None = None

    def rename(self, old: str, new: str) -> None:
        other, self.other = self.other, None if new.endswith(LOG_START_FILE) else self.other
        if other is not None and self.other is None:
            other.start()
            other.join(0.1)  # it waits for us, or it would be done
        super().rename(old, new)


def test_a_checkpoint_never_takes_the_start_of_a_log_back() -> None:
    """[LOG-6] The start was durable, the segments below it are gone."""
    fs = Interleaved()
    directory = LogDir.open(fs, "d", DirectoryOptions())
    log = directory.get_or_create(TP, LogConfig(segment_bytes=200), UUID(int=1))
    while len(log.segments) < 4:
        record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v" * 50, headers=())
        data = encode_batch([record], BatchMeta())
        assert isinstance(log.append(data, now_ms=NOW, leader_epoch=LeaderEpoch(0)), AppendResult)
    log.sync()
    delete_oldest_segments(log, 1)
    deleting = fs.other = threading.Thread(target=lambda: delete_oldest_segments(log, 2))
    directory.checkpoint()
    deleting.join()
    assert log.log_start_offset > 0
    written = parse_offsets(fs.read_bytes(f"d/{LOG_START_FILE}").decode(), LOG_START_FILE)
    assert written[TP] == log.log_start_offset
