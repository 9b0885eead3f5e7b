"""What goes wrong around a log: names that are gone, a disk that is full half-way, files that lie."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from harness.memory_fs import MemoryFile, MemoryFileSystem
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
    iter_headers,
)
from tallystick.storage.disk.fs import CorruptLog, DiskFull, OutOfDescriptors, StorageFailure
from tallystick.storage.disk.reserve import DiskReserve, UnlimitedSpace
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks, delete_records_before
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
HOOKS = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())


class NoNewFiles(MemoryFileSystem):
    """Room for bytes, none for names that end as `refused` says: inodes and blocks run out apart."""

    refused = ""

    def open_append(self, path: str) -> MemoryFile:
        if self.refused and path.endswith(self.refused) and not self.exists(path):
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return super().open_append(path)


def batch(size: int = 50, *, sequence: int = -1, count: int = 1, **meta: object) -> bytes:
    records = [
        Record(offset=n, timestamp_ms=NOW, key=b"k", value=b"v" * size, headers=()) for n in range(count)
    ]
    if sequence >= 0:
        meta |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    return encode_batch(records, BatchMeta(**meta))  # type: ignore[arg-type]


def append(log: Log, data: bytes | None = None, *, epoch: int = 0, **kwargs: object) -> AppendResult:
    data = batch() if data is None else data
    result = log.append(data, now_ms=NOW, leader_epoch=LeaderEpoch(epoch), **kwargs)  # type: ignore[arg-type]
    assert isinstance(result, AppendResult), result
    return result


def marker(producer_id: int) -> bytes:
    return encode_marker(
        EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0),
        ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(1)),
        timestamp_ms=NOW,
    )


def fill_segments(log: Log, count: int) -> None:
    while len(log.segments) < count:
        append(log)


def reopen(fs: MemoryFileSystem, config: LogConfig = CONFIG, **ended: Any) -> Log:
    return open_log(fs, "d", TP, config, HOOKS, PriorShutdown(**({"was_clean": False} | ended)))[0]


def offsets(log: Log) -> list[int]:
    found: list[int] = []
    at = int(log.log_start_offset)
    while at < log.log_end_offset:
        result = log.reader.read(at, 1000, upper=log.log_end_offset)
        assert not isinstance(result, Reject)
        if not result.data:
            break
        for _, header in iter_headers(result.data):
            found += range(header.base_offset, header.next_offset)
            at = header.next_offset
    return found


# -- names ------------------------------------------------------------------------------------------


def test_a_sync_that_was_asked_for_before_the_log_was_deleted_is_no_failure() -> None:
    """The syncing thread may come to a log after its topic is gone, directory and all."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    fill_segments(log, 2)
    log.close(clean=False)
    for name in fs.listdir("d"):
        fs.remove(f"d/{name}")
    fs.rmdir("d")
    log.sync()
    assert log.failure is None


@pytest.mark.parametrize("refused", [".index", ".timeindex", ".log"])
def test_a_roll_that_found_no_room_leaves_no_segment_behind(refused: str) -> None:
    """An empty segment in the middle of the last one would end the log there at the next start."""
    fs = NoNewFiles()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    append(log, batch(200))
    fs.refused = refused
    with pytest.raises(DiskFull):
        append(log, batch(400))
    append(log)
    append(log)
    log.close(clean=True)
    log = reopen(fs, was_clean=True, recovery_point=3)
    assert offsets(log) == [0, 1, 2]
    assert log.log_end_offset == 3


# -- room for what must be written --------------------------------------------------------------------


def full_disk(config: LogConfig, before: Callable[[Log], None]) -> tuple[MemoryFileSystem, Log]:
    fs = MemoryFileSystem(capacity=1 << 20)
    fs.mkdir("data")
    reserve = DiskReserve(fs, "data", 4000, chunk_bytes=1000)
    assert reserve.restore()
    log = create_log(fs, "d", TP, config, LogHooks(space_guard=reserve, segment_cache=OpenSegmentCache()))
    before(log)
    fs.capacity -= fs.free_bytes()
    return fs, log


def test_a_roll_without_a_descriptor_for_the_directory_is_refused_and_tried_again() -> None:
    """The names of a roll before are not on the disk yet; want of descriptors is no lost disk."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    append(log)
    log.roll(NOW)
    append(log)
    fs.fault = lambda name, path: OSError(errno.EMFILE, "too many open files", path) if path == "d" else None
    with pytest.raises(OutOfDescriptors):
        log.roll(NOW)
    assert log.failure is None
    fs.fault = None
    effects = len(fs.effects)
    log.roll(NOW)
    assert ("sync_dir", "d") in fs.effects[effects:]
    assert log.sync() == 2


def test_an_internal_topic_rolls_on_a_full_disk() -> None:
    def fill_one(log: Log) -> None:
        while log.active_segment.size + len(batch()) <= 600:
            append(log)

    _, log = full_disk(LogConfig(segment_bytes=600, internal=True), fill_one)
    fill_segments(log, 3)
    assert offsets(log) == list(range(log.log_end_offset))


def test_a_marker_is_written_to_a_topic_of_data_on_a_full_disk() -> None:
    """A decided transaction can always be finished; its entry in the index of aborted ones, too [RSV-1]."""
    _, log = full_disk(CONFIG, lambda log: append(log, batch(sequence=0, is_transactional=True)))
    with pytest.raises(DiskFull):
        append(log)
    append(log, marker(7), origin=AppendOrigin.COORDINATOR)
    reader = log.reader
    assert reader.last_stable_offset == reader.high_watermark or reader.first_unstable_offset is None
    assert [txn.last_offset for txn in log.reader.collect_aborted_txns(0, 2)] == [1]
    assert log.failure is None


# -- files that lie ------------------------------------------------------------------------------------


def damaged(at: int, data: bytes, *, without_index: bool) -> Log:
    """A log whose first of two segments was damaged while the broker was away, after a clean stop."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, LogConfig(segment_bytes=600), HOOKS)
    fill_segments(log, 2)
    end = log.log_end_offset
    log.close(clean=True)
    path = f"d/{0:020d}.log"
    node = fs.node(path)
    node.data[at : at + len(data)] = data
    if without_index:
        fs.remove(f"d/{0:020d}.index")
    return reopen(fs, was_clean=True, recovery_point=end)


def test_damage_found_while_an_index_is_made_again_is_told_and_not_skipped() -> None:
    size = len(batch())
    log = damaged(size + 30, b"\xff\xff", without_index=True)
    with pytest.raises(StorageFailure, match=rf"0\.log: corrupt at byte {size}"):
        offsets(log)
    with pytest.raises(StorageFailure):
        offsets(log)


@pytest.mark.parametrize("length", [-12, -100, 0, 48])
def test_an_impossible_batch_length_is_told_and_ends_the_walk(length: int) -> None:
    size = len(batch())
    log = damaged(0, b"", without_index=False)
    assert isinstance(log.fs, MemoryFileSystem)
    log.fs.node(f"d/{0:020d}.log").data[size + 8 : size + 12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(StorageFailure, match=rf"0\.log: corrupt at byte {size}"):
        log.segments[0].find_position(2)


def test_a_clean_stop_whose_last_segment_is_gone_is_refused() -> None:
    """The snapshot made at the roll must not let the shorter log pass for a whole one."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    fill_segments(log, 3)
    last, end = log.active_segment.base_offset, log.log_end_offset
    log.close(clean=True)
    fs.remove(f"d/{last:020d}.log")
    with pytest.raises(CorruptLog):
        reopen(fs, was_clean=True, recovery_point=end)


# -- what must be known after a restart -------------------------------------------------------------------


def test_large_batches_are_known_after_a_restart_as_small_ones_are() -> None:
    """[PRD-6] However many bytes the five last ones take."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, LogConfig(), HOOKS)
    for sequence in range(6):
        append(log, batch(300_000, sequence=sequence))
    log.close(clean=True)
    log = reopen(fs, LogConfig(), was_clean=True, recovery_point=6)
    assert all(append(log, batch(300_000, sequence=sequence)).duplicate for sequence in range(1, 6))


@pytest.mark.parametrize("clean", [True, False])
def test_the_five_last_batches_are_known_across_a_roll_and_a_restart(clean: bool) -> None:
    """[PRD-6] The snapshot at the roll has only the last of them."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    for sequence in range(5):
        append(log, batch(sequence=sequence))
    log.roll(NOW)
    log.close(clean=clean)
    log = reopen(fs, was_clean=clean, recovery_point=5)
    for sequence in range(5):
        result = append(log, batch(sequence=sequence))
        assert result.duplicate
        assert result.base_offset == sequence


def test_an_epoch_found_by_a_scan_is_still_known_after_a_clean_stop() -> None:
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    append(log, epoch=0)
    kept = fs.read_bytes("d/leader-epoch-checkpoint")
    append(log, epoch=1)
    log.sync()
    log.close(clean=False)
    # The crash came between the batch and the checkpoint.
    fs.node("d/leader-epoch-checkpoint").data[:] = kept
    log = reopen(fs)
    assert log.leader_epochs.latest_epoch == 1
    log.close(clean=True)
    assert reopen(fs, was_clean=True, recovery_point=2).leader_epochs.latest_epoch == 1


def test_an_epoch_that_wrote_nothing_is_not_given_out_twice() -> None:
    """Clients have seen it in metadata, and refuse an older one."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    append(log, epoch=0)
    log.begin_epoch(LeaderEpoch(1))
    log.close(clean=True)
    log = reopen(fs, was_clean=True, recovery_point=1)
    assert log.leader_epochs.latest_epoch == 1
    log.close(clean=False)
    assert reopen(fs, recovery_point=1).leader_epochs.latest_epoch == 1


def test_snapshots_of_earlier_stops_do_not_pile_up() -> None:
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, LogConfig(), HOOKS)
    for _ in range(5):
        append(log)
        end = log.log_end_offset
        log.close(clean=True)
        log = reopen(fs, LogConfig(), was_clean=True, recovery_point=end)
    assert sum(name.endswith(".snapshot") for name in fs.listdir("d")) <= 2


def test_the_last_stable_offset_is_not_below_the_start() -> None:
    """Source: UnifiedLog.maybeIncrementFirstUnstableOffset: deleted records are stable."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    append(log, batch(sequence=0, is_transactional=True))
    append(log)
    log.sync()
    assert delete_records_before(log, Offset(2)) is None
    assert log.reader.last_stable_offset == 2


@pytest.mark.parametrize("policy", ["ack", "os"])
def test_records_missing_between_two_segments_are_told(policy: str) -> None:
    """A closed segment that lost its end to a power failure still ends with a whole batch."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=100, flush_policy=policy)  # type: ignore[arg-type]
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, config, HOOKS)
    fill_segments(log, 3)
    log.close(clean=False)
    node = fs.node(f"d/{0:020d}.log")
    size = len(batch())
    del node.data[2 * size :]
    if policy == "ack":
        with pytest.raises(CorruptLog, match=rf"0\.log: corrupt at byte {2 * size}"):
            reopen(fs, config)
        return
    log, report = open_log(fs, "d", TP, config, HOOKS, PriorShutdown(was_clean=False))
    assert offsets(log) == [0, 1]
    assert log.log_end_offset == 2
    assert any("behind a hole" in str(repair) for repair in report.repairs)


def cut(data: bytearray) -> None:
    del data[2 * len(batch()) :]


def tear(data: bytearray) -> None:
    del data[2 * len(batch()) + 30 :]


def lead_astray(data: bytearray) -> None:
    data[-len(batch()) + 11] ^= 1  # the length of the last batch


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize(
    ("damage", "position"),
    [
        (cut, 2 * len(batch())),
        (tear, 2 * len(batch())),
        (bytearray.clear, 0),
        (lambda data: data.extend(b"\xde\xad\xbe\xef" * 20), None),
        (lambda data: data.extend(b"\0" * 10), None),
        (lead_astray, None),
    ],
    ids=["cut", "torn", "emptied", "garbage behind", "zeros behind", "wrong length"],
)
def test_a_closed_segment_that_was_changed_is_refused_after_a_clean_stop(
    damage: Callable[[bytearray], None], position: int | None, policy: str
) -> None:
    """[LOG-7] Readers would be led past the missing records without a word."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=100, cleanup_policy=frozenset({policy}))
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, config, HOOKS)
    fill_segments(log, 3)
    end = log.log_end_offset
    log.sync()
    log.close(clean=True)
    assert reopen(fs, config, was_clean=True, recovery_point=end).log_end_offset == end
    name = f"d/{0:020d}.log"
    damage(fs.node(name).data)
    if policy == "compact" and damage in (cut, bytearray.clear):
        reopen(fs, config, was_clean=True, recovery_point=end)  # as cleaning may leave it
        return
    with pytest.raises(CorruptLog, match=r"corrupt at byte") as caught:
        reopen(fs, config, was_clean=True, recovery_point=end)
    assert caught.value.file == name
    assert position is None or caught.value.position == position


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
@pytest.mark.parametrize("flush_policy", ["ack", "os"])
def test_a_gap_that_cleaning_left_is_no_damage_once_the_topic_is_not_compacted_any_more(
    flush_policy: str, clean: bool
) -> None:
    """Apache Kafka's cleaning removes the last batch of a segment, too."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=100, flush_policy=flush_policy)  # type: ignore[arg-type]
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, config, HOOKS)
    fill_segments(log, 3)
    end, second = log.log_end_offset, log.segments[1].base_offset
    log.sync()
    log.close(clean=True)
    cut(fs.node(f"d/{0:020d}.log").data)
    prior_shutdown = PriorShutdown(was_clean=clean, cleaned_offset=second)
    log, report = open_log(fs, "d", TP, config, HOOKS, prior_shutdown)
    assert report.was_clean == clean
    assert offsets(log) == [0, 1, *range(second, end)]


def test_segments_without_indexes_are_not_scanned_by_a_start() -> None:
    """As those of a directory of Apache Kafka, whose indexes are made again when they are first read."""
    fs = MemoryFileSystem()
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    fill_segments(log, 3)
    end = log.log_end_offset
    log.sync()
    log.close(clean=True)
    fs.remove(f"d/{0:020d}.index")
    opened = reopen(fs, was_clean=True, recovery_point=end)
    assert not fs.exists(f"d/{0:020d}.index")
    assert offsets(opened) == list(range(end))
    assert fs.exists(f"d/{0:020d}.index")
