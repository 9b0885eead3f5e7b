"""What a log knows of its producers outlives the segments it was learnt from, whatever power loss takes."""

from typing import Final
from uuid import UUID

import pytest

from harness.memory_fs import MemoryFileSystem, PowerLost, SurvivingChanges
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
)
from tallystick.storage.disk.fs import OutOfDescriptors, StorageFailure
from tallystick.storage.log.log import AppendResult, Log, delete_oldest_segments, delete_records_before
from tallystick.storage.log_dir import DirectoryOptions, LogDir
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.validation import LogConfig

NOW: Final = 1_700_000_000_000
TP: Final = TopicPartition("t", 0)
TOPIC_ID: Final = UUID(int=7)
CONFIG: Final = LogConfig()
OPTIONS: Final = DirectoryOptions(cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
KEEPS: Final[tuple[SurvivingChanges, ...]] = ("nothing", "prefix", "unordered", "everything")
WRITER: Final = ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(0))
ENDED: Final = ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(1))


def append_data(log: Log, meta: BatchMeta) -> None:
    record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v", headers=())
    result = log.append(encode_batch([record], meta), now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult), result


def abort(log: Log) -> None:
    marker = encode_marker(
        EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0), ENDED, timestamp_ms=NOW
    )
    result = log.append(marker, origin=AppendOrigin.COORDINATOR, now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult), result


def fill(fs: MemoryFileSystem) -> Log:
    """A transaction's data, its marker and other records, each in a segment of its own, and synced."""
    log_dir = LogDir.open(fs, "d", OPTIONS)
    log = log_dir.get_or_create(TP, CONFIG, TOPIC_ID)
    in_transaction = BatchMeta(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    append_data(log, in_transaction)
    log.roll(NOW)
    abort(log)
    log.roll(NOW)
    append_data(log, BatchMeta())
    log.sync()
    log_dir.checkpoint()
    return log


def reopen(fs: MemoryFileSystem) -> Log:
    log_dir = LogDir.open(fs, "d", OPTIONS)
    log = log_dir.get_or_create(TP, CONFIG, TOPIC_ID)
    log_dir.checkpoint()
    return log


def assert_ended(log: Log) -> None:
    assert log.reader.first_unstable_offset is None
    assert log.reader.last_stable_offset == log.log_end_offset == 3
    assert log.producer_state_manager.active_producers[9].epoch == ENDED.epoch


@pytest.mark.parametrize("keep", KEEPS)
def test_the_end_of_a_transaction_outlives_the_segment_of_its_marker(keep: SurvivingChanges) -> None:
    """[LOG-10]: power fails after each effect of a deletion. Without the snapshot an older one would be read,
    in which the transaction is open, and the marker that ended it is gone."""
    for effects in range(1, 100):
        fs = MemoryFileSystem()
        log = fill(fs)
        fs.crash_after = len(fs.effects) + effects
        try:
            delete_oldest_segments(log, 2)
        except PowerLost:
            fs.crash(keep, seed=effects)
            assert_ended(reopen(fs))
        else:
            break
    fs.crash(keep)
    last = reopen(fs)
    assert last.log_start_offset == 2
    assert_ended(last)


def test_a_snapshot_that_power_loss_damaged_is_made_again() -> None:
    """Or the next deletion would take what it could be made from."""
    fs = MemoryFileSystem()
    fill(fs)
    fs.crash("nothing")
    log = reopen(fs)
    assert_ended(log)
    delete_oldest_segments(log, 2)
    fs.crash("nothing")
    assert_ended(reopen(fs))


@pytest.mark.parametrize("keep", KEEPS)
def test_the_end_of_a_transaction_outlives_an_opening_that_removes_its_segment(
    keep: SurvivingChanges,
) -> None:
    """[LOG-10]: all records were deleted while the marker was in the last segment, which then became a closed
    one below the log start. Power fails, and again after each effect of the next opening."""
    for effects in range(1, 200):
        fs = MemoryFileSystem()
        log_dir = LogDir.open(fs, "d", OPTIONS)
        log = log_dir.get_or_create(TP, CONFIG, TOPIC_ID)
        append_data(log, BatchMeta(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True))
        log.roll(NOW)
        abort(log)
        log.sync()
        log_dir.checkpoint()
        assert delete_records_before(log, Offset(2)) is None
        log.roll(NOW)  # without a sync: the snapshot at offset 2 is not on the disk
        append_data(log, BatchMeta())
        log.sync()
        fs.crash(keep)
        fs.crash_after = len(fs.effects) + effects
        try:
            assert_ended(reopen(fs))
        except PowerLost:
            fs.crash(keep, seed=effects)
            log = reopen(fs)
            assert_ended(log)
            assert log.log_start_offset == 2
        else:
            return
    pytest.fail("the opening has no end")


def test_deleted_segments_that_are_damaged_keep_no_log_from_opening() -> None:
    fs = MemoryFileSystem()
    log = fill(fs)
    assert delete_records_before(log, Offset(1)) is None
    fs.crash("everything")
    name = "d/t-0/00000000000000000000.log"
    file = fs.open_append(name)  # as a crash between the new start and the renaming leaves it
    file.write([b"\0" * 100])
    file.close()
    log = reopen(fs)
    assert log.log_start_offset == 1
    assert_ended(log)
    assert not fs.exists(name)


def test_a_deletion_without_a_descriptor_is_refused_and_changes_nothing() -> None:
    fs = MemoryFileSystem()
    log = fill(fs)

    def fail(name: str, path: str) -> OSError | None:
        return OSError(24, "Too many open files", path) if name in ("open", "create") else None

    fs.fault = fail
    with pytest.raises(OutOfDescriptors):
        delete_oldest_segments(log, 2)
    fs.fault = None
    assert log.log_start_offset == Offset(0)
    assert len(log.segments) == 3
    delete_oldest_segments(log, 2)
    assert log.log_start_offset == Offset(2)


def test_a_start_that_was_not_written_has_not_moved() -> None:
    """Deleting the same records once more must make it durable, and not take it for done."""
    fs = MemoryFileSystem()
    log = fill(fs)

    def fail(name: str, path: str) -> OSError | None:
        return OSError(5, "Input/output error", path) if "log-start-offset" in path else None

    fs.fault = fail
    with pytest.raises(StorageFailure, match="cannot be written"):
        delete_records_before(log, Offset(2))
    fs.fault = None
    assert log.log_start_offset == Offset(0)
    assert delete_records_before(log, Offset(2)) is None
    fs.crash("nothing")
    assert reopen(fs).log_start_offset == Offset(2)
