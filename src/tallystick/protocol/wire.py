"""How a message is declared: one class for all its versions, in the order of the wire.

    @message(api_key=22, versions="0-6", flexible="2+")
    class InitProducerIdRequest:
        transactional_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")]
        producer_id: Annotated[int, wire(INT64, "3+")] = -1

A declaration is data: `compile.py` turns it, together with a version, into the two functions that
encode and decode. Values are frozen, slotted and keyword-only. They are not built by `dataclasses`
because its frozen `__init__` costs three times as much per field, and because it compiles five methods
per class when the module is imported: some hundred classes would take most of the time a broker may
need to start. Here a class gets its `__init__` when it is first used, and `dataclasses.fields` and
`replace` work as usual.

    field absent at a version   decodes to its default; encoding anything else raises UnsupportedField,
                                unless the field is `ignorable` (dropping it changes no meaning)
    unknown tagged fields       are kept in `unknown_tags` and written back (KIP-482)

Source: Kafka `clients/src/main/resources/common/message/README.md` for the meaning of versions,
    nullability, tags and "ignorable"; KIP-482; KIP-893 for nullable structs.
"""

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass
from typing import Final, NoReturn, TypeVar, cast, dataclass_transform, get_args

from tallystick.kernel.check import check

T = TypeVar("T")


# ------------------------------------------------------------------------------ wire types


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts. `format` is its `struct` letter; None for what has a length in front."""

    name: str
    format: str | None
    zero: object  # the value of a field that is absent and has no default of its own


@dataclass(frozen=True, slots=True)
class Array:
    """A counted list of one type."""

    element: "WireType"


WireType = Scalar | Array | type  # a type is a class made by @struct

BOOL: Final = Scalar("bool", "?", False)
INT8: Final = Scalar("int8", "b", 0)
INT16: Final = Scalar("int16", "h", 0)
UINT16: Final = Scalar("uint16", "H", 0)
INT32: Final = Scalar("int32", "i", 0)
UINT32: Final = Scalar("uint32", "I", 0)
INT64: Final = Scalar("int64", "q", 0)
FLOAT64: Final = Scalar("float64", "d", 0.0)
UUID: Final = Scalar("uuid", "16s", uuid.UUID(int=0))
STRING: Final = Scalar("string", None, "")
BYTES: Final = Scalar("bytes", None, b"")
RECORDS: Final = Scalar("records", None, None)


def array(element: WireType) -> Array:
    """An array of scalars or of a @struct class; a tuple in Python."""
    return Array(element)


# -------------------------------------------------------------------------------- versions


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; `last` None is open. The empty range contains nothing."""

    first: int
    last: int | None

    def __contains__(self, version: int) -> bool:
        return version >= self.first and (self.last is None or version <= self.last)

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """`"3"`, `"0-12"`, `"2+"` or `"none"`, as Kafka's schemas write them."""
        if text == "none":
            return NEVER
        if text.endswith("+"):
            return cls(int(text[:-1]), None)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


NEVER: Final = Versions(0, -1)
ALWAYS: Final = Versions(0, None)


# ------------------------------------------------------------------------------ declarations


@dataclass(frozen=True, slots=True)
class Wire:
    """What `wire()` says about a field; travels in its `Annotated`."""

    kind: WireType
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    compact: bool


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One declared field. `default` is also what decoding yields where the field is absent."""

    name: str
    wire: Wire
    default: object
    required: bool  # the constructor asks for it

    @property
    def may_be_null(self) -> bool:
        """Null in some version; the others must refuse it."""
        return self.wire.nullable != NEVER

    def is_tagged(self, version: int) -> bool:
        return version in self.wire.tagged


@dataclass(frozen=True, slots=True)
class StructSpec:
    """A struct and its fields, in wire order."""

    cls: type
    fields: tuple[FieldSpec, ...]


@dataclass(frozen=True, slots=True)
class MessageSpec:
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
) -> Wire:
    """Annotate a field.

    Args:
        kind: what is on the wire; STRING, BYTES, RECORDS and arrays turn compact in flexible versions.
        versions: where the field exists.
        nullable: where it may be null; True for all versions.
        tag: number of a tagged field; `tagged_versions` where it is tagged, if not in all it exists in.
        ignorable: encoding drops a value silently where the field does not exist.
        compact: False for the one string that keeps its int16 length in flexible versions.
    """
    if nullable is None or nullable is False:
        may_be_null = NEVER
    else:
        may_be_null = ALWAYS if nullable is True else Versions.parse(nullable)
    exists = Versions.parse(versions)
    tagged = NEVER if tag is None else Versions.parse(tagged_versions or versions)
    return Wire(kind, exists, may_be_null, tag, tagged, ignorable, compact)


_STRUCTS: Final[dict[type, StructSpec]] = {}
_MESSAGES: Final[dict[type, MessageSpec]] = {}


def struct_spec(cls: type) -> StructSpec:
    """The declaration behind a @struct or @message class."""
    return _STRUCTS[cls]


def message_spec(cls: type) -> MessageSpec:
    """The declaration behind a @message class."""
    try:
        return _MESSAGES[cls]
    except KeyError:
        raise TypeError(f"{cls.__qualname__} is not declared with @message") from None


def all_messages() -> tuple[type, ...]:
    """Every message class imported so far, in order of declaration."""
    return tuple(_MESSAGES)


def unknown_tags_of(value: object) -> tuple[tuple[int, bytes], ...]:
    """Tagged fields that a struct was sent and this version of the code does not know."""
    tags: tuple[tuple[int, bytes], ...] = getattr(value, "unknown_tags")  # noqa: B009
    return tags


@dataclass_transform(kw_only_default=True, frozen_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a part of a message."""
    return _declare(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def message(
    *, versions: str, flexible: str | None = None, api_key: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a request, a response, a header or a stored record.

    Args:
        versions: the versions this class can be encoded and decoded at.
        flexible: those with compact lengths and tagged fields (KIP-482).
        api_key: None for what is not a request or response.
    """

    def declare(cls: type[T]) -> type[T]:
        made = _declare(cls)
        _MESSAGES[made] = MessageSpec(
            _STRUCTS[made], api_key, Versions.parse(versions), Versions.parse(flexible or "none")
        )
        return made

    return declare


# ------------------------------------------------------------------------------------ values


class Value:
    """What all declared classes share: equality by content, no assignment, a readable repr."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, **values: object) -> None:
        cls = type(self)
        cls.__init__ = _make_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r} of {type(self).__name__}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r} of {type(self).__name__}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.__slots__)))

    def __repr__(self) -> str:
        names = (n for n in self.__slots__ if n != "unknown_tags" or unknown_tags_of(self))
        inside = ", ".join(f"{name}={_brief(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({inside})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), *(getattr(self, name) for name in self.__slots__))


def _brief(value: object) -> str:
    """Record data as its size: a log line must not carry a megabyte."""
    if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > 64:
        return f"<{len(value)} bytes>"
    return repr(value)


def _rebuild(cls: type, *values: object) -> object:
    return cls(**dict(zip(cast(type[Value], cls).__slots__, values, strict=True)))


# ----------------------------------------------------------------------- making the classes


def _declare(cls: type[T]) -> type[T]:
    """Replace a class of annotations by its slotted, frozen form and note its declaration."""
    cls.__annotations__["unknown_tags"] = tuple[tuple[int, bytes], ...]
    setattr(cls, "unknown_tags", ())  # noqa: B010
    cls.__doc__ = cls.__doc__ or cls.__name__  # else `dataclass` computes a signature, slowly
    fields = dataclasses.fields(dataclass(init=False, repr=False, eq=False, kw_only=True)(cls))  # type: ignore[arg-type]
    slots = tuple(field.name for field in fields)
    namespace = {k: v for k, v in cls.__dict__.items() if k not in slots and k not in _NOT_COPIED}
    made = type(cls.__name__, (Value,), {**namespace, "__slots__": slots})
    specs = tuple(_field_spec(cls, f.name, f.type, f.default) for f in fields if f.name != "unknown_tags")
    _STRUCTS[made] = StructSpec(made, specs)
    return cast(type[T], made)


_NOT_COPIED: Final = frozenset({"__dict__", "__weakref__"})


def _field_spec(cls: type, name: str, annotation: object, default: object) -> FieldSpec:
    declared = [part for part in get_args(annotation)[1:] if isinstance(part, Wire)]
    check(len(declared) == 1, f"{cls.__qualname__}.{name}: wants Annotated[..., wire(...)]")
    what = declared[0]
    return FieldSpec(name, what, _zero(what.kind) if default is MISSING else default, default is MISSING)


def _zero(kind: WireType) -> object:
    if isinstance(kind, Scalar):
        return kind.zero
    return () if isinstance(kind, Array) else None


_DRAFTS: Final[dict[type, type]] = {}


def draft_of(cls: type) -> type:
    """A twin with the same slots, assignable, its constructor positional in slot order.

    To build a frozen value: fill a draft, then set its `__class__`. That is three times as fast as
    going through `object.__setattr__` for every field, and it is what decoders do.
    """
    draft = _DRAFTS.get(cls)
    if draft is None:
        slots = cast(type[Value], cls).__slots__
        body = "".join(f"\n    self.{name} = {name}" for name in slots)
        init = _function(f"def __init__(self, {', '.join(slots)}):{body}", {})
        members = {"__slots__": slots, "__setattr__": object.__setattr__, "__init__": init}
        draft = _DRAFTS[cls] = type(f"{cls.__name__}Draft", (Value,), members)
    return draft


def _make_init(cls: type) -> Callable[..., None]:
    """The keyword-only `__init__` of a class, written when the class is used for the first time."""
    fields = struct_spec(cls).fields
    names: dict[str, object] = {"draft": draft_of(cls), "final": cls, "become": object.__setattr__}
    names |= {f"default_{f.name}": f.default for f in fields}
    parameters = ", ".join(f.name if f.required else f"{f.name}=default_{f.name}" for f in fields)
    body = "".join(f"\n    self.{name} = {name}" for name in (*(f.name for f in fields), "unknown_tags"))
    source = (
        f"def __init__(self, *, {parameters}{', ' if parameters else ''}unknown_tags=()):"
        f"\n    become(self, '__class__', draft){body}\n    self.__class__ = final"
    )
    return _function(source, names)


def _function(source: str, names: dict[str, object]) -> Callable[..., None]:
    exec(source, names)
    return cast(Callable[..., None], names["__init__"])
