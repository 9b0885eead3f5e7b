"""[DW-27] Any block, any failure, any repetition, in savepoints or not: rows, records and the model agree.

The database is a SQLite file; Kafka's half is a list, which the recipe's order of steps decides.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from tests.support.random_blocks import (
    BLOCKS,
    BlockFails,
    Drawn,
    Effects,
    Failure,
    Nested,
    Objects,
    Step,
    fail_commit,
    fail_in_block,
    prepare,
    read,
)

from tallystick.dualwrite import AsyncSqlStore, SqlStore, aio
from tallystick.dualwrite.block.offsets import OffsetsOfBlock
from tallystick.dualwrite.block.steps import AsyncStepRunner, StepRunner
from tallystick.dualwrite.block.transaction import flush_rows, flush_rows_async
from tallystick.dualwrite.blocking.writer import Transaction


class Sent:
    """Kafka's half of one attempt, as a producer."""

    serializer = None

    def __init__(self) -> None:
        self.texts: list[str] = []

    def send(self, _: str, value: bytes, *__: object, **___: object) -> None:
        self.texts.append(value.decode())


class AsyncSent(Sent):
    async def send(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        super().send(*args, **kwargs)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('blocks') / 'rows.db'}")
    _hurry(engine)
    SqlStore(engine, allow_unsafe_durability=True).create()
    yield engine
    engine.dispose()


def _hurry(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def no_syncs(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")


class Life:
    """The attempts of one block in one database."""

    def __init__(self, engine: Engine, drawn: Drawn) -> None:
        with engine.begin() as connection:
            prepare(connection)
        self.engine, self.drawn = engine, drawn
        self.records: Counter[str] = Counter()
        with Session(engine) as session:
            self.objects = Objects(session)

    def run(self) -> None:
        store = SqlStore(self.engine, allow_unsafe_durability=True)
        row = store.claim("id")
        for failure in (*self.drawn.failures, None):
            database, sent = store.begin(), Sent()
            txn: Any = Transaction(database, {"kafka": sent}, StepRunner(None), OffsetsOfBlock())  # type: ignore[dict-item]
            fail_commit(database.connection, failure)
            try:
                self.objects.do_steps(txn, self.drawn.steps)
                fail_in_block(database.session, failure)
                flush_rows(database)
                database.record(row)
                database.commit()
                self.records.update(sent.texts)
            except BaseException:
                database.rollback()
                assert failure is not None
            else:
                assert failure is None

    async def run_async(self) -> None:
        engine = create_async_engine(self.engine.url.set(drivername="sqlite+aiosqlite"))
        _hurry(engine.sync_engine)
        store = AsyncSqlStore(engine, allow_unsafe_durability=True)
        row = await store.claim("id")
        for failure in (*self.drawn.failures, None):
            database, sent = await store.begin(), AsyncSent()
            txn: Any = aio.Transaction(database, {"kafka": sent}, AsyncStepRunner(None), OffsetsOfBlock())  # type: ignore[dict-item]
            fail_commit(database.connection.sync_connection, failure)
            try:
                await self.do_steps_async(txn, self.drawn.steps)
                await database.session.run_sync(fail_in_block, failure)
                await flush_rows_async(database)
                await database.record(row)
                await database.commit()
                self.records.update(sent.texts)
            except BaseException:
                await database.rollback()
                assert failure is not None
            else:
                assert failure is None
        await engine.dispose()

    async def do_steps_async(
        self, txn: Any, steps: tuple[Step | Nested, ...], at: str = "", part: Any = None
    ) -> None:
        for number, step in enumerate(steps):
            place = f"{at}.{number}"
            if isinstance(step, Step):
                if part is None:
                    await txn.send("paid", place.encode())
                else:
                    part.send("paid", place.encode())
                await txn.session.run_sync(self.objects.do_step, step, place)
                continue
            with suppress(BlockFails):
                async with txn.savepoint() as inner:
                    await self.do_steps_async(txn, step.steps, place, inner)
                    if step.raises:
                        raise BlockFails

    def check(self) -> None:
        expected = Effects()
        expected.apply(self.drawn.steps)
        with self.engine.connect() as connection:
            assert read(connection) == expected.rows
        assert self.records == expected.records


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(drawn=BLOCKS)
@example(drawn=Drawn((Step("outside"),), (Failure.RAISES,)))
@example(drawn=Drawn((Step("outside"),), (Failure.IN_DOUBT,)))
@example(drawn=Drawn((Step("held", flushes=True),), (Failure.CLOSED,)))
def test_a_block_is_in_both_halves_whatever_happened_before(engine: Engine, drawn: Drawn) -> None:
    life = Life(engine, drawn)
    life.run()
    life.check()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(drawn=BLOCKS)
@example(drawn=Drawn((Step("outside"),), (Failure.INTERRUPTED_COMMIT,)))
def test_so_it_is_with_asyncio(engine: Engine, drawn: Drawn) -> None:
    life = Life(engine, drawn)
    asyncio.run(life.run_async())
    life.check()
