"""Names, scans and indexes of segments."""

from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.protocol.records import BatchMeta, Record, encode_batch, patch_offset_and_epoch
from tallystick.storage.segments import segment_scan
from tallystick.storage.segments.indexes import OffsetIndex, TimeIndex
from tallystick.storage.segments.segment_scan import (
    SCAN_BYTES,
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
    data = batch(0) + bytes(3 * SCAN_BYTES) + batch(5)
    found = scan(data)
    assert found.fault is not None
    assert found.fault.valid_after == len(data) - len(batch(5))


def test_offsets_that_go_back_are_bad() -> None:
    found = scan(batch(5) + batch(4))
    assert found.fault is not None
    assert "base offset is 4" in found.fault.found
    assert find_valid_batch(lambda size, at: batch(4)[at : at + size], 0, len(batch(4)), 6) is None


def batch_of(base_offset: int, size_bytes: int) -> bytes:
    """One batch of exactly this size."""
    value_size = size_bytes - len(batch(base_offset, 1, 0))
    while (excess := len(batch(base_offset, 1, value_size)) - size_bytes) > 0:  # longer varints
        value_size -= excess
    data = batch(base_offset, 1, value_size)
    assert len(data) == size_bytes
    return data


def check_scan(batches: list[bytes]) -> None:
    data, starts = b"".join(batches), [0]
    for one in batches:
        starts.append(starts[-1] + len(one))
    whole = SegmentScanner(lambda size, at: data[at : at + size], len(data), 0)
    yielded = [(position, bytes(found)) for position, _, found in whole.iter_batches()]
    assert yielded == list(zip(starts, batches, strict=False))
    assert (whole.fault, whole.valid_end, whole.next_offset) == (None, len(data), len(batches))


def check_damaged_scans(batches: list[bytes]) -> None:
    """Scan these batches torn within each of them, and with one of them damaged."""
    data, start = b"".join(batches), 0
    for number, end in enumerate(accumulate(map(len, batches))):
        torn = scan(data[: end - 1])
        assert torn.fault is not None
        assert (torn.valid_end, torn.next_offset, torn.fault.valid_after) == (start, number, None)
        assert f"{end - start - 1} are there" in torn.fault.found
        damaged = bytearray(data)
        damaged[end - 1] ^= 1
        holed = scan(bytes(damaged))
        assert holed.fault is not None
        assert (holed.valid_end, holed.fault.valid_after) == (start, end if end < len(data) else None)
        start = end


def list_sizes_around(scan_bytes: int) -> list[tuple[int, ...]]:
    return list(product((scan_bytes - 1, scan_bytes, scan_bytes + 1, 3 * scan_bytes), repeat=3))


@pytest.mark.parametrize("scan_bytes", [97, pytest.param(SCAN_BYTES, marks=pytest.mark.slow)])
def test_batches_about_as_long_as_one_read_are_scanned_in_every_order(
    monkeypatch: pytest.MonkeyPatch, scan_bytes: int
) -> None:
    """A chunk is read from a batch's start; how much it lacks is asked again for each batch."""
    monkeypatch.setattr(segment_scan, "SCAN_BYTES", scan_bytes)
    for sizes in list_sizes_around(scan_bytes):
        check_scan([batch_of(offset, size) for offset, size in enumerate(sizes)])


def test_damage_is_found_in_batches_about_as_long_as_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_scan, "SCAN_BYTES", 97)
    for sizes in list_sizes_around(97):
        check_damaged_scans([batch_of(offset, size) for offset, size in enumerate(sizes)])


@given(st.integers(62, 400), st.lists(st.integers(0, 1200), min_size=1, max_size=6))
def test_any_batches_are_scanned_with_reads_of_any_size(scan_bytes: int, sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_scan, "SCAN_BYTES", scan_bytes)
        batches = [batch(offset, 1, size) for offset, size in enumerate(sizes)]
        check_scan(batches)
        check_damaged_scans(batches)


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
