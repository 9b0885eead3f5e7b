"""Protobuf messages in columns of bytes, decoded to and encoded from Arrow columns.

protobuf parses the records in C (upb); then every field of all of them becomes a column at once, without a
dict for each record. A record is read by the numbers of the reader's fields. It has to be the reader's
message, and its schema one whose fields the reader's types can hold, since Protobuf itself would skip or cut
what they cannot.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick import _lazy
from tallystick.kernel.check import require
from tallystick.kernel.value import Value
from tallystick.schemas.column_codec import REASON_LENGTH_MAX, ColumnDecoder, RowRefused, Undecodable
from tallystick.schemas.model import (
    PREFIX_BYTES,
    ColumnFormat,
    FindSchema,
    ResolvedSchema,
    SchemaError,
    build_prefix,
)
from tallystick.schemas.protobuf_schema import Path, ProtobufSchema, decode_path, encode_path
from tallystick.schemas.protobuf_types import (
    FieldShape,
    MessageShape,
    ValueKind,
    build_shape,
    find_reading_problems,
    find_writing_problems,
)

_MICROS: int = 1_000_000
_FIRST_PATH: Path = (0,)


class ProtobufDecoder(ColumnDecoder):
    """Decodes columns of one field as a reader's message. For one thread.

    Cost: about 2 us a record of five fields.
    """

    format = ColumnFormat.PROTOBUF

    def __init__(self, reader: ResolvedSchema, find_schema: FindSchema) -> None:
        """Set the reader's schema and the lookup of the writers'. Raises: SchemaError; MissingLibrary."""
        self._descriptor = ProtobufSchema(reader).find_descriptor(reader.message)
        self._shape = build_shape(self._descriptor)
        super().__init__(self._shape.type, self._shape.type, find_schema)
        message_class = _lazy.load("google.protobuf.message_factory").GetMessageClass(self._descriptor)
        read: Callable[[bytes], Any] = message_class.FromString

        def read_whole(data: bytes) -> Any:  # upb takes a message without its required fields
            message = read(data)
            if not message.IsInitialized():
                missing = ", ".join(message.FindInitializationErrors())
                raise Undecodable(f"the record lacks what its message requires: {missing}")
            return message

        self._read = read_whole if self._shape.has_required else read

    def parse_writer(self, schema: ResolvedSchema) -> "_Writer":
        writer, name = ProtobufSchema(schema), self._shape.name
        if name in writer.messages.values():
            problems = list(find_reading_problems(writer.find_descriptor(name), self._descriptor))
            if problems:
                raise SchemaError("; ".join(problems))
        return _Writer(messages=writer.messages, first=writer.messages[_FIRST_PATH] == name)

    def read_record(self, data: bytes, writer: "_Writer") -> Any:
        if writer.first and data[PREFIX_BYTES : PREFIX_BYTES + 1] == b"\0":
            return self._read(data[PREFIX_BYTES + 1 :])
        path, end = decode_path(data, PREFIX_BYTES)
        name = writer.messages.get(path)
        if name != self._shape.name:
            raise Undecodable(f"the record is {name or f'no message ({path})'}, and not {self._shape.name}")
        return self._read(data[end:])

    def _convert(self, rows: list[Any]) -> pa.Array:
        try:
            messages = [row for row in rows if row is not None]
            return _spread(_read_struct(self._shape, messages), [row is not None for row in rows])
        except UnicodeDecodeError as exc:  # proto2 does not check its strings
            raise pa.ArrowInvalid(str(exc)) from exc


class _Writer(Value):
    """The messages of a writer's schema, and whether the first one is the reader's."""

    messages: Mapping[Path, str]
    first: bool


def _spread(column: pa.Array, places: list[bool]) -> pa.Array:
    """Return a column with a null for every place that has no value."""
    if all(places):
        return column
    ends = accumulate(places)
    return column.take(
        pa.array([end - 1 if has else None for has, end in zip(places, ends, strict=True)], pa.int32())
    )


def _read_struct(shape: MessageShape, messages: Sequence[Any]) -> pa.Array:
    if not shape.fields:
        return pa.array([{}] * len(messages), shape.type)
    arrays = [_read_field(field, messages) for field in shape.fields]
    return pa.StructArray.from_arrays(arrays, fields=list(shape.type))


def _read_field(field: FieldShape, messages: Sequence[Any]) -> pa.Array:
    values = list(map(attrgetter(field.name), messages))
    if field.is_repeated:
        offsets = pa.array(accumulate(map(len, values), initial=0), pa.int32())
        if field.key_type is None:
            items = _read_values(field, list(chain.from_iterable(values)))
            return pa.ListArray.from_arrays(offsets, items, type=field.type)
        keys = [sorted(value) for value in values]  # C++ has them in an order of its own
        items = _read_values(
            field, [value[key] for value, own in zip(values, keys, strict=True) for key in own]
        )
        key_array = pa.array(list(chain.from_iterable(keys)), field.key_type)
        return pa.MapArray.from_arrays(offsets, key_array, items, type=field.type)
    if not field.has_presence:
        return _read_values(field, values)
    name = field.name
    places = [message.HasField(name) for message in messages]
    present = [value for value, has in zip(values, places, strict=True) if has]
    return _spread(_read_values(field, present), places)


def _read_values(field: FieldShape, values: Sequence[Any]) -> pa.Array:
    """Return one column of values that are all there."""
    match field.kind:
        case ValueKind.PLAIN:
            return pa.array(values, field.value_type)
        case ValueKind.UINT64:
            return pa.array(values, pa.uint64()).cast(field.value_type)
        case ValueKind.ENUM:  # a number without a name is one of a newer schema
            names = field.names
            return pa.array([names.get(value) or str(value) for value in values], pa.string())
        case ValueKind.TIMESTAMP | ValueKind.DURATION:
            micros = [value.seconds * _MICROS + int(value.nanos / 1000) for value in values]
            return pa.array(micros, pa.int64()).cast(field.value_type)
        case ValueKind.WRAPPER:
            inner = require(field.message, "a wrapper is a message").fields[0]
            return _read_values(inner, [value.value for value in values])
        case ValueKind.MESSAGE:
            return _read_struct(require(field.message, "a message has a shape"), values)


class ProtobufEncoder:
    """Encodes columns of one field as one message. For one thread."""

    def __init__(self, writer: ResolvedSchema) -> None:
        """Initialize with the schema and its id. Raises: SchemaError; MissingLibrary."""
        schema = ProtobufSchema(writer)
        descriptor = schema.find_descriptor(writer.message)
        self._shape = build_shape(descriptor)
        self._class = _lazy.load("google.protobuf.message_factory").GetMessageClass(descriptor)
        schema_id = require(writer.schema_id, "a writer's schema is registered")
        self._prefix = build_prefix(schema_id) + encode_path(schema.find_path(self._shape.name))

    def encode(self, column: pa.Array) -> pa.Array:
        """Encode a column.

        Raises: RowRefused; SchemaError for a column that does not fit the schema.
        Cost: about 3 us a record of five fields.
        """
        try:
            records = _write_struct(self._shape, column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            raise SchemaError(f"a column of {column.type} does not fit {self._shape.type}: {exc}") from exc
        except _Refusal as exc:
            raise RowRefused(exc.row, exc.why) from exc
        results: list[bytes | None] = []
        build, prefix = self._class, self._prefix
        for row, record in enumerate(records):
            if record is None:
                results.append(None)
                continue
            try:
                # A batch that comes again must have the same bytes, so maps have an order.
                results.append(prefix + build(**record).SerializeToString(deterministic=True))
            except Exception as exc:  # ValueError, TypeError, EncodeError, UnicodeEncodeError
                raise RowRefused(row, f"{type(exc).__name__}: {exc}"[:REASON_LENGTH_MAX]) from exc
        return pa.array(results, pa.binary())


def find_protobuf_problems(writer: ResolvedSchema, column_type: pa.DataType, field: str) -> list[str]:
    """Return what keeps a column from being written with a schema. Raises: SchemaError; MissingLibrary."""
    shape = build_shape(ProtobufSchema(writer).find_descriptor(writer.message))
    return list(find_writing_problems(shape, column_type, field))


class _Refusal(Exception):
    """A value cannot be written. Attributes: row, of the column that was given; why."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(row, why)
        self.row, self.why = row, why


def _write_struct(shape: MessageShape, column: pa.Array, at: str = "") -> list[Any]:
    """Return a dict for each row, without its nulls; None for a null."""
    rows = pc.indices_nonzero(column.is_valid()).to_pylist()
    present = column if len(rows) == len(column) else column.drop_null()
    names = [each.name for each in column.type]
    parts = dict(zip(names, present.flatten(), strict=True))
    fields = {each.name: each for each in shape.fields}
    try:
        _check_choices(shape, parts)
        values = [_write_field(fields[name], part, f"{at}{name}") for name, part in parts.items()]
    except _Refusal as exc:
        raise _Refusal(rows[exc.row], exc.why) from exc
    records = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return _place(records if names else [{} for _ in rows], rows, len(column))


def _place(values: list[Any], rows: list[int], count: int) -> list[Any]:
    if len(rows) == count:
        return values
    placed: list[Any] = [None] * count
    for row, value in zip(rows, values, strict=True):
        placed[row] = value
    return placed


def _check_choices(shape: MessageShape, parts: Mapping[str, pa.Array]) -> None:
    """Raise for a row with two members of one `oneof`: the last one would silently win."""
    choices = {each.choice for each in shape.fields if each.choice is not None}
    for choice in choices:
        members = [each.name for each in shape.fields if each.choice == choice and each.name in parts]
        counts = [
            sum(row) for row in zip(*(parts[name].is_valid().to_pylist() for name in members), strict=True)
        ]
        for row, count in enumerate(counts):
            if count > 1:
                raise _Refusal(row, f"of {', '.join(members)} only one may be set: oneof {choice}")


def _write_field(field: FieldShape, column: pa.Array, at: str) -> list[Any]:
    if column.null_count and not (field.has_presence and not field.is_required):
        row = column.is_null().index(pa.scalar(True)).as_py()
        raise _Refusal(row, f"{at} is null, and the schema has no null there")
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if not field.is_repeated:
        return _write_values(field, column, at)
    offsets = column.offsets.to_pylist()
    first, end = offsets[0], offsets[-1]
    is_map = field.key_type is not None
    items = (column.items if is_map else column.values)[first:end]
    rows = [row for row, span in enumerate(pairwise(offsets)) for _ in range(span[1] - span[0])]
    if items.null_count:
        row = rows[items.is_null().index(pa.scalar(True)).as_py()]
        raise _Refusal(row, f"{at} has a null in it, and the schema has none there")
    try:
        values = _write_values(field, items, f"{at}[]")
    except _Refusal as exc:
        raise _Refusal(rows[exc.row], exc.why) from exc
    spans = [(begin - first, stop - first) for begin, stop in pairwise(offsets)]
    if not is_map:
        return [values[begin:stop] for begin, stop in spans]
    pairs = list(zip(column.keys[first:end].cast(field.key_type).to_pylist(), values, strict=True))
    return [dict(pairs[begin:stop]) for begin, stop in spans]


def _write_values(field: FieldShape, column: pa.Array, at: str) -> list[Any]:
    match field.kind:
        case ValueKind.PLAIN:
            return _cast(column, field.value_type, at)
        case ValueKind.UINT64:
            return _cast(column, pa.uint64(), at)
        case ValueKind.ENUM:
            names = set(field.names.values())
            return [_read_enum(value, names) for value in column.cast(pa.string()).to_pylist()]
        case ValueKind.TIMESTAMP:
            return _map(column, field, lambda micros: _split(micros, 1))
        case ValueKind.DURATION:  # seconds and nanos have the same sign
            return _map(column, field, lambda micros: _split(abs(micros), -1 if micros < 0 else 1))
        case ValueKind.WRAPPER:
            inner = require(field.message, "a wrapper is a message").fields[0]
            values = _write_values(inner, column, at)
            return [None if value is None else {"value": value} for value in values]
        case ValueKind.MESSAGE:
            return _write_struct(require(field.message, "a message has a shape"), column, f"{at}.")


def _cast(column: pa.Array, wanted: pa.DataType, at: str) -> list[Any]:
    try:
        values: list[Any] = column.cast(wanted).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise SchemaError(f"{at}: a column of {column.type} does not fit {wanted}: {exc}") from exc
    return values


def _read_enum(value: str | None, names: set[str]) -> str | int | None:
    """Return the name of an enum's value; a number for one that the schema does not know."""
    if value is None or value in names:
        return value
    try:
        return int(value)
    except ValueError:
        return value  # protobuf refuses it, with the row


def _map(column: pa.Array, field: FieldShape, split: Callable[[int], dict[str, int]]) -> list[Any]:
    units = pc.cast(column, options=pc.CastOptions(field.value_type, allow_time_truncate=True))
    return [None if micros is None else split(micros) for micros in units.cast(pa.int64()).to_pylist()]


def _split(micros: int, sign: int) -> dict[str, int]:
    seconds, rest = divmod(micros, _MICROS)
    return {"seconds": sign * seconds, "nanos": sign * rest * 1000}
