"""Rows of `format("tallystick")` with a table: their hashes, and the columns of structs for the tasks."""

import datetime as dt
import math
from decimal import Decimal
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import parse_sink_options
from tallystick.spark.options.sinks import ToTable, ToTopic
from tallystick.spark.sink.driver.columns import parse_checked_options
from tallystick.spark.sink.task.combined_attempt import HASH_COLUMN
from tallystick.spark.sink.task.row_checksum import checksum_columns, hash_rows
from tallystick.spark.sink.task.table_rows import split_rows

OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "transactional.id.prefix": "p"}
TABLE = {**OPTIONS, "table": "delta:/lake/delays"}
ROWS = StructType([StructField("id", StringType()), StructField("batch", IntegerType())])
RECORDS = StructType([StructField("value", StringType()), StructField("row", ROWS)])


def test_a_data_source_has_no_catalog_to_ask() -> None:
    with pytest.raises(BadConfig, match=r"delta:sales\.delays: is a name in Spark's catalog"):
        parse_sink_options({**TABLE, "table": "delta:sales.delays"}, QueryType.STREAM)


# ------------------------------------------------------------------------------------------------ hashes


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [0, 1, -1, 2**31 - 1]),
        (pa.bool_(), [True, False]),
        (pa.float64(), [0.0, 1.0, -1.0, math.inf, math.nan]),
        (pa.string(), ["", "a", "b", "ab"]),
        (pa.binary(), [b"", b"a", b"\0"]),
        (pa.date32(), [dt.date(1970, 1, 1), dt.date(1970, 1, 2)]),
        (
            pa.timestamp("us", "UTC"),
            [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 1, 1, tzinfo=dt.UTC)],
        ),
        (pa.decimal128(38, 2), [Decimal("0.00"), Decimal("0.01"), Decimal(10) ** 30]),
        (pa.list_(pa.int64()), [[], [1], [1, 2], [2, 1]]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}, {"a": None, "b": "1"}]),
        (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 2)]]),
    ],
    ids=str,
)
def test_different_values_have_different_hashes_and_equal_ones_the_same(
    kind: pa.DataType, values: list[object]
) -> None:
    """[SPK-22] Null is none of them."""
    array = pa.array([*values, None], kind)
    hashes = hash_rows([array], len(array)).tolist()
    assert len(set(hashes)) == len(array)
    assert hash_rows([array.slice(1)], len(array) - 1).tolist() == hashes[1:]


def test_inner_lists_of_none_may_come_without_offsets() -> None:
    """Arrow Java before 19 sends them so, where every outer list of a batch is empty; PySpark 4.1 has it."""
    inner = pa.list_(pa.int32())
    empty = pa.Array.from_buffers(inner, 0, [None, pa.py_buffer(b"")], children=[pa.array([], pa.int32())])
    outer = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), empty)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", outer.type)])) as stream:
        stream.write_batch(pa.record_batch({"a": outer}))
    batch = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    assert hash_rows(batch.columns, 2).tolist() == hash_rows([pa.array([[], []], outer.type)], 2).tolist()


def test_columns_are_told_apart() -> None:
    """[SPK-22]"""
    rows = [(None, 1), (1, None), (1, 1), (1, 2), (2, 1), (2, 2), (None, None)]
    columns = [pa.array(each, pa.int64()) for each in zip(*rows, strict=True)]
    hashes = hash_rows(columns, len(rows)).tolist()
    assert all(one != other for one, other in combinations(hashes, 2))


def test_a_wider_type_and_a_dictionary_are_the_same_values() -> None:
    """[SPK-22] A column may be encoded otherwise when its batch is computed again."""
    texts = pa.array(["a", None, "b", "a"])
    assert hash_rows([texts], 4).tolist() == hash_rows([texts.dictionary_encode()], 4).tolist()
    assert (
        hash_rows([pa.array([1, None], pa.int16())], 2).tolist()
        == hash_rows([pa.array([1, None])], 2).tolist()
    )
    zeros = hash_rows([pa.array([0.0, -0.0])], 2)
    assert zeros[0] == zeros[1]


def test_lists_are_told_apart_by_where_they_end_and_what_is_where() -> None:
    """[SPK-22]"""
    lists = [[], [0], [0, 0], [1, 2], [2, 1], [None], None]
    columns = [pa.array([one, other], pa.list_(pa.int64())) for one in lists for other in lists]
    pairs = {tuple(hash_rows([column], 2).tolist()) for column in columns}
    assert len(pairs) == len(columns)
    assert len({hash_rows([column], 2).tolist()[0] for column in columns}) == len(lists)


def test_values_in_lists_are_equal_whatever_zone_shows_them_and_need_not_be_text() -> None:
    """[SPK-22] The session's time zone may be another one after a restart."""
    moments = [
        [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
        [],
        [dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)],
    ]
    hashes = [
        hash_rows([pa.array(moments, pa.list_(pa.timestamp("us", zone)))], 3).tolist()
        for zone in ("UTC", "Europe/Berlin")
    ]
    assert hashes[0] == hashes[1]
    broken = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([b"\xff"]).view(pa.string()))
    assert hash_rows([broken], 1).tolist() == hash_rows([pa.array([[b"\xff"]])], 1).tolist()


def test_every_nan_is_the_same() -> None:
    """[SPK-22] Processors make one, Java another."""
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000000], np.uint64).view(np.float64)
    one, other = hash_rows([pa.array(nans, from_pandas=False)], 2).tolist()
    assert one == other


# ------------------------------------------------------------------------------------- columns of structs


def test_each_sink_gets_a_column_and_the_table_no_null() -> None:
    rows = pa.StructArray.from_arrays(
        [pa.array(["a", None, "c"]), pa.array([1, 2, None], pa.int32())],
        fields=[pa.field("id", pa.string()), pa.field("batch", pa.int32())],
        mask=pa.array([False, True, False]),
    )
    batch = pa.record_batch({"value": ["x", "y", "z"], "row": rows})
    sinks = (ToTopic(topic="t"), ToTable(table="delta:/t"))
    (split,) = split_rows([batch.slice(0, 3)], sinks)
    records, table = split.columns
    assert records.field("value").to_pylist() == ["x", "y", "z"]
    sums = int(np.add.reduce(records.field(HASH_COLUMN).to_numpy().astype(np.uint64)))
    assert sums == checksum_columns(batch.column("value")).checksum
    assert table.is_null().to_pylist() == [False, True, False]
    (later,) = split_rows([batch.slice(2)], sinks)
    assert later.column(1)[0] == table[2]


# ----------------------------------------------------------------------------------------------- options


def test_a_table_has_options_of_its_own() -> None:
    options = parse_sink_options(
        {
            **TABLE,
            "table.write": "upsert",
            "table.keys": "id, batch",
            "table.mergeSchema": "true",
            "table.storage.aws_region": "eu-central-1",
        },
        QueryType.STREAM,
    )
    assert options.table == ToTable(
        table="delta:/lake/delays",
        write="upsert",
        keys=("id", "batch"),
        merge_schema=True,
        storage_options=(("aws_region", "eu-central-1"),),
    )
    assert parse_sink_options(OPTIONS, QueryType.STREAM).table is None


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"table": "delays"}, "table: 'delays' is not the URL of a lake table"),
        ({"table": "delta:hdfs://a/b"}, "or in an object store"),
        ({**TABLE, "table.write": "upsert"}, "keys: required by an upsert"),
        ({**TABLE, "table.write": "merge"}, "must be one of append, upsert"),
        ({**TABLE, "table.mergeSchema": "yes"}, "table.mergeSchema: 'yes' is not true or false"),
        ({"table.keys": "id"}, "table.keys: has an effect with table alone"),
        ({"table.storage.aws_region": "x"}, "table.storage.aws_region: has an effect with table alone"),
        ({**TABLE, "table.keyz": "id"}, "table.keyz: unknown option; did you mean table.keys?"),
    ],
)
def test_wrong_options_of_a_table(more: dict[str, str], problem: str) -> None:
    with pytest.raises(BadConfig) as raised:
        parse_sink_options({**OPTIONS, **more}, QueryType.STREAM)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([StructField("value", StringType())], "column row: required by the option table"),
        ([StructField("row", StringType())], "column row: is string, and must be a struct"),
        ([StructField("row", ROWS), StructField("key", StringType())], "column value: required"),
    ],
)
def test_wrong_columns_of_a_table(columns: list[StructField], problem: str) -> None:
    with pytest.raises(BadConfig) as raised:
        parse_checked_options(
            {**TABLE, "topic": "t"} if len(columns) > 1 else TABLE, StructType(columns), QueryType.STREAM
        )
    assert problem in str(raised.value)


def test_rows_alone_and_rows_with_records_are_taken() -> None:
    rows = StructType([StructField("row", ROWS)])
    assert parse_checked_options(TABLE, rows, QueryType.STREAM).topic is None
    assert parse_checked_options({**TABLE, "topic": "t"}, RECORDS, QueryType.BATCH).topic == "t"
    with pytest.raises(BadConfig, match="topic: required"):
        parse_checked_options(TABLE, RECORDS, QueryType.STREAM)
