"""Avro columns against Apache's own implementation, and whatever bytes a topic may hold."""

import io
import json
from typing import Any

import avro.io
import avro.schema
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tallystick.schemas.avro import AvroDecoder, AvroEncoder
from tallystick.schemas.avro_types import to_avro_schema
from tallystick.schemas.model import ResolvedSchema, UnknownSchema

TYPE = pa.struct(
    [
        ("s", pa.string()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("d", pa.float64()),
        ("b", pa.binary()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("x", pa.int64())])),
    ]
)
SCHEMA = ResolvedSchema(to_avro_schema(TYPE, "Row"), 1)
APACHE = avro.schema.parse(SCHEMA.text)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


LONG = st.integers(-(2**63), 2**63 - 1)
ROW = st.fixed_dictionaries(
    {
        "s": optional(st.text(st.characters(codec="utf-8"))),
        "i": optional(st.integers(-(2**31), 2**31 - 1)),
        "l": optional(LONG),
        "d": optional(st.floats(allow_nan=False)),
        "b": optional(st.binary()),
        "flag": optional(st.booleans()),
        "tags": optional(st.lists(optional(st.text(st.characters(codec="utf-8"))))),
        "at": optional(st.fixed_dictionaries({"x": optional(LONG)})),
    }
)


def find(schema_id: int) -> ResolvedSchema:
    if schema_id != 1:
        raise UnknownSchema(str(schema_id))
    return SCHEMA


@given(st.lists(optional(ROW)))
def test_apaches_avro_reads_what_is_written_and_writes_what_is_read(
    rows: list[dict[str, Any] | None],
) -> None:
    encoded = AvroEncoder(SCHEMA).encode(pa.array(rows, TYPE)).to_pylist()
    theirs = []
    for row, data in zip(rows, encoded, strict=True):
        assert (data is None) == (row is None)
        if data is not None:
            decoder = avro.io.BinaryDecoder(io.BytesIO(data[5:]))
            assert avro.io.DatumReader(APACHE).read(decoder) == row
            file = io.BytesIO()
            avro.io.DatumWriter(APACHE).write(row, avro.io.BinaryEncoder(file))
            theirs.append(b"\0\0\0\0\1" + file.getvalue())
    decoded = AvroDecoder(SCHEMA, find).decode(pa.array(theirs, pa.binary()))
    assert not decoded.failures
    assert decoded.array.to_pylist() == [row for row in rows if row is not None]


@given(st.lists(st.binary() | st.binary().map(lambda data: b"\0\0\0\0\1" + data)))
def test_any_bytes_are_a_value_or_a_failure_with_its_reason(column: list[bytes]) -> None:
    decoded = AvroDecoder(SCHEMA, find).decode(pa.array(column, pa.binary()))
    assert len(decoded.array) == len(column)
    for row, value in enumerate(decoded.array.to_pylist()):
        assert (value is None) == (row in decoded.failures)
    assert all(decoded.failures.values())


def test_the_schema_made_of_columns_is_json() -> None:
    assert json.loads(SCHEMA.text)["fields"][0] == {"name": "s", "type": ["null", "string"], "default": None}
