"""Columns of a batch against those of a table."""

import pyarrow as pa
import pytest

from tallystick.kernel.value import replace
from tallystick.lake.schema import (
    TableDefinition,
    accepts_files,
    find_added_columns,
    find_column_problems,
    is_same_definition,
)

TABLE = TableDefinition(
    identity="t",
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("tags", pa.list_(pa.field("element", pa.string()))),
            pa.field("place", pa.struct([("x", pa.float64())])),
        ]
    ),
)


def problems(
    *columns: tuple[str, pa.DataType], merge_schema: bool = False, table: TableDefinition = TABLE
) -> str:
    return "\n".join(find_column_problems(table, pa.schema(list(columns)), merge_schema=merge_schema))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id", pa.int32()),
        ("name", pa.large_string()),
        ("name", pa.null()),
        ("at", pa.timestamp("us", "Europe/Vienna")),
        ("price", pa.decimal128(8, 2)),
        ("tags", pa.list_(pa.field("item", pa.string(), nullable=False))),
        ("place", pa.struct([("x", pa.float32())])),
    ],
)
def test_types_that_are_stored_without_loss(name: str, kind: pa.DataType) -> None:
    columns = {"id": pa.int64(), name: kind}
    assert problems(*columns.items()) == ""


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        (
            "name",
            pa.int64(),
            "column name is bigint in the batch and string in the table; write cast(",
        ),
        ("id", pa.float64(), "column id is double"),
        ("at", pa.timestamp("us"), "column at is timestamp_ntz in the batch and timestamp in the table"),
        ("price", pa.decimal128(10, 3), "column price is decimal128(10, 3)"),
        ("price", pa.decimal128(12, 2), "column price is decimal128(12, 2)"),
        ("tags", pa.list_(pa.int64()), "column tags is list<item: int64>"),
        ("place", pa.struct([("y", pa.float64())]), "column place is struct<y: double>"),
        (
            "more",
            pa.string(),
            "has no column more; it has id, name, at, price, tags, place. merge_sch",
        ),
        ("ID", pa.int64(), "column ID: the table has id, and names differ only in case"),
    ],
)
def test_what_is_refused_and_why(name: str, kind: pa.DataType, text: str) -> None:
    columns = {"id": pa.int64(), name: kind}
    assert text in problems(*columns.items())


def test_a_column_that_takes_no_null_must_be_written() -> None:
    assert problems(("name", pa.string())) == "column id may not be null, and is not written"


def test_columns_that_are_added_take_nulls() -> None:
    more = pa.field("more", pa.int32(), nullable=False)
    assert problems(("id", pa.int64()), ("more", pa.int32()), merge_schema=True) == ""
    assert find_added_columns(TABLE, pa.schema([("id", pa.int64()), more])) == pa.schema(
        [("more", pa.int32())]
    )
    assert "has no type to be added with" in problems(("id", pa.int64()), ("n", pa.null()), merge_schema=True)


@pytest.mark.parametrize(("kind", "fits"), [(pa.string(), True), (pa.date32(), True), (pa.float64(), False)])
def test_types_of_partition_columns(kind: pa.DataType, fits: bool) -> None:
    table = TableDefinition(identity="t", schema=pa.schema([("p", kind)]), partition_columns=("p",))
    assert (problems(("p", kind), table=table) == "") == fits


def test_files_are_committed_only_to_the_definition_that_they_were_written_for() -> None:
    assert is_same_definition(TABLE, TABLE)
    for other in (
        replace(TABLE, identity="u"),
        replace(TABLE, partition_columns=("id",)),
        replace(TABLE, schema=pa.schema([("id", pa.int64())])),
        replace(TABLE, problems=("has a constraint",)),
    ):
        assert not is_same_definition(TABLE, other)


def test_files_fit_a_table_that_has_more_columns_since() -> None:
    """Readers see nulls there. Nothing else may differ, not even a column that takes no null any more."""
    fields = list(TABLE.schema)
    more = replace(TABLE, schema=pa.schema([*fields, ("more", pa.int32())]))
    assert accepts_files(TABLE, TABLE)
    assert accepts_files(TABLE, more)
    for other in (
        replace(TABLE, identity="u"),
        replace(TABLE, partition_columns=("id",)),
        replace(TABLE, schema=pa.schema(fields[:-1])),
        replace(TABLE, schema=pa.schema([*fields[1:], ("id", pa.int64())])),
        replace(TABLE, schema=pa.schema([*fields, pa.field("more", pa.int32(), nullable=False)])),
        replace(more, problems=("has a constraint",)),
    ):
        assert not accepts_files(TABLE, other)
