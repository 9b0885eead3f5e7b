"""Connections of driver and tasks to a query's database: its URL, and for SQLite the host of its file."""

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from tallystick import _lazy
from tallystick.dualwrite.stores.by_url import describe_url
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

SQLITE_BUSY_TIMEOUT_S: Final = 60
"""Seconds that SQLite waits for another writer: tasks stage in turns."""

_DRIVERS: Final = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
_ENGINES: Final[dict[tuple[int, str], Engine]] = {}


class DecisionDatabase(Value, kw_only=True):
    """The database with the tables and the decisions.

    url              the user's SQLAlchemy URL
    sqlite_location  for SQLite the host and the file, so that a task on another host is refused; else None
    """

    url: str
    sqlite_location: str | None = None


def resolve_database(url: str) -> DecisionDatabase:
    """Check the URL on the driver and return its database. Raises: BadConfig."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # a bad port
        raise BadConfig(f"database: {describe_url(url)} is no URL of SQLAlchemy's") from None
    if address.get_backend_name() not in (*_DRIVERS, "sqlite"):
        raise BadConfig(f"database: {address.get_backend_name()} is not PostgreSQL, MySQL, MariaDB or SQLite")
    if address.get_backend_name() != "sqlite":
        return DecisionDatabase(url=url)
    place = _locate_sqlite_file(address)
    if place is None:
        raise BadConfig(
            f"database: {address.database or ':memory:'}: is not a file on this host, and the sink does "
            "not create it. Tasks are separate processes: they need a file or a database server"
        )
    return DecisionDatabase(url=url, sqlite_location=place)


def get_engine(where: DecisionDatabase) -> Engine:
    """Return this process's engine. Raises: BadConfig in a task that cannot reach an SQLite file."""
    key = (os.getpid(), where.url)
    if key in _ENGINES:
        return _ENGINES[key]
    address = make_url(where.url)
    backend = address.get_backend_name()
    if backend == "sqlite":
        if _locate_sqlite_file(address) != where.sqlite_location:
            raise BadConfig(
                f"database: {address.database}: this task is on {platform.node()}, which does not have "
                "the driver's file. SQLite works with the masters local and local-cluster alone; use a "
                "database server"
            )
        engine = create_engine(address, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_S})
    else:
        plain = address.drivername == backend
        address = address.set(drivername=_DRIVERS[backend]) if plain else address
        # With pre_ping, a restart of the server between two batches fails no batch.
        with _lazy.naming_drivers():
            engine = create_engine(address, isolation_level="READ COMMITTED", pool_pre_ping=True)
    return _ENGINES.setdefault(key, engine)


def _locate_sqlite_file(address: URL) -> str | None:
    """Identify host and file, by device and inode: containers share a kernel, but not the file system."""
    if address.database in (None, "", ":memory:"):
        return None
    boot = platform.node()
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        status = os.stat(address.database or "")
    except OSError:
        return None
    return f"{boot} {status.st_dev}:{status.st_ino}"
