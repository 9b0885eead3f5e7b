"""What a waiting reader is told there is, against what reading finds."""

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import BatchMeta, Record, encode_batch, iter_headers
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import create_log
from tallystick.storage.log.log import Log, LogHooks
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000


def log_of(batches: int) -> Log:
    """Batches of three records each, four of them in a segment."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    hooks = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache(files_max=2))
    log = create_log(MemoryFileSystem(), "d", TopicPartition("t", 0), config, hooks)
    records = [Record(offset=i, timestamp_ms=NOW, key=b"k", value=b"v" * 20, headers=()) for i in range(3)]
    for _ in range(batches):
        log.append(encode_batch(records, BatchMeta()), now_ms=NOW, leader_epoch=LeaderEpoch(0))
    return log


def read_from(log: Log, at: int) -> int:
    total = 0
    while at < log.log_end_offset:
        result = log.reader.read(at, 1 << 20, upper=log.log_end_offset)
        assert not isinstance(result, Reject)
        total += len(result.data)
        *_, (_, last) = iter_headers(result.data)
        at = last.next_offset
    return total


def test_as_much_as_reading_finds_is_counted_from_every_offset() -> None:
    log = log_of(20)
    assert len(log.segments) > 3
    for offset in range(log.log_end_offset + 1):
        assert log.reader.count_readable_bytes(Offset(offset), 1 << 20) == read_from(log, offset), offset


def test_counting_ends_when_it_is_enough() -> None:
    log = log_of(20)
    total = log.reader.count_readable_bytes(Offset(0), 1 << 20)
    assert 1 <= log.reader.count_readable_bytes(Offset(0), 1) < total
