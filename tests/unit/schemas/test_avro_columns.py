"""Avro to and from Arrow columns: types, evolution, and what cannot be decoded or written."""

import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tallystick.schemas.avro import AvroDecoder, AvroEncoder, find_column_problems
from tallystick.schemas.avro_types import to_avro_schema
from tallystick.schemas.column_codec import RowRefused
from tallystick.schemas.model import (
    ColumnFormat,
    FieldFormat,
    RegistrySettings,
    RegistryUnavailable,
    ResolvedSchema,
    SchemaError,
    SubjectStrategy,
    UnknownSchema,
    find_registry_problems,
)


def record(*fields: object, name: str = "Order") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [_field(each) for each in fields]})


def _field(each: Any) -> dict[str, Any]:
    return each if isinstance(each, dict) else {"name": each[0], "type": each[1]}


ID_AND_CENTS = record(("id", "string"), ("cents", "int"))


def write(schema: str, value: object, schema_id: int = 1) -> bytes:
    file = io.BytesIO()
    file.write(b"\0" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(schema)), value)
    return file.getvalue()


def decoder(reader: str, writers: Mapping[int, str]) -> AvroDecoder:
    def find(schema_id: int) -> ResolvedSchema:
        if schema_id not in writers:
            raise UnknownSchema(f"no schema {schema_id}")
        return ResolvedSchema(writers[schema_id], schema_id)

    return AvroDecoder(ResolvedSchema(reader), find)


EVERY_TYPE = record(
    ("flag", "boolean"),
    ("i", "int"),
    ("l", "long"),
    ("f", "float"),
    ("d", "double"),
    ("b", "bytes"),
    ("s", ["null", "string"]),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("x", {"type": "fixed", "name": "X", "size": 2}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("us", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("tags", {"type": "array", "items": ["null", "string"]}),
    ("times", {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}),
    ("at", {"type": "record", "name": "At", "fields": [{"name": "x", "type": ["null", "int"]}]}),
    ("again", ["null", "At"]),
)
ROW = {
    "flag": True,
    "i": 1,
    "l": 2**40,
    "f": 0.5,
    "d": 0.25,
    "b": b"\1",
    "s": None,
    "e": "B",
    "x": b"ab",
    "day": date(2026, 1, 2),
    "ms": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
    "us": datetime(2026, 1, 2, 3, 4, 5, 6007, UTC),
    "local": datetime(2026, 1, 2, 3, 4, 5, 6007),  # noqa: DTZ001 -- local is what is tested
    "price": Decimal("12.34"),
    "tags": ["a", None],
    "times": [("k", datetime(2026, 1, 2, tzinfo=UTC))],
    "at": {"x": None},
    "again": {"x": 7},
}


def test_every_type_is_decoded_as_written_and_written_back_to_the_same_bytes() -> None:
    written = {**ROW, "times": dict(ROW["times"])}  # type: ignore[call-overload]
    data = write(EVERY_TYPE, written)
    column = pa.array([data, None, data], pa.binary())
    decoded = decoder(EVERY_TYPE, {1: EVERY_TYPE}).decode(column)
    assert not decoded.failures
    assert decoded.array.to_pylist() == [ROW, None, ROW]
    assert all(each.type.unit == "us" for each in decoded.array.type if pa.types.is_timestamp(each.type))
    assert find_column_problems(ResolvedSchema(EVERY_TYPE, 1), decoded.array.type, "value") == []
    encoder = AvroEncoder(ResolvedSchema(EVERY_TYPE, 1))
    assert encoder.encode(decoded.array).to_pylist() == [data, None, data]
    assert encoder.encode(decoded.array.slice(1)).to_pylist() == [None, data]


def test_added_fields_have_their_defaults_and_removed_ones_are_skipped() -> None:
    older = record(("id", "string"), ("old", "bytes"))
    newer = record(("id", "string"), {"name": "cents", "type": "long", "default": 5})
    evolved = decoder(newer, {1: older, 2: newer, 3: ID_AND_CENTS})
    column = pa.array(
        [
            write(older, {"id": "a", "old": b"x"}, 1),
            write(newer, {"id": "b", "cents": 6}, 2),
            write(ID_AND_CENTS, {"id": "c", "cents": 7}, 3),
        ]
    )
    decoded = evolved.decode(column)
    assert [row["cents"] for row in decoded.array.to_pylist()] == [5, 6, 7]
    assert not decoded.failures


def test_a_schema_that_cannot_be_resolved_is_a_failure_of_its_records_alone() -> None:
    other = record(("id", "string"))
    decoded = decoder(ID_AND_CENTS, {1: ID_AND_CENTS, 2: other}).decode(
        pa.array([write(other, {"id": "a"}, 2), write(ID_AND_CENTS, {"id": "b", "cents": 1}, 1)])
    )
    assert [row and row["id"] for row in decoded.array.to_pylist()] == [None, "b"]
    assert "No default value for field cents" in decoded.failures[0]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no schema id: 0 bytes"),
        (b'{"id": 1}', "no schema id: 9 bytes that begin with '7b 22"),
        (b"\0\0\0\0", "no schema id"),
        (b"\0\0\0\0\x09\2a", "schema 9: no schema 9"),
        (b"\0\0\0\0\1", "schema 1: "),
        (b"\0\0\0\0\1\x02", "schema 1: "),
        (b"\0\0\0\0\1\x01aaa", "schema 1: "),
        (b"\0\0\0\0\1\x02\xff\x02", "UnicodeDecodeError"),
        (b"\0\0\0\0\1\x02a\x02more", "the record ends after 8 bytes of 12"),
    ],
)
def test_what_cannot_be_decoded_has_a_reason_and_the_rows_beside_it_are_read(data: bytes, why: str) -> None:
    good = write(ID_AND_CENTS, {"id": "b", "cents": 1})
    decoded = decoder(ID_AND_CENTS, {1: ID_AND_CENTS}).decode(pa.array([good, data, good]))
    assert [row and row["cents"] for row in decoded.array.to_pylist()] == [1, None, 1]
    assert list(decoded.failures) == [1]
    assert why in decoded.failures[1]


def test_a_time_that_no_column_holds_is_a_failure_of_its_record() -> None:
    schema = record(("t", {"type": "long", "logicalType": "timestamp-millis"}))
    far, near = write(schema, {"t": 2**62}), write(schema, {"t": 1000})
    decoded = decoder(schema, {1: schema}).decode(pa.array([far, near]))
    assert decoded.array.to_pylist() == [None, {"t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}]
    assert list(decoded.failures) == [0]


def test_an_unavailable_registry_is_no_failure_of_a_record() -> None:
    def find(schema_id: int) -> ResolvedSchema:
        raise RegistryUnavailable("down")

    with pytest.raises(RegistryUnavailable):
        AvroDecoder(ResolvedSchema(ID_AND_CENTS), find).decode(pa.array([b"\0\0\0\0\1\2a\2"]))


def test_schemas_that_refer_to_others_are_read() -> None:
    inner = record(("x", "int"), name="demo.At")
    outer = ResolvedSchema(record(("at", "demo.At"), name="demo.Order"), 1, (inner,))
    decoded = AvroDecoder(outer, lambda _: outer).decode(pa.array([b"\0\0\0\0\1\x0e"]))
    assert decoded.array.to_pylist() == [{"at": {"x": 7}}]
    assert AvroEncoder(outer).encode(decoded.array).to_pylist() == [b"\0\0\0\0\1\x0e"]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(("u", ["int", "string"])), "a union of int and string"),
        (record(("next", ["null", "Order"])), "contains itself"),
        (record(("n", {"type": "bytes", "logicalType": "decimal", "precision": 50})), "50 digits"),
        (record(("n", "nowhere")), "not a valid Avro schema"),
        ("{", "not a valid Avro schema"),
        ('{"type": "record"}', "not a valid Avro schema"),
    ],
)
def test_schemas_that_no_column_can_hold_are_refused(schema: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        decoder(schema, {})


def test_a_field_may_be_a_bare_type() -> None:
    decoded = decoder('"long"', {1: '"int"'}).decode(pa.array([b"\0\0\0\0\1\x02"]))
    assert decoded.array.to_pylist() == [1]
    assert AvroEncoder(ResolvedSchema("long", 7)).encode(decoded.array).to_pylist() == [b"\0\0\0\0\7\x02"]


def test_a_row_that_does_not_fit_is_refused_by_its_place() -> None:
    column = pa.array([{"id": "a", "cents": 1}, {"id": None, "cents": 2}])
    with pytest.raises(RowRefused, match="row 1 of the column"):
        AvroEncoder(ResolvedSchema(ID_AND_CENTS, 1)).encode(column)
    with pytest.raises(SchemaError, match="int64 does not fit int32"):
        AvroEncoder(ResolvedSchema(ID_AND_CENTS, 1)).encode(pa.array([{"id": "a", "cents": 2**40}]))


def test_columns_are_compared_with_the_schema_before_a_row_is_written() -> None:
    at_fields = [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}]
    at = {"type": "record", "name": "At", "fields": at_fields}
    schema = ResolvedSchema(record(("id", "string"), ("cents", "int"), ("at", at)), 1)
    inner = pa.struct([("x", pa.int32())])
    fitting = pa.struct([("id", pa.string()), ("cents", pa.int64()), ("at", inner)])
    assert find_column_problems(schema, fitting, "value") == []
    wrong = pa.struct([("id", pa.int32()), ("more", pa.string()), ("at", pa.struct([("y", pa.int32())]))])
    assert find_column_problems(schema, wrong, "value") == [
        "value.id: is int32, and the schema has string",
        "value.more: the schema has no such field, and it would be lost",
        "value.at.x: the schema has this field without a default, and the column has not",
        "value.cents: the schema has this field without a default, and the column has not",
    ]
    assert find_column_problems(schema, pa.string(), "value") != []
    times = pa.struct([("cents", pa.timestamp("us", "UTC")), ("id", pa.string()), ("at", inner)])
    problems = find_column_problems(schema, times, "value")
    assert problems == ["value.cents: is timestamp[us, tz=UTC], and the schema has int32"]
    whole = pa.struct([("at", inner), ("again", pa.struct([("z", pa.int32())]))])
    twice = ResolvedSchema(record(("at", at), ("again", ["null", "At"])), 1)
    assert find_column_problems(twice, whole, "key")[0].startswith(
        "key.again.z: the schema has no such field"
    )


def test_what_is_inside_arrays_and_maps_is_compared_too() -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "x", "type": "int"}]}
    items, prices = {"type": "array", "items": ["null", item]}, {"type": "map", "values": "double"}
    schema = ResolvedSchema(record(("items", items), ("prices", ["null", prices])), 1)
    inner = pa.struct([("x", pa.int64())])
    prices_type = pa.map_(pa.string(), pa.int32())
    fitting = pa.struct([("items", pa.list_(inner)), ("prices", prices_type)])
    assert find_column_problems(schema, fitting, "value") == []
    row = {"items": [{"x": 1}, None], "prices": {"a": 2}}
    data = AvroEncoder(schema).encode(pa.array([row], fitting))
    decoded = AvroDecoder(schema, lambda _: schema).decode(data).array.to_pylist()
    assert decoded == [{"items": [{"x": 1}, None], "prices": [("a", 2.0)]}]
    wrong_item = pa.struct([("y", pa.int64())])
    wrong = pa.struct([("items", pa.list_(wrong_item)), ("prices", pa.map_(pa.string(), pa.string()))])
    assert find_column_problems(schema, wrong, "value") == [
        "value.items[].y: the schema has no such field, and it would be lost",
        "value.items[].x: the schema has this field without a default, and the column has not",
        "value.prices[]: is string, and the schema has double",
    ]


def test_a_schema_is_made_of_columns_and_takes_them() -> None:
    decoded = decoder(EVERY_TYPE, {1: EVERY_TYPE}).decode(
        pa.array([write(EVERY_TYPE, {**ROW, "times": dict(ROW["times"])})])  # type: ignore[call-overload]
    )
    made = ResolvedSchema(to_avro_schema(decoded.array.type, "orders_value"), 3)
    assert find_column_problems(made, decoded.array.type, "value") == []
    data = AvroEncoder(made).encode(decoded.array)
    assert AvroDecoder(made, lambda _: made).decode(data).array.to_pylist() == [ROW]
    with pytest.raises(SchemaError, match="Avro has no type"):
        to_avro_schema(pa.duration("s"), "x")


def test_subjects_follow_the_strategy() -> None:
    field = FieldFormat(field="value", format=ColumnFormat.AVRO)
    assert field.find_subject("orders", None) == "orders-value"
    named = FieldFormat(field="key", format=ColumnFormat.AVRO, strategy=SubjectStrategy.RECORD_NAME)
    assert named.find_subject(None, "demo.Order") == "demo.Order"
    both = FieldFormat(field="key", format=ColumnFormat.AVRO, strategy=SubjectStrategy.TOPIC_RECORD_NAME)
    assert both.find_subject("orders", "demo.Order") == "orders-demo.Order"
    assert FieldFormat(field="key", subject="mine").find_subject(None, None) == "mine"
    for impossible in (field, both):
        with pytest.raises(SchemaError, match=r"\.subject: required without one topic"):
            impossible.find_subject(None, "x")
    with pytest.raises(SchemaError, match="takes the name of the record"):
        named.find_subject("orders", None)


def test_settings_of_the_registry_print_no_values() -> None:
    settings = RegistrySettings({"url": "http://u:secret@r", "basic.auth.user.info": "u:secret"})
    assert repr(settings) == "RegistrySettings(basic.auth.user.info, url)"
    assert list(find_registry_problems(settings)) == []
    assert list(find_registry_problems({})) == ["schema.registry.url: required by a format with schemas"]
    assert "must be http" in next(find_registry_problems({"url": "r:8081"}))
