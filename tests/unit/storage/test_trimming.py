"""Old segments leave the log at once; their files go when, and where, the owner sees fit."""

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.ids import LeaderEpoch, TopicPartition
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks, delete_oldest_segments
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=600, file_delete_delay_ms=7)


def full_log(hooks: LogHooks) -> tuple[MemoryFileSystem, Log]:
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, hooks)
    while len(log.segments) < 4:
        record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v" * 50, headers=())
        data = encode_batch([record], BatchMeta())
        assert isinstance(log.append(data, now_ms=NOW, leader_epoch=LeaderEpoch(0)), AppendResult)
    log.sync()
    return fs, log


def deleted(fs: MemoryFileSystem) -> list[str]:
    return [f"d/{name}" for name in fs.listdir("d") if name.endswith(".deleted")]


def test_files_are_renamed_and_handed_over() -> None:
    """Unlinking a file of a gigabyte takes tens of milliseconds: not in the thread of the log."""
    discarded: list[list[str]] = []
    hooks = LogHooks(
        space_guard=UnlimitedSpace(),
        segment_cache=OpenSegmentCache(),
        discard_files=lambda log, paths: discarded.append(paths),
    )
    fs, log = full_log(hooks)
    start = log.segments[2].base_offset
    before = len(fs.effects)
    delete_oldest_segments(log, 2)
    assert [path for name, path in fs.effects[before:] if name == "remove" and ".log" in path] == []
    assert [sorted(paths) for paths in discarded] == [deleted(fs)]
    assert len([path for path in discarded[0] if ".log" in path]) == 2
    assert log.log_start_offset == start == log.segments[0].base_offset


def test_without_an_owner_who_takes_them_they_go_at_once() -> None:
    fs, log = full_log(LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache()))
    delete_oldest_segments(log, 2)
    assert deleted(fs) == []
    assert len([name for name in fs.listdir("d") if name.endswith(".log")]) == 2


def test_what_was_not_removed_before_the_end_goes_at_the_next_start() -> None:
    hooks = LogHooks(
        space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache(), discard_files=lambda log, paths: None
    )
    fs, log = full_log(hooks)
    delete_oldest_segments(log, 2)
    start, end = log.log_start_offset, log.log_end_offset
    assert deleted(fs)
    log.close(clean=True)
    ended = PriorShutdown(was_clean=True, recovery_point=end, log_start_offset=start)
    log, _ = open_log(fs, "d", TP, CONFIG, hooks, ended)
    assert deleted(fs) == []
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
