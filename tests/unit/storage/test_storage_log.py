"""Append, read, roll, sync and fail: one log on a disk in memory."""

import errno
from itertools import pairwise
from typing import Any

import pytest

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import (
    BatchMeta,
    Codec,
    Record,
    TimestampType,
    decode_records,
    encode_batch,
    iter_headers,
    read_header,
)
from tallystick.storage.disk.fs import CorruptLog, DiskFull, LogOffline, StorageFailure
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.files import LEADER_EPOCH_FILE
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks, delete_records_before
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


def hooks() -> LogHooks:
    return LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache(files_max=2))


def create(config: LogConfig = SMALL, fs: MemoryFileSystem | None = None) -> tuple[MemoryFileSystem, Log]:
    fs = fs or MemoryFileSystem()
    return fs, create_log(fs, "d", TP, config, hooks())


def reopen(fs: MemoryFileSystem, config: LogConfig = SMALL, **ended: Any) -> Log:
    return open_log(fs, "d", TP, config, hooks(), PriorShutdown(**({"was_clean": False} | ended)))[0]


def batch(
    count: int = 1, *, ts: int = NOW, size: int = 20, key: bytes | None = b"k", **meta: object
) -> bytes:
    records = [
        Record(offset=i, timestamp_ms=ts + i, key=key, value=b"v" * size, headers=()) for i in range(count)
    ]
    return encode_batch(records, BatchMeta(**meta))  # type: ignore[arg-type]


def append(log: Log, data: bytes | None = None, *, now: int = NOW, epoch: int = 0) -> AppendResult:
    result = log.append(data or batch(), now_ms=now, leader_epoch=LeaderEpoch(epoch))
    assert isinstance(result, AppendResult), result
    return result


def refused(log: Log, data: bytes, **kwargs: object) -> ErrorCode:
    result = log.append(data, now_ms=NOW, leader_epoch=LeaderEpoch(0), **kwargs)  # type: ignore[arg-type]
    assert isinstance(result, Reject), result
    return result.code


def offsets(log: Log, at: int = 0, max_bytes: int = 250) -> list[int]:
    found: list[int] = []
    while at < log.log_end_offset:
        result = log.reader.read(at, max_bytes, upper=log.log_end_offset)
        assert not isinstance(result, Reject)
        if not result.data:
            break
        for _, header in iter_headers(result.data):
            found += range(header.base_offset, header.next_offset)
            at = header.next_offset
    return found


def test_offsets_and_epoch_are_given_by_the_log_and_the_callers_bytes_are_left_alone() -> None:
    _, log = create()
    data = batch(2)
    copy = bytes(data)
    assert append(log, data, epoch=3) == AppendResult(Offset(0), Offset(1), -1, Offset(0))
    assert append(log, data, epoch=3).base_offset == 2
    assert data == copy
    result = log.reader.read(2, 1000, upper=4)
    assert not isinstance(result, Reject)
    assert read_header(result.data).partition_leader_epoch == 3
    assert log.find_epoch_end(LeaderEpoch(3)) == (3, 4)


def test_the_high_watermark_is_the_synced_end_under_ack_alone() -> None:
    """[LOG-1]"""
    for policy, expected in (("ack", 0), ("os", 1), ("interval", 1)):
        _, log = create(LogConfig(flush_policy=policy))  # type: ignore[arg-type]
        append(log)
        assert log.reader.high_watermark == expected
        assert log.sync() == 1 == log.reader.high_watermark == log.recovery_point


def test_reads_return_whole_batches_below_the_bound() -> None:
    _, log = create(LogConfig(index_interval_bytes=100))
    sizes = [len(batch(2)) for _ in range(20) if append(log, batch(2))]
    one = sizes[0]
    for at in range(40):
        for max_bytes in (0, 1, one, one + 1, 3 * one, 100 * one):
            for upper in (at, at + 1, at + 2, 33, 40):
                result = log.reader.read(at, max_bytes, upper=upper)
                assert not isinstance(result, Reject)
                headers = [header for _, header in iter_headers(result.data)]
                readable = [base for base in range(at - at % 2, 40, 2) if base + 2 <= upper]
                if at >= upper or not readable:
                    assert not headers
                    continue
                count = max(1, min(len(readable), max_bytes // one))
                assert [header.base_offset for header in headers] == readable[:count]
                if max_bytes < one:
                    least = log.reader.read(at, max_bytes, upper=upper, min_one=False)
                    assert not isinstance(least, Reject)
                    assert least.data == b""


def test_out_of_range_names_the_range() -> None:
    _, log = create()
    append(log)
    for offset in (-1, 2):
        result = log.reader.read(offset, 100, upper=5)
        assert isinstance(result, Reject)
        assert result.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_segment_rolls_by_size_time_and_index() -> None:
    _, log = create(LogConfig(segment_bytes=3 * len(batch()) + 10))
    for _ in range(7):
        append(log)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    _, log = create(LogConfig(segment_ms=1000))
    append(log, batch(ts=NOW))
    append(log, batch(ts=NOW + 1000))
    append(log, batch(ts=NOW + 1001))
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    # A compacted log closes what may wait no longer: the last segment is not compacted.
    for policy, rolls in (("compact", 1), ("delete", 0)):
        _, log = create(LogConfig(max_compaction_lag_ms=1000, cleanup_policy=frozenset({policy})))
        for time in (NOW, NOW + 1001):
            append(log, batch(ts=time))
        assert len(log.segments) == 1 + rolls
    _, log = create(LogConfig(segment_index_bytes=50, index_interval_bytes=10))
    for number in range(9):
        append(log, batch(ts=NOW + number))
    assert len(log.segments) > 1


def test_a_roll_writes_a_snapshot_and_the_greatest_timestamp() -> None:
    fs, log = create()
    append(log, batch(2))
    log.roll(NOW)
    log.roll(NOW)  # an empty segment is not rolled
    assert len(log.segments) == 2
    names = fs.listdir("d")
    assert "00000000000000000002.snapshot" in names
    assert fs.read_bytes("d/00000000000000000000.timeindex").hex() == f"{NOW + 1:016x}00000001"


def test_under_ack_a_closed_segment_is_synced_before_the_next_exists() -> None:
    """[LOG-3]"""
    fs, log = create()
    append(log)
    log.roll(NOW)
    effects = fs.effects
    synced = effects.index(("sync", "d/00000000000000000000.log"))
    assert synced < effects.index(("create", "d/00000000000000000001.log"))


@pytest.mark.parametrize(
    ("config", "data", "code"),
    [
        (LogConfig(max_message_bytes=80), batch(), ErrorCode.MESSAGE_TOO_LARGE),
        (LogConfig(segment_bytes=80), batch(), ErrorCode.RECORD_LIST_TOO_LARGE),
        (LogConfig(), batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (LogConfig(), batch()[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
        (LogConfig(), b"", ErrorCode.CORRUPT_MESSAGE),
        (LogConfig(), batch(ts=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
        (LogConfig(message_timestamp_before_max_ms=5), batch(ts=NOW - 6), ErrorCode.INVALID_TIMESTAMP),
        (LogConfig(), batch(timestamp_type=TimestampType.LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
        (LogConfig(cleanup_policy=frozenset({"compact"})), batch(key=None), ErrorCode.INVALID_RECORD),
        (LogConfig(), batch(is_control=True), ErrorCode.INVALID_RECORD),
        (LogConfig(), batch(producer_id=1, producer_epoch=0, base_sequence=3) * 2, ErrorCode.INVALID_RECORD),
    ],
)
def test_what_may_not_enter(config: LogConfig, data: bytes, code: ErrorCode) -> None:
    fs, log = create(config)
    before = fs.files()
    assert refused(log, data) is code
    assert fs.files() == before
    assert log.log_end_offset == 0


def test_the_log_may_stamp_its_own_time_and_codec() -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME, compression_type=Codec.LZ4)
    _, log = create(config)
    assert append(log, batch(3, size=200), now=NOW + 9).log_append_time_ms == NOW + 9
    result = log.reader.read(0, 9999, upper=3)
    assert not isinstance(result, Reject)
    header = read_header(result.data)
    assert header.codec is Codec.LZ4
    assert header.max_timestamp == NOW + 9
    assert [record.value for record in decode_records(result.data)] == [b"v" * 200] * 3


def test_a_repeated_batch_is_answered_with_its_first_offset() -> None:
    _, log = create()
    append(log)
    for sequence in range(3):
        append(log, batch(producer_id=4, producer_epoch=0, base_sequence=sequence))
    again = append(log, batch(producer_id=4, producer_epoch=0, base_sequence=1))
    assert again.duplicate
    assert again.base_offset == 2
    assert log.log_end_offset == 4
    data = batch(producer_id=4, producer_epoch=0, base_sequence=7)
    assert refused(log, data) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_open_transaction_holds_the_last_stable_offset_back() -> None:
    """[LOG-2]"""
    _, log = create()
    append(log)
    append(log, batch(producer_id=4, producer_epoch=0, base_sequence=0, is_transactional=True))
    log.sync()
    reader = log.reader
    assert (reader.high_watermark, reader.last_stable_offset, reader.first_unstable_offset) == (2, 1, 1)


def test_a_full_disk_refuses_and_leaves_the_log_as_it_was() -> None:
    fs, log = create()
    append(log)
    log.sync()
    fs.capacity = sum(map(len, fs.files().values())) + 30
    before = fs.files()
    with pytest.raises(DiskFull):
        append(log)
    assert fs.files() == before
    assert offsets(log) == [0]
    fs.capacity = 1 << 40
    append(log)
    assert offsets(log) == [0, 1]


def test_a_full_disk_at_a_roll_refuses_too() -> None:
    fs, log = create()
    while log.active_segment.size + len(batch()) <= 600:
        append(log)
    fs.capacity = sum(map(len, fs.files().values()))
    with pytest.raises(DiskFull):
        append(log)
    fs.capacity = 1 << 40
    end = log.log_end_offset
    append(log)
    assert offsets(log) == list(range(end + 1))
    log.close(clean=True)
    assert reopen(fs, was_clean=True).log_end_offset == end + 1


def test_a_write_error_is_taken_back() -> None:
    fs, log = create()
    append(log)
    fs.write_failure = OSError(errno.EIO, "input/output error")
    with pytest.raises(StorageFailure):
        append(log)
    fs.write_failure = None
    assert append(log).base_offset == 1
    assert offsets(log) == [0, 1]


def test_a_write_that_cannot_be_taken_back_ends_the_log_for_writers() -> None:
    """[LOG-4]"""
    fs, log = create()
    append(log)
    fs.write_failure = fs.truncate_failure = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        append(log)
    fs.write_failure = fs.truncate_failure = None
    with pytest.raises(LogOffline):
        append(log)
    assert offsets(log) == [0]


def test_a_failed_sync_is_never_tried_again_nor_believed() -> None:
    """[LOG-4]"""
    fs, log = create()
    append(log)
    fs.sync_failure = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.sync()
    fs.sync_failure = None
    with pytest.raises(LogOffline):
        log.sync()
    with pytest.raises(LogOffline):
        append(log)
    assert log.reader.high_watermark == 0


def test_time_finds_offsets() -> None:
    _, log = create()
    for number in range(12):
        append(log, batch(2, ts=NOW + 10 * number))
    assert len(log.segments) > 2
    for number in range(12):
        assert log.reader.find_offset_by_timestamp(NOW + 10 * number) == (2 * number, NOW + 10 * number, 0)
        found = log.reader.find_offset_by_timestamp(NOW + 10 * number + 1)
        assert found is not None
        assert found[0] == 2 * number + 1
    assert log.reader.find_offset_by_timestamp(NOW + 500) is None
    assert log.reader.find_max_timestamp() == (23, NOW + 111, 0)


def test_deleting_records_moves_the_start_and_drops_whole_segments() -> None:
    """[LOG-6]"""
    fs, log = create()
    for _ in range(20):
        append(log)
    assert (
        delete_records_before(log, Offset(20)) is not None
    )  # the last ones are not below the high watermark
    log.sync()
    assert delete_records_before(log, Offset(9)) is None
    assert log.log_start_offset == 9
    assert log.segments[0].base_offset <= 9 < log.segments[1].base_offset
    assert offsets(log, 9) == list(range(9, 20))
    refusal = log.reader.read(8, 10, upper=20)
    assert isinstance(refusal, Reject)
    log.close(clean=True)
    again = reopen(fs, was_clean=True, log_start_offset=9)
    assert (again.log_start_offset, again.log_end_offset) == (9, 20)


def test_damage_below_the_recovery_point_is_reported_with_its_place() -> None:
    """[LOG-7]"""
    fs, log = create(LogConfig())
    for _ in range(3):
        append(log)
    log.sync()
    node = fs.node("d/00000000000000000000.log")
    node.data[len(batch()) + 70] ^= 1
    with pytest.raises(CorruptLog) as caught:
        reopen(fs, LogConfig(), recovery_point=3)
    assert caught.value.position == len(batch())
    assert "CRC-32C" in caught.value.found


def test_synced_records_that_are_gone_are_reported() -> None:
    """[LOG-7]"""
    fs, log = create(LogConfig())
    append(log)
    append(log)
    log.sync()
    fs.node("d/00000000000000000000.log").truncate(len(batch()))
    with pytest.raises(CorruptLog, match="offset 2"):
        reopen(fs, LogConfig(), recovery_point=2)


def test_what_lies_behind_a_hole_is_kept_beside_the_log() -> None:
    """[LOG-8]"""
    fs, log = create(LogConfig())
    for _ in range(3):
        append(log)
    node = fs.node("d/00000000000000000000.log")
    one = len(batch())
    tail = bytearray(node.data[one:])
    tail[70] ^= 1
    node.data[one:] = tail
    opened, report = open_log(
        fs, "d", TP, LogConfig(), hooks(), PriorShutdown(was_clean=False, recovery_point=1)
    )
    assert opened.log_end_offset == 1
    assert fs.read_bytes(f"d/00000000000000000000.log.cut-{one}") == tail
    assert "cut-" in str(report)


def test_missing_and_damaged_indexes_are_made_again() -> None:
    fs, log = create()
    for _ in range(20):
        append(log)
    log.close(clean=True)
    before = fs.files()
    names = [name for name in before if name.endswith(("index",))]
    assert names
    for name in names:
        fs.remove(name)
    log = reopen(fs, was_clean=True)
    assert offsets(log) == list(range(20))
    assert [log.reader.find_offset_by_timestamp(NOW) is not None, log.log_end_offset] == [True, 20]
    for segment in log.segments:
        assert len(segment.index) >= 0
    assert {name: fs.files()[name] for name in names if name in fs.files()} == {
        name: before[name] for name in names
    }


def test_epochs_survive_and_are_made_again() -> None:
    fs, log = create()
    append(log, epoch=1)
    append(log, epoch=4)
    log.sync()
    log.close(clean=False)
    fs.remove("d/leader-epoch-checkpoint")
    log = reopen(fs)
    assert log.find_epoch_end(LeaderEpoch(1)) == (1, 1)
    assert log.find_epoch_end(LeaderEpoch(4)) == (4, 2)


def test_residents_bound_the_open_files() -> None:
    """[LOG-9]"""
    _, log = create()
    for _ in range(60):
        append(log)
    log.sync()
    for _ in range(3):
        assert offsets(log) == list(range(60))
        opened = [segment for segment in log.segments if segment.records.is_open]
        assert len(opened) <= 3  # two residents and the last segment


def test_segments_ascend() -> None:
    _, log = create()
    for _ in range(30):
        append(log, batch(1, size=90))
    assert all(one.base_offset < two.base_offset for one, two in pairwise(log.segments))


class Defective(MemoryFileSystem):
    """Fails with what is no error of a disk, where the file of epochs is written."""

    def rename(self, old: str, new: str) -> None:
        if new.endswith(LEADER_EPOCH_FILE) and self.exists("d/broken"):
            raise RuntimeError("a defect")
        super().rename(old, new)


def test_a_batch_that_is_written_and_cannot_be_taken_in_finishes_the_log() -> None:
    """[LOG-4] The file is ahead of memory: one batch more would have the offsets of another."""
    fs, log = create(fs=Defective())
    append(log)
    fs.mkdir("d/broken")
    with pytest.raises(LogOffline, match="a defect"):
        append(log, epoch=1)
    with pytest.raises(LogOffline):
        append(log, epoch=1)
    fs.rmdir("d/broken")
    log = reopen(fs)
    assert append(log).base_offset == 2
    assert offsets(log) == [0, 1, 2]
