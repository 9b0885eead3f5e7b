"""`transactional`: what is repeated, and what a key keeps from being done again, on real databases."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import psycopg.errors
import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool
from tests.support.cutting_proxy import CuttingProxy
from tests.support.dual_world import World, new_name, worlds
from tests.support.raw_producer import committed_values
from tests.support.servers import MARIADB_LOCK_WAITS, MariaDB, PostgreSQL

from tallystick.client.errors import NotSupported
from tallystick.dualwrite import (
    BadResult,
    BadStore,
    CommitUnknown,
    DualWriter,
    IdempotencyKey,
    Outcome,
    Retry,
    SqlStore,
    WriteInDoubt,
    WriterPool,
)
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

AT_ONCE = Retry(attempts=5, random=lambda: 0.0)
DATABASES = ["sqlite", "postgresql", "mariadb"]
SERVERS = ["postgresql", "mariadb"]
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def level(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", ""))


@pytest.fixture
def world(
    request: pytest.FixtureRequest, database: str, level: str, broker: EmbeddedBroker, tmp_path: Path
) -> Iterator[World]:
    options: dict[str, Any] = {"poolclass": NullPool} | ({"isolation_level": level} if level else {})

    def make_engine(name: str) -> Engine:
        if database == "sqlite":
            return create_engine(
                f"sqlite:///{tmp_path / name}.db", connect_args={"timeout": 60}, poolclass=NullPool
            )
        server: PostgreSQL | MariaDB = request.getfixturevalue(database)
        driver = "postgresql+psycopg" if database == "postgresql" else "mysql+pymysql"
        return create_engine(make_url(urls[server]).set(drivername=driver), **options)

    urls: dict[Any, str] = {}
    if database != "sqlite":
        server = request.getfixturevalue(database)
        urls[server] = server.url(server.new_database())
    for make in worlds(broker, make_engine):
        yield make()


def paid(world: World) -> list[str]:
    """Return the payments that both sides have, sorted: concurrent ones have no order."""
    rows = sorted(world.rows())
    eventually(lambda: sorted(committed_values(world.broker, world.topic, 0)) == rows)
    return rows


def insert(world: World, txn: Any, what: str) -> None:
    txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, '{what}')"))
    txn.send(world.topic, what.encode())


def payer(world: World, writer: Any, **options: Any) -> Callable[[str], dict[str, Any]]:
    """Return a decorated payment, whose result counts how often it has run."""
    runs = itertools.count(1)

    @writer.transactional(idempotency_key="what", **({"retry": AT_ONCE} | options))
    def pay(txn: Any, what: str) -> dict[str, Any]:
        run = next(runs)
        insert(world, txn, what)
        return {"paid": what, "run": run}

    return pay


@pytest.mark.gate(1)
@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_a_call_with_the_same_key_does_nothing_and_returns_the_first_result(world: World) -> None:
    """[DW-16] By the same writer, by one of another id, and by one that is started later."""
    writer = world.life()
    writer.recover()
    pay = payer(world, writer)
    assert pay("a") == {"paid": "a", "run": 1}
    assert pay("a") == {"paid": "a", "run": 1}
    assert pay("b") == {"paid": "b", "run": 2}
    writer.close()
    config = {**world.config, "transactional.id": f"{world.topic}-other"}
    with DualWriter(SqlStore(world.make_engine()), config) as other:
        other.recover()
        assert payer(world, other)("a") == {"paid": "a", "run": 1}
        assert payer(world, other, scope="elsewhere")("a") == {"paid": "a", "run": 1}
    assert paid(world) == ["a", "a", "b"]


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_what_failed_keeps_no_key(world: World) -> None:
    """[DW-16] A failure of the work, or of its result, rolls the key back with both sides."""
    writer = world.life()
    writer.recover()

    @writer.transactional(idempotency_key=lambda what, **_: what)
    def pay(txn: Any, what: str, *, result: object) -> object:
        insert(world, txn, what)
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(ZeroDivisionError):
        pay("a", result=ZeroDivisionError())
    with pytest.raises(BadResult, match="neither side"):
        pay("a", result=object())
    assert paid(world) == []
    assert pay("a", result=None) is None
    assert pay("a", result=1) is None
    assert paid(world) == ["a"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_without_the_table_a_keyed_call_says_so(world: World) -> None:
    with world.engine.begin() as connection:
        connection.execute(text("DROP TABLE kafka_idempotency_keys"))
    writer = world.life()
    writer.recover()
    with pytest.raises(BadStore, match=r"(?s)kafka_idempotency_keys.*SqlStore.create\(\) makes the tables"):
        payer(world, writer)("a")
    world.pay(writer, 1, "unkeyed")
    world.store.create()
    assert payer(world, writer)("a")["paid"] == "a"
    assert paid(world) == ["a", "unkeyed"]


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_keys_are_forgotten_by_the_clock_of_the_database(world: World) -> None:
    writer = world.life()
    writer.recover()
    pay = payer(world, writer)
    pay("old")
    with world.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_idempotency_keys SET created_at = created_at - 60000"))
    pay("new")
    assert world.store.forget_idempotency_keys(older_than_ms=120_000) == 0
    assert world.store.forget_idempotency_keys(older_than_ms=50_000) == 1
    assert pay("new") == {"paid": "new", "run": 2}
    assert pay("old") == {"paid": "old", "run": 3}
    assert paid(world) == ["new", "old", "old"]


class Meeting:
    """Watches writers, and holds the first one that has its key until another one asks for it."""

    def __init__(self, waits: Callable[[], bool]) -> None:
        self._waits = waits
        self._is_first = threading.Lock()
        self.second_asks = threading.Event()

    def __call__(self, _: int, step: RecipeStep, done: bool) -> None:
        if step.name != "claim key":
            return
        if not done:
            if not self._is_first.acquire(blocking=False):
                self.second_asks.set()
        elif self._is_first.locked() and not self.second_asks.is_set():
            assert self.second_asks.wait(60)
            eventually(self._waits)


def waits_in(world: World) -> Callable[[], bool]:
    """Return whether a statement on the keys waits in the server for another transaction."""
    statement = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND query LIKE 'INSERT INTO public.kafka_idempotency_keys%'",
        "mysql": MARIADB_LOCK_WAITS,
    }[world.engine.dialect.name]

    def waits() -> bool:
        with world.engine.connect() as connection:
            return bool(connection.execute(text(statement)).scalar_one())

    return waits


@pytest.mark.gate(1)
@pytest.mark.parametrize("level", LEVELS, indirect=True)
@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_concurrent_call_waits_for_the_first_and_returns_its_result(world: World) -> None:
    """[DW-16] At every level of isolation, without a repetition that the caller has allowed."""
    meeting = Meeting(waits_in(world))
    with WriterPool(SqlStore(world.make_engine()), world.config, size=2, watch=meeting) as pool:
        pool.recover()
        pay = payer(world, pool, retry=0)
        with ThreadPoolExecutor(2) as threads:
            results = list(threads.map(pay, ["a", "a"]))
    assert meeting.second_asks.is_set()
    assert results == [{"paid": "a", "run": 1}] * 2
    assert paid(world) == ["a"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("level", LEVELS, indirect=True)
@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_concurrent_call_pays_if_the_first_one_fails(world: World) -> None:
    """[DW-16] The key that it waited for is gone, and is its own."""
    meeting = Meeting(waits_in(world))
    failing = threading.Lock()
    with WriterPool(SqlStore(world.make_engine()), world.config, size=2, watch=meeting) as pool:
        pool.recover()

        @pool.transactional(idempotency_key="what", retry=0)
        def pay(txn: Any, what: str) -> str:
            insert(world, txn, what)
            if failing.acquire(blocking=False):
                raise ZeroDivisionError
            return what

        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(pay, "a") for _ in range(2)]
    assert sorted(type(call.exception()).__name__ for call in calls) == ["NoneType", "ZeroDivisionError"]
    assert paid(world) == ["a"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_many_threads_with_few_keys_pay_each_key_once(world: World) -> None:
    """[DW-16] Keys in any order, so that callers meet at some of them."""
    with WriterPool(SqlStore(world.make_engine()), world.config, size=3) as pool:
        pool.recover()
        pay = payer(world, pool)
        with ThreadPoolExecutor(6) as threads:
            results = list(threads.map(pay, ["a", "b", "c"] * 6))
    assert [each["paid"] for each in results] == ["a", "b", "c"] * 6
    assert len({each["run"] for each in results}) == 3
    assert paid(world) == ["a", "b", "c"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_deadlock_is_repeated_until_both_are_paid(world: World) -> None:
    """[DW-3] Two transactions that lock the same rows in opposite order: the server ends one of them."""
    with world.engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INTEGER)"))
        connection.execute(text("INSERT INTO accounts VALUES (1, 0), (2, 0)"))
    both_locked = threading.Barrier(2)
    runs: list[int] = []
    with WriterPool(SqlStore(world.make_engine()), world.config, size=2) as pool:
        pool.recover()

        @pool.transactional(retry=AT_ONCE)
        def move(txn: Any, first: int, second: int) -> None:
            runs.append(first)
            raising = text("UPDATE accounts SET cents = cents + 1 WHERE id = :id")
            txn.connection.execute(raising, {"id": first})
            if len(runs) <= 2:
                both_locked.wait(60)
            txn.connection.execute(raising, {"id": second})
            insert(world, txn, f"from-{first}")

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(move, [1, 2], [2, 1]))
    assert len(runs) >= 3
    assert paid(world) == ["from-1", "from-2"]
    with world.engine.connect() as connection:
        assert list(connection.execute(text("SELECT cents FROM accounts")).scalars()) == [2, 2]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_errors_are_raised_at_once_or_after_the_last_run(world: World) -> None:
    writer = world.life()
    writer.recover()
    runs: list[Exception] = []

    @writer.transactional(retry=Retry(attempts=3, random=lambda: 0.0))
    def fail(txn: Any, error: Exception) -> None:
        runs.append(error)
        insert(world, txn, "never")
        raise error

    with pytest.raises(psycopg.errors.DeadlockDetected):
        fail(psycopg.errors.DeadlockDetected())
    assert len(runs) == 3
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
    assert len(runs) == 4
    assert paid(world) == []


class LosesAnswers(SqlTransaction):
    """Commits, or does not, and tells nobody."""

    plan: ClassVar[list[bool]] = []
    is_paying: ClassVar[bool] = False

    def commit(self) -> None:
        arrives = self.plan.pop(0) if self.plan and self.is_paying else None
        if arrives is None:
            super().commit()
            return
        if arrives:
            super().commit()
        else:
            self._connection.invalidate()
        raise CommitUnknown("the answer was lost")


@pytest.mark.gate(1)
@pytest.mark.parametrize("database", SERVERS, indirect=True)
@pytest.mark.parametrize(
    ("plan", "run_count"), [([True], 1), ([False], 2), ([False, False, True], 3)], ids=repr
)
def test_a_lost_answer_is_looked_up(
    world: World, monkeypatch: pytest.MonkeyPatch, plan: list[bool], run_count: int
) -> None:
    """[DW-3] [DW-16] Committed: the result of that run. Not committed: another run."""

    def watch(_: int, step: RecipeStep, done: bool) -> None:
        LosesAnswers.is_paying = step.name == "commit database" and not done

    writer: Any = world.life(watch)  # type: ignore[arg-type]
    writer.recover()
    monkeypatch.setattr("tallystick.dualwrite.stores.sql.SqlTransaction", LosesAnswers)
    monkeypatch.setattr(LosesAnswers, "plan", list(plan))
    pay = payer(world, writer)
    assert pay("a") == {"paid": "a", "run": run_count}
    assert pay("a") == {"paid": "a", "run": run_count}
    assert paid(world) == ["a"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("arrives", [True, False])
def test_a_caller_in_doubt_calls_again_with_the_key(
    broker: EmbeddedBroker, postgresql: PostgreSQL, arrives: bool
) -> None:
    """[DW-3] [DW-16] The network loses COMMIT or its answer, and is cut until the caller has its error."""
    database = postgresql.new_database()

    def make_engine(port: int | None = None) -> Engine:
        url = make_url(postgresql.url(database, port=port)).set(drivername="postgresql+psycopg")
        return create_engine(url, poolclass=NullPool)

    with (
        CuttingProxy(postgresql.port) as proxy,
        closing(World(broker, make_engine, new_name())) as world,
    ):
        lose = proxy.lose_answer if arrives else proxy.lose_request
        commits: list[int] = []

        def watch(number: int, step: RecipeStep, done: bool) -> None:
            if step.name == "commit database" and not done:
                commits.append(number)
                lose(b"COMMIT")
            elif step.name == "claim" and commits:  # the recovery that `transactional` tries by itself
                proxy.cut()

        writer = DualWriter(SqlStore(make_engine(proxy.port)), world.config, watch=watch)
        world.lives.append((writer, None, []))
        writer.recover()
        with pytest.raises(WriteInDoubt) as raised:
            payer(world, writer)("a")
        assert raised.value.outcome() is Outcome.UNKNOWN
        proxy.restore()
        other = DualWriter(SqlStore(make_engine()), {**world.config, "transactional.id": new_name()})
        world.lives.append((other, None, []))
        other.recover()
        assert payer(world, other)("a") == {"paid": "a", "run": 1}
        world.life().recover()
        assert paid(world) == ["a"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_key_can_be_given_to_run(world: World) -> None:
    writer = world.life()
    writer.recover()
    for _ in range(2):
        writer.run(lambda txn: insert(world, txn, "a"), idempotency_key=IdempotencyKey("pay", "a"))
    with pytest.raises(ValueError, match="idempotency key: 0 bytes"):
        writer.run(lambda txn: insert(world, txn, "a"), idempotency_key=IdempotencyKey("pay", ""))
    assert paid(world) == ["a"]


def test_a_store_without_keys_refuses_at_the_decoration(broker: EmbeddedBroker) -> None:
    class Keyless:
        pass

    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": new_name()}
    store: Any = Keyless()
    for made in (DualWriter(store, config), WriterPool(store, config, size=1)):
        with pytest.raises(NotSupported, match="Keyless"):
            made.transactional(idempotency_key="what")(lambda txn, what: None)
        made.close()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_commit_inside_the_block_leaves_a_key_that_says_so(world: World) -> None:
    """[DW-11] The rows and the key went with it; whether the records should be sent is for a person."""
    writer = world.life()
    writer.recover()

    @writer.transactional(idempotency_key="what")
    def pay(txn: Any, what: str) -> None:
        insert(world, txn, what)
        txn.connection.connection.driver_connection.execute("COMMIT")

    with pytest.raises(Exception, match="ended inside the block"):
        pay("a")
    with pytest.raises(Exception, match="committed before its work had ended"):
        pay("a")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("key", [None, "what"])
def test_a_coroutine_function_is_refused_by_a_blocking_writer(world: World, key: str | None) -> None:
    """It would run after the commit of an empty transaction, and what it writes elsewhere be in no other."""
    writer = world.life()
    writer.recover()

    @writer.transactional(idempotency_key=key)
    async def pay(txn: Any, what: str) -> None:
        raise AssertionError("never awaited")

    with pytest.raises(TypeError, match=r"is a coroutine function.*dualwrite\.aio"):
        pay("a")
    payer(world, writer)("b")
    assert paid(world) == ["b"]
