"""The row of a writer is in the table that it has claimed, whatever a block makes of names."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.raw_producer import committed_values, make_topic
from tests.support.servers import MariaDB, PostgreSQL

from tallystick.dualwrite import AsyncSqlStore, DualWriter, IdempotencyKey, Lease, SqlStore, WriterPool, aio
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

TENANT_MAP = {"schema_translate_map": {None: "tenant1"}}


@pytest.fixture
def make_engine(postgresql: PostgreSQL) -> Callable[[str], Engine]:
    """Return how to make an engine for a driver, over a database with two tenants."""
    url = make_url(postgresql.url(postgresql.new_database()))

    def make(driver: str) -> Engine:
        return create_engine(url.set(drivername=f"postgresql+{driver}"), poolclass=NullPool)

    with make("psycopg").begin() as connection:
        for schema in ("tenant1", "tenant2"):
            connection.execute(text(f"CREATE SCHEMA {schema}"))
            connection.execute(text(f"CREATE TABLE {schema}.paid (what VARCHAR(20))"))
    return make


def config(broker: EmbeddedBroker, name: str) -> dict[str, object]:
    make_topic(broker, name)
    return {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}


def rows(engine: Engine, table: str) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text(f"SELECT what FROM {table}")).scalars())


def test_a_map_of_schemas_of_the_engine_is_the_librarys_too(
    make_engine: Callable[[str], Engine], broker: EmbeddedBroker
) -> None:
    """Tables that the same engine sees without its map are others."""
    plain = make_engine("psycopg")
    SqlStore(plain).create()
    engine = plain.execution_options(**TENANT_MAP)
    store = SqlStore(engine)
    store.create()
    settings = config(broker, "mapped")
    with WriterPool(store, settings, size=1, lease=Lease()) as pool:
        pool.recover()
        for _ in range(2):
            key = IdempotencyKey(scope="mapped", key="k")
            pool.run(lambda txn: pay(txn, "mapped", "a"), idempotency_key=key)
    assert rows(plain, "tenant1.paid") == ["a"]
    assert committed_values(broker, "mapped", 0) == ["a"]
    with plain.connect() as connection:
        for table in ("kafka_transaction_state", "kafka_transactional_id_leases", "kafka_idempotency_keys"):
            assert connection.execute(text(f"SELECT count(*) FROM public.{table}")).scalar() == 0
            assert connection.execute(text(f"SELECT count(*) FROM tenant1.{table}")).scalar() == 1
    assert list(store.transactional_ids()) == ["mapped-0"]


def pay(txn, topic: str, what: str) -> None:  # type: ignore[no-untyped-def]
    txn.connection.execute(text("INSERT INTO tenant1.paid VALUES (:what)"), {"what": what})
    txn.send(topic, what.encode())


CHANGES = {
    "search_path for the transaction": "SET LOCAL search_path TO tenant2",
    "search_path for the session": "SET search_path TO tenant2",
}


@pytest.mark.gate(1)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("has_tables", [False, True])
def test_a_search_path_of_a_block_is_the_blocks_alone(
    make_engine: Callable[[str], Engine], broker: EmbeddedBroker, change: str, has_tables: bool
) -> None:
    engine = make_engine("psycopg")
    store = SqlStore(engine)
    store.create()
    if has_tables:
        SqlStore(engine, schema="tenant2").create()
    name = f"path-{change.split()[-1]}-{has_tables}"
    with DualWriter(store, config(broker, name)) as writer:
        writer.recover()
        for what in ("a", "b"):
            with writer.transaction() as txn:
                txn.connection.execute(text(CHANGES[change]))
                txn.connection.execute(text("INSERT INTO paid VALUES (:what)"), {"what": what})
                txn.send(name, what.encode())
    assert rows(engine, "tenant2.paid") == committed_values(broker, name, 0) == ["a", "b"]


def test_a_map_of_schemas_of_a_block_is_the_blocks_alone(
    make_engine: Callable[[str], Engine], broker: EmbeddedBroker
) -> None:
    engine = make_engine("psycopg")
    store = SqlStore(engine)
    store.create()
    with DualWriter(store, config(broker, "block-map")) as writer:
        writer.recover()
        with writer.transaction() as txn:
            txn.connection.execution_options(**TENANT_MAP)
            txn.connection.execute(text("INSERT INTO tenant1.paid VALUES ('a')"))
            txn.send("block-map", b"a")
    assert rows(engine, "tenant1.paid") == committed_values(broker, "block-map", 0) == ["a"]


def test_asyncio_writers_keep_to_the_map_and_the_path(
    make_engine: Callable[[str], Engine], broker: EmbeddedBroker
) -> None:
    engine = make_engine("psycopg")
    settings = {name: config(broker, name) for name in ("aio-map", "aio-path")}

    async def main() -> None:
        url = engine.url.set(drivername="postgresql+asyncpg")
        plain = create_async_engine(url, poolclass=NullPool)
        for name, used in {"aio-map": plain.execution_options(**TENANT_MAP), "aio-path": plain}.items():
            store = AsyncSqlStore(used)
            await store.create()
            async with aio.DualWriter(store, settings[name]) as writer:
                await writer.recover()
                async with writer.transaction() as txn:
                    await txn.connection.execute(text("SET LOCAL search_path TO tenant2"))
                    await txn.connection.execute(text("INSERT INTO paid VALUES ('a')"))
                    await txn.send(name, b"a")

    asyncio.run(main())
    assert rows(engine, "tenant2.paid") == ["a", "a"]
    assert [committed_values(broker, name, 0) for name in settings] == [["a"], ["a"]]


def test_another_default_database_of_a_block_is_the_blocks_alone(
    mariadb: MariaDB, broker: EmbeddedBroker
) -> None:
    """MariaDB's USE; the connection keeps it."""
    other = mariadb.new_database()
    url = make_url(mariadb.url(mariadb.new_database())).set(drivername="mysql+pymysql")
    engine = create_engine(url, pool_size=1, max_overflow=0)
    store = SqlStore(engine)
    store.create()
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {other}.paid (what VARCHAR(20))"))
    with DualWriter(store, config(broker, "use")) as writer:
        writer.recover()
        for what in ("a", "b"):
            with writer.transaction() as txn:
                txn.connection.execute(text(f"USE {other}"))
                txn.connection.execute(text("INSERT INTO paid VALUES (:what)"), {"what": what})
                txn.send("use", what.encode())
    assert rows(engine, f"{other}.paid") == committed_values(broker, "use", 0) == ["a", "b"]
    engine.dispose()
