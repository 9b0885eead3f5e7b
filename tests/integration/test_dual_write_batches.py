"""Units of concurrent callers in one dual write: each learns its own outcome, and harms no other."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String, create_engine, event, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool
from tests.support.dual_world import MakeWorld, World, new_name, worlds
from tests.support.raw_producer import committed_values, read
from tests.support.servers import MariaDB, PostgreSQL

from tallystick.admin import Admin, NewTopic
from tallystick.client.errors import AbortRequired, ClientError, NotSupported
from tallystick.dualwrite import (
    CommitUnknown,
    DualWriter,
    NotRecovered,
    NotYours,
    SqlStore,
    UnsafeStore,
    WriterPool,
)
from tallystick.dualwrite.blocking.batches import BatchRunner
from tallystick.dualwrite.blocking.unit import UnitTransaction
from tallystick.dualwrite.blocking.writer import Transaction
from tallystick.dualwrite.rules.batching import Batching, SavepointPolicy
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.protocol.records import ControlType, parse_control_type
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
    """Return a unit that writes a row and sends a record of the same name."""

    def work(unit: Unit) -> str:
        unit.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
        unit.send(world.topic, what.encode())
        return what

    return work


class Callers:
    """Concurrent callers, whose units wait for a writer that is lent when they are all there."""

    def __init__(
        self, *writers: DualWriter[SqlTransaction], limits: Batching = PATIENT, has_savepoints: bool = True
    ) -> None:
        self._writers, self._open = list(writers), threading.Event()
        self.has_savepoints, policy = has_savepoints, SavepointPolicy()
        if has_savepoints:
            policy.count_failure()
        self.runner = BatchRunner(self._lend, limits, driver_count=len(writers), savepoints=policy)
        self._threads = ThreadPoolExecutor(16)

    @contextmanager
    def _lend(self) -> Iterator[DualWriter[SqlTransaction]]:
        self._open.wait()
        writer = self._writers.pop()
        try:
            if not writer.ready:
                writer.recover()
            yield writer
        finally:
            self._writers.append(writer)

    def submit(self, *units: Work) -> "list[Future[Any]]":
        """Let each unit's caller wait, in order, for one batch."""
        futures = []
        self._open.clear()
        for unit in units:
            count = self.runner.waiting_count
            futures.append(self._threads.submit(self.runner.run, unit))
            eventually(lambda count=count: self.runner.waiting_count == count + 1)
        self._open.set()
        return futures

    def close(self) -> None:
        """End the drivers, before their writers are closed. Idempotent."""
        self._open.set()
        self.runner.close()
        self._threads.shutdown()


@pytest.fixture(params=["savepoints", "no-savepoints"])
def callers(request: pytest.FixtureRequest) -> Iterator[Callable[..., Callers]]:
    """Make callers whose units run in savepoints, or do so only once one has failed without."""
    opened: list[Callers] = []
    has_savepoints = request.param == "savepoints"

    def make(*writers: DualWriter[SqlTransaction], limits: Batching = PATIENT) -> Callers:
        opened.append(Callers(*writers, limits=limits, has_savepoints=has_savepoints))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


MakeCallers = Callable[..., Callers]


def count_commits(world: World, records: int) -> int:
    """Return how many committed transactions the topic has seen, once all of the records are committed."""
    eventually(lambda: len(committed_values(world.broker, world.topic, 0)) == records)
    batches, _ = read(world.broker, world.topic, 0)
    markers = [records[0] for header, records in batches if header.is_control]
    return sum(parse_control_type(each) is ControlType.COMMIT for each in markers)


def test_callers_share_one_transaction(any_world: World, callers: MakeCallers) -> None:
    units = [pay(any_world, n, f"unit-{n}") for n in range(8)]
    futures = callers(any_world.life()).submit(*units)
    assert [each.result(30) for each in futures] == [f"unit-{n}" for n in range(8)]
    assert any_world.check() == [f"unit-{n}" for n in range(8)]
    assert count_commits(any_world, 8) == 1


def test_a_unit_that_raises_takes_back_its_own_rows_and_records_alone(
    any_world: World, callers: MakeCallers
) -> None:
    def bad(unit: Unit) -> None:
        pay(any_world, 2, "bad")(unit)
        raise ValueError("no money")

    futures = callers(any_world.life()).submit(pay(any_world, 1, "a"), bad, pay(any_world, 3, "c"))
    with pytest.raises(ValueError, match="no money"):
        futures[1].result(30)
    assert [futures[0].result(30), futures[2].result(30)] == ["a", "c"]
    assert any_world.check() == ["a", "c"]
    assert count_commits(any_world, 2) == 1


def test_a_batch_of_failed_units_commits_nothing(sqlite_world: MakeWorld, callers: MakeCallers) -> None:
    world = sqlite_world()

    def bad(unit: Unit) -> None:
        pay(world, 1, "bad")(unit)
        sys.exit("a unit ends neither the batch nor its thread")

    waiting = callers(world.life())
    (future,) = waiting.submit(bad)
    with pytest.raises(SystemExit, match="a unit ends neither"):
        future.result(30)
    assert world.check() == []
    assert waiting.submit(pay(world, 2, "b"))[0].result(30) == "b"
    assert world.check() == ["b"]


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)


def test_each_unit_has_a_session_of_its_own(any_world: World, callers: MakeCallers) -> None:
    Base.metadata.create_all(any_world.engine)
    committed: list[str] = []

    def account(name: str) -> Work:
        def work(unit: Unit) -> int:
            session = unit.session
            event.listen(session, "after_commit", lambda _: committed.append(name))
            session.add(Account(name=name))
            unit.send(any_world.topic, name.encode())
            return id(session)

        return work

    futures = callers(any_world.life()).submit(account("x"), account("x"), account("y"))
    with pytest.raises(IntegrityError):
        futures[1].result(30)
    assert futures[0].result(30) != futures[2].result(30)
    with any_world.engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM account ORDER BY name")).scalars().all() == [
            "x",
            "y",
        ]
    assert committed == ["x", "y"]
    assert count_commits(any_world, 2) == 1


def test_a_unit_that_rolls_its_session_back_and_goes_on_is_refused(
    any_world: World, callers: MakeCallers
) -> None:
    def bad(unit: Unit) -> None:
        unit.session.execute(text(f"INSERT INTO {any_world.table} VALUES (2, 'bad')"))
        unit.session.rollback()
        pay(any_world, 3, "worse")(unit)

    futures = callers(any_world.life()).submit(pay(any_world, 1, "a"), bad, pay(any_world, 4, "d"))
    with pytest.raises(NotYours):
        futures[1].result(30)
    assert [futures[0].result(30), futures[2].result(30)] == ["a", "d"]
    assert any_world.check() == ["a", "d"]


def test_savepoints_inside_a_unit(any_world: World, callers: MakeCallers) -> None:
    def careful(unit: Unit) -> None:
        pay(any_world, 1, "a")(unit)
        with unit.savepoint() as part:
            pay(any_world, 2, "b")(unit)
            part.send(any_world.topic, b"b2")
        try:
            with unit.savepoint() as part:
                unit.connection.execute(text(f"INSERT INTO {any_world.table} VALUES (3, 'c')"))
                part.send(any_world.topic, b"c")
                raise LookupError
        except LookupError:
            unit.connection.execute(text(f"INSERT INTO {any_world.table} VALUES (3, 'b2')"))

    callers(any_world.life()).submit(careful)[0].result(30)
    assert any_world.check() == ["a", "b", "b2"]


def test_a_record_that_is_refused_fails_its_unit(sqlite_world: MakeWorld, callers: MakeCallers) -> None:
    world = sqlite_world()

    def too_large(unit: Unit) -> None:
        pay(world, 2, "bad")(unit)
        unit.send(world.topic, bytes(2_000_000))

    def only_too_large(unit: Unit) -> None:
        unit.send(world.topic, bytes(2_000_000))

    waiting = callers(world.life())
    futures = waiting.submit(pay(world, 1, "a"), too_large, only_too_large, pay(world, 3, "c"))
    for each in futures[1:3]:
        with pytest.raises(ClientError, match=r"max\.request\.size"):
            each.result(30)
    assert [futures[0].result(30), futures[3].result(30)] == ["a", "c"]
    assert world.check() == ["a", "c"]


def test_a_record_that_the_broker_refuses_fails_its_unit_and_none_after_it(
    sqlite_world: MakeWorld, callers: MakeCallers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction of the batch can only be aborted by then: that is no error of the later units."""
    world, topic, deliveries = sqlite_world(), f"{new_name()}-small", []
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name=topic, config={"max.message.bytes": "1000"})])
    send = Transaction.send

    def send_and_keep(txn: Any, *args: Any, **named: Any) -> Any:
        deliveries.append(send(txn, *args, **named))
        return deliveries[-1]

    monkeypatch.setattr(Transaction, "send", send_and_keep)

    def too_large(unit: Unit) -> None:
        unit.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'bad')"))
        unit.send(topic, bytes(2000))

    def later(unit: Unit) -> str:
        eventually(lambda: not deliveries or deliveries[0].done())
        return str(pay(world, 2, "b")(unit))

    futures = callers(world.life()).submit(too_large, later)
    assert futures[1].result(30) == "b"
    with pytest.raises(ClientError, match="MESSAGE_TOO_LARGE"):
        futures[0].result(30)
    assert world.check() == ["b"]


def test_a_coroutine_function_is_refused(sqlite_world: MakeWorld, callers: MakeCallers) -> None:
    world = sqlite_world()

    async def pay_later(_: Unit) -> None:
        raise AssertionError("never awaited")

    with pytest.raises(TypeError, match=r"is a coroutine function.*dualwrite\.aio"):
        callers(world.life()).submit(pay_later)[0].result(30)
    assert world.check() == []


def test_what_the_database_refuses_at_commit_fails_the_unit_that_wrote_it(
    postgresql_world: MakeWorld, callers: MakeCallers
) -> None:
    world = postgresql_world()
    with world.engine.begin() as connection:
        connection.execute(
            text(f"ALTER TABLE {world.table} ADD CONSTRAINT once UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
        )
    waiting = callers(world.life())
    assert waiting.submit(pay(world, 1, "first"))[0].result(30) == "first"
    futures = waiting.submit(pay(world, 2, "a"), pay(world, 1, "again"), pay(world, 3, "c"))
    with pytest.raises(IntegrityError, match="once"):
        futures[1].result(30)
    assert [futures[0].result(30), futures[2].result(30)] == ["a", "c"]
    assert world.check() == ["first", "a", "c"]


def test_a_deadlock_of_one_unit_is_repeated_alone(any_world: World, callers: MakeCallers) -> None:
    """A lock wait that ends stands for any conflict: on MariaDB a deadlock takes the whole transaction."""
    attempts: list[str] = []

    def conflicting(unit: Unit) -> str:
        attempts.append(threading.current_thread().name)
        pay(any_world, 2, "b")(unit)
        if len(attempts) == 1:
            raise_conflict(unit)
        return "b"

    futures = callers(any_world.life()).submit(pay(any_world, 1, "a"), conflicting, pay(any_world, 3, "c"))
    assert [each.result(30) for each in futures] == ["a", "b", "c"]
    assert any_world.rows() == ["a", "b", "c"]
    assert len(attempts) == 2
    assert count_commits(any_world, 3) == 2


def raise_conflict(unit: Unit) -> None:
    """Let the database itself refuse something as a conflict with another transaction."""
    match unit.connection.dialect.name:
        case "postgresql":
            code = "DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$"
            unit.connection.execute(text(code))
        case "sqlite":
            import sqlite3

            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorname = "SQLITE_BUSY"
            raise busy
        case _:
            unit.connection.execute(text("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213"))


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_unit_that_waits_does_not_hold_up_those_that_are_ready(
    request: pytest.FixtureRequest, callers: MakeCallers, kind: str
) -> None:
    world, go_on = request.getfixturevalue(f"{kind}_world")(), threading.Event()
    attempts: list[int] = []

    def slow(unit: Unit) -> str:
        attempts.append(1)
        pay(world, 2, "slow")(unit)
        go_on.wait(60)
        return "slow"

    second = DualWriter(
        SqlStore(world.make_engine()), world.config | {"transactional.id": f"{world.topic}-2"}
    )
    with second:
        waiting = callers(world.life(), second, limits=Batching(max_batch_wait_ms=50))
        futures = waiting.submit(pay(world, 1, "a"), slow, pay(world, 3, "c"))
        assert [futures[0].result(30), futures[2].result(30)] == ["a", "c"]
        assert world.rows() == ["a", "c"]
        go_on.set()
        assert futures[1].result(30) == "slow"
        assert world.rows() == ["a", "slow", "c"]
        waiting.close()
    assert len(attempts) == 2


def test_where_the_server_cannot_end_a_batch_it_is_waited_for(
    sqlite_world: MakeWorld, callers: MakeCallers
) -> None:
    world, running, go_on = sqlite_world(), threading.Event(), threading.Event()

    def slow(unit: Unit) -> str:
        pay(world, 2, "slow")(unit)
        running.set()
        go_on.wait(60)
        return "slow"

    waiting = callers(world.life(), limits=Batching(max_batch_wait_ms=1))
    first, second = waiting.submit(slow, pay(world, 3, "c"))
    running.wait(60)
    late_s = time.monotonic() + 0.01
    eventually(lambda: time.monotonic() > late_s)
    go_on.set()
    assert [first.result(30), second.result(30)] == ["slow", "c"]
    assert world.check() == ["slow", "c"]
    assert count_commits(world, 2) == 2


class ForgetfulTransaction(SqlTransaction):
    """Commits, and loses the answer once."""

    forgets = True

    def commit(self) -> None:
        super().commit()
        if ForgetfulTransaction.forgets:
            ForgetfulTransaction.forgets = False
            raise CommitUnknown("the answer was lost")


class ForgetfulStore(SqlStore):
    def begin(self) -> SqlTransaction:
        txn = super().begin()
        txn.__class__ = ForgetfulTransaction
        return txn


def test_an_outcome_that_was_unknown_is_found_for_every_caller(
    sqlite_world: MakeWorld, callers: MakeCallers
) -> None:
    world = sqlite_world()
    ForgetfulTransaction.forgets = True
    with DualWriter(ForgetfulStore(world.make_engine()), world.config) as writer:
        waiting = callers(writer)
        futures = waiting.submit(pay(world, 1, "a"), pay(world, 2, "b"))
        assert [each.result(30) for each in futures] == ["a", "b"]
        waiting.close()
    assert not ForgetfulTransaction.forgets
    assert world.check() == ["a", "b"]
    assert count_commits(world, 2) == 1


def test_every_caller_learns_that_the_id_is_lost(sqlite_world: MakeWorld, callers: MakeCallers) -> None:
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    world.life().recover()
    futures = callers(writer).submit(pay(world, 1, "a"), pay(world, 2, "b"))
    for each in futures:
        with pytest.raises(AbortRequired, match="INVALID_PRODUCER_EPOCH"):
            each.result(30)
    assert world.check() == []


class UnsafeOnce(SqlStore):
    """Cannot begin, the first time."""

    is_safe = False

    def begin(self) -> SqlTransaction:
        if not self.is_safe:
            self.is_safe = True
            raise UnsafeStore("fsync", "off", "on")
        return super().begin()


def test_a_batch_that_cannot_begin_fails_all_that_wait(sqlite_world: MakeWorld, callers: MakeCallers) -> None:
    world = sqlite_world()
    with DualWriter(UnsafeOnce(world.make_engine()), world.config) as writer:
        waiting = callers(writer)
        for each in waiting.submit(pay(world, 1, "a"), pay(world, 2, "b")):
            with pytest.raises(UnsafeStore, match="fsync"):
                each.result(30)
        assert waiting.submit(pay(world, 3, "c"))[0].result(30) == "c"
        waiting.close()
    assert world.check() == ["c"]


class StoreWithoutUnits(SqlStore):
    """Its transactions have no `begin_unit`, as RocksDB's."""

    def begin(self) -> Any:
        return WithoutUnits(super().begin())


class WithoutUnits:
    def __init__(self, inner: SqlTransaction) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "begin_unit":
            raise AttributeError(name)
        return getattr(self._inner, name)


def test_a_store_without_savepoints_refuses(sqlite_world: MakeWorld, callers: MakeCallers) -> None:
    world = sqlite_world()
    with DualWriter(StoreWithoutUnits(world.make_engine()), world.config) as writer:
        waiting = callers(writer)
        (future,) = waiting.submit(pay(world, 1, "a"))
        with pytest.raises(NotSupported, match="savepoints in WithoutUnits"):
            future.result(30)
        waiting.close()


def test_a_closed_runner_refuses_units(sqlite_world: MakeWorld, callers: MakeCallers) -> None:
    world = sqlite_world()
    runner = callers(world.life()).runner
    runner.close()
    with pytest.raises(NotRecovered, match="closed"):
        runner.run(pay(world, 1, "a"))
    assert world.rows() == []


who: ContextVar[str] = ContextVar("who", default="none")


def test_a_pool_runs_units_with_the_context_of_their_caller(postgresql_world: MakeWorld) -> None:
    world = postgresql_world()

    def run(pool: WriterPool[SqlTransaction], n: int) -> list[str]:
        who.set(f"caller-{n}")

        def work(unit: Unit, at: int) -> str:
            pay(world, 100 * n + at, f"{n}-{at}")(unit)
            return who.get()

        return [pool.run_batched(lambda unit, at=at: work(unit, at)) for at in range(10)]

    with WriterPool(SqlStore(world.make_engine()), world.config, 2) as pool, ThreadPoolExecutor(8) as threads:
        pool.recover()
        results = list(threads.map(lambda n: run(pool, n), range(8)))
    assert results == [[f"caller-{n}"] * 10 for n in range(8)]
    assert sorted(world.rows()) == sorted(f"{n}-{at}" for n in range(8) for at in range(10))
    values = [each.split("-") for each in committed_values(world.broker, world.topic, 0)]
    for n in range(8):
        assert [at for caller, at in values if caller == str(n)] == [str(at) for at in range(10)]
    assert count_commits(world, 80) < 80
