"""What happens behind the back of a writer over asyncpg: its transaction ended, its savepoints."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic
from tests.support.servers import PostgreSQL

from tallystick.dualwrite import AsyncSqlStore, ManagedByWriter, aio
from tallystick.dualwrite.stores.base import OffsetAdvance
from tallystick.dualwrite.stores.sql_async import AsyncSqlTransaction
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

Writer = aio.DualWriter[AsyncSqlTransaction]


class Shop:
    """A table and a topic that must agree. The pool gives one connection, again and again."""

    def __init__(self, broker: EmbeddedBroker, url: str) -> None:
        self.broker, self.url, self.topic = broker, url, new_name()
        make_topic(broker, self.topic)
        self.config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": self.topic}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Writer]:
        engine = create_async_engine(self.url, pool_size=1)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE paid (what TEXT)"))
        store = AsyncSqlStore(engine)
        await store.create()
        async with aio.DualWriter(store, self.config) as writer:
            await writer.recover()
            yield writer
        async with engine.connect() as connection:
            self.rows = list((await connection.execute(text("SELECT what FROM paid"))).scalars())
        await engine.dispose()

    async def insert(self, txn: Any, what: str) -> None:
        await txn.connection.execute(text("INSERT INTO paid VALUES (:what)"), {"what": what})

    async def pay(self, writer: Writer, what: str) -> None:
        async with writer.transaction(wait_visible=True) as txn:
            await self.insert(txn, what)
            await txn.send(self.topic, what.encode())

    def records(self) -> list[str]:
        return committed_values(self.broker, self.topic, 0)


@pytest.fixture
def shop(broker: EmbeddedBroker, postgresql: PostgreSQL) -> Shop:
    url = make_url(postgresql.url(postgresql.new_database())).set(drivername="postgresql+asyncpg")
    return Shop(broker, url.render_as_string(hide_password=False))


async def _driver(txn: Any) -> Any:
    return (await txn.connection.get_raw_connection()).driver_connection


def _by_text(statement: str) -> Callable[[Any], Awaitable[object]]:
    return lambda txn: txn.connection.execute(text(statement))


def _by_driver(statement: str) -> Callable[[Any], Awaitable[object]]:
    async def end(txn: Any) -> None:
        await (await _driver(txn)).execute(statement)

    return end


ENDINGS = {
    "ROLLBACK": _by_text("ROLLBACK"),
    "COMMIT": _by_text("COMMIT"),
    "driver's ROLLBACK": _by_driver("ROLLBACK"),
    "driver's COMMIT": _by_driver("COMMIT"),
}


@pytest.mark.gate(1)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_ended_behind_the_writer_is_refused(shop: Shop, ending: str, goes_on: bool) -> None:
    """[DW-11] asyncpg begins nothing by itself: what follows the end would commit by itself."""

    async def story() -> None:
        async with shop.open() as writer:
            await shop.pay(writer, "first")
            with pytest.raises(ManagedByWriter, match=r"ended inside|ends the database"):
                async with writer.transaction() as txn:
                    await shop.insert(txn, "before")
                    await txn.send(shop.topic, b"no")
                    await ENDINGS[ending](txn)
                    if goes_on:
                        await shop.insert(txn, "after")
            await writer.recover()
            await shop.pay(writer, "last")

    asyncio.run(story())
    kept = ["before"] if ending == "driver's COMMIT" else []
    assert shop.rows == ["first", *kept, "last"]
    assert shop.records() == ["first", "last"]


@asynccontextmanager
async def _driver_savepoint(txn: Any) -> AsyncIterator[None]:
    async with (await _driver(txn)).transaction():
        yield


@asynccontextmanager
async def _session_savepoint(txn: Any) -> AsyncIterator[None]:
    async with txn.session.begin_nested():
        yield


@asynccontextmanager
async def _text_savepoint(txn: Any) -> AsyncIterator[None]:
    await txn.connection.execute(text("SAVEPOINT mine"))
    try:
        yield
    except ValueError:
        await txn.connection.execute(text("ROLLBACK TO mine"))
        raise


SAVEPOINTS = {"driver": _driver_savepoint, "session": _session_savepoint, "text": _text_savepoint}


@pytest.mark.gate(1)
@pytest.mark.parametrize("made_by", SAVEPOINTS)
@pytest.mark.parametrize("bad", [True, False])
def test_records_of_a_savepoint_that_is_rolled_back_do_not_go_out(
    shop: Shop, made_by: str, bad: bool
) -> None:
    """[DW-2] They have gone already, and take the whole transaction with them; the next one is clean."""

    async def pay_three(writer: Writer) -> None:
        async with writer.transaction(wait_visible=True) as txn:
            for what in ("good", "bad" if bad else "fine", "good2"):
                with suppress(ValueError):
                    async with SAVEPOINTS[made_by](txn):
                        await shop.insert(txn, what)
                        await txn.send(shop.topic, what.encode())
                        _refuse_bad(what)

    async def story() -> None:
        async with shop.open() as writer:
            if not bad:
                await pay_three(writer)
                return
            with pytest.raises(ManagedByWriter, match="savepoint that was rolled back"):
                await pay_three(writer)
            assert writer.ready
            await shop.pay(writer, "later")

    asyncio.run(story())
    assert shop.rows == eventually(shop.records) == (["later"] if bad else ["good", "fine", "good2"])


def _refuse_bad(what: str) -> None:
    if what == "bad":
        raise ValueError(what)


def test_consumed_offsets_do_not_move_where_the_rows_are_gone(shop: Shop) -> None:
    """[DW-4, DW-11] They would be committed by themselves, and the records never read again."""

    async def story() -> None:
        engine = create_async_engine(shop.url)
        store = AsyncSqlStore(engine)
        await store.create()
        at = TopicPartition(shop.topic, 0)
        for before, after in ((None, 5), (5, 9)):
            opened = await store.begin()
            await (await _driver(opened)).execute("ROLLBACK")
            with pytest.raises(ManagedByWriter, match="ended inside"):
                await opened.move_offsets("g", {at: OffsetAdvance(before=before, after=after)})
            await opened.rollback()
            assert await store.read_offsets("g") == ({} if before is None else {at: before})
            if before is None:
                opened = await store.begin()
                await opened.move_offsets("g", {at: OffsetAdvance(before=before, after=after)})
                await opened.commit()
        await engine.dispose()

    asyncio.run(story())
