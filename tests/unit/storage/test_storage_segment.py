"""Names, scans and indexes of segments."""

import pytest

from tallystick.protocol.records import BatchMeta, Record, encode_batch, patch_offset_and_epoch
from tallystick.storage.segments.indexes import OffsetIndex, TimeIndex, fits_relative_offset
from tallystick.storage.segments.segment_scan import (
    SegmentFileName,
    SegmentScanner,
    find_valid_batch,
    make_file_name,
    parse_file_name,
)


def batch(base_offset: int, count: int = 1, size: int = 10) -> bytes:
    records = [
        Record(offset=i, timestamp_ms=1000 + i, key=None, value=b"v" * size, headers=()) for i in range(count)
    ]
    data = bytearray(encode_batch(records, BatchMeta()))
    patch_offset_and_epoch(data, 0, base_offset, 0)
    return bytes(data)


def scan(data: bytes, offset: int = 0) -> SegmentScanner:
    scanner = SegmentScanner(lambda size, at: data[at : at + size], len(data), offset)
    for _ in scanner.iter_batches():
        pass
    return scanner


def test_names_are_kafkas() -> None:
    assert make_file_name(7, ".log") == "00000000000000000007.log"
    assert parse_file_name("00000000000000000007.index.swap") == SegmentFileName(7, ".index", ".swap")
    assert parse_file_name("00000000000000000007.snapshot") == SegmentFileName(7, ".snapshot", "")
    for name in ("7.log", "00000000000000000007.log.cut-9", "leader-epoch-checkpoint", "x.log"):
        assert parse_file_name(name) is None


def test_a_scan_stops_at_every_possible_cut() -> None:
    whole = batch(0, 2) + batch(2)
    first = len(batch(0, 2))
    for size in range(len(whole)):
        found = scan(whole[:size])
        assert found.valid_end == (first if size >= first else 0)
        assert (found.fault is None) == (size in (0, first))
        assert found.fault is None or found.fault.valid_after is None
    assert scan(whole).next_offset == 3


def test_a_scan_finds_whole_batches_behind_damage_at_any_byte() -> None:
    first, second = batch(0, 2), batch(2)
    for at in range(12, len(first)):  # base offset is not covered by the CRC; length leads anywhere
        if at in range(12, 16):
            continue  # nor is the leader epoch
        damaged = bytearray(first + second)
        damaged[at] ^= 0x40
        found = scan(bytes(damaged))
        assert found.fault is not None
        assert found.fault.position == 0
        assert found.fault.valid_after == len(first)


def test_a_hole_of_zeros_is_crossed_however_long() -> None:
    data = batch(0) + bytes(3_000_000) + batch(5)
    found = scan(data)
    assert found.fault is not None
    assert found.fault.valid_after == len(data) - len(batch(5))


def test_offsets_that_go_back_are_bad() -> None:
    found = scan(batch(5) + batch(4))
    assert found.fault is not None
    assert "base offset is 4" in found.fault.found
    assert find_valid_batch(lambda size, at: batch(4)[at : at + size], 0, len(batch(4)), 6) is None


def test_a_batch_longer_than_one_read_is_scanned() -> None:
    data = batch(0, 1, 3 << 20) + batch(1)
    assert scan(data).next_offset == 2


def test_indexes_round_trip_and_refuse_what_cannot_be() -> None:
    index = OffsetIndex()
    index.append(4, 100)
    index.append(9, 200)
    data = index.encode_from(0)
    assert data.hex() == "00000004000000640000000900000 0c8".replace(" ", "")
    again = OffsetIndex.decode(data)
    assert again is not None
    assert [again.find_position(offset) for offset in (0, 3, 4, 8, 9, 99)] == [0, 0, 100, 100, 200, 200]
    assert [again.find_position_before(at) for at in (0, 99, 100, 500)] == [0, 0, 100, 200]
    times = TimeIndex()
    times.maybe_append(50, 4)
    times.maybe_append(50, 9)
    times.maybe_append(60, 9)
    assert len(times) == 2
    assert times.last_entry == (60, 9)
    assert [times.find_offset_before(at) for at in (50, 51, 61)] == [0, 4, 9]
    back = TimeIndex.decode(times.encode_from(0))
    assert back is not None
    assert back.encode_from(1) == times.encode_from(1)


@pytest.mark.parametrize("data", [None, b"\0" * 7, bytes(16), bytes.fromhex("ffffffff00000000")])
def test_an_index_that_cannot_be_right_is_no_index(data: bytes | None) -> None:
    assert OffsetIndex.decode(data) is None


def test_relative_offsets_are_int32() -> None:
    assert fits_relative_offset(2**31 - 1, 0)
    assert not fits_relative_offset(2**31, 0)
