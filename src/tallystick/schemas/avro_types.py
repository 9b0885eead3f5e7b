"""Arrow types for Avro schemas, and Avro schemas for Arrow types. Pure.

Logical types are Arrow's business: a timestamp is decoded as the number that it is, and the whole column
gets its type as a whole. Only decimals are converted value by value.

Not possible: unions of more than null and one type, and records that contain themselves, since a column has
one type of a known depth.

Source: Apache Avro 1.12 specification.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from tallystick.schemas.model import SchemaError

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
CONVERTED_TIMES: Final = frozenset(
    {"timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"}
)
"""Logical types that fastavro reads as datetimes without loss."""
_DECIMAL_DIGITS_MAX: Final = 38


def to_arrow_type(schema: object, names: Mapping[str, Any]) -> pa.DataType:
    """Return the type of a column of this Avro schema, in the units of the schema.

    Args:
        names: schemas that it refers to by their full names.
    Raises: SchemaError for what a column cannot hold.
    """
    return _build_type(schema, dict(names), ())


def to_column_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type with timestamps in microseconds, the only unit that Spark has."""
    if pa.types.is_timestamp(arrow_type):
        return pa.timestamp("us", arrow_type.tz)
    if pa.types.is_struct(arrow_type):
        return pa.struct([pa.field(each.name, to_column_type(each.type)) for each in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(pa.field("element", to_column_type(arrow_type.value_type)))
    if pa.types.is_map(arrow_type):
        return pa.map_(pa.string(), to_column_type(arrow_type.item_type))
    return arrow_type


def strip_logical_types(schema: Any, kept_types: Collection[str] = ()) -> Any:
    """Return a schema whose logical types other than decimals are gone, so that numbers stay numbers.

    Args:
        kept_types: logical types that stay, apart from decimals.
    """
    if isinstance(schema, list):
        return [strip_logical_types(each, kept_types) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType"}
    if schema.get("logicalType") in ("decimal", *kept_types):
        kept["logicalType"] = schema["logicalType"]
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = strip_logical_types(kept[name], kept_types)
    if "fields" in kept:
        kept["fields"] = [strip_logical_types(each, kept_types) for each in kept["fields"]]
    return kept


def find_unit_pairs(
    writer: Any, reader: Any, names: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Yield the logical types of the places where writer and reader have different ones, but for decimals.

    Schema resolution does not look at them: a reader that takes the writer's number has another time.

    Args:
        names: schemas that the writer and the reader refer to by their full names.
    """
    writer, reader = _unfold(writer, names[0]), _unfold(reader, names[1])
    if isinstance(writer, list) or isinstance(reader, list):
        ours = reader if isinstance(reader, list) else [reader]
        for theirs in writer if isinstance(writer, list) else [writer]:
            theirs = _unfold(theirs, names[0])
            for each in (_unfold(each, names[1]) for each in ours):
                if _get_kind(theirs) == _get_kind(each):
                    yield from find_unit_pairs(theirs, each, names)
    elif isinstance(writer, dict) and isinstance(reader, dict):
        types = writer.get("logicalType"), reader.get("logicalType")
        if None not in types and types[0] != types[1] and "decimal" not in types:
            yield str(types[0]), str(types[1])
        for part in ("items", "values"):
            if part in writer and part in reader:
                yield from find_unit_pairs(writer[part], reader[part], names)
        fields = {each["name"]: each["type"] for each in writer.get("fields", ())}
        for field in reader.get("fields", ()):
            for name in (field["name"], *field.get("aliases", ())):
                if name in fields:
                    yield from find_unit_pairs(fields[name], field["type"], names)
                    break


def _unfold(schema: Any, names: Mapping[str, Any]) -> Any:
    """Return the definition behind a name, or inside `type`."""
    while True:
        if isinstance(schema, str) and schema in names:
            schema = names[schema]
        elif isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            schema = schema["type"]
        else:
            return schema


def _get_kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def to_avro_schema(arrow_type: pa.DataType, name: str) -> str:
    """Return the Avro schema of a column, with every field nullable.

    Args:
        name: of the record; those inside it are named after their fields.
    Raises: SchemaError for a type that Avro does not have.
    """
    return json.dumps(_build_schema(arrow_type, name))


def _build_type(schema: Any, names: dict[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, list):
        return _build_union_type(schema, names, inside)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in inside:
            raise SchemaError(f"record {schema} contains itself, and no column can hold that")
        if schema not in names:
            raise SchemaError(f"type {schema!r} is not defined in the schema")
        return _build_type(names[schema], names, inside)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _build_type(kind, names, inside)
    if "name" in schema:
        names[schema["name"]] = schema
    match kind:
        case "record" | "error":
            within = (*inside, schema["name"])
            return pa.struct(
                [
                    pa.field(each["name"], _build_type(each["type"], names, within))
                    for each in schema["fields"]
                ]
            )
        case "array":
            return pa.list_(pa.field("element", _build_type(schema["items"], names, inside)))
        case "map":
            return pa.map_(pa.string(), _build_type(schema["values"], names, inside))
    logical_type = schema.get("logicalType")
    if logical_type == "decimal" and kind in ("bytes", "fixed"):
        return _build_decimal_type(schema)
    return _LOGICAL.get((kind, str(logical_type))) or _build_type(kind, names, inside)


def _build_union_type(branches: list[Any], names: dict[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    types = [branch for branch in branches if branch != "null"]
    if len(types) > 1:
        texts = " and ".join(
            str(each.get("name", each) if isinstance(each, dict) else each) for each in types
        )
        raise SchemaError(f"a union of {texts}: a column has one type, and possibly null")
    return _build_type(types[0] if types else "null", names, inside)


def _build_decimal_type(schema: Mapping[str, Any]) -> pa.DataType:
    digits, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < digits <= _DECIMAL_DIGITS_MAX:
        raise SchemaError(f"a decimal of {digits} digits: at most {_DECIMAL_DIGITS_MAX} are possible")
    return pa.decimal128(digits, scale)


def _build_schema(arrow_type: pa.DataType, name: str) -> Any:
    if pa.types.is_struct(arrow_type):
        fields = [
            {
                "name": each.name,
                "type": ["null", _build_schema(each.type, f"{name}_{each.name}")],
                "default": None,
            }
            for each in arrow_type
        ]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(arrow_type):
        return {"type": "array", "items": ["null", _build_schema(arrow_type.value_type, f"{name}_element")]}
    if pa.types.is_map(arrow_type) and pa.types.is_string(arrow_type.key_type):
        return {"type": "map", "values": ["null", _build_schema(arrow_type.item_type, f"{name}_value")]}
    if pa.types.is_decimal(arrow_type):
        digits = {"precision": arrow_type.precision, "scale": arrow_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_timestamp(arrow_type):
        prefix = "" if arrow_type.tz else "local-"
        return {"type": "long", "logicalType": f"{prefix}timestamp-micros"}
    if pa.types.is_date32(arrow_type):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_integer(arrow_type):
        return "int" if arrow_type.bit_width <= 32 else "long"
    for avro_type in ("boolean", "float", "double", "bytes", "string"):
        if arrow_type == _PRIMITIVES[avro_type]:
            return avro_type
    raise SchemaError(f"Avro has no type for a column of {arrow_type}")
