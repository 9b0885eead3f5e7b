"""SQLite as its users open it: each way of beginning a transaction takes the write lock first."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import AsyncSqlStore, DjangoStore, DualWriter, SqlStore, aio
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

ALIAS = "sqlite-rows"

if not settings.configured:
    settings.configure(LOGGING_CONFIG=None)
    django.setup()


def follow_recipe(engine: Engine) -> Engine:
    """Take BEGIN from the driver, as SQLAlchemy's page on SQLite says for SERIALIZABLE and savepoints."""

    @event.listens_for(engine, "connect")
    def take_begin(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


WAYS: dict[str, Callable[[str], Engine]] = {
    "driver": create_engine,
    "recipe": lambda url: follow_recipe(create_engine(url)),
    "autocommit=False": lambda url: create_engine(url, connect_args={"autocommit": False}),
}


def config(broker: EmbeddedBroker, name: str) -> dict[str, object]:
    make_topic(broker, name)
    return {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}


@pytest.mark.parametrize("way", WAYS)
def test_a_block_that_reads_first_can_record(broker: EmbeddedBroker, tmp_path: Path, way: str) -> None:
    """Another writer of the file waits for its end, instead of making it fail."""
    if way == "autocommit=False" and sys.version_info < (3, 12):
        pytest.skip("Python 3.12 has it")
    name = f"sqlite-{way.replace('=', '-')}"
    engine = WAYS[way](f"sqlite:///{tmp_path}/rows.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (n INTEGER)"))
    store = SqlStore(engine)
    store.create()
    with DualWriter(store, config(broker, name)) as writer:
        writer.recover()
        with writer.transaction() as txn:
            assert txn.connection.execute(text("SELECT count(*) FROM paid")).scalar() == 0
            other = start_other_writer(tmp_path / "rows.db")
            txn.send(name, b"a")
        other.join()
        with writer.transaction() as txn, txn.savepoint():
            txn.connection.execute(text("INSERT INTO paid VALUES (2)"))
            txn.send(name, b"b")
        with pytest.raises(KeyError), writer.transaction() as txn:
            txn.connection.execute(text("INSERT INTO paid VALUES (3)"))
            raise KeyError
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM paid")).scalars().all() == [1, 2]
    assert committed_values(broker, name, 0) == ["a", "b"]
    engine.dispose()


def start_other_writer(path: Path) -> threading.Thread:
    """Write a row from elsewhere: it is refused as long as a dual write has the lock."""
    other = sqlite3.connect(path, timeout=0, check_same_thread=False)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("INSERT INTO paid VALUES (0)")
    other.execute("PRAGMA busy_timeout = 20000")

    def write() -> None:
        with other:
            other.execute("INSERT INTO paid VALUES (1)")
        other.close()

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_it_is_the_same_with_asyncio(broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = config(broker, "sqlite-aio")

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/rows.db")
        follow_recipe(engine.sync_engine)
        store = AsyncSqlStore(engine)
        await store.create()
        async with aio.DualWriter(store, settings) as writer:
            await writer.recover()
            for what in ("a", "b"):
                async with writer.transaction() as txn:
                    await txn.send("sqlite-aio", what.encode())
        await engine.dispose()

    asyncio.run(main())
    assert committed_values(broker, "sqlite-aio", 0) == ["a", "b"]


def test_a_block_of_django_that_reads_first_can_record(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """With Django's default OPTIONS."""
    path = tmp_path / "rows.db"
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path}
    connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: database})[ALIAS]
    store = DjangoStore(ALIAS)
    store.create()
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("CREATE TABLE paid (n INTEGER)")
    with DualWriter(store, config(broker, "sqlite-django")) as writer:
        writer.recover()
        with writer.transaction() as txn:
            with txn.handle.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM paid")
                assert cursor.fetchone() == (0,)
            other = start_other_writer(path)
            txn.send("sqlite-django", b"a")
        other.join()
    assert committed_values(broker, "sqlite-django", 0) == ["a"]
    connections[ALIAS].close()
