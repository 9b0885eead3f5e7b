"""Keys of an upsert: every row has its own."""

import pyarrow as pa

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
