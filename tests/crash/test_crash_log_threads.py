"""One thread appends, rolls and reads while another syncs; power fails in between [LOG-1] [LOG-5]."""

from uuid import UUID

import pytest

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import BatchMeta, Record, encode_batch, iter_headers
from tallystick.storage.log.group_commit import GroupCommit
from tallystick.storage.log.log import AppendResult, Log
from tallystick.storage.log_dir import DirectoryOptions, LogDir
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


@pytest.mark.parametrize("seed", range(5))
def test_readers_and_producers_are_told_only_what_survives(seed: int) -> None:
    fs = MemoryFileSystem()
    told: list[Offset] = [Offset(0)]
    commits = GroupCommit(lambda log, end: told.append(end), lambda log, exc: None)
    log_dir = LogDir.open(fs, "d", DirectoryOptions(request_sync=commits.request))
    log = log_dir.get_or_create(TP, CONFIG, UUID(int=1))
    commits.start()
    seen = 0
    for number in range(400):
        record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"%d" % number * 9, headers=())
        data = encode_batch([record], BatchMeta())
        assert isinstance(log.append(data, now_ms=NOW, leader_epoch=LeaderEpoch(0)), AppendResult)
        commits.request(log)
        seen = read_on(log, seen)
    promised = max(told[-1], seen)
    commits.stop()
    fs.crash("nothing", seed)
    again = LogDir.open(fs, "d", DirectoryOptions()).get_or_create(TP, CONFIG, UUID(int=1))
    assert again.log_end_offset >= promised
    assert read_on(again, 0) == again.log_end_offset


def read_on(log: Log, offset: int) -> int:
    """Read from `offset` up to the high watermark, in small pieces."""
    upper = log.reader.high_watermark
    while offset < upper:
        result = log.reader.read(offset, 300, upper=upper)
        assert not isinstance(result, Reject)
        assert result.data
        for _, header in iter_headers(result.data):
            assert header.base_offset == offset
            offset = header.next_offset
        assert offset <= upper
    return offset
