"""The demo's checker sees what is wrong: it must be able to say no."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tallystick.demo import ContentCheck
from tallystick.demo.flights import BY_FLIGHT, LAKE_SCHEMA, PER_HOUR, create_lake_table, load_flights
from tallystick.demo.verification import check_lake_table, compare_content

ROWS = pd.DataFrame(
    {"id": [1, 2, 3], "delay": pd.array([5, None, -2], "Int64"), "late": [True, False, False]}
)
VALUES = [
    {"id": 1, "delay": 5, "late": True},
    {"id": 2, "delay": None, "late": False},
    {"id": 3, "delay": -2, "late": False},
]


def judged(*values: dict[str, object]) -> ContentCheck:
    return compare_content("t", ROWS, values)


def test_each_row_once_in_any_order_is_good() -> None:
    verdict = judged(*reversed(VALUES))
    assert verdict.is_exact
    assert (verdict.expected, verdict.actual) == (3, 3)


@pytest.mark.parametrize(
    ("values", "missing", "duplicated", "wrong"),
    [
        (VALUES[:2], 1, 0, 0),
        ([*VALUES, VALUES[0]], 0, 1, 0),
        ([VALUES[0], VALUES[1], VALUES[1]], 1, 1, 0),
        ([*VALUES[:2], {**VALUES[2], "delay": 2}], 0, 0, 1),
        ([*VALUES, {**VALUES[2], "id": 4}], 0, 0, 1),
        ([{"id": 1, "delay": 5}, *VALUES[1:]], 0, 0, 1),
        ([], 3, 0, 0),
    ],
)
def test_what_is_missing_twice_or_different_is_bad(
    values: list[dict[str, object]], missing: int, duplicated: int, wrong: int
) -> None:
    verdict = judged(*values)
    assert not verdict.is_exact
    assert (verdict.missing, verdict.duplicated, verdict.wrong) == (missing, duplicated, wrong)


@pytest.mark.slow
def test_what_must_come_out_is_computed_from_the_flights() -> None:
    """Of the first thousand flights, in 2013's first hours, by hand from the file."""
    data = load_flights(1000)
    delays, hours = data.expected_topics[BY_FLIGHT], data.expected_topics[PER_HOUR]
    assert len(data.input_rows) == 1001, "and the one that closes the last hour"
    first = delays.iloc[0].to_dict()
    assert first == {
        "id": 0,
        "airline": "United Air Lines Inc.",
        "flight": 1545,
        "origin": "EWR",
        "dest": "IAH",
        "airport": "George Bush Intercontinental",
        "arr_delay": 11,
        "lost_on_the_way": 9,
        "late": False,
    }
    assert hours.iloc[0].hour == "2013-01-01T10"
    assert hours.flights.sum() == 1000
    assert hours.cancelled.sum() == 1000 - data.input_rows.dep_delay.notna().sum()


@pytest.mark.slow
def test_a_row_that_is_twice_in_the_lake_is_seen(tmp_path: Path) -> None:
    """Of the first flights one more is appended: the newest version counts, not the first one."""
    expected = load_flights(200).expected_table
    folder = tmp_path / "lake" / "delays"
    create_lake_table(folder)
    assert check_lake_table(folder, expected).missing == len(expected)

    rows = pa.Table.from_pandas(expected, schema=LAKE_SCHEMA, preserve_index=False)
    write_deltalake(folder, rows, mode="append")
    assert check_lake_table(folder, expected).is_exact

    write_deltalake(folder, rows.slice(3, 1), mode="append")
    verdict = check_lake_table(folder, expected)
    assert (verdict.target, verdict.duplicated, verdict.is_exact) == ("Delta table delays", 1, False)
