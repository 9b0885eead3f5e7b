"""Protobuf messages to and from Arrow columns."""

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tallystick.schemas.column_codec import RowRefused
from tallystick.schemas.columns import (
    build_decoder,
    build_encoder,
    build_schema_text,
    find_record_name,
    find_writing_problems,
)
from tallystick.schemas.model import ColumnFormat, ResolvedSchema, SchemaError, UnknownSchema
from tallystick.schemas.protobuf_schema import ProtobufSchema, decode_path, encode_path
from tallystick.testing.proto_files import RegistryRefusal, compile_proto

ORDER = """
syntax = "proto3";
package demo;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Refund { string id = 1; message Part { int32 x = 1; } }
enum Kind { NONE = 0; GIFT = 1; }
message Point { int32 x = 1; optional int32 y = 2; }
message Order {
  string id = 1;
  optional int32 cents = 2;
  repeated Point points = 3;
  map<string, Point> by_name = 4;
  map<int32, string> by_number = 5;
  Kind kind = 6;
  google.protobuf.Timestamp at = 7;
  google.protobuf.StringValue note = 8;
  oneof paid { string card = 9; Point place = 10; }
  repeated Kind kinds = 11;
  uint64 big = 12;
  bytes from = 13;
  google.protobuf.Duration took = 14;
  double rate = 15;
  uint32 count = 16;
  google.protobuf.UInt64Value wide = 17;
}
"""
TYPE = (
    "struct<id: string, cents: int32, points: list<element: struct<x: int32, y: int32>>, "
    "by_name: map<string, struct<x: int32, y: int32>>, by_number: map<int32, string>, kind: string, "
    "at: timestamp[us, tz=UTC], note: string, card: string, place: struct<x: int32, y: int32>, "
    "kinds: list<element: string>, big: decimal128(20, 0), from: binary, took: duration[us], rate: double, "
    "count: int64, wide: decimal128(20, 0)>"
)
ROW: dict[str, Any] = {
    "id": "ä",
    "cents": 0,
    "points": [{"x": 1, "y": None}, {"x": 2, "y": 3}],
    "by_name": [("a", {"x": 5, "y": None}), ("b", {"x": 4, "y": 0})],
    "by_number": [(-1, "minus"), (7, "seven")],
    "kind": "GIFT",
    "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC),
    "note": "",
    "card": None,
    "place": {"x": 9, "y": None},
    "kinds": ["NONE", "GIFT", "8"],
    "big": Decimal(2**64 - 1),
    "from": b"\xff",
    "took": datetime.timedelta(seconds=-1, microseconds=-500_000),
    "rate": 0.5,
    "count": 2**32 - 1,
    "wide": None,
}
EMPTY: dict[str, Any] = {
    **dict.fromkeys(ROW),
    "id": "",
    "points": [],
    "by_name": [],
    "by_number": [],
    "kind": "NONE",
    "kinds": [],
    "big": Decimal(0),
    "from": b"",
    "rate": 0.0,
    "count": 0,
}


def schema(text: str = ORDER, message: str | None = "demo.Order", schema_id: int = 1) -> ResolvedSchema:
    return ResolvedSchema(compile_proto(text, {}), schema_id, format=ColumnFormat.PROTOBUF, message=message)


def decode(
    column: list[bytes | None], reader: ResolvedSchema, writer: ResolvedSchema
) -> tuple[list[Any], Mapping[int, str]]:
    def find(schema_id: int) -> ResolvedSchema:
        if schema_id == 2:
            return ResolvedSchema('"string"', 2)
        if schema_id != 1:
            raise UnknownSchema("none")
        return writer

    decoded = build_decoder(reader, find).decode(pa.array(column, pa.binary()))
    return decoded.array.to_pylist(), decoded.failures


def proto(body: str) -> ResolvedSchema:
    return schema(f'syntax = "proto3"; {body}', None)


def encode(writer: ResolvedSchema, rows: list[Any], column_type: pa.DataType | None = None) -> list[Any]:
    column_type = column_type or build_decoder(writer, lambda _: writer).type
    data: list[Any] = build_encoder(writer).encode(pa.array(rows, column_type)).to_pylist()
    return data


def test_columns_are_those_of_the_message_and_rows_go_round() -> None:
    decoder = build_decoder(schema(), lambda _: schema())
    assert str(decoder.type) == TYPE
    data = build_encoder(schema()).encode(pa.array([ROW, None], decoder.type))
    # The third message of its file: one index, 2, both as zigzag varints.
    assert data[0].as_py().startswith(b"\0\0\0\0\1\x02\x04\n\x02\xc3\xa4")
    assert decoder.decode(data).array.to_pylist() == [ROW, None]
    assert decoder.decode(data[1:]).array.to_pylist() == [None]


def test_a_field_that_knows_no_null_has_its_default() -> None:
    assert decode([b"\0\0\0\0\1\x02\x04"], schema(), schema()) == ([EMPTY], {})


@pytest.mark.parametrize(
    ("path", "data"),
    [((0,), "00"), ((1,), "02 02"), ((0, 1), "04 00 02"), ((300,), "02 d8 04"), ((0, 0), "04 00 00")],
)
def test_a_messages_place_is_an_array_of_zigzag_varints(path: tuple[int, ...], data: str) -> None:
    """Wire format: the array's length, then its indexes; the first message, [0], is a single 0."""
    assert encode_path(path).hex(" ") == data
    assert decode_path(b"x" + bytes.fromhex(data) + b"y", 1) == (path, 1 + len(bytes.fromhex(data)))


def test_messages_are_found_by_name_and_place_those_inside_others_too() -> None:
    parsed = ProtobufSchema(schema())
    assert (
        parsed.messages
        == {
            (0,): "demo.Refund",
            (0, 0): "demo.Refund.Part",
            (1,): "demo.Point",
            (2,): "demo.Order",
        }
        or parsed.messages[(0, 0)] == "demo.Refund.Part"
    )
    assert find_record_name(schema(message=None)) == "demo.Refund"
    part = schema(message="demo.Refund.Part")
    (data,) = encode(part, [{"x": 5}])
    assert data == b"\0\0\0\0\1\x04\0\0\x08\5"
    assert decode([data], part, part) == ([{"x": 5}], {})
    with pytest.raises(
        SchemaError, match=r"has no message demo\.Odrer, but demo\.Refund, demo\.Refund\.Part"
    ):
        build_decoder(schema(message="demo.Odrer"), lambda _: schema())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"plain", "no schema id"),
        (b"\0\0\0\0\1", "the record ends within its message indexes"),
        (b"\0\0\0\0\1\x02", "the record ends within its message indexes"),
        (b"\0\0\0\0\1\x01", "a path of -1 message indexes"),
        (b"\0\0\0\0\1\xfe\xff\xff\xff\x0f", "a path of 2147483647 message indexes"),
        (b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\x0f", "does not end"),
        (b"\0\0\0\0\1\0", "the record is demo.Refund, and not demo.Order"),
        (b"\0\0\0\0\1\x02\x0e", "the record is no message ((7,)), and not demo.Order"),
        (b"\0\0\0\0\1\x02\x04\x0a\x05abc", "DecodeError"),
        (b"\0\0\0\0\1\x02\x04\x0a\x01\xff", "DecodeError"),  # a string that is not UTF-8
        # A timestamp whose microseconds are more than 64 bits.
        (b"\0\0\0\0\1\x02\x04\x3a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", ""),
        (b"\0\0\0\0\2x", "schema 2: it is of format avro, and not protobuf"),
        (b"\0\0\0\0\x09x", "schema 9: none"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_decoded_has_a_reason(data: bytes, why: str) -> None:
    rows, failures = decode([data, b"\0\0\0\0\1\x02\x04\x0a\1b"], schema(), schema())
    assert rows[0] is None
    assert rows[1]["id"] == "b"
    assert list(failures) == [0]
    assert why in failures[0]


def test_a_newer_schema_is_read_by_the_readers_numbers() -> None:
    old = proto("message M { int32 a = 1; string gone = 2; }")
    new = proto("message M { string more = 7; int32 renamed = 1; bool last = 3; }")
    (data,) = encode(new, [{"more": "x", "renamed": 4, "last": True}])
    assert decode([data], old, new) == ([{"a": 4, "gone": ""}], {})


@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        ("int64 a = 1;", "int32 a = 1;", "is int64 in the record, and int32 for the column"),
        ("string a = 1;", "int32 a = 1;", "is string in the record, and int32 for the column"),
        ("repeated int32 a = 1;", "int32 a = 1;", "the record has several values, and the column one"),
        ("P p = 1; message P { int64 x = 1; }", "P p = 1; message P { int32 x = 1; }", "field M.P.x = 1"),
        ("int32 a = 1;", "int64 a = 1;", None),
        ("bool a = 1;", "uint32 a = 1;", None),
        ("int32 a = 1;", "repeated int32 a = 1;", None),
        ("string a = 1;", "bytes a = 1;", None),
    ],
)
def test_a_schema_whose_values_the_column_would_cut_or_skip_is_refused(
    writer: str, reader: str, why: str | None
) -> None:
    """Language guide, "Updating a message type": an int64 read as an int32 "will be truncated to 32 bits"."""
    _, failures = decode(
        [b"\0\0\0\0\1\0"], proto(f"message M {{ {reader} }}"), proto(f"message M {{ {writer} }}")
    )
    assert bool(failures) == (why is not None)
    assert (why or "") in failures.get(0, "")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("message M { M next = 1; }", "message M contains itself (M > M)"),
        ("message M { repeated N n = 1; } message N { map<string, M> m = 1; }", "(M > N > M)"),
        (
            'import "google/protobuf/struct.proto"; message M { google.protobuf.Struct s = 1; }',
            "contains itself",
        ),
        ("message M { map<uint64, string> m = 1; }", "a map whose keys are uint64"),
        ("enum E { A = 0; }", "has no message"),
    ],
)
def test_messages_that_no_column_can_hold_are_refused(body: str, why: str) -> None:
    with pytest.raises(SchemaError) as info:
        build_decoder(proto(body), lambda _: proto(body))
    assert why in str(info.value)


def test_a_registry_without_descriptors_and_missing_imports_are_said() -> None:
    text = ResolvedSchema('syntax = "proto3"; message M {}', 1, format=ColumnFormat.PROTOBUF)
    with pytest.raises(SchemaError, match=r"(?s)not the descriptor.*format=serialized"):
        build_decoder(text, lambda _: text)
    files = {"other.proto": 'syntax = "proto3"; package o; message P { int32 x = 1; }'}
    main = compile_proto('syntax = "proto3"; import "other.proto"; message M { o.P p = 1; }', files)
    with pytest.raises(SchemaError, match=r"not a valid Protobuf schema.*other\.proto"):
        build_decoder(ResolvedSchema(main, 1, format=ColumnFormat.PROTOBUF), lambda _: text)
    whole = ResolvedSchema(
        main,
        1,
        (compile_proto(files["other.proto"], {}),),
        ColumnFormat.PROTOBUF,
        reference_names=("other.proto",),
    )
    assert str(build_decoder(whole, lambda _: whole).type) == "struct<p: struct<x: int32>>"


@pytest.mark.parametrize(
    ("row", "number", "why"),
    [
        ({"id": None}, 1, "id is null, and the schema has no null there"),
        ({"points": None}, 1, "points is null"),
        ({"points": [{"x": 1, "y": 1}, None]}, 1, "points has a null in it"),
        ({"points": [{"x": 1, "y": 1}, {"x": None, "y": 1}]}, 1, "points[].x is null"),
        ({"by_name": [("a", None)]}, 1, "by_name has a null in it"),
        ({"card": "c"}, 1, "of card, place only one may be set: oneof paid"),
        ({"kind": "OTHER"}, 1, 'unknown enum label "OTHER"'),
        ({"count": 2**32}, 1, "out of range"),
        ({"place": {"x": None, "y": 1}}, 1, "place.x is null"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row: dict[str, Any], number: int, why: str) -> None:
    with pytest.raises(RowRefused) as info:
        encode(schema(), [ROW, {**ROW, **row}, None])
    assert info.value.row == number
    assert why in info.value.why


def test_the_row_is_that_of_the_column_where_nulls_come_before_it() -> None:
    bad = {**ROW, "points": [{"x": None, "y": 1}]}
    with pytest.raises(RowRefused) as info:
        encode(schema(), [None, {**ROW, "points": []}, None, ROW, bad])
    assert info.value.row == 4


def test_maps_have_the_same_bytes_every_time() -> None:
    """[SPK-22] A batch that comes again is compared with the decided one byte by byte."""
    names = [f"k{number}" for number in range(100)]
    writer = proto("message M { map<string, int32> m = 1; }")
    rows = [{"m": [(name, 1) for name in order]} for order in (names, names[::-1])]
    one, other = encode(writer, rows)
    assert one == other


def test_columns_are_compared_before_a_row_is_written() -> None:
    fitting = pa.struct(
        [("id", pa.string()), ("cents", pa.int64()), ("rate", pa.int32()), ("big", pa.int64())]
    )
    assert find_writing_problems(schema(), fitting, "value") == []
    inner = pa.struct([("z", pa.int32())])
    wrong = pa.struct(
        [
            ("id", pa.int32()),
            ("place", inner),
            ("points", pa.list_(pa.int32())),
            ("by_number", pa.map_(pa.string(), pa.string())),
            ("kind", pa.int32()),
            ("at", pa.timestamp("us")),
            ("kinds", pa.string()),
        ]
    )
    assert find_writing_problems(schema(), wrong, "value") == [
        "value.id: is int32, and the schema has string",
        "value.place.z: message demo.Point has no such field, and it would be lost",
        "value.points[]: is int32, and message demo.Point has fields",
        "value.by_number[]: has keys of string, and the schema of int32",
        "value.kind: is int32, and the schema has string",
        "value.at: is timestamp[us], and the schema has timestamp[us, tz=UTC]",
        "value.kinds: is string, and the schema has list<element: string>",
    ]
    proto2 = schema('syntax = "proto2"; message M { required int32 a = 1; optional int32 b = 2; }', None)
    assert find_writing_problems(proto2, pa.struct([("b", pa.int32())]), "value") == [
        "value.a: message M requires this field, and the column has not"
    ]


def test_missing_columns_are_unset_and_other_widths_are_taken() -> None:
    column_type = pa.struct([("id", pa.string()), ("big", pa.int64()), ("at", pa.timestamp("ns", "UTC"))])
    data = encode(schema(), [{"id": "a", "big": 7, "at": None}], column_type)
    assert data == [b"\0\0\0\0\1\x02\x04\n\1a\x60\7"]
    with pytest.raises(SchemaError, match="does not fit"):
        encode(schema(), [{"big": -1}], pa.struct([("big", pa.int64())]))


def test_proto2_has_nulls_required_fields_and_texts_that_are_no_text() -> None:
    proto2 = schema('syntax = "proto2"; message M { required int32 a = 1; optional string b = 2; }', None)
    rows = [b"\0\0\0\0\1\0\x08\1", b"\0\0\0\0\1\0", b"\0\0\0\0\1\0\x08\1\x12\1\xff", b"\0\0\0\0\1\0\x08\2"]
    found, failures = decode(list(rows), proto2, proto2)
    assert found == [{"a": 1, "b": None}, None, None, {"a": 2, "b": None}]
    assert sorted(failures) == [1, 2]
    with pytest.raises(RowRefused, match="a is null"):
        encode(proto2, [{"a": None, "b": "x"}])


def test_a_message_without_fields_is_an_empty_struct() -> None:
    empty = proto("message M {}")
    assert encode(empty, [{}, None]) == [b"\0\0\0\0\1\0", None]
    assert decode([b"\0\0\0\0\1\0", None], empty, empty) == ([{}, None], {})


def test_a_schema_is_made_of_columns_and_takes_them() -> None:
    column_type = pa.struct(
        [
            ("id", pa.string()),
            ("n", pa.int16()),
            ("at", pa.timestamp("us", "UTC")),
            ("lines", pa.list_(pa.field("element", pa.struct([("x", pa.float32())])))),
            ("more", pa.map_(pa.string(), pa.int64())),
        ]
    )
    text = build_schema_text(ColumnFormat.PROTOBUF, column_type, "orders_value")
    made = schema(text, "orders_value")
    assert find_writing_problems(made, column_type, "value") == []
    row = {"id": "a", "n": None, "at": None, "lines": [{"x": 0.5}], "more": [("k", 1)]}
    assert decode(encode(made, [row], column_type), made, made) == ([row], {})
    for wrong in (
        pa.date32(),
        pa.struct([("d", pa.date32())]),
        pa.struct([("l", pa.list_(pa.list_(pa.int8())))]),
    ):
        with pytest.raises(SchemaError):
            build_schema_text(ColumnFormat.PROTOBUF, wrong, "x")


def test_the_registry_for_tests_takes_descriptors_and_keeps_to_its_folder() -> None:
    descriptor = compile_proto(ORDER, {})
    assert compile_proto(descriptor, {}) == descriptor
    with pytest.raises(RegistryRefusal, match=r"Invalid schema: .*registered\.proto:1:1"):
        compile_proto("junk", {})
    with pytest.raises(RegistryRefusal, match="imported as"):
        compile_proto(ORDER, {"../x.proto": 'syntax = "proto3";'})
