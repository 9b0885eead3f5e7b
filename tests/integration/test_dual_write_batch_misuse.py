"""Units that wait for each other, end what they share, or lose their caller: no other caller is harmed."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import MakeWorld, World, worlds
from tests.support.servers import MariaDB, PostgreSQL

from tallystick.dualwrite import AsyncSqlStore, DualWriter, NoFreeId, NotYours, SqlStore, WriterPool
from tallystick.dualwrite.aio import WriterPool as AioWriterPool
from tallystick.dualwrite.blocking.batches import BatchRunner
from tallystick.dualwrite.blocking.unit import UnitTransaction
from tallystick.dualwrite.rules.batching import Batching
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.dualwrite.stores.sql_async import AsyncSqlTransaction
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

Unit = UnitTransaction[SqlTransaction]
Work = Callable[[Unit], Any]
PATIENT = Batching(max_batch_wait_ms=600_000)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True) as broker:
        yield broker


@pytest.fixture
def sqlite_world(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[MakeWorld]:
    yield from worlds(
        broker, lambda name: create_engine(f"sqlite:///{tmp_path / name}.db", poolclass=NullPool)
    )


@pytest.fixture
def postgresql_world(broker: EmbeddedBroker, postgresql: PostgreSQL) -> Iterator[MakeWorld]:
    url = make_url(postgresql.url(postgresql.new_database())).set(drivername="postgresql+psycopg")
    yield from worlds(broker, lambda _: create_engine(url, poolclass=NullPool))


@pytest.fixture
def mariadb_world(broker: EmbeddedBroker, mariadb: MariaDB) -> Iterator[MakeWorld]:
    url = make_url(mariadb.url(mariadb.new_database())).set(drivername="mysql+pymysql")
    yield from worlds(broker, lambda _: create_engine(url, poolclass=NullPool))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def any_world(request: pytest.FixtureRequest) -> World:
    world: World = request.getfixturevalue(f"{request.param}_world")()
    return world


def pay(world: World, n: int, what: str) -> Work:
    def work(unit: Unit) -> str:
        unit.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
        unit.send(world.topic, what.encode())
        return what

    return work


def run_after_two_others(pool: WriterPool[SqlTransaction], world: World, bad: Work) -> "list[Future[Any]]":
    """Run `bad` third in a batch of four, with patient callers."""
    hold, begun = threading.Event(), threading.Event()

    def first(unit: Unit) -> str:
        begun.set()
        hold.wait(60)
        return str(pay(world, 0, "first")(unit))

    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(pool.run_batched, first)]
        begun.wait(60)
        for unit in (pay(world, 1, "a"), bad, pay(world, 3, "c")):
            futures.append(threads.submit(pool.run_batched, unit))
            eventually(lambda: pool._batches.waiting_count == len(futures) - 1)
        hold.set()
    return futures


@pytest.mark.parametrize("call", ["run_batched", "close"])
def test_a_unit_that_would_wait_for_its_own_batch_is_refused(sqlite_world: MakeWorld, call: str) -> None:
    world = sqlite_world()
    with WriterPool(SqlStore(world.engine), world.config, 1, batching=PATIENT) as pool:
        pool.recover()

        def waits(unit: Unit) -> Any:
            pay(world, 2, "outer")(unit)
            return pool.run_batched(pay(world, 9, "inner")) if call == "run_batched" else pool.close()

        futures = run_after_two_others(pool, world, waits)
        with pytest.raises(NotYours, match=f"{call} inside a unit of the same pool"):
            futures.pop(2).result()
        assert [each.result() for each in futures] == ["first", "a", "c"]
    assert world.check() == ["first", "a", "c"]


def test_units_of_two_pools_may_be_nested(sqlite_world: MakeWorld) -> None:
    inner, outer = sqlite_world(), sqlite_world()
    with (
        WriterPool(SqlStore(inner.engine), inner.config, 1) as one,
        WriterPool(SqlStore(outer.engine), outer.config, 1) as two,
    ):
        one.recover()
        two.recover()
        assert two.run_batched(lambda _: one.run_batched(pay(inner, 1, "inner"))) == "inner"
    assert inner.check() == ["inner"]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "BEGIN"])
def test_a_unit_that_ends_the_shared_transaction_is_refused(any_world: World, statement: str) -> None:
    world = any_world
    with WriterPool(SqlStore(world.engine), world.config, 1, batching=PATIENT) as pool:
        pool.recover()

        def ends(unit: Unit) -> None:
            pay(world, 2, "bad")(unit)
            unit.connection.execute(text(statement))

        futures = run_after_two_others(pool, world, ends)
        with pytest.raises(NotYours, match=f"'{statement}': it ends the transaction"):
            futures.pop(2).result()
        assert [each.result() for each in futures] == ["first", "a", "c"]
    assert world.check() == ["first", "a", "c"]


def test_ddl_that_commits_the_rows_of_other_units_is_refused(mariadb_world: MakeWorld) -> None:
    world = mariadb_world()
    with WriterPool(SqlStore(world.engine), world.config, 1, batching=PATIENT) as pool:
        pool.recover()
        ddl = f"ALTER TABLE {world.table} ADD COLUMN more INTEGER"
        futures = run_after_two_others(pool, world, lambda unit: unit.connection.execute(text(ddl)))
        with pytest.raises(NotYours, match="ALTER TABLE"):
            futures.pop(2).result()
    assert world.check() == ["first", "a", "c"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hook_that_exits_ends_no_driver_for_good(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    with WriterPool(SqlStore(world.engine), world.config, 1) as pool:
        pool.recover()

        def exits(unit: Unit) -> None:
            event.listen(unit.session, "before_commit", lambda _: sys.exit(3))

        with pytest.raises(SystemExit):
            pool.run_batched(exits)
        assert pool.run_batched(pay(world, 1, "a")) == "a"
    assert world.check() == ["a"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hook_that_exits_when_a_batch_begins_holds_up_no_other(sqlite_world: MakeWorld) -> None:
    """Its batch took no unit, and would have been the one that takes them for ever."""
    world = sqlite_world()
    store = SqlStore(world.engine)
    with ThreadPoolExecutor(1) as threads, WriterPool(store, world.config, 1) as pool:
        pool.recover()
        exits: list[str] = ["once"]
        event.listen(world.engine, "begin", lambda _: exits and sys.exit(exits.pop()))
        with suppress(SystemExit):  # unless another driver has run it
            threads.submit(pool.run_batched, pay(world, 1, "a")).result(30)
        assert not exits
        assert threads.submit(pool.run_batched, pay(world, 2, "b")).result(30) == "b"
    assert world.check()[-1] == "b"


def test_only_those_that_have_waited_learn_that_there_is_no_free_writer(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    writer, lent = world.life(), []
    writer.recover()
    threads = ThreadPoolExecutor(2)
    futures: list[Future[Any]] = []

    @contextmanager
    def lend() -> Iterator[DualWriter[SqlTransaction]]:
        lent.append(1)
        if len(lent) == 1:
            futures.append(threads.submit(runner.run, pay(world, 2, "late")))
            eventually(lambda: runner.waiting_count == 2)
            raise NoFreeId("none became free")
        yield writer

    runner = BatchRunner(lend, PATIENT, driver_count=1)
    with pytest.raises(NoFreeId):
        runner.run(pay(world, 1, "early"))
    assert futures[0].result(60) == "late"
    runner.close()
    threads.shutdown()
    assert world.check() == ["late"]


class SlowlyEnded(SqlTransaction):
    """Stands for a transaction that the server is told to end while its last unit returns."""

    steps: list[str]
    go_on: threading.Event
    is_left: threading.Event

    can_be_terminated = True

    def terminate(self) -> None:
        self.go_on.set()
        self.is_left.wait(60)
        self.steps.append("ended")

    def rollback(self) -> None:
        self.steps.append("rolled back")
        super().rollback()


def test_a_connection_is_not_lent_again_while_the_server_is_told_to_end_it(
    sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, begun, stop_watching = sqlite_world(), threading.Event(), BatchRunner._stop_watching
    SlowlyEnded.steps, SlowlyEnded.go_on, SlowlyEnded.is_left = [], threading.Event(), threading.Event()

    class Store(SqlStore):
        def begin(self) -> SqlTransaction:
            txn = super().begin()
            txn.__class__ = SlowlyEnded
            return txn

    def leave(*args: Any) -> None:
        if SlowlyEnded.go_on.is_set():
            SlowlyEnded.is_left.set()
        stop_watching(*args)

    def slow(unit: Unit) -> str:
        begun.set()
        pay(world, 1, "slow")(unit)
        SlowlyEnded.go_on.wait(60)
        return "slow"

    monkeypatch.setattr(BatchRunner, "_stop_watching", leave)
    limits = Batching(max_batch_wait_ms=1)
    with (
        WriterPool(Store(world.engine), world.config, 2, batching=limits) as pool,
        ThreadPoolExecutor(2) as threads,
    ):
        pool.recover()
        SlowlyEnded.steps.clear()
        first = threads.submit(pool.run_batched, slow)
        begun.wait(60)
        second = threads.submit(pool.run_batched, pay(world, 2, "b"))
        assert [first.result(60), second.result(60)] == ["slow", "b"]
    assert SlowlyEnded.steps[:2] == ["ended", "rolled back"]
    assert sorted(world.rows()) == ["b", "slow"]


class OneIsWithdrawn(AsyncSqlStore):
    """Its next transaction waits to begin, and calls `on_rollback` before it is rolled back."""

    on_rollback: Callable[[], Any] | None = None
    begun: asyncio.Event
    go_on: asyncio.Event

    async def begin(self) -> AsyncSqlTransaction:
        txn = await super().begin()
        on_rollback, self.on_rollback = self.on_rollback, None
        if on_rollback is not None:
            roll_back = txn.rollback

            async def rollback() -> None:
                await on_rollback()
                await roll_back()

            txn.rollback = rollback  # type: ignore[method-assign]
            self.begun.set()
            await self.go_on.wait()
        return txn


def test_a_unit_that_comes_while_an_empty_batch_ends_is_run(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()

    async def work(unit: Any, what: str) -> str:
        await unit.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, '{what}')"))
        await unit.send(world.topic, what.encode())
        return what

    async def withdraw_one_and_run_another() -> None:
        engine = create_async_engine(world.engine.url.set(drivername="sqlite+aiosqlite"), poolclass=NullPool)
        store = OneIsWithdrawn(engine)
        store.begun, store.go_on, added = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def add_another() -> None:
            added.set()
            await asyncio.sleep(0)  # one turn of the loop, in which the other unit is added
            assert pool._batches.waiting_count == 1

        async with AioWriterPool(store, world.config, 1) as pool:
            await pool.recover()
            store.on_rollback = add_another
            withdrawn = asyncio.create_task(pool.run_batched(lambda unit: work(unit, "withdrawn")))
            await store.begun.wait()
            withdrawn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await withdrawn
            store.go_on.set()
            await added.wait()
            assert await pool.run_batched(lambda unit: work(unit, "kept")) == "kept"
        await engine.dispose()

    asyncio.run(withdraw_one_and_run_another())
    assert world.check() == ["kept"]
