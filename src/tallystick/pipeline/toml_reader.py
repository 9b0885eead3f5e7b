"""Checked reader of TOML tables that collects every problem with its key's path. Pure.

Keys that were never read are unknown; `report_unknown_keys` reports them with the nearest known name.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar

from tallystick.kernel.settings import BadConfig

E = TypeVar("E", bound=StrEnum)

_MISSING: Final = object()


class Problems:
    """The problems of one document, raised together."""

    def __init__(self, source: str) -> None:
        """Collect problems of `source`, the name of the document in messages: its file."""
        self._source = source
        self._problems: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(self, path: str, problem: str) -> None:
        self._problems.append(f"{self._source}: {path}: {problem}")

    def raise_if_any(self) -> None:
        """Raise BadConfig with all problems, one per line, if there are any."""
        if self._problems:
            raise BadConfig("\n".join(self._problems))


class TomlTable:
    """One table of the document, at `path`; the empty path is the document itself."""

    def __init__(self, values: Mapping[str, object], path: str, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self._values = values
        self._read_keys: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def path_of(self, key: str) -> str:
        """Return the TOML path of a key, or of the table itself for the empty key."""
        if not key:
            return self.path
        shown = key if key.replace("_", "").replace("-", "").isalnum() else f'"{key}"'
        return f"{self.path}.{shown}" if self.path else shown

    def report(self, key: str, problem: str) -> None:
        self.problems.add(self.path_of(key), problem)

    def _read(self, key: str) -> object:
        self._read_keys.add(key)
        return self._values.get(key, _MISSING)

    # ------------------------------------------------------------------------------ values

    def text(self, key: str) -> str | None:
        """Return a non-blank string; None if it is missing."""
        value = self._read(key)
        if value is _MISSING:
            return None
        if not isinstance(value, str) or not value.strip():
            self.report(key, f"{value!r} is not a text" if not isinstance(value, str) else "is empty")
            return None
        return value

    def required_text(self, key: str, what: str) -> str:
        """Return a required string, described by `what`; empty after a problem."""
        if key not in self._values:
            self._read_keys.add(key)
            self.report(key, f"is missing: {what}")
            return ""
        return self.text(key) or ""

    def choice(self, key: str, kind: type[E], default: E) -> E:
        """Return a value of an enumeration."""
        value = self._read(key)
        if value is _MISSING:
            return default
        if value not in list(kind):
            self.report(key, f"{value!r} is not one of {', '.join(kind)}")
            return default
        return kind(str(value))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of distinct strings; a single string is a list of one."""
        value = self._read(key)
        if value is _MISSING:
            return ()
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found or not all(isinstance(x, str) and x for x in found):
            self.report(key, f"{value!r} is not a list of texts")
            return ()
        for twice in sorted({x for x in found if found.count(x) > 1}):
            self.report(key, f"{twice!r} is there twice")
        return tuple(found)

    def settings(self, key: str) -> Mapping[str, str]:
        """Return a table of settings as strings: `true` and 5 become "true" and "5"."""
        value = self._read(key)
        if value is _MISSING:
            return {}
        if not isinstance(value, Mapping):
            self.report(key, f"{value!r} is not a table")
            return {}
        return dict(self._flatten(value, self.path_of(key)))

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

    # ------------------------------------------------------------------------------ tables

    def table(self, key: str) -> "TomlTable | None":
        value = self._read(key)
        if value is _MISSING:
            return None
        if not isinstance(value, Mapping):
            self.report(key, f"{value!r} is not a table")
            return None
        return TomlTable(value, self.path_of(key), self.problems)

    def named_tables(self, key: str) -> "list[tuple[str, TomlTable]]":
        """Return the tables within a table with their names, in document order."""
        outer = self.table(key)
        if outer is None:
            return []
        inner = ((name, outer.table(name)) for name in outer._values)
        return [(name, table) for name, table in inner if table is not None]

    def table_list(self, key: str) -> "list[TomlTable]":
        """Return the tables of an array of tables."""
        value = self._read(key)
        if value is _MISSING:
            return []
        if not isinstance(value, list) or not all(isinstance(x, Mapping) for x in value):
            self.report(key, f"is not an array of tables: write [[{self.path_of(key)}]]")
            return []
        return [TomlTable(x, f"{self.path_of(key)}[{i}]", self.problems) for i, x in enumerate(value)]

    def report_unknown_keys(self) -> None:
        """Report all keys that were not read; call it after every known key has been read."""
        for key in self._values:
            if key not in self._read_keys:
                near = get_close_matches(key, sorted(self._read_keys), n=1, cutoff=0.6)
                self.report(key, "is unknown" + (f"; did you mean {near[0]}?" if near else ""))
