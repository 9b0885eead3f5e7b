"""Keys and repetitions of the asyncio writer and pool, on an asyncio driver of each database."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg.errors
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import AsyncSqlStore, Retry, aio
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

DRIVERS = ["sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg", "mysql+asyncmy"]


@pytest.fixture(params=DRIVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    driver = request.param
    if driver.startswith("sqlite"):
        return make_url(f"{driver}:///{tmp_path}/rows.db?timeout=60")
    server = request.getfixturevalue("mariadb" if driver.startswith("mysql") else "postgresql")
    return make_url(server.url(server.new_database())).set(drivername=driver)


class Shop:
    """A table and a topic that must agree, and a pool that writes both."""

    def __init__(self, broker: EmbeddedBroker, engine: AsyncEngine) -> None:
        self.topic, self.engine, self.store = new_name(), engine, AsyncSqlStore(engine)
        make_topic(broker, self.topic)
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": self.topic}
        self.pool = aio.WriterPool(self.store, config, size=3)
        self.runs: list[str] = []

    async def pay(self, txn: Any, what: str) -> int:
        self.runs.append(what)
        number = len(self.runs)
        await txn.connection.execute(text(f"INSERT INTO paid VALUES ('{what}')"))
        await txn.send(self.topic, what.encode())
        return number


def tell(broker: EmbeddedBroker, url: Any, story: Callable[[Shop], Awaitable[object]]) -> list[str]:
    """Run a story in a shop, and return the payments that both sides have after it, in order."""

    async def told() -> tuple[str, list[str]]:
        engine = create_async_engine(url, poolclass=NullPool)
        shop = Shop(broker, engine)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE paid (what VARCHAR(50))"))
        await shop.store.create()
        async with shop.pool:
            await shop.pool.recover()
            await story(shop)
        async with engine.connect() as connection:
            rows = list((await connection.execute(text("SELECT what FROM paid"))).scalars())
        await engine.dispose()
        return shop.topic, sorted(rows)

    topic, rows = asyncio.run(told())
    eventually(lambda: sorted(committed_values(broker, topic, 0)) == rows)
    return rows


@pytest.mark.gate(1)
def test_each_key_is_paid_once(broker: EmbeddedBroker, url: Any) -> None:
    """[DW-16] By concurrent tasks, and again by a later one."""

    async def story(shop: Shop) -> None:
        retry = Retry(attempts=50, backoff_ms=5, backoff_max_ms=50)  # deadlocks between rivals on MariaDB
        pay = shop.pool.transactional(idempotency_key="what", retry=retry)(shop.pay)
        results = await asyncio.gather(*(pay(what) for what in ["a", "b"] * 4))
        assert len(set(results)) == 2
        assert await pay("a") == results[0]
        assert await shop.store.forget_idempotency_keys(older_than_ms=600_000) == 0
        assert await shop.store.forget_idempotency_keys(older_than_ms=-600_000) == 2
        await pay("b")

    assert tell(broker, url, story) == ["a", "b", "b"]


@pytest.mark.gate(1)
def test_a_conflict_is_repeated_and_a_failure_is_not(broker: EmbeddedBroker, url: Any) -> None:
    async def story(shop: Shop) -> None:
        errors: list[Exception] = [psycopg.errors.DeadlockDetected(), ZeroDivisionError()]

        @shop.pool.transactional(idempotency_key=lambda what: str(what), retry=Retry(random=lambda: 0.0))
        async def pay(txn: Any, what: str) -> int:
            result = await shop.pay(txn, what)
            if errors:
                raise errors.pop(0)
            return result

        with pytest.raises(ZeroDivisionError):
            await pay("a")
        assert len(shop.runs) == 2
        assert await pay("a") == 3
        assert await pay("a") == 3

    assert tell(broker, url, story) == ["a"]
