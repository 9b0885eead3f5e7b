"""Leader epochs: LeaderEpochFileCache's rules."""

import pytest

from tallystick.kernel.check import InvariantBroken
from tallystick.storage.checkpoints.leader_epochs import EpochEnd, EpochEntry, LeaderEpochCache

THREE = [EpochEntry(2, 0), EpochEntry(4, 10), EpochEntry(5, 30)]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, None),
        (0, EpochEnd(0, 0)),  # older than all: ends where the first one known starts
        (2, EpochEnd(2, 10)),
        (3, EpochEnd(2, 10)),  # never was: the one before it answers
        (4, EpochEnd(4, 30)),
        (5, EpochEnd(5, 99)),
        (6, None),
    ],
)
def test_where_an_epoch_ended(epoch: int, expected: EpochEnd | None) -> None:
    assert LeaderEpochCache(THREE).find_end_offset(epoch, 99) == expected


def test_nothing_is_known_of_an_empty_log() -> None:
    epochs = LeaderEpochCache()
    assert epochs.find_end_offset(0, 0) is None
    assert epochs.latest_epoch is None
    assert epochs.find_epoch(0) is None


def test_the_epoch_that_wrote_last_is_assigned_once() -> None:
    epochs = LeaderEpochCache()
    assert epochs.assign(3, 0)
    assert not epochs.assign(3, 5)
    assert epochs.entries == (EpochEntry(3, 0),)


def test_an_epoch_that_wrote_nothing_is_replaced() -> None:
    epochs = LeaderEpochCache(THREE)
    assert epochs.assign(6, 30)
    assert epochs.entries == (*THREE[:2], EpochEntry(6, 30))


def test_what_contradicts_the_log_is_dropped() -> None:
    epochs = LeaderEpochCache(THREE)
    assert epochs.assign(4, 5)
    assert epochs.entries == (EpochEntry(2, 0), EpochEntry(4, 5))


def test_negative_numbers_are_ours_to_prevent() -> None:
    with pytest.raises(InvariantBroken):
        LeaderEpochCache().assign(-1, 0)


@pytest.mark.parametrize(("offset", "expected"), [(0, 2), (9, 2), (10, 4), (29, 4), (30, 5), (1000, 5)])
def test_who_wrote_an_offset(offset: int, expected: int) -> None:
    assert LeaderEpochCache(THREE).find_epoch(offset) == expected


def test_truncation_from_the_end() -> None:
    epochs = LeaderEpochCache(THREE)
    assert not epochs.truncate_from_end(31)
    assert epochs.truncate_from_end(30)
    assert epochs.entries == tuple(THREE[:2])
    assert epochs.truncate_from_end(0)
    assert epochs.entries == ()


@pytest.mark.parametrize(
    ("start", "changed", "expected"),
    [
        (0, False, THREE),
        (5, True, [EpochEntry(2, 5), *THREE[1:]]),
        (10, True, THREE[1:]),
        (12, True, [EpochEntry(4, 12), THREE[2]]),
        (50, True, [EpochEntry(5, 50)]),
    ],
)
def test_truncation_from_the_start(start: int, changed: bool, expected: list[EpochEntry]) -> None:
    epochs = LeaderEpochCache(THREE)
    assert epochs.truncate_from_start(start) is changed
    assert epochs.entries == tuple(expected)
