"""Declarations of messages: one class for all versions, fields in wire order.

    @message(api_key=22, versions="0-6", flexible="2+")
    class InitProducerIdRequest:
        transactional_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")]
        producer_id: Annotated[int, wire(INT64, "3+")] = -1

A declaration is data: for each version `compile.py` turns it into the two functions that encode and decode.
Values are frozen and keyword-only: see `kernel.value`.

    field absent at a version   decodes to its default; encoding anything else raises UnsupportedField,
                                unless the field is `ignorable` (dropping it changes no meaning)
    unknown tagged fields       are kept in `unknown_tags` and written back (KIP-482)

Source: Kafka `clients/src/main/resources/common/message/README.md` for the meaning of versions,
    nullability, tags and "ignorable"; KIP-482; KIP-893 for nullable structs.
"""

import uuid
from collections.abc import Callable
from typing import Final, TypeVar, cast, dataclass_transform, get_args

import msgspec

from tallystick.kernel.check import check
from tallystick.kernel.secret import HIDDEN
from tallystick.kernel.value import Value, brief_repr

T = TypeVar("T")


# ------------------------------------------------------------------------------ wire types


class ScalarType(Value):
    """A scalar type. `format` is its `struct` letter; None for a length-prefixed one."""

    name: str
    format: str | None
    zero: object  # the value of an absent field without a default of its own


class ArrayType(Value):
    """A length-prefixed list of one type."""

    element: "WireType"


WireType = ScalarType | ArrayType | type  # a type is a class made by @struct

BOOL: Final = ScalarType("bool", "?", False)
INT8: Final = ScalarType("int8", "b", 0)
INT16: Final = ScalarType("int16", "h", 0)
UINT16: Final = ScalarType("uint16", "H", 0)
INT32: Final = ScalarType("int32", "i", 0)
UINT32: Final = ScalarType("uint32", "I", 0)
INT64: Final = ScalarType("int64", "q", 0)
FLOAT64: Final = ScalarType("float64", "d", 0.0)
UUID: Final = ScalarType("uuid", "16s", uuid.UUID(int=0))
STRING: Final = ScalarType("string", None, "")
BYTES: Final = ScalarType("bytes", None, b"")
RECORDS: Final = ScalarType("records", None, None)


def array(element: WireType) -> ArrayType:
    """Return the type of an array of scalars or of a @struct class; a tuple in Python."""
    return ArrayType(element)


# -------------------------------------------------------------------------------- versions


class Versions(Value):
    """An inclusive range of versions; `last` None means no upper bound. The empty range contains nothing."""

    first: int
    last: int | None

    def __contains__(self, version: int) -> bool:
        return version >= self.first and (self.last is None or version <= self.last)

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Parse `"3"`, `"0-12"`, `"2+"` or `"none"`, as Kafka's schemas write them."""
        if text == "none":
            return NEVER
        if text.endswith("+"):
            return cls(int(text[:-1]), None)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


NEVER: Final = Versions(0, -1)
ALWAYS: Final = Versions(0, None)


# ------------------------------------------------------------------------------ declarations


class FieldWire(Value):
    """The arguments of `wire()` for a field, stored in its `Annotated`."""

    kind: WireType
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    compact: bool
    secret: bool


class FieldSpec(Value):
    """One declared field. `default` is also the decoded value in versions without the field."""

    name: str
    wire: FieldWire
    default: object
    required: bool  # required by the constructor

    @property
    def may_be_null(self) -> bool:
        """True if the field is nullable in some version; the other versions must refuse null."""
        return self.wire.nullable != NEVER

    def is_tagged(self, version: int) -> bool:
        return version in self.wire.tagged


class StructSpec(Value):
    """A struct and its fields, in wire order."""

    cls: type
    fields: tuple[FieldSpec, ...]

    @property
    def secret_names(self) -> frozenset[str]:
        """Fields that are not printed."""
        return frozenset(field.name for field in self.fields if field.wire.secret)


class MessageSpec(Value):
    """A top-level declaration: a request, a response, a header or a stored record."""

    struct: StructSpec
    api_key: int | None
    versions: Versions
    flexible: Versions


def wire(
    kind: WireType,
    versions: str,
    *,
    nullable: str | bool | None = None,
    tag: int | None = None,
    tagged_versions: str | None = None,
    ignorable: bool = False,
    compact: bool = True,
    secret: bool = False,
) -> FieldWire:
    """Annotate a field.

    Args:
        kind: the wire type; STRING, BYTES, RECORDS and arrays become compact in flexible versions.
        versions: the versions with this field.
        nullable: the versions in which it may be null; True for all.
        tag: number of a tagged field; `tagged_versions` if it is not tagged in all its versions.
        ignorable: encoding silently drops the value in versions without the field.
        compact: False for the one string that keeps its int16 length in flexible versions.
        secret: the content is not printed: messages are logged for debugging (CVE-2026-33558).
    """
    if nullable is None or nullable is False:
        may_be_null = NEVER
    else:
        may_be_null = ALWAYS if nullable is True else Versions.parse(nullable)
    exists = Versions.parse(versions)
    tagged = NEVER if tag is None else Versions.parse(tagged_versions or versions)
    return FieldWire(kind, exists, may_be_null, tag, tagged, ignorable, compact, secret)


_STRUCTS: Final[dict[type, StructSpec]] = {}
_MESSAGES: Final[dict[type, MessageSpec]] = {}


def get_struct_spec(cls: type) -> StructSpec:
    """Return the declaration of a @struct or @message class."""
    return _STRUCTS[cls]


def get_message_spec(cls: type) -> MessageSpec:
    """Return the declaration of a @message class."""
    try:
        return _MESSAGES[cls]
    except KeyError:
        raise TypeError(f"{cls.__qualname__} is not declared with @message") from None


def list_messages() -> tuple[type, ...]:
    """Return every message class imported so far, in order of declaration."""
    return tuple(_MESSAGES)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a part of a message."""
    return _declare_struct(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def message(
    *, versions: str, flexible: str | None = None, api_key: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a request, a response, a header or a stored record.

    Args:
        versions: the versions this class can be encoded and decoded at.
        flexible: the versions with compact lengths and tagged fields (KIP-482).
        api_key: None unless it is a request or response.
    """

    def declare(cls: type[T]) -> type[T]:
        struct_class = _declare_struct(cls)
        _MESSAGES[struct_class] = MessageSpec(
            _STRUCTS[struct_class], api_key, Versions.parse(versions), Versions.parse(flexible or "none")
        )
        return struct_class

    return declare


# ------------------------------------------------------------------------------------ values


class MessageStruct(Value, kw_only=True):
    """Base of all declared classes."""

    unknown_tags: tuple[tuple[int, bytes], ...] = ()

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name != "unknown_tags" or self.unknown_tags]
        hidden = _STRUCTS[type(self)].secret_names
        fields = ", ".join(
            f"{name}={HIDDEN if name in hidden else brief_repr(getattr(self, name))}" for name in names
        )
        return f"{type(self).__name__}({fields})"


def _declare_struct(cls: type[T]) -> type[T]:
    """Replace a class of annotations by a frozen, keyword-only struct and record its declaration."""
    namespace = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__")}
    namespace["__annotations__"] = cls.__annotations__
    struct_class = msgspec.StructMeta(cls.__name__, (MessageStruct,), namespace, frozen=True, kw_only=True)
    fields = (_make_field_spec(cls, name, cls.__dict__.get(name, _REQUIRED)) for name in cls.__annotations__)
    _STRUCTS[struct_class] = StructSpec(struct_class, tuple(fields))
    return cast(type[T], struct_class)


def _make_field_spec(cls: type, name: str, default: object) -> FieldSpec:
    wires = [part for part in get_args(cls.__annotations__[name])[1:] if isinstance(part, FieldWire)]
    check(len(wires) == 1, f"{cls.__qualname__}.{name}: wants Annotated[..., wire(...)]")
    field_wire = wires[0]
    required = default is _REQUIRED
    return FieldSpec(name, field_wire, _make_zero(field_wire.kind) if required else default, required)


_REQUIRED: Final = object()


def _make_zero(kind: WireType) -> object:
    if isinstance(kind, ScalarType):
        return kind.zero
    return () if isinstance(kind, ArrayType) else None
