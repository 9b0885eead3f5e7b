"""What is claimed of the writer that waits, claimed of the one that is awaited."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import AsyncSqlStore, ManagedByWriter, Outcome, WriteInDoubt, aio
from tallystick.dualwrite.stores.sql_async import AsyncSqlTransaction
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

Writer = aio.DualWriter[AsyncSqlTransaction]


class Base(DeclarativeBase):
    pass


class Paid(Base):
    __tablename__ = "paid"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]


class There(Base):
    __tablename__ = "there"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]


class Shop:
    """A database and a topic that must agree."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.broker, self.folder, self.topic = broker, folder, new_name()
        make_topic(broker, self.topic)
        self.config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": self.topic}

    async def engine(self, name: str = "here") -> AsyncEngine:
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.folder / name}.db", poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        return engine

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Writer]:
        engine = await self.engine()
        store = AsyncSqlStore(engine, **options)
        await store.create()
        async with aio.DualWriter(store, self.config) as writer:
            await writer.recover()
            yield writer
        await engine.dispose()

    async def pay(self, txn: Any, what: str) -> None:
        txn.session.add(Paid(what=what))
        await txn.send(self.topic, what.encode())

    async def rows(self) -> list[str]:
        engine = await self.engine()
        async with engine.connect() as connection:
            return list((await connection.execute(text("SELECT what FROM paid ORDER BY id"))).scalars())

    def run(self, story: Callable[[], Awaitable[None]], expected: list[str]) -> None:
        """`expected`: what both sides have in the end."""

        async def told() -> list[str]:
            await story()
            return await self.rows()

        assert asyncio.run(told()) == expected
        eventually(lambda: committed_values(self.broker, self.topic, 0) == expected)


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path) -> Shop:
    return Shop(broker, tmp_path)


class TimeIsUp(Exception):
    """What a signal's handler raises."""


def strike(database: Any, *, committed: bool, what: Exception) -> None:
    """Its COMMIT is carried out, or not, and then something else is raised."""
    commit = database.commit

    async def struck() -> None:
        if committed:
            await commit()
        raise what

    database.commit = struck


@pytest.mark.gate(1)
@pytest.mark.parametrize("committed", [False, True])
def test_an_exception_while_the_database_commits_is_no_answer(shop: Shop, committed: bool) -> None:
    """[DW-3]"""

    async def story() -> None:
        async with shop.open() as writer:
            with pytest.raises(WriteInDoubt) as raised:
                async with writer.transaction() as txn:
                    await shop.pay(txn, "a")
                    strike(txn.database, committed=committed, what=TimeIsUp())
            assert raised.value.outcome() is Outcome.UNKNOWN
            await writer.recover()
            assert raised.value.outcome() is (Outcome.COMMITTED if committed else Outcome.NOT_COMMITTED)

    shop.run(story, ["a"] if committed else [])


def test_a_recovery_that_fails_does_not_hide_what_is_in_doubt(shop: Shop) -> None:
    """[DW-3] To a retry around it that would look like a write that has failed."""

    async def story() -> None:
        async with shop.open() as writer:

            async def work(txn: Any) -> None:
                await shop.pay(txn, "a")
                strike(txn.database, committed=True, what=TimeIsUp())
                writer.recover = fail  # type: ignore[method-assign]

            recover = writer.recover

            async def fail(**_: Any) -> Any:
                await recover()
                raise OSError

            with pytest.raises(WriteInDoubt) as raised:
                await writer.run(work, retries=2)
            assert raised.value.outcome() is Outcome.COMMITTED

    shop.run(story, ["a"])


def test_a_session_that_takes_rows_to_another_database_is_refused(shop: Shop) -> None:
    """[DW-2]"""

    async def story() -> None:
        other = await shop.engine("other")
        factory = async_sessionmaker(binds={There: other})
        async with shop.open(session_factory=factory) as writer:
            with pytest.raises(ManagedByWriter, match=r"other\.db"):
                async with writer.transaction() as txn:
                    await shop.pay(txn, "no")
                    txn.session.add(There(what="no"))
            async with writer.transaction() as txn:
                await shop.pay(txn, "a")
        await other.dispose()

    shop.run(story, ["a"])


def test_the_events_of_a_session_are_those_of_a_commit(shop: Shop) -> None:
    seen: list[str] = []

    class Listening(Session):
        pass

    event.listen(Listening, "before_commit", lambda _: seen.append("before_commit"))
    event.listen(Listening, "after_commit", lambda _: seen.append("after_commit"))

    async def story() -> None:
        factory = async_sessionmaker(class_=AsyncSession, sync_session_class=Listening)
        async with shop.open(session_factory=factory) as writer:
            async with writer.transaction() as txn:
                await shop.pay(txn, "a")
            assert seen == ["before_commit", "after_commit"]
            with pytest.raises(KeyError):
                async with writer.transaction() as txn:
                    await shop.pay(txn, "no")
                    raise KeyError

    shop.run(story, ["a"])
    assert seen == ["before_commit", "after_commit"]
