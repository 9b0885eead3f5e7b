"""The record and COMMIT on PostgreSQL: a transaction is committed only if its row is recorded."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support.cutting_proxy import CuttingProxy
from tests.support.dual_world import MakeWorld, World, Writer, worlds
from tests.support.raw_producer import committed_values
from tests.support.servers import PostgreSQL

from tallystick.dualwrite import (
    AsyncSqlStore,
    DatabaseBehind,
    DualWriter,
    ManagedByWriter,
    Outcome,
    SqlStore,
    UnsafeDurability,
    WriteInDoubt,
    WriterFenced,
    aio,
)
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[CuttingProxy]:
    with CuttingProxy(postgresql.port) as proxy:
        yield proxy


@pytest.fixture
def make_world(broker: EmbeddedBroker, postgresql: PostgreSQL, proxy: CuttingProxy) -> Iterator[MakeWorld]:
    """Engines with a pool of one connection, which the next block gets back."""
    database = postgresql.new_database()
    url = make_url(postgresql.url(database)).set(drivername="postgresql+psycopg", port=proxy.port)
    engines: list[Engine] = []

    def make_engine(_: str) -> Engine:
        engines.append(create_engine(url, pool_size=1, max_overflow=0, pool_timeout=20))
        return engines[-1]

    yield from worlds(broker, make_engine)
    for engine in engines:
        engine.dispose()


def ready_writer(world: World) -> Writer:
    writer = world.life()
    writer.recover()
    return writer


def refuse(world: World, writer: Writer, error: type[Exception], *statements: str) -> None:
    """Run a block that is refused; the same writer and connection go on, and have committed nothing."""
    before = world.rows()
    with pytest.raises(error), writer.transaction() as txn:
        txn.send(world.topic, b"refused")
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (7, 'refused')"))
        for each in statements:
            txn.connection.execute(text(each))
    if not writer.ready:
        writer.recover()
    assert world.rows() == before
    world.pay(writer, 8, "after")
    assert world.check() == [*before, "after"]


def test_a_writer_that_was_fenced_commits_nothing(make_world: MakeWorld) -> None:
    """[DW-2]"""
    world = make_world()
    writer = ready_writer(world)
    world.pay(writer, 1, "a")
    with pytest.raises(WriterFenced), writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (2, 'b')"))
        txn.send(world.topic, b"b")
        world.store.claim(world.topic)
    assert world.check() == ["a"]


def test_a_database_that_is_behind_is_told(make_world: MakeWorld) -> None:
    """[DW-12]"""
    world = make_world()
    writer = ready_writer(world)
    world.pay(writer, 1, "a")
    with world.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_transaction_state SET prepared_transaction_state = ''"))
    with pytest.raises(DatabaseBehind):
        world.pay(writer, 2, "b")
    assert world.rows() == ["a"]


def test_a_transaction_that_was_ended_behind_the_writers_back(make_world: MakeWorld) -> None:
    """[DW-11] The record would be in another transaction than the rows. Only the mark shows that."""
    world = make_world()
    refuse(world, ready_writer(world), ManagedByWriter, "RESET tallystick.block")


def test_a_commit_that_would_not_be_durable(make_world: MakeWorld) -> None:
    """[DW-8] The transaction has turned durability off for itself; a user may allow that by name."""
    world, off = make_world(), "SET LOCAL synchronous_commit = off"
    refuse(world, ready_writer(world), UnsafeDurability, off)
    store = SqlStore(world.engine, allow_unsafe_durability={"synchronous_commit"})
    with DualWriter(store, world.config) as writer:
        writer.recover()
        with writer.transaction() as txn:
            txn.connection.execute(text(off))
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (9, 'b')"))
            txn.send(world.topic, b"b")
    assert world.check() == ["after", "b"]


def test_a_constraint_that_is_checked_at_commit(make_world: MakeWorld) -> None:
    """[DW-7] The record has succeeded, and COMMIT is refused with SQLAlchemy's own error."""
    world = make_world()
    with world.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {world.table} ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED"))
    writer = ready_writer(world)
    again = f"INSERT INTO {world.table} VALUES (6, 'refused')"
    refuse(world, writer, IntegrityError, again)


def test_a_trigger_that_fails_like_a_record(make_world: MakeWorld) -> None:
    """The error of a deferred trigger is its own, also with the code that a missed record has."""
    world = make_world()
    with world.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN IF NEW.n = 7 THEN PERFORM ('x' || NEW.n)::int; END IF; RETURN NEW; END $$"
            )
        )
        connection.execute(
            text(
                f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {world.table} DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        )
    refuse(world, ready_writer(world), DataError)


def test_a_statement_that_waited_too_long_commits_nothing(make_world: MakeWorld) -> None:
    """The record meets another transaction's lock: no doubt is left, since COMMIT was not executed."""
    world = make_world()
    writer = ready_writer(world)
    other = create_engine(world.engine.url)
    with other.connect() as connection:
        connection.execute(text("SELECT 1 FROM kafka_transaction_state FOR UPDATE"))
        with pytest.raises(DBAPIError, match="lock timeout"), writer.transaction() as txn:
            txn.connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
            txn.send(world.topic, b"refused")
    other.dispose()
    assert writer.ready
    world.pay(writer, 1, "a")
    assert world.check() == ["a"]


@pytest.mark.parametrize("answered", [True, False])
def test_a_connection_that_ends_at_the_commit_leaves_a_doubt(
    make_world: MakeWorld, proxy: CuttingProxy, answered: bool
) -> None:
    """[DW-3] Recovery tells whether it was executed."""
    world = make_world()
    writer = ready_writer(world)
    (proxy.lose_answer if answered else proxy.lose_request)(b"COMMIT\0")
    with pytest.raises(WriteInDoubt) as doubt:
        world.pay(writer, 1, "a")
    writer.recover()
    assert doubt.value.outcome() is (Outcome.COMMITTED if answered else Outcome.NOT_COMMITTED)
    assert world.check() == (["a"] if answered else [])


def test_rows_of_a_listener_to_commit_are_in_the_same_transaction(
    make_world: MakeWorld,
) -> None:
    """SQLAlchemy announces a commit before it is sent."""
    world = make_world()
    engine, is_listening = world.make_engine(), False

    def write_audit(connection: Any) -> None:
        if is_listening:
            connection.exec_driver_sql(f"INSERT INTO {world.table} VALUES (2, 'audit')")

    event.listen(engine, "commit", write_audit)
    with DualWriter(SqlStore(engine), world.config) as writer:
        writer.recover()
        with pytest.raises(WriterFenced), writer.transaction() as txn:
            txn.send(world.topic, b"a")
            world.store.claim(world.topic)
            is_listening = True
        assert world.rows() == []
        is_listening = False
        writer.recover()
        with writer.transaction() as txn:
            txn.send(world.topic, b"audit")
            is_listening = True
    assert world.check() == ["audit"]


def test_a_writer_to_two_clusters_records_both(make_world: MakeWorld) -> None:
    world = make_world()
    east = {**world.config, "transactional.id": f"{world.topic}-east"}
    with DualWriter(SqlStore(world.engine), clusters={"east": east, "west": world.config}) as writer:
        writer.recover()
        for n in range(3):
            with writer.transaction() as txn:
                txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, 'both')"))
                txn.send(world.topic, b"both", cluster="east")
                txn.send(world.topic, b"both", cluster="west")
    assert world.rows() == ["both"] * 3
    assert committed_values(world.broker, world.topic, 0) == ["both"] * 6


def test_it_is_the_same_with_asyncio(make_world: MakeWorld) -> None:
    """[DW-2]"""
    world = make_world()

    async def pay(writer: Any, n: int, what: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        async with writer.transaction() as txn:
            await txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
            await txn.send(world.topic, what.encode())
            meanwhile()

    async def main() -> None:
        engine = create_async_engine(world.engine.url, pool_size=1, max_overflow=0)
        async with aio.DualWriter(AsyncSqlStore(engine), world.config) as writer:
            await writer.recover()
            await pay(writer, 1, "a")
            with pytest.raises(WriterFenced):
                await pay(writer, 2, "b", lambda: world.store.claim(world.topic))
            await writer.recover()
            await pay(writer, 3, "c")
        await engine.dispose()

    asyncio.run(main())
    assert world.check() == ["a", "c"]
