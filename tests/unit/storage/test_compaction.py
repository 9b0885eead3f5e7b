"""The pure part of compaction: what may be cleaned, the key map, transactions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.check import InvariantBroken
from tallystick.protocol.records import BatchHeader, ControlType
from tallystick.storage.compaction.rules import (
    GROUP_SEGMENTS_MAX,
    SLOT_BYTES,
    CleanedTransactionMetadata,
    CleaningLimits,
    KeyMap,
    LogToClean,
    group_segments,
    plan_cleaning,
)
from tallystick.storage.log.retention import SegmentInfo
from tallystick.storage.state.transaction_index import AbortedTxn

HOUR = 3_600_000
# Five segments of 100 bytes, the newest record of each 5, 4, 3, 2 and 1 hours old; the last is active.
SEGMENTS = [SegmentInfo(n * 10, n * 10 + 10, 100, n * HOUR) for n in range(5)]
NOW = 5 * HOUR
FOREVER = 2**63 - 1


def plan(
    *,
    checkpoint: int | None = None,
    start: int = 0,
    stable: int = 50,
    lag: int = 0,
    lag_max: int = FOREVER,
    ratio: float = 0.5,
) -> LogToClean:
    limits = CleaningLimits(
        min_compaction_lag_ms=lag, max_compaction_lag_ms=lag_max, min_cleanable_dirty_ratio=ratio
    )
    return plan_cleaning(
        SEGMENTS, limits, checkpoint=checkpoint, log_start_offset=start, last_stable_offset=stable, now_ms=NOW
    )


def test_a_log_never_cleaned_is_all_dirty_but_its_last_segment() -> None:
    found = plan()
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 40)
    assert (found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (0, 400, 1.0)
    assert found.is_due


def test_the_checkpoint_divides_clean_from_dirty() -> None:
    found = plan(checkpoint=20)
    assert (found.clean_bytes, found.dirty_bytes) == (200, 200)
    assert not found.is_due  # as much as the ratio is not above it
    assert plan(checkpoint=20, ratio=0.4).is_due
    assert not plan(checkpoint=40, ratio=0.0).is_due


@pytest.mark.parametrize("checkpoint", [51, 5])
def test_a_checkpoint_outside_the_log_is_none(checkpoint: int) -> None:
    assert plan(checkpoint=checkpoint, start=10).first_dirty_offset == 10


@pytest.mark.parametrize(("stable", "expected"), [(40, 40), (39, 30), (25, 20), (5, 0)])
def test_nothing_past_the_last_stable_offset_is_cleaned(stable: int, expected: int) -> None:
    """[CLN-4]"""
    assert plan(stable=stable).first_uncleanable_offset == expected


@pytest.mark.parametrize(("lag", "expected"), [(HOUR, 40), (3 * HOUR, 30), (3 * HOUR + 1, 20), (9 * HOUR, 0)])
def test_what_is_younger_than_the_lag_is_not_cleaned(lag: int, expected: int) -> None:
    assert plan(lag=lag).first_uncleanable_offset == expected


def test_what_waited_too_long_is_overdue_whatever_the_ratio() -> None:
    """KIP-354"""
    assert plan(checkpoint=30, ratio=1.0, lag_max=HOUR).is_overdue
    assert plan(checkpoint=30, ratio=1.0, lag_max=HOUR).is_due
    assert not plan(checkpoint=30, ratio=1.0, lag_max=2 * HOUR).is_due


def test_neighbours_are_joined_up_to_the_size_of_a_segment() -> None:
    groups = group_segments(SEGMENTS[:4], segment_bytes=250, end_offset=40)
    assert [[s.base_offset for s in group] for group in groups] == [[0, 10], [20, 30]]
    assert len(group_segments(SEGMENTS[:4], segment_bytes=10, end_offset=40)) == 4
    assert group_segments(SEGMENTS[:4], segment_bytes=250, end_offset=11) == [SEGMENTS[:2]]


def test_offsets_of_a_group_fit_its_index() -> None:
    far = [
        SegmentInfo(0, 10, 100),
        SegmentInfo(2**31 - 10, 2**31, 100),
        SegmentInfo(2**31, 2**31 + 1, 100),
    ]
    assert [len(group) for group in group_segments(far, segment_bytes=1_000, end_offset=2**32)] == [2, 1]


def test_a_group_is_bounded() -> None:
    many = [SegmentInfo(n, n + 1, 1) for n in range(GROUP_SEGMENTS_MAX + 1)]
    assert [len(g) for g in group_segments(many, segment_bytes=1 << 30, end_offset=1_000)] == [
        GROUP_SEGMENTS_MAX,
        1,
    ]


# -- key map ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 1_000))))
def test_the_map_is_a_dictionary(puts: list[tuple[bytes, int]]) -> None:
    keys = KeyMap(1_000_000)
    model: dict[bytes, int] = {}
    for key, offset in puts:
        assert keys.put(key, offset)
        model[key] = offset
    assert keys.key_count == len(model)
    assert all(keys.find_newest_offset(key) == offset for key, offset in model.items())
    assert keys.find_newest_offset(b"none of them") is None


def test_the_map_keeps_to_its_memory() -> None:
    """[CLN-1]"""
    bound = 5_000 * SLOT_BYTES
    keys = KeyMap(bound)
    taken = 0
    while keys.put(str(taken).encode(), taken):
        taken += 1
        assert keys.size_bytes <= bound
    assert taken == 4_500  # Kafka's load factor of 0.9
    assert keys.put(b"17", 9_999)  # a key that is there needs no room
    assert keys.find_newest_offset(b"17") == 9_999
    assert all(keys.find_newest_offset(str(n).encode()) is not None for n in range(taken))
    assert not keys.put(b"one more", 1)


def test_a_map_without_room_for_a_key_is_refused() -> None:
    with pytest.raises(InvariantBroken):
        KeyMap(SLOT_BYTES)


# -- transactions -----------------------------------------------------------------------------------------


def data(pid: int, offset: int, *, transactional: bool = True) -> BatchHeader:
    return BatchHeader(offset, 99, 0, 2, 0, 0x10 if transactional else 0, 0, 0, 0, pid, 0, 0, 1)


def marker(pid: int, offset: int, *, count: int = 1) -> BatchHeader:
    return BatchHeader(offset, 99, 0, 2, 0, 0x30, 0, 0, 0, pid, 0, -1, count)


def test_records_of_aborted_transactions_are_known_by_the_index() -> None:
    aborted = AbortedTxn(1, 10, 20, 21)
    txns = CleanedTransactionMetadata([aborted])
    assert not txns.on_batch_read(data(1, 5))  # an earlier transaction of the same producer
    assert txns.on_control_batch_read(marker(1, 6), ControlType.COMMIT) == (False, None)
    assert txns.on_batch_read(data(1, 10))
    assert not txns.on_batch_read(data(2, 11))
    assert not txns.on_batch_read(data(1, 12, transactional=False))
    assert txns.on_control_batch_read(marker(1, 20), ControlType.ABORT) == (False, aborted)
    assert not txns.on_batch_read(data(1, 22))


def test_a_marker_may_go_when_nothing_of_its_transaction_was_met() -> None:
    txns = CleanedTransactionMetadata([])
    assert txns.on_control_batch_read(marker(1, 6), ControlType.COMMIT) == (True, None)
    assert txns.on_control_batch_read(marker(1, 7), ControlType.ABORT) == (True, None)
    txns.on_batch_read(data(1, 8))
    assert txns.on_control_batch_read(marker(1, 9), ControlType.COMMIT) == (False, None)
    assert txns.on_control_batch_read(marker(1, 10), ControlType.COMMIT) == (True, None)


def test_an_emptied_marker_may_go_and_a_stranger_stays() -> None:
    txns = CleanedTransactionMetadata([])
    assert txns.on_control_batch_read(marker(1, 6, count=0), None) == (True, None)
    assert txns.on_control_batch_read(marker(1, 7), None) == (False, None)
