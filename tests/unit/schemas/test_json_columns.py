"""JSON with schemas to and from Arrow columns."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from tallystick.schemas.columns import (
    build_decoder,
    build_encoder,
    build_schema_text,
    find_record_name,
    find_writing_problems,
)
from tallystick.schemas.model import ColumnFormat, ResolvedSchema, SchemaError, UnknownSchema

ORDER: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "cents": {"type": ["null", "integer"]},
        "rate": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "paid": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "at": {"$ref": "#/$defs/At"},
        "more": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "$defs": {"At": {"properties": {"x": {"type": "integer"}}}},
}
TYPE = (
    "struct<id: string, cents: int64, rate: double, paid: bool, tags: list<element: string>, "
    "at: struct<x: int64>, more: map<string, int64>>"
)
ROW = {
    "id": "a",
    "cents": 1,
    "rate": 0.5,
    "paid": True,
    "tags": ["a"],
    "at": {"x": 7},
    "more": [("k", 2)],
}


def schema(document: object, schema_id: int | None = 1) -> ResolvedSchema:
    return ResolvedSchema(json.dumps(document), schema_id, format=ColumnFormat.JSON)


def decode(column: list[bytes | None], reader: object = ORDER) -> tuple[list[Any], Mapping[int, str]]:
    def find(schema_id: int) -> ResolvedSchema:
        if schema_id == 2:
            return ResolvedSchema('"string"', 2)
        if schema_id != 1:
            raise UnknownSchema("none")
        return schema(ORDER)

    decoded = build_decoder(schema(reader), find).decode(pa.array(column, pa.binary()))
    return decoded.array.to_pylist(), decoded.failures


def test_columns_are_those_of_the_readers_schema_and_rows_go_round() -> None:
    decoder = build_decoder(schema(ORDER), lambda _: schema(ORDER))
    assert str(decoder.type) == TYPE
    column = pa.array([ROW, None], decoder.type)
    data = build_encoder(schema(ORDER)).encode(column)
    assert json.loads(data[0].as_py()[5:]) == {**ROW, "more": {"k": 2}}
    assert decoder.decode(data).array.to_pylist() == [ROW, None]


def test_missing_properties_are_null_and_others_are_skipped() -> None:
    rows, failures = decode([b'\0\0\0\0\1{"id": "a", "other": 1}'])
    assert rows == [{**dict.fromkeys(ROW), "id": "a"}]
    assert failures == {}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"id": "a"}', "no schema id"),
        (b'\0\0\0\0\1{"id": ', "schema 1: DecodeError"),
        (b'\0\0\0\0\1{"id": 7}', "Expected `str | null`, got `int` - at `$.id`"),
        (b'\0\0\0\0\1{"cents": 1.5}', "Expected `int | null`, got `float`"),
        (b'\0\0\0\0\1{"paid": 1}', "Expected `bool | null`"),
        (b'\0\0\0\0\1{"at": {"x": "1"}}', "at `$.at.x`"),
        (b'\0\0\0\0\1{"more": {"k": "1"}}', "at `$.more[...]`"),
        (b'\0\0\0\0\1{"cents": 99999999999999999999}', ""),
        (b"\0\0\0\0\1[]", "Expected `object | null`, got `array`"),
        (b'\0\0\0\0\2{"id": "a"}', "schema 2: it is of format avro, and not json"),
        (b'\0\0\0\0\x09{"id": "a"}', "schema 9: none"),
    ],
)
def test_what_cannot_be_decoded_has_a_reason(data: bytes, why: str) -> None:
    rows, failures = decode([data, b'\0\0\0\0\1{"id": "b"}'])
    assert rows[0] is None
    assert rows[1]["id"] == "b"
    assert list(failures) == [0]
    assert why in failures[0]


@pytest.mark.parametrize(
    "document",
    [
        {},
        True,
        {"type": ["string", "integer"]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object"},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
    ],
)
def test_schemas_that_no_column_can_hold_are_refused(document: object) -> None:
    with pytest.raises(SchemaError):
        build_decoder(schema(document), lambda _: schema(ORDER))


def test_columns_are_compared_before_a_row_is_written() -> None:
    fitting = pa.struct([("id", pa.string()), ("cents", pa.int32()), ("rate", pa.int32())])
    assert find_writing_problems(schema(ORDER), fitting, "value") == []
    inner = pa.struct([("y", pa.int32())])
    wrong = pa.struct([("id", pa.timestamp("us", "UTC")), ("at", inner), ("tags", pa.list_(pa.int32()))])
    assert find_writing_problems(schema(ORDER), wrong, "value") == [
        "value.id: is timestamp[us, tz=UTC], and the schema has string",
        "value.at.y: the schema has no such property",
        "value.tags[]: is int32, and the schema has string",
    ]


def test_nulls_are_left_out_and_numbers_that_json_does_not_have_are_null() -> None:
    column = pa.array([{"id": "a", "cents": None}], pa.struct([("id", pa.string()), ("cents", pa.int64())]))
    assert build_encoder(schema(ORDER)).encode(column).to_pylist() == [b'\0\0\0\0\1{"id":"a"}']
    numbers = pa.array([float("nan"), 0.5])
    assert build_encoder(schema({"type": "number"})).encode(numbers).to_pylist() == [
        b"\0\0\0\0\1null",
        b"\0\0\0\0\x010.5",
    ]


def test_a_schema_is_made_of_columns_and_takes_them() -> None:
    column_type = build_decoder(schema(ORDER), lambda _: schema(ORDER)).type
    made = ResolvedSchema(
        build_schema_text(ColumnFormat.JSON, column_type, "Order"), 1, format=ColumnFormat.JSON
    )
    assert find_writing_problems(made, column_type, "value") == []
    assert build_decoder(made, lambda _: made).type == column_type
    assert find_record_name(made) == "Order"
    with pytest.raises(SchemaError, match="cast it"):
        build_schema_text(ColumnFormat.JSON, pa.date32(), "x")
