"""Rows that a user appends to a lake table, against its columns."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tallystick.lake.dual_writes.rows import read_rows, to_all_columns, to_table_types
from tallystick.lake.errors import SchemaDiffers
from tallystick.lake.schema import TableDefinition

NOW = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)
LOCAL = NOW.replace(tzinfo=None)
TABLE = TableDefinition(
    identity="t",
    schema=pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("rate", pa.float32()),
            pa.field("name", pa.string()),
            pa.field("raw", pa.binary()),
            pa.field("paid", pa.bool_()),
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("local", pa.timestamp("us")),
            pa.field("tags", pa.list_(pa.field("element", pa.int32()))),
            pa.field("place", pa.struct([("x", pa.float64()), ("floor", pa.int16())])),
            pa.field("words", pa.map_(pa.string(), pa.int64())),
        ]
    ),
)


def convert(rows: object, table: TableDefinition = TABLE, *, merge_schema: bool = False) -> pa.Table:
    return to_table_types(read_rows(rows, table), table, merge_schema=merge_schema)


def test_python_values_get_the_types_of_the_table() -> None:
    row: dict[str, Any] = {
        "id": 7,
        "price": Decimal("1.5"),
        "rate": 0.5,
        "name": "tea",
        "raw": b"\xff",
        "paid": True,
        "day": date(2026, 11, 26),
        "at": NOW.astimezone(timezone(timedelta(hours=2))),
        "local": LOCAL,
        "tags": [1, 2],
        "place": {"x": 1},
        "words": [("a", 1)],
    }
    table = convert([row, {"id": None}])
    assert table.schema.types == TABLE.schema.types
    first, second = table.to_pylist()
    assert first == row | {"price": Decimal("1.50"), "at": NOW, "place": {"x": 1.0, "floor": None}}
    assert second == dict.fromkeys(row)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": 1.0}, "column id is double in the rows and int32 in the table"),
        ({"id": "1"}, "column id is string in the rows"),
        ({"id": True}, "column id is bool in the rows"),
        ({"id": 2**40}, "column id: its values are not of int32"),
        ({"price": Decimal("1.234")}, "column price: its values are not of decimal"),
        ({"price": 1.5}, "column price: its values are not of decimal"),
        ({"rate": True}, "column rate is bool"),
        ({"name": b"tea"}, "column name is binary"),
        ({"raw": "tea"}, "column raw is string"),
        ({"paid": 1}, "column paid is int64"),
        ({"day": NOW}, "column day is timestamp"),
        ({"day": 5}, "column day is int64"),
        ({"at": LOCAL}, "column at is timestamp"),
        ({"local": NOW}, "column local is timestamp"),
        ({"at": 5}, "column at is int64"),
        ({"tags": [1.5]}, "column tags is list<"),
        ({"place": {"y": 1}}, "column place is struct<y"),
        ({"words": {"a": "b"}}, "column words: its values are not of map"),
        ({"ID": 1}, "names differ only in case"),
        ({"tip": 1}, "has no column tip"),
    ],
)
def test_python_values_are_neither_rounded_nor_cut_nor_parsed(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaDiffers) as refused:
        convert([row])
    assert problem in str(refused.value)


def test_values_of_several_types_are_told() -> None:
    with pytest.raises(SchemaDiffers, match="column tip: its values are not of one type"):
        convert([{"tip": 1}, {"tip": "a lot"}], merge_schema=True)


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"id": pa.array([1], pa.int8()), "name": pa.array(["tea"], pa.large_string())}),
        pa.record_batch({"id": pa.array([1], pa.int32()), "name": ["tea"]}),
        pd.DataFrame({"id": pd.array([1], dtype="int16"), "name": ["tea"]}),
    ],
    ids=["table", "batch", "pandas"],
)
def test_typed_rows_are_widened(rows: object) -> None:
    table = convert(rows)
    assert table.schema.types == [pa.int32(), pa.string()]
    assert table.to_pylist() == [{"id": 1, "name": "tea"}]


def test_what_exports_an_arrow_stream_is_taken() -> None:
    class Exporter:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"id": pa.array([1], pa.int32())}).__arrow_c_stream__(requested_schema)

    assert convert(Exporter()).to_pylist() == [{"id": 1}]


def test_no_rows_are_no_problem() -> None:
    table = TableDefinition(identity="t", schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    assert convert([], table).num_rows == 0


@pytest.mark.parametrize("rows", [{"id": 1}, [1], "id", "", None, pd.Series([1])], ids=repr)
def test_anything_else_is_no_rows(rows: object) -> None:
    with pytest.raises(TypeError, match="Nothing of it was taken"):
        read_rows(rows, TABLE)


def test_keys_of_rows_are_text() -> None:
    with pytest.raises(TypeError, match="names of columns"):
        read_rows([{1: 2}], TABLE)


def test_a_frame_is_taken_by_value() -> None:
    """The rows are kept until the block ends; what the frame becomes meanwhile is its owner's affair."""
    frame = pd.DataFrame({"id": pd.array([1, 2], dtype="int32")})
    table = read_rows(frame, TABLE)
    frame.loc[:, "id"] = 99
    assert table["id"].to_pylist() == [1, 2]


def test_the_index_of_a_frame_is_no_column() -> None:
    """One without a name numbers the rows, as a filter leaves it; one with a name has something to say."""
    frame = pd.DataFrame({"id": pd.array([1, 2, 3], dtype="int32")})
    assert read_rows(frame[frame["id"] > 1], TABLE).to_pylist() == [{"id": 2}, {"id": 3}]
    with pytest.raises(SchemaDiffers, match="index id would be lost"):
        read_rows(frame.set_index("id"), TABLE)


def test_typed_values_that_do_not_fit_are_told() -> None:
    with pytest.raises(SchemaDiffers, match="column id is double"):
        convert(pa.table({"id": [1.0]}))
    rounded = pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})
    with pytest.raises(SchemaDiffers, match="column at has a value that is no timestamp"):
        convert(rounded)
    with pytest.raises(SchemaDiffers, match="column id is there 2 times"):
        convert(pa.table([pa.array([1], pa.int32())] * 2, names=["id", "id"]))


def test_nulls_where_none_may_be_are_told_by_the_append() -> None:
    table = TableDefinition(
        identity="t",
        schema=pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string())]),
        partition_columns=("day",),
    )
    assert convert([{"id": 1}], table).to_pylist() == [{"id": 1}]
    with pytest.raises(SchemaDiffers, match="id may not be null, and is in 1 rows"):
        convert([{"id": 1}, {"id": None}], table)
    with pytest.raises(SchemaDiffers, match="id may not be null, and is not written"):
        convert([{"day": "mon"}], table)
    with pytest.raises(SchemaDiffers, match="day is an empty text"):
        convert([{"id": 1, "day": ""}], table)


def test_new_columns_have_types_that_are_read_back() -> None:
    new = convert([{"tip": 1, "when": NOW.astimezone(timezone(timedelta(hours=2)))}], merge_schema=True)
    assert new.schema.types == [pa.int64(), pa.timestamp("us", "UTC")]
    for kind in (pa.uint32(), pa.timestamp("ns"), pa.list_(pa.uint8()), pa.map_(pa.string(), pa.float16())):
        with pytest.raises(SchemaDiffers, match="new column tip is"):
            convert(pa.table({"tip": pa.array([None], kind)}), merge_schema=True)
    with pytest.raises(SchemaDiffers, match="no type to be added with"):
        convert([{"tip": None}], merge_schema=True)


def test_all_columns_in_the_order_of_the_table() -> None:
    rows = to_all_columns(pa.table({"name": ["tea"], "id": pa.array([1], pa.int32())}), TABLE)
    assert rows.schema == TABLE.schema
    assert rows.to_pylist() == [dict.fromkeys(TABLE.schema.names) | {"id": 1, "name": "tea"}]


@pytest.mark.parametrize(
    "wrap", [lambda batch: batch, lambda batch: pa.Table.from_batches([batch]), pa.table]
)
def test_arrow_data_over_a_buffer_that_is_filled_again_keeps_its_values(wrap: Any) -> None:
    ids = np.array([1, 2], dtype="int32")
    batch = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(ids)])], ["id"]
    )
    rows = convert(wrap(batch))
    ids[:] = 9
    assert rows["id"].to_pylist() == [1, 2]
