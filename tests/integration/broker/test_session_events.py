"""Hooks of the user's SQLAlchemy sessions: `after_commit` on success only, else `after_rollback`."""

# ruff: noqa: PT012 - a block may raise at its end

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.support.dual_world import new_name
from tests.support.raw_producer import make_topic

from tallystick.dualwrite import (
    AsyncSqlStore,
    CommitUnknown,
    NotCommitted,
    SqlStore,
    WriteInDoubt,
    WriterPool,
    aio,
)
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

EVENTS = ("after_commit", "after_rollback", "after_soft_rollback")


class Heard(Session):
    """A session of which the events are written down, with what its caller has named it."""


class HeardAsync(AsyncSession):
    sync_session_class = Heard


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """The events, as `name event`."""
    events: list[str] = []
    listeners = {
        name: (lambda session, *_, name=name: events.append(f"{session.info.get('name')} {name}"))
        for name in EVENTS
    }
    for name, listener in listeners.items():
        event.listen(Heard, name, listener)
    yield events
    for name, listener in listeners.items():
        event.remove(Heard, name, listener)


class Shop:
    """A pool over SQLite, and a failure of its next commit."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, *, is_async: bool = False) -> None:
        self.topic, self.fails_at = new_name(), ""
        self.failure: Exception = NotCommitted(ValueError("a constraint"))
        make_topic(broker, self.topic)
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": self.topic}
        url = f"{folder}/rows.db?timeout=60"
        self.engine = create_engine(f"sqlite:///{url}", poolclass=NullPool)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (what VARCHAR(50) UNIQUE)"))
        store = SqlStore(self.engine, session_factory=Heard)
        store.create()
        self.pool: Any = WriterPool(store, config, size=1, watch=self.watch)
        if is_async:
            engine = create_async_engine(f"sqlite+aiosqlite:///{url}", poolclass=NullPool)
            async_store = AsyncSqlStore(engine, session_factory=HeardAsync)
            self.pool = aio.WriterPool(async_store, config, size=1, watch=self.watch)

    def watch(self, _: int, step: RecipeStep, done: bool) -> None:
        if self.fails_at == f"{'after' if done else 'before'} {step.name}":
            self.fails_at = ""
            raise self.failure

    def pay(self, txn: Any, what: str) -> None:
        txn.session.info["name"] = what
        txn.session.execute(text(f"INSERT INTO paid VALUES ('{what}')"))
        txn.send(self.topic, what.encode())


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker, tmp_path)
    made.pool.recover()
    yield made
    made.pool.close()


def test_a_block_that_raises(shop: Shop, heard: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), shop.pool.transaction() as txn:
        shop.pay(txn, "a")
        assert heard == []
        raise ZeroDivisionError
    assert heard == ["a after_rollback", "a after_soft_rollback"]


def test_a_commit_that_is_refused(shop: Shop, heard: list[str]) -> None:
    shop.fails_at = "before commit database"
    with pytest.raises(ValueError, match="constraint"), shop.pool.transaction() as txn:
        shop.pay(txn, "a")
    assert heard == ["a after_rollback", "a after_soft_rollback"]


def test_a_block_that_is_committed(shop: Shop, heard: list[str]) -> None:
    with shop.pool.transaction() as txn:
        shop.pay(txn, "a")
    assert heard == ["a after_commit"]


def test_a_savepoint_of_the_session_is_its_own(shop: Shop, heard: list[str]) -> None:
    with shop.pool.transaction() as txn:
        shop.pay(txn, "a")
        with pytest.raises(ZeroDivisionError), txn.session.begin_nested():
            raise ZeroDivisionError
        of_savepoint = list(heard)
    assert heard == [*of_savepoint, "a after_commit"]
    assert "a after_commit" not in of_savepoint


def test_an_outcome_in_doubt_is_neither(
    shop: Shop, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-3] A hook that acts on a rollback would act on what may be committed."""
    do_commit = shop.engine.dialect.do_commit
    lost: list[bool] = [True]

    def lose_answer(connection: Any) -> None:
        do_commit(connection)
        if lost.pop() if lost else False:
            raise CommitUnknown("the answer was lost")

    with pytest.raises(WriteInDoubt), shop.pool.transaction() as txn:
        shop.pay(txn, "a")
        monkeypatch.setattr(shop.engine.dialect, "do_commit", lose_answer)
    assert heard == []


def test_a_hook_that_fails_changes_nothing(shop: Shop, heard: list[str]) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ValueError, match="the block's"), shop.pool.transaction() as txn:
        shop.pay(txn, "a")
        event.listen(txn.session, "after_rollback", fail)
        raise ValueError("the block's")
    with shop.pool.transaction() as txn:
        shop.pay(txn, "b")
        event.listen(txn.session, "after_commit", fail)
    with shop.engine.connect() as connection:
        assert list(connection.execute(text("SELECT what FROM paid")).scalars()) == ["b"]


def test_a_session_that_did_nothing_has_nothing_to_hear(shop: Shop, heard: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), shop.pool.transaction() as txn:
        assert txn.session.info == {}
        raise ZeroDivisionError
    assert heard == []


def test_the_same_with_asyncio(broker: EmbeddedBroker, tmp_path: Path, heard: list[str]) -> None:
    shop = Shop(broker, tmp_path, is_async=True)

    async def pay(txn: Any, what: str) -> None:
        txn.session.info["name"] = what
        await txn.session.execute(text(f"INSERT INTO paid VALUES ('{what}')"))
        await txn.send(shop.topic, what.encode())
        if what.startswith("fails"):
            raise ZeroDivisionError

    async def told() -> None:
        async with shop.pool as pool:
            await pool.recover()
            await pool.run(lambda txn: pay(txn, "a"))
            with pytest.raises(ZeroDivisionError):
                await pool.run(lambda txn: pay(txn, "fails"))

    asyncio.run(told())
    assert heard == ["a after_commit", "fails after_rollback", "fails after_soft_rollback"]
