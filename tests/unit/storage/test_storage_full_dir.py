"""A data directory on a full disk, and after it gave a partition up."""

import errno
from uuid import UUID

import pytest

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.disk.fs import DiskFull, LogOffline
from tallystick.storage.disk.reserve import DiskReserve
from tallystick.storage.log.log import AppendResult, Log, delete_oldest_segments, delete_records_before
from tallystick.storage.log_dir import DirectoryOptions, LogDir
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
ID = UUID(int=5)
CONFIG = LogConfig(segment_bytes=600)


def append(log: Log) -> None:
    record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v" * 50, headers=())
    result = log.append(encode_batch([record], BatchMeta()), now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult)


def fill(log: Log) -> None:
    for _ in range(10):
        append(log)


def full_directory() -> tuple[MemoryFileSystem, LogDir, Log, DiskReserve]:
    fs = MemoryFileSystem(capacity=1 << 20)
    fs.mkdir("d")
    fs.sync_dir("")
    reserve = DiskReserve(fs, "d", 4_000, chunk_bytes=1_000)
    assert reserve.restore()
    directory = LogDir.open(fs, "d", DirectoryOptions(space_guard=reserve))
    log = directory.get_or_create(TP, CONFIG, ID)
    while len(log.segments) < 4:
        append(log)
    log.sync()
    fs.capacity -= fs.free_bytes()
    return fs, directory, log, reserve


def test_old_segments_can_be_deleted_on_a_full_disk() -> None:
    """The one way out of a full disk begins with a write: the log start offset."""
    fs, directory, log, reserve = full_directory()
    with pytest.raises(DiskFull):
        fill(log)
    delete_oldest_segments(log, 2)
    assert len(log.segments) == 2
    assert reserve.restore()
    append(log)
    start, end = log.log_start_offset, log.log_end_offset
    log.sync()
    directory.close_without_sync()
    fs.crash()
    again = LogDir.open(fs, "d", DirectoryOptions()).get_or_create(TP, CONFIG, ID)
    assert (again.log_start_offset, again.log_end_offset) == (start, end)


def test_records_can_be_deleted_and_the_broker_stopped_on_a_full_disk() -> None:
    fs, directory, log, _ = full_directory()
    assert delete_records_before(log, Offset(3)) is None
    end = log.log_end_offset
    directory.close()
    again = LogDir.open(fs, "d", DirectoryOptions())
    assert again.had_clean_shutdown
    log = again.get_or_create(TP, CONFIG, ID)
    assert (log.log_start_offset, log.log_end_offset) == (3, end)


def test_a_topic_made_again_has_nothing_clean() -> None:
    """What was cleaned in the old one would be taken for clean in the new one after a crash."""
    fs = MemoryFileSystem()
    directory = LogDir.open(fs, "d", DirectoryOptions())
    directory.get_or_create(TP, CONFIG, ID)
    directory.cleaner_checkpoints[TP] = 7
    directory.checkpoint()
    directory.close_for_deletion(TP)
    directory.rename_for_deletion(TP.topic, ID)
    log = directory.get_or_create(TP, CONFIG, UUID(int=6))
    append(log)
    log.sync()
    fs.crash()
    assert LogDir.open(fs, "d", DirectoryOptions()).cleaner_checkpoints == {}


def test_the_owner_of_the_directory_learns_when_a_log_goes_offline() -> None:
    """[LOG-4] Whatever was being done: an append, a roll for retention, a sync."""
    fs = MemoryFileSystem()
    told: list[LogOffline] = []
    options = DirectoryOptions(on_offline=told.append)
    log = LogDir.open(fs, "d", options).get_or_create(TP, CONFIG, ID)
    append(log)
    fs.sync_failure = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.roll(NOW)
    assert told == [log.failure]


def test_a_reserve_that_cannot_be_given_back_is_a_broken_disk() -> None:
    """[LOG-4] Whoever needed the room hears that the log is finished, so that the process ends."""
    fs, directory, _, _ = full_directory()
    fs.capacity += 1_000
    internal = directory.get_or_create(TopicPartition("__t", 0), LogConfig(internal=True), UUID(int=6))
    fs.capacity -= fs.free_bytes()
    fs.sync_failure = OSError(errno.EIO, "the disk is broken")
    with pytest.raises(LogOffline, match="reserve"):
        append(internal)
