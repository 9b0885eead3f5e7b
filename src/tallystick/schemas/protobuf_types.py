"""Arrow types for Protobuf messages, and .proto files for Arrow types. Pure: descriptors are arguments.

A field that knows whether it was set (`optional`, a member of a `oneof`, a message) is null if it was not.
Any other has the default of its type then, as for every reader of Protobuf: it is never null.

Not possible: messages that contain themselves, among them google.protobuf.Struct, Value and ListValue, since
a column has one type of a known depth.

Source: Protocol Buffers language guide (proto3), "Default field values", "Well-known types", "Updating a
message type".
"""

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from tallystick.kernel.value import Value
from tallystick.schemas.column_codec import fits_kind, get_kind
from tallystick.schemas.model import SchemaError

# FieldDescriptorProto.Type
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING, _GROUP, _MESSAGE = range(1, 12)
_BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = range(12, 19)
UINT64_TYPE: Final = pa.decimal128(20, 0)
"""Spark has no unsigned integers: this is the type that holds the largest one."""
_SCALARS: Final[Mapping[int, pa.DataType]] = {
    _DOUBLE: pa.float64(),
    _FLOAT: pa.float32(),
    _BOOL: pa.bool_(),
    _STRING: pa.string(),
    _BYTES: pa.binary(),
    **dict.fromkeys((_INT32, _SINT32, _SFIXED32), pa.int32()),
    **dict.fromkeys((_INT64, _SINT64, _SFIXED64, _UINT32, _FIXED32), pa.int64()),
    **dict.fromkeys((_UINT64, _FIXED64), UINT64_TYPE),
    _ENUM: pa.string(),
}
# A reader of the second type sees every value that a writer of the first one has written.
_WIDENINGS: Final = frozenset(
    {
        *((_BOOL, each) for each in (_INT32, _INT64, _UINT32, _UINT64)),
        *((_INT32, each) for each in (_INT64, _ENUM)),
        *((_ENUM, each) for each in (_INT32, _INT64)),
        *((_UINT32, each) for each in (_UINT64, _INT64)),
        (_STRING, _BYTES),
        (_BYTES, _STRING),
    }
)
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_TIMESTAMP_TEXT: Final = "google.protobuf.Timestamp"


class ValueKind(Enum):
    """Conversion of a field's value to a column's."""

    PLAIN = auto()
    UINT64 = auto()
    ENUM = auto()
    TIMESTAMP = auto()
    DURATION = auto()
    WRAPPER = auto()  # the message's only field, which may be missing
    MESSAGE = auto()


class FieldShape(Value, kw_only=True):
    """A field of a message, and its column.

    type         of the column: a list or a map for a repeated field
    value_type   of one value
    names        names of an enum by number
    message      of kind MESSAGE; of a wrapper: its value, as a field
    key_type     of a map
    choice       the `oneof` that it is a member of
    """

    name: str
    kind: ValueKind
    type: Any
    value_type: Any
    is_repeated: bool = False
    has_presence: bool = False
    is_required: bool = False
    key_type: Any = None
    names: Mapping[int, str] = MappingProxyType({})
    message: "MessageShape | None" = None
    choice: str | None = None


class MessageShape(Value, kw_only=True):
    """A message and its columns."""

    name: str
    fields: tuple[FieldShape, ...]
    type: Any

    @property
    def has_required(self) -> bool:
        """Whether a record may lack a field that it must have (proto2), at any depth."""
        return any(
            each.is_required or (each.message is not None and each.message.has_required)
            for each in self.fields
        )


def build_shape(descriptor: Any, inside: tuple[str, ...] = ()) -> MessageShape:
    """Return the columns of a message. Raises: SchemaError for what a column cannot hold."""
    name = descriptor.full_name
    if name in inside:
        path = " > ".join((*inside, name))
        raise SchemaError(f"message {name} contains itself ({path}), and no column can hold that")
    fields = tuple(_build_field(each, (*inside, name)) for each in descriptor.fields)
    columns = pa.struct([pa.field(each.name, each.type) for each in fields])
    return MessageShape(name=name, fields=fields, type=columns)


def _build_field(field: Any, inside: tuple[str, ...]) -> FieldShape:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        inner = _build_field(value, inside)
        key_type = _SCALARS[key.type]
        if key_type == UINT64_TYPE:
            raise SchemaError(f"field {field.full_name}: a map whose keys are uint64")
        column_type = pa.map_(key_type, inner.value_type)
        return _copy(inner, field, key_type=key_type, type=column_type, has_presence=False)
    kind, value_type, message = _find_kind(field, inside)
    names = {}
    if field.enum_type is not None:
        names = {each.number: each.name for each in reversed(field.enum_type.values)}
    choice = field.containing_oneof
    return FieldShape(
        name=field.name,
        kind=kind,
        type=pa.list_(pa.field("element", value_type)) if field.is_repeated else value_type,
        value_type=value_type,
        is_repeated=field.is_repeated,
        has_presence=field.has_presence,
        is_required=field.is_required,
        names=names,
        message=message,
        # `optional` of proto3 is a oneof of one member.
        choice=choice.name if choice is not None and len(choice.fields) > 1 else None,
    )


def _copy(inner: FieldShape, field: Any, *, key_type: Any, type: Any, has_presence: bool) -> FieldShape:  # noqa: A002
    return FieldShape(
        name=field.name,
        kind=inner.kind,
        type=type,
        value_type=inner.value_type,
        is_repeated=True,
        has_presence=has_presence,
        key_type=key_type,
        names=inner.names,
        message=inner.message,
    )


def _find_kind(field: Any, inside: tuple[str, ...]) -> tuple[ValueKind, pa.DataType, MessageShape | None]:
    if field.type in _SCALARS:
        value_type = _SCALARS[field.type]
        if field.type == _ENUM:
            return ValueKind.ENUM, value_type, None
        return (ValueKind.UINT64 if value_type == UINT64_TYPE else ValueKind.PLAIN), value_type, None
    name = field.message_type.full_name
    if name == _TIMESTAMP_TEXT:
        return ValueKind.TIMESTAMP, pa.timestamp("us", "UTC"), None
    if name == "google.protobuf.Duration":
        return ValueKind.DURATION, pa.duration("us"), None
    message = build_shape(field.message_type, inside)
    if name in _WRAPPERS:
        return ValueKind.WRAPPER, message.fields[0].value_type, message
    return ValueKind.MESSAGE, message.type, message


def is_map(field: Any) -> bool:
    """Whether a field of a descriptor is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def find_reading_problems(writer: Any, reader: Any) -> Iterator[str]:
    """Yield what a reader's message would misread or lose of a writer's, field by number.

    Protobuf itself reads on: a value of another wire type is skipped, a wider number is cut, and of several
    values for one the last is taken.
    """
    for field in reader.fields:
        other = writer.fields_by_number.get(field.number)
        if other is None:
            continue
        at = f"field {field.full_name} = {field.number}"
        if other.is_repeated and not field.is_repeated:
            yield f"{at}: the record has several values, and the column one"
        elif field.message_type is not None and other.message_type is not None and field.type == other.type:
            yield from find_reading_problems(other.message_type, field.message_type)
        elif field.type != other.type and (other.type, field.type) not in _WIDENINGS:
            names = _TYPE_NAMES[other.type], _TYPE_NAMES[field.type]
            yield f"{at}: is {names[0]} in the record, and {names[1]} for the column"


_TYPE_NAMES: Final = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group"),
    *("message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)


def find_writing_problems(shape: MessageShape, column: pa.DataType, at: str) -> Iterator[str]:
    """Yield what keeps a column from being written as a message: nothing is dropped."""
    if pa.types.is_null(column):
        return
    if not pa.types.is_struct(column):
        yield f"{at}: is {column}, and message {shape.name} has fields"
        return
    fields = {each.name: each for each in shape.fields}
    for each in column:
        if each.name in fields:
            yield from _compare(fields[each.name], each.type, f"{at}.{each.name}")
        else:
            yield f"{at}.{each.name}: message {shape.name} has no such field, and it would be lost"
    names = {each.name for each in column}
    for name, field in fields.items():
        if field.is_required and name not in names:
            yield f"{at}.{name}: message {shape.name} requires this field, and the column has not"


def _compare(field: FieldShape, column: pa.DataType, at: str) -> Iterator[str]:
    if pa.types.is_null(column):
        return
    kind = get_kind(column)
    if not field.is_repeated:
        yield from _compare_value(field, column, at)
    elif kind != get_kind(field.type):
        yield f"{at}: is {column}, and the schema has {field.type}"
    elif kind == "map":
        if get_kind(column.key_type) != get_kind(field.key_type):
            yield f"{at}[]: has keys of {column.key_type}, and the schema of {field.key_type}"
        yield from _compare_value(field, column.item_type, f"{at}[]")
    else:
        yield from _compare_value(field, column.value_type, f"{at}[]")


def _compare_value(field: FieldShape, column: pa.DataType, at: str) -> Iterator[str]:
    if field.kind is ValueKind.MESSAGE and field.message is not None:
        yield from find_writing_problems(field.message, column, at)
        return
    kinds = get_kind(column), get_kind(field.value_type)
    fits = fits_kind(column, field.value_type)
    if not (fits or kinds == ("integer", "decimal") or pa.types.is_null(column)):
        yield f"{at}: is {column}, and the schema has {field.value_type}"


def to_proto_text(column_type: pa.DataType, name: str) -> str:
    """Return a .proto file with one message for the columns of a struct.

    Raises: SchemaError for a type that Protobuf does not have.
    """
    if not pa.types.is_struct(column_type):
        raise SchemaError(f"a message has fields, and the column is {column_type}: make a struct of it")
    body = "\n".join(_write_message(column_type, name, ""))
    imports = ""
    if _TIMESTAMP_TEXT in body:
        imports = 'import "google/protobuf/timestamp.proto";\n\n'
    return f'syntax = "proto3";\n\n{imports}{body}\n'


def _write_message(struct: pa.DataType, name: str, indent: str) -> Iterator[str]:
    yield f"{indent}message {name} {{"
    for number, each in enumerate(struct, 1):
        inner = f"{name}_{each.name}"
        label, value_type = "optional ", each.type
        if pa.types.is_list(value_type):
            label, value_type = "repeated ", value_type.value_type
        elif pa.types.is_map(value_type):
            label, value_type = "", value_type.item_type
        if pa.types.is_struct(value_type):
            yield from _write_message(value_type, inner, f"{indent}  ")
        text = _write_type(value_type, inner)
        if not label:
            text = f"map<{_write_type(each.type.key_type, inner)}, {text}>"
        yield f"{indent}  {label}{text} {each.name} = {number};"
    yield f"{indent}}}"


def _write_type(value_type: pa.DataType, message: str) -> str:
    if pa.types.is_timestamp(value_type) and value_type.tz:
        return _TIMESTAMP_TEXT
    kind = get_kind(value_type)
    if kind == "integer":
        return "int32" if value_type.bit_width <= 32 else "int64"
    if kind == "floating":
        return "float" if value_type == pa.float32() else "double"
    names = {"struct": message, "boolean": "bool", "binary": "bytes", "string": "string"}
    if kind not in names:
        raise SchemaError(f"Protobuf has no type for a column of {value_type}: cast it")
    return names[kind]
