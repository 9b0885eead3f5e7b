"""Room on a full disk for what must still be written."""

import pytest

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tallystick.storage.disk.fs import DiskFull
from tallystick.storage.disk.reserve import RESERVE_FILE, DiskReserve
from tallystick.storage.log.loader import create_log
from tallystick.storage.log.log import Log, LogHooks, TxnGuard
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.validation import LogConfig

CHUNK = 1_000
SIZE = 4 * CHUNK
P1 = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))


class Disk:
    """A small disk with a reserve, a log for data and an internal one."""

    def __init__(self, capacity: int = 20_000) -> None:
        self.fs = MemoryFileSystem(capacity=capacity)
        self.fs.mkdir("data")
        self.reserve = DiskReserve(self.fs, "data", SIZE, CHUNK)
        assert self.reserve.restore()
        hooks = LogHooks(space_guard=self.reserve, segment_cache=OpenSegmentCache())
        config = LogConfig(flush_policy="os")
        self.data = create_log(self.fs, "data/t-0", TopicPartition("t", 0), config, hooks)
        internal = replace(config, internal=True)
        self.internal = create_log(self.fs, "data/i-0", TopicPartition("i", 0), internal, hooks)

    def write(self, log: Log, size: int = 400, *, transactional: bool = False) -> None:
        record = Record(offset=0, timestamp_ms=1, key=None, value=b"x" * size, headers=())
        meta = (
            BatchMeta(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
            if transactional
            else BatchMeta()
        )
        answer = log.append(encode_batch([record], meta), now_ms=1, leader_epoch=LeaderEpoch(0))
        assert not isinstance(answer, Reject)

    def fill(self) -> None:
        for _ in iter(lambda: self.fits(self.data), False):
            pass

    def fits(self, log: Log) -> bool:
        try:
            self.write(log)
        except DiskFull:
            return False
        return True


def test_data_meets_the_end_of_the_disk_before_the_reserve() -> None:
    """[RSV-1]"""
    disk = Disk()
    disk.fill()
    assert disk.reserve.is_whole
    assert disk.fs.size(f"data/{RESERVE_FILE}") == SIZE


def test_internal_appends_use_the_reserve_and_data_waits() -> None:
    """[RSV-1]"""
    disk = Disk()
    disk.fill()
    for _ in range(5):
        disk.write(disk.internal)
    assert disk.reserve.reserved_bytes < SIZE
    with pytest.raises(DiskFull, match="reserve"):
        disk.write(disk.data, size=1)


def test_a_decided_transaction_is_finished_on_a_full_disk() -> None:
    """[RSV-1] A marker in a partition of data is as internal as the offsets are."""
    disk = Disk()
    disk.write(disk.data, transactional=True)
    disk.fill()
    left = disk.fs.free_bytes()
    while left > 0:  # not a byte is left
        disk.fs.open_append("data/other").write([bytes(left)])
        left = disk.fs.free_bytes()
    marker = encode_marker(
        EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=0), P1, timestamp_ms=2
    )
    answer = disk.data.append(
        marker,
        origin=AppendOrigin.COORDINATOR,
        now_ms=2,
        leader_epoch=LeaderEpoch(0),
        guard=TxnGuard(transaction_version=1),
    )
    assert not isinstance(answer, Reject)
    assert disk.data.producer_state_manager.first_undecided_offset is None


def test_with_the_reserve_used_up_internal_appends_are_refused_too() -> None:
    disk = Disk()
    disk.fill()
    while disk.fits(disk.internal):
        pass
    assert disk.reserve.reserved_bytes == 0


def test_the_reserve_is_made_whole_when_there_is_room_for_it_and_a_piece_more() -> None:
    disk = Disk()
    disk.fill()
    for _ in range(3):
        disk.write(disk.internal)
    assert not disk.reserve.restore()
    missing = SIZE - disk.reserve.reserved_bytes
    disk.fs.capacity += missing + CHUNK - disk.fs.free_bytes() - 1
    assert not disk.reserve.restore()
    disk.fs.capacity += 1
    assert disk.reserve.restore()
    assert disk.reserve.is_whole
    disk.write(disk.data)


def test_a_restart_finds_what_is_left_of_the_reserve() -> None:
    disk = Disk()
    disk.fill()
    disk.write(disk.internal)
    disk.write(disk.internal)
    disk.write(disk.internal)
    again = DiskReserve(disk.fs, "data", SIZE, CHUNK)
    assert again.reserved_bytes == disk.reserve.reserved_bytes < SIZE
    assert not again.may_write(1, internal=False)
    assert again.may_write(1, internal=True)


def test_a_lowered_setting_gives_room_back() -> None:
    disk = Disk()
    smaller = DiskReserve(disk.fs, "data", CHUNK, CHUNK)
    assert smaller.is_whole
    assert smaller.restore()
    assert disk.fs.size(f"data/{RESERVE_FILE}") == CHUNK


def test_without_a_reserve_nothing_is_held_back() -> None:
    fs = MemoryFileSystem(capacity=10)
    fs.mkdir("data")
    reserve = DiskReserve(fs, "data", 0)
    assert reserve.restore()
    assert reserve.may_write(1 << 40, internal=False)
    reserve.release(1)
    assert not fs.exists(f"data/{RESERVE_FILE}")


def test_a_large_append_is_given_as_many_pieces_as_it_needs() -> None:
    disk = Disk()
    disk.reserve.release(2 * CHUNK + 1)
    assert disk.reserve.reserved_bytes == SIZE - 3 * CHUNK


def test_room_is_made_before_what_cannot_be_tried_twice() -> None:
    fs = MemoryFileSystem(capacity=10_000)
    fs.mkdir("d")
    reserve = DiskReserve(fs, "d", 4_000, chunk_bytes=1_000)
    assert reserve.restore()
    reserve.ensure_free(5_000)
    assert reserve.reserved_bytes == 4_000  # there is room as it is
    fs.open_append("d/data").write([bytes(5_500)])
    reserve.ensure_free(1_200)
    assert reserve.reserved_bytes == 2_000
    assert fs.free_bytes("d") >= 1_200
