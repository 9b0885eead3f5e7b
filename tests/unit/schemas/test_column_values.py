"""Values of each type in each format: read back by another library as they were, or refused."""

import datetime as dt
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import message_factory

from tallystick.schemas.avro import AvroDecoder, AvroEncoder
from tallystick.schemas.avro import find_column_problems as find_avro_problems
from tallystick.schemas.column_codec import RowRefused
from tallystick.schemas.json_schema import JsonDecoder, JsonEncoder, find_json_problems
from tallystick.schemas.model import ColumnFormat, ResolvedSchema, SchemaError
from tallystick.schemas.protobuf import ProtobufEncoder, find_protobuf_problems
from tallystick.schemas.protobuf_schema import ProtobufSchema
from tallystick.testing.proto_files import compile_proto

UTC: Final = pa.timestamp("us", "UTC")
LOCAL: Final = pa.timestamp("us")
MOMENT: Final = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
PLANNED, REFUSED = "before the batch", "with its row"
NAN, INFINITY = float("nan"), float("inf")


def named(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return named("bytes", logicalType="decimal", precision=precision, scale=scale)


FLAG: Final = [{"name": "b", "type": "boolean"}]
# Column type, its values, the schema's type, and what a reader has: the same values, others, or a refusal.
Cell = tuple[pa.DataType, Sequence[Any], Any, Any]
AVRO: Final[list[Cell]] = [
    (pa.bool_(), [True, False], "boolean", None),
    *(
        (kind, [None, value], schema, REFUSED)
        for kind, value, schema in (
            (pa.bool_(), True, "boolean"),
            (pa.int32(), 1, "int"),
            (pa.int64(), 1, "long"),
            (pa.float32(), 1.0, "float"),
            (pa.float64(), 1.0, "double"),
            (pa.string(), "", "string"),
            (pa.binary(), b"", "bytes"),
            (pa.date32(), MOMENT.date(), named("int", logicalType="date")),
            (UTC, MOMENT, named("long", logicalType="timestamp-micros")),
            (pa.decimal128(5, 2), Decimal("1.25"), decimal(5, 2)),
            (pa.string(), "a", named("enum", name="E", symbols=["a"])),
            (pa.list_(pa.bool_()), [True], named("array", items="boolean")),
        )
    ),
    (pa.list_(pa.bool_()), [[True, None]], named("array", items="boolean"), REFUSED),
    (pa.list_(pa.bool_()), [[True, None], []], named("array", items=["null", "boolean"]), None),
    (pa.map_(pa.string(), pa.bool_()), [[("a", None)]], named("map", values="boolean"), REFUSED),
    (
        pa.struct([("b", pa.bool_())]),
        [{"b": None}],
        named("record", name="S", fields=FLAG),
        REFUSED,
    ),
    (
        pa.struct([("b", pa.bool_())]),
        [None, {"b": True}],
        ["null", named("record", name="S", fields=FLAG)],
        None,
    ),
    (pa.int64(), [-(2**31), 2**31 - 1], "int", None),
    (pa.int64(), [2**31], "int", REFUSED),
    (pa.int64(), [-(2**63), 2**63 - 1], "long", None),
    (pa.int64(), [2**53], "double", [2.0**53]),
    (pa.int64(), [2**53 + 1], "double", REFUSED),
    (pa.int32(), [2**24 + 1], "float", REFUSED),
    (pa.float64(), [1e300], "float", PLANNED),
    (pa.float64(), [1.5], "long", PLANNED),
    (pa.float32(), [1.5, INFINITY, -0.0, NAN], "double", None),
    (pa.float32(), [0.10000000149011612], "float", None),
    (pa.decimal128(10, 4), [Decimal("1.2500")], decimal(10, 2), [Decimal("1.25")]),
    (pa.decimal128(10, 4), [Decimal("1.2345")], decimal(10, 2), REFUSED),
    (pa.decimal128(10, 2), [Decimal("12345678.25")], decimal(5, 2), REFUSED),
    (pa.string(), ["", "a\0b", "\U0001f600"], "string", None),
    (pa.string(), ["b"], named("enum", name="E", symbols=["a"]), REFUSED),
    (pa.binary(), [b"ab"], named("fixed", name="F", size=4), REFUSED),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], named("int", logicalType="date"), None),
    (UTC, [MOMENT], named("long", logicalType="timestamp-millis"), None),
    (UTC, [MOMENT], named("long", logicalType="local-timestamp-micros"), PLANNED),
    (LOCAL, [MOMENT.replace(tzinfo=None)], named("long", logicalType="local-timestamp-micros"), None),
    (LOCAL, [MOMENT.replace(tzinfo=None)], named("long", logicalType="timestamp-micros"), PLANNED),
    (pa.timestamp("us", "UTC"), [10**18], named("long", logicalType="timestamp-nanos"), REFUSED),
]
PROTOBUF: Final[list[Cell]] = [
    *(
        (kind, [None], schema, REFUSED)
        for kind, schema in (
            (pa.bool_(), "bool"),
            (pa.int64(), "int64"),
            (pa.float64(), "double"),
            (pa.string(), "string"),
            (pa.list_(pa.bool_()), "repeated bool"),
            (pa.map_(pa.string(), pa.bool_()), "map<string, bool>"),
        )
    ),
    (pa.bool_(), [True, False], "optional bool", None),
    (pa.list_(pa.bool_()), [[True, None]], "repeated bool", REFUSED),
    (pa.map_(pa.string(), pa.bool_()), [[("a", None)]], "map<string, bool>", REFUSED),
    (pa.int64(), [-(2**31), 2**31 - 1], "int32", None),
    (pa.int64(), [2**31], "int32", REFUSED),
    (pa.int64(), [-1], "uint64", REFUSED),
    (pa.int64(), [-1], "uint32", REFUSED),
    (pa.int64(), [2**53 + 1], "double", REFUSED),
    (pa.float64(), [1e300, NAN], "float", PLANNED),
    (pa.float64(), [1.5], "int64", PLANNED),
    (pa.float32(), [0.10000000149011612, INFINITY], "float", None),
    (pa.string(), ["", "a\0b", "\U0001f600"], "string", None),
    (pa.string(), ["a"], "bytes", PLANNED),
    (UTC, [MOMENT], "google.protobuf.Timestamp", [(-1, 999_000_000)]),
    (LOCAL, [MOMENT.replace(tzinfo=None)], "google.protobuf.Timestamp", PLANNED),
    (pa.decimal128(20, 0), [Decimal(2**64 - 1)], "uint64", [2**64 - 1]),
    (pa.decimal128(38, 0), [Decimal(2**64)], "uint64", REFUSED),
]
JSON: Final[list[Cell]] = [
    (pa.bool_(), [True, False], "boolean", None),
    (pa.int64(), [-(2**63), 2**63 - 1], "integer", None),
    (pa.int64(), [2**53 + 1], "number", None),
    (pa.float64(), [0.1, 1e300, -0.0], "number", None),
    (pa.float64(), [NAN, INFINITY], "number", [None, None]),
    (pa.float64(), [1.5], "integer", PLANNED),
    (pa.string(), ["", "a\0b", "\U0001f600"], "string", None),
    (pa.binary(), [b"a"], "string", PLANNED),
    (UTC, [MOMENT], "string", PLANNED),
    (pa.decimal128(5, 2), [Decimal("1.25")], "number", PLANNED),
]


def name_cell(cell: Any) -> str:
    kind, values, schema, _ = cell
    return f"{kind} {str(values)[:30]} as {str(schema)[:40]}"


def make_column(cell: Cell) -> pa.Array:
    kind, values, _, _ = cell
    return pa.StructArray.from_arrays([pa.array(values, kind)], names=["f"])


def write(cell: Cell, encoder: Any, problems: list[str]) -> Any:
    """Return the bytes of the rows, or how they were refused; always with the column's name."""
    column = make_column(cell)
    if problems:
        assert "value.f" in problems[0]
        return PLANNED
    try:
        return encoder.encode(column).to_pylist()
    except SchemaError as exc:
        return REFUSED if isinstance(exc, RowRefused) or "f: a column of" in str(exc) else str(exc)


def check(cell: Cell, found: Any) -> None:
    """Compare as text, in which NaN is equal to itself."""
    expected = cell[1] if cell[3] is None else cell[3]
    expected = (
        [dict(each) if _is_pairs(each) else each for each in expected]
        if isinstance(expected, list)
        else expected
    )
    assert repr(found) == repr(expected)


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], tuple)


@pytest.mark.parametrize("cell", AVRO, ids=name_cell)
def test_avro_values_are_the_same_for_fastavro_or_refused(cell: Cell) -> None:
    schema = named("record", name="R", fields=[{"name": "f", "type": cell[2]}])
    resolved = ResolvedSchema(json.dumps(schema), 1)
    problems = find_avro_problems(resolved, make_column(cell).type, "value")
    records = write(cell, AvroEncoder(resolved), problems)
    if isinstance(records, list):
        parsed = fastavro.parse_schema(schema)
        records = [fastavro.schemaless_reader(io.BytesIO(each[5:]), parsed)["f"] for each in records]
    check(cell, records)


@pytest.mark.parametrize("cell", PROTOBUF, ids=name_cell)
@pytest.mark.slow
def test_protobuf_values_are_the_same_for_protobuf_or_refused(cell: Cell) -> None:
    text = f'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message R {{ {cell[2]} f = 1; }}'
    resolved = ResolvedSchema(compile_proto(text, {}), 1, format=ColumnFormat.PROTOBUF)
    problems = find_protobuf_problems(resolved, make_column(cell).type, "value")
    records = write(cell, ProtobufEncoder(resolved), problems)
    if isinstance(records, list):
        read = message_factory.GetMessageClass(ProtobufSchema(resolved).find_descriptor(None)).FromString
        records = [_read_message(read(each[6:]).f) for each in records]
    check(cell, records)


def _read_message(value: Any) -> Any:
    return (value.seconds, value.nanos) if hasattr(value, "seconds") else value


@pytest.mark.parametrize("cell", JSON, ids=name_cell)
def test_json_values_are_the_same_for_python_or_refused(cell: Cell) -> None:
    schema = {"type": "object", "properties": {"f": {"type": cell[2]}}}
    resolved = ResolvedSchema(json.dumps(schema), 1, format=ColumnFormat.JSON)
    problems = find_json_problems(resolved, make_column(cell).type, "value")
    records = write(cell, JsonEncoder(resolved), problems)
    if isinstance(records, list):
        records = [json.loads(each[5:]).get("f") for each in records]
    check(cell, records)


# ---------------------------------------------------------------------------------------- reading


TIMES: Final = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")


def time_schema(logical_type: str | None, shape: str) -> dict[str, Any]:
    time: Any = named("long", **({"logicalType": logical_type} if logical_type else {}))
    shaped = {
        "plain": time,
        "null": ["null", time],
        "array": named("array", items=time),
        "map": named("map", values=time),
    }
    return named("record", name="R", fields=[{"name": "f", "type": shaped[shape]}])


@pytest.mark.parametrize("shape", ["plain", "null", "array", "map"])
@pytest.mark.parametrize("reader", TIMES)
@pytest.mark.parametrize("writer", [*TIMES, "timestamp-nanos"])
def test_a_time_is_the_same_in_any_unit_or_refused(writer: str, reader: str, shape: str) -> None:
    """Avro's resolution takes the number as it is; the schemas of a subject may change the unit."""
    local = MOMENT.replace(tzinfo=None)
    value: Any = local if writer.startswith("local") else MOMENT
    if writer == "timestamp-nanos":
        value = -1_000_000
    data: Any = {"array": [value], "map": {"k": value}}.get(shape, value)
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(time_schema(writer, shape)), {"f": data})
    schemas = {1: ResolvedSchema(json.dumps(time_schema(writer, shape)), 1)}
    decoder = AvroDecoder(ResolvedSchema(json.dumps(time_schema(reader, shape))), schemas.__getitem__)
    decoded = decoder.decode(pa.array([b"\0\0\0\0\1" + file.getvalue()], pa.binary()))
    column, failures = decoded.array, decoded.failures
    if writer.startswith("local") == reader.startswith("local") and writer != "timestamp-nanos":
        assert not failures
        expected: Any = {"array": [value], "map": [("k", value)]}.get(shape, value)
        assert column.to_pylist() == [{"f": expected}]
    else:
        assert writer in failures[0]
        assert reader in failures[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5.0", 5), ("1e2", 100), ("9007199254740991.0", 2**53 - 1),
        ("-0.0", 0), ("[1, 2.0]", None), ("5.5", None), ('"5"', None), ("true", None),
        ("9007199254740993.0", None), ("9223372036854775807", 2**63 - 1), ("1e300", None),
    ],
)  # fmt: skip
def test_a_number_without_a_fraction_is_an_integer_of_json_schema(text: str, value: int | None) -> None:
    schema = {
        "type": "object",
        "properties": {"f": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}}},
    }
    resolved = ResolvedSchema(json.dumps(schema), 1, format=ColumnFormat.JSON)
    decoder = JsonDecoder(resolved, {1: resolved}.__getitem__)
    data = f'{{"f": {text}, "l": [2.0, 3]}}'.encode()
    decoded = decoder.decode(pa.array([b"\0\0\0\0\1" + data], pa.binary()))
    assert decoded.array.to_pylist() == [None if value is None else {"f": value, "l": [2, 3]}]
    assert bool(decoded.failures) == (value is None)
