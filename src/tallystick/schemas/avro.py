"""Avro records in columns of bytes, decoded to and encoded from Arrow columns with fastavro.

A record is decoded with the schema that wrote it, as the reader's schema wants it: fields that were added
have their defaults, fields that were removed are skipped. It must end where its bytes end.

Source: Apache Avro 1.12 specification, "Schema Resolution".
"""

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick import _lazy
from tallystick.kernel.check import require
from tallystick.schemas.avro_types import (
    CONVERTED_TIMES,
    find_unit_pairs,
    strip_logical_types,
    to_arrow_type,
    to_column_type,
)
from tallystick.schemas.column_codec import (
    REASON_LENGTH_MAX,
    ColumnDecoder,
    RowRefused,
    Undecodable,
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


class ParsedSchema:
    """An Avro schema for fastavro, without logical types, and the Arrow types of its columns."""

    def __init__(self, schema: ResolvedSchema) -> None:
        """Parse a schema. Raises: SchemaError for one that is not valid, or that no column can hold."""
        self._schema = schema
        self.raw, _ = self._parse(schema, stripped=True)
        self.whole, self.names = self._parse(schema, stripped=False)
        self.name = self.whole.get("name") if isinstance(self.whole, dict) else None

    def has_units_of(self, writer: "ParsedSchema") -> bool:
        """Return whether numbers that are times mean the same in both. Raises: SchemaError if none helps."""
        pairs = list(find_unit_pairs(writer.whole, self.whole, (writer.names, self.names)))
        for theirs, ours in pairs:
            if not {theirs, ours} <= CONVERTED_TIMES or theirs.startswith("l") != ours.startswith("l"):
                raise SchemaError(f"the record has {theirs}, and the reader's schema {ours}")
        return not pairs

    def parse_with_times(self) -> Any:
        """Return the schema for fastavro with the logical types of times: it reads them as datetimes."""
        return self._parse(self._schema, stripped=True, kept=CONVERTED_TIMES)[0]

    def build_type(self) -> pa.DataType:
        """Return the type of a column, in the units of the schema. Raises: SchemaError."""
        return to_arrow_type(self.whole, self.names)

    def compare(self, column_type: pa.DataType, field: str) -> Iterator[str]:
        """Yield what keeps a column from being written with this schema. Raises: SchemaError."""
        yield from self._compare(self.whole, self.build_type(), column_type, field)

    def _compare(self, schema: Any, wanted: pa.DataType, column: pa.DataType, at: str) -> Iterator[str]:
        kind = get_kind(wanted)
        if pa.types.is_null(column):
            return
        if not fits_kind(column, wanted):
            yield f"{at}: is {column}, and the schema has {wanted}"
        elif kind == "struct":
            yield from self._compare_fields(schema, wanted, column, at)
        elif kind == "list":
            items = self._find_definition(schema)["items"]
            yield from self._compare(items, wanted.value_type, column.value_type, f"{at}[]")
        elif kind == "map":
            values = self._find_definition(schema)["values"]
            yield from self._compare(values, wanted.item_type, column.item_type, f"{at}[]")

    def _compare_fields(
        self, schema: Any, wanted: pa.DataType, column: pa.DataType, at: str
    ) -> Iterator[str]:
        fields = {each["name"]: each for each in self._find_definition(schema)["fields"]}
        for each in column:
            if each.name in fields:
                inner = wanted.field(each.name).type
                yield from self._compare(fields[each.name]["type"], inner, each.type, f"{at}.{each.name}")
            else:
                yield f"{at}.{each.name}: the schema has no such field, and it would be lost"
        names = {each.name for each in column}
        for name, each in fields.items():
            if name not in names and "default" not in each:
                yield f"{at}.{name}: the schema has this field without a default, and the column has not"

    def find_null(self, column: pa.Array) -> tuple[int, str] | None:
        """Return the row and the name of a null that the schema does not take; a record may be null.

        fastavro would write false for a boolean.
        """
        rows = pc.indices_nonzero(column.is_valid()).to_pylist()
        return next(self._find_nulls(self.whole, column.drop_null(), rows, "value"), None)

    def _find_nulls(
        self, schema: Any, column: pa.Array, rows: Sequence[int], at: str
    ) -> Iterator[tuple[int, str]]:
        """Yield the places of nulls; `rows` are those of the column's values in the whole."""
        if column.null_count:
            if not self._takes_null(schema):
                yield rows[column.is_null().index(True).as_py()], at
                return
            rows = [rows[place] for place in pc.indices_nonzero(column.is_valid()).to_pylist()]
            column = column.drop_null()
        if not rows or not pa.types.is_nested(column.type):
            return
        definition = self._find_definition(schema)
        if pa.types.is_struct(column.type):
            fields = {each["name"]: each["type"] for each in definition["fields"]}
            for each, part in zip(column.type, column.flatten(), strict=True):
                if each.name in fields:
                    yield from self._find_nulls(fields[each.name], part, rows, f"{at}.{each.name}")
            return
        offsets = column.offsets.to_pylist()
        is_map = pa.types.is_map(column.type)
        items = (column.items if is_map else column.values)[offsets[0] : offsets[-1]]
        owners = [
            row for row, (begin, end) in zip(rows, pairwise(offsets), strict=True) for _ in range(end - begin)
        ]
        yield from self._find_nulls(definition["values" if is_map else "items"], items, owners, f"{at}[]")

    def _takes_null(self, schema: Any) -> bool:
        if isinstance(schema, list):
            return "null" in schema
        return schema == "null" or (isinstance(schema, dict) and self._takes_null(schema["type"]))

    def _find_definition(self, schema: Any) -> Mapping[str, Any]:
        """Return the record, array or map that a field's type is, inside a union or by name."""
        if isinstance(schema, list):
            return self._find_definition(next(each for each in schema if each != "null"))
        if isinstance(schema, str):
            return self._find_definition(self.names[schema])
        if isinstance(schema["type"], dict | list):
            return self._find_definition(schema["type"])
        definition: Mapping[str, Any] = schema
        return definition

    @staticmethod
    def _parse(
        schema: ResolvedSchema, *, stripped: bool, kept: Collection[str] = ()
    ) -> tuple[Any, dict[str, Any]]:
        fastavro = _lazy.load("fastavro")
        names: dict[str, Any] = {}
        parsed: Any = None
        try:
            for text in (*schema.references, schema.text):
                document = _load_json(text)
                parsed = fastavro.parse_schema(
                    strip_logical_types(document, kept) if stripped else document, named_schemas=names
                )
        except SchemaError:
            raise
        except Exception as exc:  # fastavro's own, and KeyErrors for what is missing
            raise SchemaError(f"not a valid Avro schema: {type(exc).__name__}: {exc}") from exc
        return parsed, names


def _load_json(text: str) -> Any:
    """Load a schema; a bare word such as `string` is one, too."""
    try:
        return json.loads(text)
    except ValueError as exc:
        if text.isidentifier():
            return text
        raise SchemaError(f"not a valid Avro schema: {exc}") from exc


class AvroDecoder(ColumnDecoder):
    """Decodes columns of one field as a reader's schema wants it. For one thread.

    Cost: about 3 us a record of five fields, 5 us if its schema is not the reader's.
    """

    format = ColumnFormat.AVRO

    def __init__(self, reader: ResolvedSchema, find_schema: FindSchema) -> None:
        """Initialize with the reader's schema, and a lookup of the writers'. Raises: SchemaError."""
        self._reader = ParsedSchema(reader)
        unit_type = self._reader.build_type()
        super().__init__(unit_type, to_column_type(unit_type), find_schema)
        self._read = _lazy.load("fastavro").schemaless_reader

    def parse_writer(self, schema: ResolvedSchema) -> Any:
        writer = ParsedSchema(schema)
        if self._reader.has_units_of(writer):
            return self._reader.raw if writer.raw == self._reader.raw else writer.raw
        return writer.parse_with_times()

    def read_record(self, data: bytes, writer: Any) -> Any:
        file = io.BytesIO(data)
        file.seek(PREFIX_BYTES)
        reader = self._reader.raw
        record = self._read(file, writer, None if writer is reader else reader)
        if file.tell() != len(data):
            raise Undecodable(f"the record ends after {file.tell()} bytes of {len(data)}")
        return record


class AvroEncoder:
    """Encodes columns of one field with a writer's schema. For one thread."""

    def __init__(self, writer: ResolvedSchema) -> None:
        """Initialize with the schema and its id. Raises: SchemaError."""
        self._writer = ParsedSchema(writer)
        self._unit_type = self._writer.build_type()
        self._prefix = build_prefix(require(writer.schema_id, "a writer's schema is registered"))
        self._write = _lazy.load("fastavro").schemaless_writer

    def encode(self, column: pa.Array) -> pa.Array:
        """Encode a column.

        Raises: RowRefused; SchemaError for a column that does not fit the schema.
        Cost: about 3 us a record of five fields.
        """
        place = self._writer.find_null(column)
        if place is not None:
            raise RowRefused(place[0], f"{place[1]} is null, and the schema has no null there")
        records = to_plain_rows(column, self._unit_type)
        write, schema, prefix = self._write, self._writer.raw, self._prefix
        results: list[bytes | None] = []
        for row, record in enumerate(records):
            if record is None:
                results.append(None)
                continue
            file = io.BytesIO()
            file.write(prefix)
            try:
                write(file, schema, record)
            except Exception as exc:  # fastavro raises what it meets: TypeError, ValueError, KeyError
                raise RowRefused(row, f"{type(exc).__name__}: {exc}"[:REASON_LENGTH_MAX]) from exc
            results.append(file.getvalue())
        return pa.array(results, pa.binary())


def find_column_problems(writer: ResolvedSchema, column_type: pa.DataType, field: str) -> list[str]:
    """Return what keeps a column from being written with a schema: nothing is dropped or made up.

    Raises: SchemaError.
    """
    return list(ParsedSchema(writer).compare(column_type, field))


def to_plain_rows(column: pa.Array, wanted: pa.DataType, at: str = "value") -> Sequence[Any]:
    """Return rows for fastavro: dicts, lists and plain numbers, in the units of the schema.

    Args:
        at: the name of the column.
    Raises: SchemaError for numbers that the type does not hold, such as a long in an int.
    """
    if pa.types.is_struct(wanted):
        names = [each.name for each in column.type]
        columns = [
            to_plain_rows(part, wanted.field(name).type, f"{at}.{name}")
            for name, part in zip(names, column.flatten(), strict=True)
        ]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        if not columns:
            rows = [{} for _ in range(len(column))]
        return _blank_nulls(column, rows)
    if pa.types.is_list(wanted):
        items = to_plain_rows(column.flatten(), wanted.value_type, f"{at}[]")
        return _regroup(column, items)
    if pa.types.is_map(wanted):
        return _build_dicts(column, wanted, at)
    try:
        if pa.types.is_timestamp(wanted) or pa.types.is_date32(wanted):
            units = pc.cast(column, options=pc.CastOptions(wanted, allow_time_truncate=True))
            numbers: list[Any] = units.cast(
                pa.int64() if pa.types.is_timestamp(wanted) else pa.int32()
            ).to_pylist()
            return numbers
        plain: list[Any] = column.cast(wanted).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise SchemaError(f"{at}: a column of {column.type} does not fit {wanted}: {exc}") from exc
    return plain


def _regroup(column: pa.Array, items: Sequence[Any]) -> list[Any]:
    """Cut the items of a list column into its rows."""
    rows: list[Any] = []
    at = 0
    for length in pc.list_value_length(column).to_pylist():
        rows.append(None if length is None else items[at : at + length])
        at += length or 0
    return rows


def _build_dicts(column: pa.Array, wanted: pa.DataType, at: str) -> list[dict[str, Any] | None]:
    """Return the rows of a map column. The bytes behind a null need not be empty, so offsets decide."""
    offsets = column.offsets.to_pylist()
    first, end = offsets[0], offsets[-1]
    keys = column.keys[first:end].cast(pa.string()).to_pylist()
    items = to_plain_rows(column.items[first:end], wanted.item_type, f"{at}[]")
    pairs = list(zip(keys, items, strict=True))
    spans = zip(offsets, offsets[1:], column.is_valid().to_pylist(), strict=False)
    return [
        dict(pairs[begin - first : stop - first]) if is_valid else None for begin, stop, is_valid in spans
    ]


def _blank_nulls(column: pa.Array, rows: list[Any]) -> list[Any]:
    if not column.null_count:
        return rows
    return [
        row if is_valid else None for row, is_valid in zip(rows, column.is_valid().to_pylist(), strict=True)
    ]
