"""A connection that a refused transaction returns to the engine's pool holds nothing of it."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from tests.support.dual_world import MakeWorld, World, worlds
from tests.support.servers import MariaDB, PostgreSQL

from tallystick.dualwrite import (
    AsyncSqlStore,
    BadStore,
    DualWriter,
    ManagedByWriter,
    SqlStore,
    Transaction,
    UnsafeDurability,
)
from tallystick.dualwrite.aio import DualWriter as AioDualWriter
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.dualwrite.stores.sql_calls import roll_back_driver
from tallystick.testing import EmbeddedBroker

Txn = Transaction[SqlTransaction]

pytestmark = pytest.mark.server


@pytest.fixture
def sqlite_world(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[MakeWorld]:
    yield from worlds(broker, lambda name: create_engine(f"sqlite:///{tmp_path / name}.db"))


@pytest.fixture
def postgresql_world(broker: EmbeddedBroker, postgresql: PostgreSQL) -> Iterator[MakeWorld]:
    url = make_url(postgresql.url(postgresql.new_database())).set(drivername="postgresql+psycopg")
    yield from worlds(broker, lambda _: create_engine(url))


@pytest.fixture
def mariadb_world(broker: EmbeddedBroker, mariadb: MariaDB) -> Iterator[MakeWorld]:
    url = make_url(mariadb.url(mariadb.new_database())).set(drivername="mysql+pymysql")
    yield from worlds(broker, lambda _: create_engine(url))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def any_world(request: pytest.FixtureRequest) -> World:
    world: World = request.getfixturevalue(f"{request.param}_world")()
    return world


def insert(world: World, n: int, what: str) -> str:
    return f"INSERT INTO {world.table} VALUES ({n}, '{what}')"


def add_constraint_checked_at_commit(world: World) -> None:
    """Create a table whose constraint SQLite checks at COMMIT."""

    @event.listens_for(world.engine, "connect")
    def enforce(connection: object, _: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")  # type: ignore[attr-defined]

    world.engine.dispose()
    with world.engine.begin() as connection:
        connection.execute(text("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
        column = "parent_id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE child ({column})"))


def test_rows_of_a_commit_that_was_refused_are_not_in_the_next_transaction(any_world: World) -> None:
    world = any_world

    def refused(txn: Txn) -> None:
        txn.connection.execute(text(insert(world, 1, "refused")))
        txn.send(world.topic, b"refused")
        txn.connection.commit()

    with DualWriter(SqlStore(world.engine), world.config) as writer:
        writer.recover()
        with pytest.raises(ManagedByWriter, match=r"connection\.commit"):
            writer.run(refused)
        world.pay(writer, 2, "next")
    assert world.check() == ["next"]


def test_what_the_database_refuses_at_commit_leaves_the_connection_usable(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    add_constraint_checked_at_commit(world)

    def refused(txn: Txn) -> None:
        txn.connection.execute(text(insert(world, 1, "refused")))
        txn.connection.execute(text("INSERT INTO child VALUES (7)"))

    with DualWriter(SqlStore(world.engine), world.config) as writer:
        writer.recover()
        with pytest.raises(IntegrityError):
            writer.run(refused)
        world.pay(writer, 2, "next")
    assert world.check() == ["next"]


def test_the_asyncio_store_does_the_same(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()

    async def refused(txn: Any) -> None:
        await txn.connection.execute(text(insert(world, 1, "refused")))
        await txn.connection.commit()

    async def refused_then_next() -> None:
        engine = create_async_engine(world.engine.url.set(drivername="sqlite+aiosqlite"))
        async with AioDualWriter(AsyncSqlStore(engine), world.config) as writer:
            await writer.recover()
            with pytest.raises(ManagedByWriter, match=r"connection\.commit"):
                await writer.run(refused)
            async with writer.transaction() as txn:
                await txn.connection.execute(text(insert(world, 2, "next")))
                await txn.send(world.topic, b"next")
        await engine.dispose()

    asyncio.run(refused_then_next())
    assert world.check() == ["next"]


def test_a_connection_that_cannot_be_rolled_back_is_not_used_again(sqlite_world: MakeWorld) -> None:
    class Broken:
        def do_rollback(self, _: object) -> None:
            raise DBAPIError("ROLLBACK", None, Exception("gone"))

    with sqlite_world().engine.connect() as connection:
        connection.dialect = Broken()  # type: ignore[assignment]
        roll_back_driver(connection)
        assert connection.invalidated


def test_a_lost_connection_is_not_opened_again_to_roll_it_back(sqlite_world: MakeWorld) -> None:
    with sqlite_world().engine.connect() as connection:
        connection.invalidate()
        roll_back_driver(connection)
        assert connection.invalidated


def test_a_connection_whose_block_has_ended_the_transaction_is_not_lent_again(
    mariadb_world: MakeWorld,
) -> None:
    """The next block, of another writer, gets another connection, and what it writes is whole."""
    world = mariadb_world()
    other = {**world.config, "transactional.id": f"{world.topic}-other"}
    engine = create_engine(world.engine.url, pool_size=1, max_overflow=0, pool_timeout=20)
    store = SqlStore(engine)
    with DualWriter(store, world.config) as first, DualWriter(store, other) as second:
        first.recover()
        second.recover()
        with pytest.raises(ManagedByWriter, match="ended inside"), first.transaction() as txn:
            driver: Any = txn.connection.connection.driver_connection
            driver.autocommit(True)
            txn.send(world.topic, b"refused")
        world.pay(second, 1, "next")
        with pytest.raises(KeyError), second.transaction() as txn:
            txn.connection.execute(text(insert(world, 2, "taken back")))
            raise KeyError
    assert world.check() == ["next"]
    engine.dispose()


def _commit_each(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    driver.autocommit(True)


def test_asyncio_writers_do_not_lend_it_again_either(mariadb_world: MakeWorld) -> None:
    world = mariadb_world()

    async def main() -> None:
        url = world.engine.url.set(drivername="mysql+asyncmy")
        engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=20)
        async with AioDualWriter(AsyncSqlStore(engine), world.config) as writer:
            await writer.recover()
            with pytest.raises(ManagedByWriter, match="ended inside"):
                async with writer.transaction() as txn:
                    await txn.connection.run_sync(_commit_each)
            await writer.recover()
            async with writer.transaction() as txn:
                await txn.connection.execute(text(insert(world, 1, "next")))
                await txn.send(world.topic, b"next")
        await engine.dispose()

    asyncio.run(main())
    assert world.check() == ["next"]


def test_a_pooled_connection_that_commits_each_statement_is_refused_and_dropped(
    mariadb_world: MakeWorld,
) -> None:
    """Another user of the engine has left it like that, after it had been checked."""
    world = mariadb_world()
    engine = create_engine(world.engine.url, pool_size=1, max_overflow=0, pool_timeout=20)
    with DualWriter(SqlStore(engine), world.config) as writer:
        writer.recover()
        with engine.connect() as connection:
            connection.execute(text("SET autocommit = 1"))
        with pytest.raises(UnsafeDurability, match="autocommit"):
            world.pay(writer, 1, "refused")
        if not writer.ready:
            writer.recover()
        world.pay(writer, 2, "next")
    assert world.check() == ["next"]
    engine.dispose()


@pytest.mark.parametrize("make", [SqlStore, lambda engine: AsyncSqlStore(AsyncEngine(engine))])
def test_a_driver_that_is_not_proved_is_refused_at_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "mysql+asyncmy://" if make is not SqlStore else "mysql+pymysql://"
    engine = create_engine(url)
    monkeypatch.setattr(engine.dialect, "driver", "mysqlconnector")
    with pytest.raises(BadStore, match=r"mysql\+mysqlconnector.*Use pymysql, mysqldb or asyncmy"):
        make(engine)
