"""The checkers of units that share dual writes: each is given a history that cannot be true."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from harness.sim.actors.units import (
    SimUnit,
    UnitEvidence,
    check_applied_once,
    check_both_halves,
    check_outcomes_told,
    check_raised_attempts,
    check_unit_order,
    check_units,
    count_rows,
)
from tallystick.kernel.ids import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
Check = Callable[[Sequence[SimUnit], UnitEvidence], Iterator[str]]


def make_unit(number: int, *, caller: str = "one", attempt: int = 1, count: int = 0) -> SimUnit:
    """Two rows, a record in each of both partitions; its texts are `number:attempt:index`."""
    unit = SimUnit(number, caller, "key", row_count=2, partitions=(A, B), attempts=attempt)
    send(unit, attempt, count or number)
    return unit


def send(unit: SimUnit, attempt: int, count: int) -> None:
    for index in range(len(unit.partitions)):
        unit.texts[f"{unit.number}:{attempt}:{index}"] = attempt, count


def rows_of(*units: tuple[int, int]) -> list[tuple[int, int]]:
    """Two rows of each pair of unit and attempt."""
    return [each for each in units for _ in range(2)]


def find(
    check: Check,
    units: Sequence[SimUnit],
    rows: Sequence[tuple[int, int]],
    in_a: Sequence[str],
    in_b: Sequence[str],
    excused: frozenset[str] = frozenset(),
) -> list[str]:
    return [*check(units, UnitEvidence({A: in_a, B: in_b}, count_rows(rows), excused))]


def test_units_in_both_halves_or_in_neither_are_right() -> None:
    units = [make_unit(1), make_unit(2), make_unit(3, caller="two")]
    units[0].was_told, units[1].was_told = True, False
    assert not find(check_units, units, rows_of((1, 1), (3, 1)), ["1:1:0", "3:1:0"], ["1:1:1", "3:1:1"])


@pytest.mark.parametrize(
    ("rows", "in_a", "in_b"),
    [
        ([], ["1:1:0"], ["1:1:1"]),  # in the log alone
        (rows_of((1, 1)), [], []),  # in the database alone
        (rows_of((1, 1)), ["1:1:0"], []),  # a record is missing
        ([(1, 1)], ["1:1:0"], ["1:1:1"]),  # a row is missing
    ],
)
def test_a_unit_in_one_half_is_found(rows: list[tuple[int, int]], in_a: list[str], in_b: list[str]) -> None:
    assert find(check_both_halves, [make_unit(1)], rows, in_a, in_b)


def test_a_record_that_was_deleted_may_be_missing_and_no_other() -> None:
    excused = frozenset({"1:1:1"})
    assert not find(check_both_halves, [make_unit(1)], rows_of((1, 1)), ["1:1:0"], [], excused)
    assert find(check_both_halves, [make_unit(1)], rows_of((1, 1)), [], [], excused)
    assert find(check_both_halves, [make_unit(1)], [], ["1:1:0"], [], excused)


@pytest.mark.parametrize(
    ("rows", "in_a"),
    [
        (rows_of((1, 1), (1, 2)), ["1:2:0"]),  # two attempts in the database
        (rows_of((1, 1), (1, 1)), ["1:1:0"]),  # one attempt twice
        (rows_of((1, 1)), ["1:1:0", "1:2:0"]),  # two attempts in the log
        (rows_of((1, 1)), ["1:2:0"]),  # one in each half
    ],
)
def test_a_unit_that_was_applied_twice_is_found(rows: list[tuple[int, int]], in_a: list[str]) -> None:
    unit = make_unit(1)
    send(unit, 2, 1)
    assert find(check_applied_once, [unit], rows, in_a, [])
    assert not find(check_applied_once, [unit], rows_of((1, 2)), ["1:2:0"], ["1:2:1"])


@pytest.mark.parametrize("told", [True, False])
def test_a_caller_that_was_told_what_is_not_true_is_found(told: bool) -> None:
    unit = make_unit(1)
    rows = rows_of((1, 1))
    unit.was_told = told
    assert find(check_outcomes_told, [unit], [] if told else rows, [], [])
    assert not find(check_outcomes_told, [unit], rows if told else [], [], [])
    unit.was_told = None
    assert not find(check_outcomes_told, [unit], [] if told else rows, [], [])


def test_what_work_that_raised_has_left_is_found() -> None:
    unit = make_unit(1)
    unit.raised_attempts = {1}
    assert find(check_raised_attempts, [unit], [], ["1:1:0"], [])
    assert find(check_raised_attempts, [unit], [(1, 1)], [], [])
    send(unit, 2, 1)
    assert not find(check_raised_attempts, [unit], rows_of((1, 2)), ["1:2:0"], ["1:2:1"])


def test_units_of_one_caller_out_of_order_are_found() -> None:
    units = [make_unit(1, count=5), make_unit(2, count=5), make_unit(3, caller="two", count=5)]
    assert not find(check_unit_order, units, [], ["3:1:0", "1:1:0", "2:1:0"], [])
    assert find(check_unit_order, units, [], ["2:1:0", "1:1:0"], [])
    units[0].was_left = True
    assert not find(check_unit_order, units, [], ["2:1:0", "1:1:0"], [])


def test_records_of_one_unit_out_of_order_are_found() -> None:
    assert find(check_unit_order, [make_unit(1)], [], ["1:1:1", "1:1:0"], [])


def test_records_of_one_key_out_of_order_are_found() -> None:
    units = [make_unit(1, count=1), make_unit(2, caller="two", count=2)]
    assert not find(check_unit_order, units, [], ["1:1:0", "2:1:0"], [])
    assert find(check_unit_order, units, [], ["2:1:0", "1:1:0"], [])
