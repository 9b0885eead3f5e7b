"""Keys of an upsert: every row has its own."""

import re

import pyarrow as pa
import pytest

from tallystick.lake.upserts import find_key_problem, format_assignments, format_key_predicate


def test_rows_that_keys_tell_apart() -> None:
    rows = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [None, None, None]})
    assert find_key_problem(rows, ["a", "b"]) is None
    assert "several rows of this batch have a=1, in no defined order" in str(find_key_problem(rows, ["a"]))
    assert "3 rows of this batch have no c, which is a key" in str(find_key_problem(rows, ["a", "c"]))


def test_names_are_quoted() -> None:
    assert format_key_predicate(['a"b', "Key"]) == (
        'target."a""b" = source."a""b" AND target."Key" = source."Key"'
    )
    assert format_assignments(["Key"]) == {'"Key"': 'source."Key"'}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize(
    ("value", "why"), [(float("nan"), "NaN is equal to nothing"), (-0.0, r"is -0\.0 in some")]
)
def test_floats_that_are_no_keys(kind: pa.DataType, value: float, why: str) -> None:
    """Delta and Iceberg keep a row with 0.0 beside one with -0.0, and no NaN is found again."""
    assert find_key_problem(pa.table({"k": pa.array([0.0, 1.5, float("inf")], kind)}), ["k"]) is None
    assert re.search(why, str(find_key_problem(pa.table({"k": pa.array([1.0, value], kind)}), ["k"])))
