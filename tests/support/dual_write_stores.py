"""The databases of a dual write by name: opened in a process that will be killed, and read by the checker.

A database is a name (`sqlite`, `postgresql+asyncpg`, …) and a location. The rows of a writer are numbers,
each in the table, family or path called `paid`; of a lake, the table itself.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import django
import pyarrow as pa
from deltalake import DeltaTable
from django.conf import settings
from django.db import connections
from kazoo.client import KazooClient
from rocksdict import Rdict
from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tallystick.dualwrite import (
    AsyncDeltaStore,
    AsyncSqlStore,
    DeltaStore,
    DjangoStore,
    RocksStore,
    SqlStore,
    ZooKeeperStore,
)

ASYNC = ("sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg async", "mysql+asyncmy")
POOLED = ("postgresql+psycopg pooled", "postgresql+psycopg2 pooled", "postgresql+asyncpg pooled")
SQL = ("sqlite", "postgresql+psycopg", "postgresql+psycopg2", "mysql+pymysql", *ASYNC, *POOLED)
LAKE = ("delta", "delta async")
KINDS = (*SQL, "django", "rocksdb", "zookeeper", *LAKE)
INSERT = "INSERT INTO paid VALUES (:n)"


@dataclass(frozen=True)
class Place:
    """A database: `where` is a URL, a folder, or ZooKeeper's host with a path after it.

    The URL of one that is `pooled` is PgBouncer's.
    """

    kind: str
    where: str

    @property
    def is_async(self) -> bool:
        return self.kind.removesuffix(" pooled") in ASYNC or self.kind.endswith(" async")

    @property
    def url(self) -> URL:
        driver = self.kind.partition(" ")[0]
        return make_url(self.where).set(drivername="postgresql+psycopg" if driver == "django" else driver)

    @property
    def driver_settings(self) -> dict[str, Any]:
        """What a pooler asks of a driver that prepares its statements: docs/how-to/sqlalchemy.md."""
        match self.kind:
            case "postgresql+asyncpg pooled":
                return {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
            case "postgresql+psycopg pooled":
                return {"prepare_threshold": None}
            case _:
                return {}

    def at_port(self, port: int) -> "Place":
        """Return the same database through a proxy."""
        return Place(self.kind, make_url(self.where).set(port=port).render_as_string())


def write(kind: str, handle: Any, n: int) -> Any:
    """Write the user's row in the transaction; an asynchronous store's result must be awaited."""
    match kind:
        case "rocksdb":
            handle.put(f"paid-{n:09}", b"")
        case "zookeeper":
            handle.create(f"/paid/{n:09}")
        case "django":
            with handle.cursor() as cursor:
                cursor.execute("INSERT INTO paid VALUES (%s)", [n])
        case "delta" | "delta async":
            return handle.append([{"n": n}])
        case _:
            return handle.execute(text(INSERT), {"n": n})
    return None


@contextmanager
def opened(place: Place) -> Iterator[Any]:
    """Open a store with its own connections."""
    match place.kind:
        case "rocksdb":
            with closing(Rdict(place.where)) as database, closing(RocksStore(database)) as rocks:
                yield rocks
        case "zookeeper":
            with _connected(place) as client:
                yield ZooKeeperStore(client)
        case "django":
            with closing(_django(place)):
                yield DjangoStore("default")
        case "delta":
            yield DeltaStore(place.where)
        case _:
            engine = _engine(place)
            yield SqlStore(engine)
            engine.dispose()


@asynccontextmanager
async def opened_async(place: Place) -> AsyncIterator[AsyncSqlStore | AsyncDeltaStore]:
    if place.kind == "delta async":
        yield AsyncDeltaStore(place.where)
        return
    engine = create_async_engine(place.url, poolclass=NullPool, connect_args=place.driver_settings)
    yield AsyncSqlStore(engine)
    await engine.dispose()


def create(place: Place) -> None:
    """Create the tables, ours and the user's."""
    if place.kind == "zookeeper":
        host, _, root = place.where.partition("/")
        with _connected(Place("zookeeper", host)) as client:
            client.ensure_path(f"/{root}/paid")
    if place.kind in LAKE:
        DeltaTable.create(place.where, schema=pa.schema([("n", pa.int64())]))
    if place.kind in (*SQL, "django"):
        with closing_engine(place) as engine, engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (n INTEGER PRIMARY KEY)"))
    if place.is_async:
        asyncio.run(_create(place))
    else:
        with opened(place) as store:
            store.create()


async def _create(place: Place) -> None:
    async with opened_async(place) as store:
        await store.create()


def rows(place: Place) -> list[int]:
    """Return the committed rows in order, read without the store."""
    match place.kind:
        case "rocksdb":
            with closing(Rdict(place.where)) as database:
                return [int(str(key)[5:]) for key in database.keys()]  # noqa: SIM118
        case "zookeeper":
            return _children(_session(place.where))
        case "delta" | "delta async":
            return sorted(pa.table(DeltaTable(place.where).scan().read_all())["n"].to_pylist())
        case _:
            with closing_engine(place) as engine, engine.connect() as connection:
                return list(connection.execute(text("SELECT n FROM paid ORDER BY n")).scalars())


@contextmanager
def closing_engine(place: Place) -> Iterator[Engine]:
    """Open the database with a synchronous driver."""
    plain = {"postgresql+asyncpg": "postgresql+psycopg", "mysql+asyncmy": "mysql+pymysql"}
    plain["sqlite+aiosqlite"] = "sqlite"
    kind = place.kind.removesuffix(" pooled")
    engine = _engine(Place(plain.get(kind, kind), place.where))
    yield engine
    engine.dispose()


def _engine(place: Place) -> Engine:
    engine = create_engine(place.url, poolclass=NullPool, connect_args=place.driver_settings)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=20000"))
    return engine


@contextmanager
def _connected(place: Place) -> Iterator[KazooClient]:
    client = KazooClient(place.where, timeout=10)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


_sessions: dict[str, KazooClient] = {}


def _session(where: str) -> KazooClient:
    """Return the shared session for all reading: to begin one takes as long as a life."""
    client = _sessions.get(where)
    if client is None:
        client = _sessions[where] = KazooClient(where, timeout=60)
        client.start()
    return client


def _children(client: KazooClient) -> list[int]:
    client.sync("/paid")
    return sorted(map(int, client.get_children("/paid")))


def leave(place: Place) -> None:
    """Close what `rows` keeps open for a place: a client keeps looking for its server when that is gone."""
    client = _sessions.pop(place.where, None) if place.kind == "zookeeper" else None
    if client is not None:
        client.stop()
        client.close()


def _django(place: Place) -> Any:
    url = place.url
    default = {"ENGINE": "django.db.backends.postgresql", "NAME": url.database, "USER": url.username}
    default |= {"HOST": url.host, "PORT": url.port}
    if not settings.configured:
        settings.configure(LOGGING_CONFIG=None)
        django.setup()
    one = connections.configure_settings({"default": default})
    connections.settings["default"] = one["default"]
    if hasattr(connections._connections, "default"):
        del connections["default"]
    return connections["default"]
