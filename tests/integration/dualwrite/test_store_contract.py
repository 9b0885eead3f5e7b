"""Every store of ours against the contract, on the database it is for: `tallystick.testing.store_suite`."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from django.conf import settings
from django.db import connections
from kazoo.client import KazooClient, TransactionRequest
from rocksdict import Options, Rdict, WriteBatch
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.support.dual_write_stores import Place
from tests.support.servers import PostgreSQL, ZooKeeper

from tallystick.client.errors import NotSupported
from tallystick.dualwrite import (
    AsyncDeltaStore,
    AsyncSqlStore,
    DeltaStore,
    DjangoStore,
    RocksStore,
    SqlStore,
    ZooKeeperStore,
)
from tallystick.dualwrite.rules.model import StoredState
from tallystick.lake import delta
from tallystick.lake.names import parse_table_url
from tallystick.testing.store_suite import CallRunner, StoreSuite

pytestmark = [pytest.mark.server, pytest.mark.slow]

if not settings.configured:
    settings.configure(LOGGING_CONFIG=None)
    django.setup()


def find_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind.startswith("sqlite"):
        return Place(kind, f"sqlite:///{tmp_path / 'rows.db'}")
    server = request.getfixturevalue("postgresql" if "postgresql" in kind else "mariadb")
    pooler = request.getfixturevalue("pgbouncer") if kind.endswith(" pooled") else None
    return Place(kind, server.url(server.new_database(), port=pooler and pooler.port))


@pytest.mark.gate(2)
class TestSqlStore(StoreSuite):
    """Each driver, with connections that are kept: some go through a pooler, to another session each time."""

    @pytest.fixture(
        params=[
            "postgresql+psycopg",
            "postgresql+psycopg2",
            "postgresql+psycopg pooled",
            "postgresql+psycopg2 pooled",
            "mysql+pymysql",
            "mysql+mysqldb",
            "sqlite",
        ]
    )
    def stores(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], SqlStore]]:
        if request.param == "mysql+mysqldb":
            pytest.importorskip("MySQLdb", reason="mysqlclient has no wheels, and needs MariaDB's headers")
        place = find_place(request.param, request, tmp_path)
        engines = [create_engine(place.url, connect_args=place.driver_settings) for _ in range(2)]
        self.engine = engines[0]
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE mine (v VARCHAR(20))"))
        made = iter(engines)
        yield lambda: SqlStore(next(made))
        for engine in engines:
            engine.dispose()

    def write(self, handle: Session, value: str) -> None:
        handle.execute(text("INSERT INTO mine VALUES (:v)"), {"v": value})

    def read(self, store: SqlStore) -> set[str]:
        with self.engine.connect() as connection:
            return set(connection.execute(text("SELECT v FROM mine")).scalars())


@pytest.mark.gate(2)
class TestAsyncSqlStore(StoreSuite):
    @pytest.fixture(
        params=[
            "postgresql+asyncpg",
            "postgresql+psycopg async",
            "postgresql+asyncpg pooled",
            "mysql+asyncmy",
            "sqlite+aiosqlite",
        ]
    )
    def stores(
        self, request: pytest.FixtureRequest, runner: CallRunner, tmp_path: Path
    ) -> Iterator[Callable[[], AsyncSqlStore]]:
        place = find_place(request.param, request, tmp_path)
        engines = [create_async_engine(place.url, connect_args=place.driver_settings) for _ in range(2)]
        self.engine = engines[0]
        runner.call(self._make_table)
        made = iter(engines)
        yield lambda: AsyncSqlStore(next(made))
        for engine in engines:
            runner.call(engine.dispose)

    async def _make_table(self) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE mine (v VARCHAR(20))"))

    async def write(self, handle: AsyncSession, value: str) -> None:
        await handle.execute(text("INSERT INTO mine VALUES (:v)"), {"v": value})

    async def read(self, store: AsyncSqlStore) -> set[str]:
        async with self.engine.connect() as connection:
            return set((await connection.execute(text("SELECT v FROM mine"))).scalars())


class ThreadsClose(DjangoStore):
    """Django closes a thread's connection at the end of a request; here there is none."""

    def claim(self, transactional_id: str) -> StoredState:
        try:
            return super().claim(transactional_id)
        finally:
            if threading.current_thread() is not threading.main_thread():
                connections[self.using].close()


@pytest.mark.gate(2)
class TestDjangoStore(StoreSuite):
    @pytest.fixture(params=["sqlite", "postgresql"])
    def stores(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], DjangoStore]]:
        """Each store has an alias of its own, and so a connection of its own in every thread."""
        if request.param == "sqlite":
            database = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "rows.db"}
            database["OPTIONS"] = {"timeout": 20}
        else:
            server: PostgreSQL = request.getfixturevalue("postgresql")
            database = {"ENGINE": "django.db.backends.postgresql", "NAME": server.new_database()}
            database |= {"USER": "postgres", "HOST": "127.0.0.1", "PORT": server.port}
        aliases = ["contract_1", "contract_2"]
        for alias in aliases:
            one = connections.configure_settings({"default": {}, alias: dict(database)})
            connections.settings[alias] = one[alias]
            if hasattr(connections._connections, alias):
                del connections[alias]
        with connections[aliases[0]].cursor() as cursor:
            cursor.execute("CREATE TABLE mine (v VARCHAR(20))")
        made = iter(aliases)
        yield lambda: ThreadsClose(next(made))
        for alias in aliases:
            connections[alias].close()

    def write(self, handle: Any, value: str) -> None:
        with handle.cursor() as cursor:
            cursor.execute("INSERT INTO mine VALUES (%s)", [value])

    def read(self, store: DjangoStore) -> set[str]:
        with connections[store.using].cursor() as cursor:
            cursor.execute("SELECT v FROM mine")
            return {row[0] for row in cursor.fetchall()}


@pytest.mark.gate(2)
class TestRocksStore(StoreSuite):
    @pytest.fixture(params=[False, True], ids=["dict", "raw"])
    def stores(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], RocksStore]]:
        self.raw = request.param
        database = Rdict(str(tmp_path / "db"), Options(raw_mode=self.raw))
        yield lambda: RocksStore(database)
        database.close()

    def write(self, handle: WriteBatch, value: str) -> None:
        handle.put(value.encode() if self.raw else value, b"")

    def read(self, store: RocksStore) -> set[str]:
        return {key.decode() if isinstance(key, bytes) else str(key) for key in store.database.keys()}  # noqa: SIM118


@pytest.mark.gate(2)
class TestZooKeeperStore(StoreSuite):
    @pytest.fixture
    def stores(self, zookeeper: ZooKeeper) -> Iterator[Callable[[], ZooKeeperStore]]:
        root = zookeeper.new_root()
        self.mine = f"{root}-mine"
        clients = [KazooClient(zookeeper.hosts) for _ in range(2)]
        for client in clients:
            client.start()
        clients[0].ensure_path(self.mine)
        made = iter(clients)
        yield lambda: ZooKeeperStore(next(made), root)
        for client in clients:
            client.stop()
            client.close()

    def write(self, handle: TransactionRequest, value: str) -> None:
        handle.create(f"{self.mine}/{value}")

    def read(self, store: ZooKeeperStore) -> set[str]:
        store.client.sync(self.mine)
        return set(store.client.get_children(self.mine))


class LakeSuite(StoreSuite):
    """What the stores in a Delta table have in common here."""

    def read(self, store: Any) -> set[str]:
        return set(pa.table(DeltaTable(self.table).scan().read_all())["v"].to_pylist())

    def make_table(self, folder: Path) -> Path:
        self.table = folder / "mine"
        DeltaTable.create(self.table, schema=pa.schema([("v", pa.string())]))
        return self.table

    def test_several_ids_are_recorded_or_none(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        """A commit has one entry, so a second id is refused and takes the transaction with it."""
        one, two = pair
        rows = [runner.call(one.claim, each) for each in ("east", "west")]
        txn = runner.call(one.begin)
        runner.call(self.write, txn.handle, "a")
        runner.call(txn.record, rows[0])
        with pytest.raises(NotSupported, match="one cluster for each writer"):
            runner.call(txn.record, rows[1])
        runner.call(txn.rollback)
        assert [runner.call(two.read_state, row.transactional_id) for row in rows] == rows
        assert runner.call(self.read, two) == set()


@pytest.mark.gate(2)
class TestDeltaStore(LakeSuite):
    @pytest.fixture(params=["one table object", "two"])
    def stores(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], DeltaStore]:
        """Two stores of a process share what was read of a table; those of two processes do not."""
        table = self.make_table(tmp_path)

        def open_store() -> DeltaStore:
            store = DeltaStore(table)
            if request.param == "two":
                own = delta.DeltaLakeTable(parse_table_url(store.url), {})
                store._open = lambda: own
            return store

        return open_store

    def write(self, handle: Any, value: str) -> None:
        handle.append([{"v": value}])


@pytest.mark.gate(2)
class TestAsyncDeltaStore(LakeSuite):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Callable[[], AsyncDeltaStore]:
        table = self.make_table(tmp_path)
        return lambda: AsyncDeltaStore(table)

    async def write(self, handle: Any, value: str) -> None:
        await handle.append([{"v": value}])
