"""Reader of TOML tables into structs. Pure.

msgspec checks each value against its field's type. It stops at the first problem, and the author of a file
wants them all, so the fields are converted one by one: every problem is kept with its key's path, and the
value continues with the field's default.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import EnumMeta
from typing import Annotated, Final, TypeVar, get_args

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

from tallystick.kernel.settings import BadConfig

S = TypeVar("S", bound=msgspec.Struct)

# Settings of another system, by dotted name.
Settings = Mapping[str, str]
# A key that may hold one string or a list of distinct ones.
Texts = tuple[Annotated[str, msgspec.Meta(min_length=1)], ...]


class Problems:
    """The problems of one document, raised together."""

    def __init__(self, source: str) -> None:
        """Collect problems of `source`, the name of the document in messages: its file."""
        self._source = source
        self._problems: list[str] = []
        self._parts: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(self, path: str, problem: str) -> None:
        self._problems.append(f"{self._source}: {path}: {problem}")
        self._parts.add(_name_part(path))

    def add_new(self, path: str, problem: str) -> None:
        """Add a problem, unless one of the same part is there, which may be its cause."""
        if _name_part(path) not in self._parts:
            self._problems.append(f"{self._source}: {path}: {problem}")

    def raise_if_any(self) -> None:
        """Raise BadConfig with all problems, one per line, if there are any."""
        if self._problems:
            raise BadConfig("\n".join(self._problems))


def _name_part(path: str) -> str:
    """Return the part of a document that a key is in, such as `sources.orders`."""
    return ".".join(path.split(".")[:2])


class TomlTable:
    """One table of the document, at `path`; the empty path is the document itself."""

    def __init__(self, values: Mapping[str, object], path: str, problems: Problems) -> None:
        self.values = values
        self.path = path
        self.problems = problems

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def path_of(self, key: str) -> str:
        """Return the TOML path of a key, or of the table itself for the empty key."""
        if not key:
            return self.path
        quoted = key if key.replace("_", "").replace("-", "").isalnum() else f'"{key}"'
        return f"{self.path}.{quoted}" if self.path else quoted

    def report(self, key: str, problem: str) -> None:
        self.problems.add(self.path_of(key), problem)

    def table(self, key: str) -> "TomlTable | None":
        """Return the table of a key; None if it is missing or no table."""
        value = self.values.get(key, {})
        if not isinstance(value, Mapping):
            self.report(key, f"{value!r} is not a table")
        return TomlTable(value, self.path_of(key), self.problems) if isinstance(value, Mapping) else None

    def named_tables(self, key: str) -> "list[tuple[str, TomlTable]]":
        """Return the tables within a table with their names, in document order."""
        outer = self.table(key)
        inner = ((name, outer.table(name)) for name in outer.values) if outer is not None else ()
        return [(name, table) for name, table in inner if table is not None]

    def table_list(self, key: str) -> "list[TomlTable]":
        """Return the tables of an array of tables."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(x, Mapping) for x in value):
            self.report(key, f"is not an array of tables: write [[{self.path_of(key)}]]")
            return []
        return [TomlTable(x, f"{self.path_of(key)}[{i}]", self.problems) for i, x in enumerate(value)]

    # --------------------------------------------------------------------------- structs

    def read(self, cls: type[S], parts: Mapping[str, object] | None = None, **outside: object) -> S:
        """Read the table into a struct.

        A field that is wrong or missing is reported, and holds its default, or the empty string.

        Args:
            parts: fields whose keys the caller has read.
            outside: fields that no key of the table stands for.
        """
        read_before = dict(parts or {})
        fields = {f.encode_name: f for f in msgspec.structs.fields(cls) if f.name not in outside}
        own = {f.name: self._read_field(key, f) for key, f in fields.items() if f.name not in read_before}
        for key in self.values:
            if key not in fields:
                near = get_close_matches(key, fields, n=1, cutoff=0.6)
                self.report(key, "is unknown" + (f"; did you mean {near[0]}?" if near else ""))
        return cls(**read_before, **outside, **own)

    def _read_field(self, key: str, field: FieldInfo) -> object:
        default = _get_default(field)
        if key not in self.values:
            if field.required:
                self.report(key, f"is missing: {_get_description(field)}")
            return default
        value = self.values[key]
        if isinstance(value, str) and not value.strip():
            self.report(key, "is empty")
            return default
        if field.type == Settings:
            return self.read_settings(key)
        nested = _get_struct(field.type)
        if nested is not None:
            table = self.table(key)
            return table.read(nested) if table is not None else default
        if field.type == Texts and isinstance(value, str):
            value = [value]
        try:
            converted: object = msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            choices = ", ".join(field.type) if isinstance(field.type, EnumMeta) else ""
            self.report(key, f"{value!r} is not one of {choices}" if choices else str(error))
            return default
        if isinstance(converted, tuple):
            for twice in sorted({x for x in converted if converted.count(x) > 1}):
                self.report(key, f"{twice!r} is there twice")
        return converted

    def read_settings(self, key: str) -> Settings:
        """Return a table of settings as strings: `true` and 5 become "true" and "5"."""
        table = self.table(key)
        return dict(self._flatten(table.values, table.path)) if table is not None else {}

    def _flatten(self, table: Mapping[str, object], path: str) -> Iterator[tuple[str, str]]:
        """Flatten nested tables to dotted names: TOML parses an unquoted dotted key as nested tables."""
        for name, value in table.items():
            match value:
                case Mapping():
                    yield from (
                        (f"{name}.{rest}", text) for rest, text in self._flatten(value, f"{path}.{name}")
                    )
                case bool():
                    yield name, str(value).lower()
                case str() | int() | float():
                    yield name, str(value)
                case _:
                    self.problems.add(f"{path}.{name}", f"{value!r} is not a setting's value")


_MISSING_TEXT: Final = ""  # every required key is a string


def _get_default(field: FieldInfo) -> object:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return field.default if field.default is not NODEFAULT else _MISSING_TEXT


def _get_description(field: FieldInfo) -> str:
    """Return the description of a required field, from its annotation."""
    metas = [part for part in get_args(field.type)[1:] if isinstance(part, msgspec.Meta)]
    return next((meta.description for meta in metas if meta.description), field.name)


def _get_struct(kind: object) -> type[msgspec.Struct] | None:
    """Return the struct of an optional table."""
    parts = (part for part in get_args(kind) if isinstance(part, type) and issubclass(part, msgspec.Struct))
    return next(parts, None)
