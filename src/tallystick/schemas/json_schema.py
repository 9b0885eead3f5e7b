"""JSON records with schemas in columns of bytes, decoded to and encoded from Arrow columns.

The reader's schema gives the columns; a record is read by its names, whatever schema wrote it, whose id must
be known. Types are checked; what else a JSON Schema may ask for (`required`, `pattern`, limits) is not, since
that takes longer than all the rest. A property that is missing is null, and so is a number that JSON does not
have (NaN and the infinities) when it is written.

Source: JSON Schema, draft 2020-12 and earlier, as far as it says what a column is.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypedDict

import msgspec
import pyarrow as pa

from tallystick.kernel.check import require
from tallystick.schemas.column_codec import (
    REASON_LENGTH_MAX,
    ColumnDecoder,
    RowRefused,
    fits_kind,
    get_kind,
)
from tallystick.schemas.model import (
    PREFIX_BYTES,
    ColumnFormat,
    FindSchema,
    ResolvedSchema,
    SchemaError,
    build_prefix,
)

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "null": pa.null(),
}
_DEPTH_MAX: Final = 100
_INEXACT_MIN: Final = 2**53  # from here on, a float may be another integer than the text
_make_dict_type: Final[Any] = TypedDict  # with fields that only the schema knows


class JsonColumnSchema:
    """A JSON Schema, and the Arrow type of its columns."""

    def __init__(self, schema: ResolvedSchema) -> None:
        """Parse a schema. Raises: SchemaError for one that is not valid, or that no column can hold."""
        try:
            self._document = json.loads(schema.text)
        except ValueError as exc:
            raise SchemaError(f"not a valid JSON Schema: {exc}") from exc
        if schema.references:
            raise SchemaError("a JSON Schema that refers to other subjects")
        title = self._document.get("title") if isinstance(self._document, dict) else None
        self.name = title if isinstance(title, str) else None

    def build_type(self) -> pa.DataType:
        """Return the type of a column. Raises: SchemaError."""
        return self._build_type(self._document, 0)

    def _build_type(self, schema: Any, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise SchemaError("a JSON Schema that contains itself, or is too deep for a column")
        schema = self._resolve(schema)
        match _find_type(schema):
            case "object" if "properties" in schema:
                properties = schema["properties"].items()
                return pa.struct([pa.field(n, self._build_type(each, depth + 1)) for n, each in properties])
            case "object" if isinstance(schema.get("additionalProperties"), dict):
                return pa.map_(pa.string(), self._build_type(schema["additionalProperties"], depth + 1))
            case "array" if "items" in schema:
                return pa.list_(pa.field("element", self._build_type(schema["items"], depth + 1)))
            case str(kind) if kind in _TYPES:
                return _TYPES[kind]
        raise SchemaError(f"no column can hold {json.dumps(schema)[:200]}: it needs one type apart from null")

    def _resolve(self, schema: Any) -> Any:
        """Return a schema without references inside the document, and without the alternative null."""
        for _ in range(_DEPTH_MAX):
            if not isinstance(schema, dict):
                raise SchemaError(f"no column can hold {json.dumps(schema)[:200]}")
            reference = schema.get("$ref")
            choices = schema.get("oneOf") or schema.get("anyOf") or []
            branches = [each for each in choices if not _is_null(each)]
            if isinstance(reference, str):
                schema = self._follow(reference)
            elif len(branches) == 1:
                schema = branches[0]
            else:
                return schema
        raise SchemaError("a JSON Schema whose references lead back to themselves")

    def _follow(self, reference: str) -> Any:
        target: Any = self._document
        for part in reference.removeprefix("#").strip("/").split("/"):
            if not reference.startswith("#") or not isinstance(target, dict) or part not in target:
                raise SchemaError(f"{reference} is not in the schema")
            target = target[part]
        return target


class _NoInteger(Exception):
    """A number has a fraction, or is too large to be read exactly."""


class JsonDecoder(ColumnDecoder):
    """Decodes columns of one field as a reader's schema wants it. For one thread."""

    format = ColumnFormat.JSON

    def __init__(self, reader: ResolvedSchema, find_schema: FindSchema) -> None:
        """Initialize with the reader's schema, and a lookup of the writers'. Raises: SchemaError."""
        column_type = JsonColumnSchema(reader).build_type()
        super().__init__(column_type, column_type, find_schema)
        # Strict, where Arrow would cut 1.5 to an integer and take a list of pairs for an object.
        self._read = msgspec.json.Decoder(_build_python_type(column_type, int)).decode
        self._read_whole_numbers = msgspec.json.Decoder(_build_python_type(column_type, int | float)).decode

    def parse_writer(self, schema: ResolvedSchema) -> bool:
        """Return True: names say all that a reader needs."""
        return True

    def read_record(self, data: bytes, writer: object) -> Any:
        text = memoryview(data)[PREFIX_BYTES:]
        try:
            return self._read(text)
        except msgspec.ValidationError as exc:
            # JSON Schema, "Numeric": 5.0 and 1e2 are integers, too. They are rare, and cost more.
            try:
                return _to_integers(self._read_whole_numbers(text), self.type)
            except _NoInteger:
                raise exc from None


class JsonEncoder:
    """Encodes columns of one field. For one thread."""

    def __init__(self, writer: ResolvedSchema) -> None:
        """Initialize with the schema and its id. Raises: SchemaError."""
        self._type = JsonColumnSchema(writer).build_type()
        self._prefix = build_prefix(require(writer.schema_id, "a writer's schema is registered"))

    def encode(self, column: pa.Array) -> pa.Array:
        """Encode a column. Nulls are left out of objects. Raises: RowRefused."""
        encode, prefix = msgspec.json.Encoder().encode, self._prefix
        results: list[bytes | None] = []
        for row, record in enumerate(column.to_pylist()):
            try:
                plain = None if record is None else _to_plain(record, self._type)
                results.append(None if record is None else prefix + encode(plain))
            except (TypeError, ValueError, msgspec.MsgspecError) as exc:
                raise RowRefused(row, f"{type(exc).__name__}: {exc}"[:REASON_LENGTH_MAX]) from exc
        return pa.array(results, pa.binary())


def find_json_problems(writer: ResolvedSchema, column_type: pa.DataType, field: str) -> list[str]:
    """Return what keeps a column from being written with a schema. Raises: SchemaError."""
    return _compare(JsonColumnSchema(writer).build_type(), column_type, field)


def to_json_schema(column_type: pa.DataType, name: str) -> str:
    """Return the JSON Schema of a column. Raises: SchemaError for a type that JSON does not have."""
    return json.dumps({"title": name, **_build_schema(column_type)})


def _compare(wanted: pa.DataType, column: pa.DataType, at: str) -> list[str]:
    kinds = get_kind(column), get_kind(wanted)
    if pa.types.is_null(column):
        return []
    if not fits_kind(column, wanted):
        return [f"{at}: is {column}, and the schema has {wanted}"]
    if kinds[1] == "list":
        return _compare(wanted.value_type, column.value_type, f"{at}[]")
    if kinds[1] == "map":
        return _compare(wanted.item_type, column.item_type, f"{at}[]")
    problems: list[str] = []
    names = [each.name for each in wanted] if kinds[1] == "struct" else []
    for each in column if names else ():
        if each.name in names:
            problems += _compare(wanted.field(each.name).type, each.type, f"{at}.{each.name}")
        else:
            problems.append(f"{at}.{each.name}: the schema has no such property")
    return problems


def _build_schema(column_type: pa.DataType) -> dict[str, Any]:
    match get_kind(column_type):
        case "struct":
            properties = {
                each.name: {"oneOf": [{"type": "null"}, _build_schema(each.type)]} for each in column_type
            }
            return {"type": "object", "properties": properties}
        case "list":
            return {"type": "array", "items": _build_schema(column_type.value_type)}
        case "map":
            return {"type": "object", "additionalProperties": _build_schema(column_type.item_type)}
        case "integer":
            return {"type": "integer"}
        case "floating":
            return {"type": "number"}
        case "boolean" | "string" as kind:
            return {"type": kind}
    raise SchemaError(f"JSON has no type for a column of {column_type}: cast it to a string or a number")


def _to_plain(value: Any, wanted: pa.DataType) -> Any:
    """Return a value for JSON: dicts for maps, and no nulls in objects, which need not allow them."""
    if value is None:
        return None
    if pa.types.is_struct(wanted):
        return {
            name: _to_plain(each, wanted.field(name).type) for name, each in value.items() if each is not None
        }
    if pa.types.is_list(wanted):
        return [_to_plain(each, wanted.value_type) for each in value]
    if pa.types.is_map(wanted):
        return {name: _to_plain(each, wanted.item_type) for name, each in value}
    return value


def _to_integers(value: Any, wanted: pa.DataType) -> Any:
    """Return a value whose integers have no fraction. Raises: _NoInteger for one that has, or is rounded."""
    match get_kind(wanted):
        case _ if value is None:
            return None
        case "integer" if isinstance(value, float):
            if not value.is_integer() or abs(value) >= _INEXACT_MIN:
                raise _NoInteger
            return int(value)
        case "struct":
            return {name: _to_integers(each, wanted.field(name).type) for name, each in value.items()}
        case "list":
            return [_to_integers(each, wanted.value_type) for each in value]
        case "map":
            return {name: _to_integers(each, wanted.item_type) for name, each in value.items()}
    return value


def _build_python_type(arrow_type: pa.DataType, integer: Any) -> Any:
    """Return the type that a parsed value must have; objects become dicts with the columns' names alone.

    Args:
        integer: the type of an integer.
    """
    match get_kind(arrow_type):
        case "struct":
            fields = {each.name: _build_python_type(each.type, integer) for each in arrow_type}
            return _make_dict_type("Row", fields, total=False) | None
        case "list":
            item: Any = _build_python_type(arrow_type.value_type, integer)
            return list[item] | None
        case "map":
            value: Any = _build_python_type(arrow_type.item_type, integer)
            return dict[str, value] | None
        case "integer":
            return integer | None
        case "floating":
            return float | None
        case "boolean":
            return bool | None
        case "null":
            return None
    return str | None


def _find_type(schema: Mapping[str, Any]) -> str | None:
    """Return the one type of a schema apart from null."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        others = [kind for kind in kinds if kind != "null"]
        return others[0] if len(others) == 1 and isinstance(others[0], str) else None
    if kinds is None and "properties" in schema:
        return "object"
    if kinds is None and all(isinstance(each, str) for each in schema.get("enum", (None,))):
        return "string"
    return kinds if isinstance(kinds, str) else None


def _is_null(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"
