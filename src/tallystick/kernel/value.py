"""Frozen value classes that are cheap to declare.

`dataclasses` compiles six methods for every class when its module is imported. A broker imports over a
hundred such classes before it listens, and never prints or compares most of them: this took a third of its
start time. A `@frozen` class is declared and behaves like a frozen, slotted dataclass, and
`dataclasses.fields`, `replace`, `asdict` and `match` work with it, but each method is generated on its first
call. Creating an instance costs 0.1 to 0.5 us more than for a frozen dataclass.

It takes no base class and has no order; for these, or for mutable values, use a dataclass.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T], /) -> type[T]: ...


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...


def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Declare a frozen value, like `@dataclass(frozen=True, slots=True)`."""
    if cls is not None:
        return make_frozen_class(cls)
    return lambda cls: make_frozen_class(cls, kw_only=kw_only)


class Value:
    """Base of all values: equality by content, no assignment, a readable repr."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, *given: object, **named: object) -> None:
        cls = type(self)
        cls.__init__ = _make_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, *given, **named)

    def __eq__(self, other: object) -> bool:
        cls = type(self)
        cls.__eq__ = _make_eq(cls)  # type: ignore[method-assign]
        return cls.__eq__(self, other)

    def __hash__(self) -> int:
        cls = type(self)
        cls.__hash__ = _make_hash(cls)  # type: ignore[method-assign, assignment]
        return cls.__hash__(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r} of {type(self).__name__}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r} of {type(self).__name__}")

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={brief_repr(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__name__}({inside})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), *(getattr(self, name) for name in self.__slots__))


def brief_repr(content: object) -> str:
    """Return the repr, or the size if it is long: a log line must not carry a megabyte."""
    if isinstance(content, (bytes, bytearray, memoryview)) and len(content) > 64:
        return f"<{len(content)} bytes>"
    return repr(content)


if TYPE_CHECKING:
    from dataclasses import replace as replace  # type checkers check the arguments by this name
else:

    def replace(value: T, /, **changes: object) -> T:
        """Do what `dataclasses.replace` does for a frozen value, in a third of the time."""
        cls = value.__class__
        made = make_draft_class(cls)(
            *[changes.pop(name) if name in changes else getattr(value, name) for name in cls.__slots__]
        )
        if changes:
            raise TypeError(f"{cls.__name__} has no {', '.join(changes)}")
        made.__class__ = cls
        if hasattr(cls, "__post_init__"):
            made.__post_init__()
        return made


def _rebuild(cls: type, *contents: object) -> object:
    return cls(**dict(zip(cast(type[Value], cls).__slots__, contents, strict=True)))


# ----------------------------------------------------------------------- making the classes


def make_frozen_class(cls: type[T], *, kw_only: bool = False, base: type[Value] = Value) -> type[T]:
    """Return the slotted, frozen form of a class of annotations, on `base`."""
    cls.__doc__ = cls.__doc__ or cls.__name__  # else `dataclass` computes a signature, slowly
    fields = dataclasses.fields(dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls))  # type: ignore[arg-type]
    slots = tuple(f.name for f in fields)
    namespace = {k: v for k, v in cls.__dict__.items() if k not in slots and k not in _NOT_COPIED}
    namespace |= {"__slots__": slots, "__qualname__": cls.__qualname__}
    return cast(type[T], type(cls.__name__, (base,), namespace))


_NOT_COPIED: Final = frozenset({"__dict__", "__weakref__"})
_DRAFTS: Final[dict[type, type]] = {}


def make_draft_class(cls: type) -> type:
    """Return a twin class with the same slots, assignable, its constructor positional in slot order.

    To build a frozen value: fill a draft, then set its `__class__`. That is three times as fast as
    `object.__setattr__` for every field, and decoders do it.
    """
    draft = _DRAFTS.get(cls)
    if draft is None:
        slots = cast(type[Value], cls).__slots__
        body = "".join(f"\n    self.{name} = {name}" for name in slots) or " pass"
        init = _compile_function("__init__", f"self, {', '.join(slots)}", body, {})
        members = {"__slots__": slots, "__setattr__": object.__setattr__, "__init__": init}
        draft = _DRAFTS[cls] = type(f"{cls.__name__}Draft", cls.__bases__, members)
    return draft


def _make_init(cls: type) -> Callable[..., None]:
    names: dict[str, object] = {"_draft": make_draft_class(cls), "_final": cls, "_become": object.__setattr__}
    names["_unset"] = MISSING
    parameters = ["self"]
    body = "\n    _become(self, '__class__', _draft)"
    keyword_only = False
    for f in dataclasses.fields(cls):
        if f.kw_only and not keyword_only:
            parameters.append("*")
            keyword_only = True
        default, content = _default(f, names)
        parameters.append(f"{f.name}{default}")
        body += f"\n    self.{f.name} = {content}"
    body += "\n    self.__class__ = _final"
    if hasattr(cls, "__post_init__"):
        body += "\n    self.__post_init__()"
    return cast(Callable[..., None], _compile_function("__init__", ", ".join(parameters), body, names))


def _default(f: "Field[object]", names: dict[str, object]) -> tuple[str, str]:
    """Return a parameter's default in source form, and the expression assigned to the field."""
    if f.default_factory is not MISSING:
        names[f"_make_{f.name}"] = f.default_factory
        return "=_unset", f"_make_{f.name}() if {f.name} is _unset else {f.name}"
    if f.default is not MISSING:
        names[f"_default_{f.name}"] = f.default
        return f"=_default_{f.name}", f.name
    return "", f.name


def _make_eq(cls: type) -> Callable[[object, object], bool]:
    names = cast(type[Value], cls).__slots__
    same = " and ".join(f"self.{name} == other.{name}" for name in names) or "True"
    body = (
        f"\n    if other.__class__ is not self.__class__:\n        return NotImplemented\n    return {same}"
    )
    return cast(Callable[[object, object], bool], _compile_function("__eq__", "self, other", body, {}))


def _make_hash(cls: type) -> Callable[[object], int]:
    contents = "".join(f"self.{name}, " for name in cast(type[Value], cls).__slots__)
    return cast(
        Callable[[object], int], _compile_function("__hash__", "self", f" return hash(({contents}))", {})
    )


def _compile_function(name: str, parameters: str, body: str, names: dict[str, object]) -> object:
    exec(f"def {name}({parameters}):{body}", names)
    return names[name]
