"""What happens behind a writer's back: its transaction ended, its rows lost, its process forked."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import Integer, String, create_engine, event, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool
from tests.support.dual_world import Crash, Crashed, MakeWorld, World, Writer, worlds
from tests.support.raw_producer import committed_values
from tests.support.servers import MariaDB, PostgreSQL

from tallystick import Producer
from tallystick.dualwrite import (
    CommitUnknown,
    DatabaseBehind,
    DualWriter,
    Finding,
    HeuristicMixed,
    ManagedByWriter,
    Outcome,
    SqlStore,
    WriteInDoubt,
    WriterFenced,
    WriterPool,
)
from tallystick.errors import TallystickError
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


SERVERS = ["sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("postgresql", "mariadb"))]


@pytest.fixture(params=SERVERS)
def any_world(request: pytest.FixtureRequest) -> MakeWorld:
    """On each database."""
    make: MakeWorld = request.getfixturevalue(f"{request.param}_world")
    return make


def ready(world: World) -> Writer:
    writer = world.life()
    writer.recover()
    return writer


def insert(world: World, what: str) -> Any:
    return text(f"INSERT INTO {world.table} VALUES (1, '{what}')")


# ---- a transaction that is ended inside its block [DW-11]


def _raw(statement: str) -> Callable[[Any], object]:
    return lambda txn: txn.connection.execute(text(statement))


def _by_driver(name: str) -> Callable[[Any], object]:
    return lambda txn: getattr(txn.connection.connection.driver_connection, name)()


ENDED = r"ended inside|ends the database"
ENDINGS = {
    "ROLLBACK": _raw("ROLLBACK"),
    "COMMIT": _raw("COMMIT"),
    "hidden COMMIT": _raw("/* route:pay */ COMMIT"),
    "driver's rollback": _by_driver("rollback"),
    "driver's commit": _by_driver("commit"),
}


@pytest.mark.gate(1)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_ended_behind_the_writer_is_refused(
    any_world: MakeWorld, ending: str, goes_on: bool
) -> None:
    """[DW-11] Words are not sent; a driver's rows are gone, or committed; no record passes for theirs."""
    world = any_world()
    writer = ready(world)
    with pytest.raises(ManagedByWriter, match=ENDED), writer.transaction() as txn:
        txn.connection.execute(insert(world, "before"))
        txn.send(world.topic, b"no")
        ENDINGS[ending](txn)
        if goes_on:
            txn.connection.execute(insert(world, "after"))
    assert world.rows() == (["before"] if ending == "driver's commit" else [])
    if not writer.ready:
        writer.recover()
    world.pay(writer, 2, "a")
    assert committed_values(world.broker, world.topic, 0) == ["a"]


@pytest.fixture
def autocommit_world(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[MakeWorld]:
    """On SQLite with a driver that begins no transaction: outside of one, each statement commits."""
    yield from worlds(
        broker,
        lambda name: create_engine(
            f"sqlite:///{tmp_path / name}.db", poolclass=NullPool, connect_args={"isolation_level": None}
        ),
    )


@pytest.mark.gate(2)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_record_does_not_commit_by_itself(autocommit_world: MakeWorld, ending: str, goes_on: bool) -> None:
    """[DW-2, DW-11] It would decide for rows that are gone, and a recovery commit their records."""
    world = autocommit_world()
    writer = ready(world)
    world.pay(writer, 0, "a")
    with pytest.raises(ManagedByWriter, match=ENDED), writer.transaction() as txn:
        txn.session.execute(insert(world, "before"))
        txn.send(world.topic, b"no")
        ENDINGS[ending](txn)
        if goes_on:
            txn.session.execute(insert(world, "after"))
    writer.recover()
    assert world.rows() == (["a", "before"] if ending == "driver's commit" else ["a"])
    assert committed_values(world.broker, world.topic, 0) == ["a"]
    with world.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {world.table} WHERE n = 1"))
    world.pay(writer, 2, "b")
    assert world.check() == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["CREATE TABLE", "TRUNCATE", "a compound statement"])
def test_a_statement_that_commits_by_itself_is_refused(
    broker: EmbeddedBroker, mariadb: MariaDB, how: str
) -> None:
    """[DW-11] MariaDB commits before and after DDL, also inside a procedure's body."""
    url = make_url(mariadb.url(mariadb.new_database())).set(drivername="mysql+pymysql")
    for make in worlds(broker, lambda _: create_engine(url, poolclass=NullPool)):
        world = make()
        with world.engine.begin() as connection:
            connection.execute(text("CREATE TABLE other (n INTEGER)"))
        writer = ready(world)
        statement = {"CREATE TABLE": "CREATE TABLE more (n INTEGER)", "TRUNCATE": "TRUNCATE TABLE other"}
        with pytest.raises(ManagedByWriter, match="commits by itself"), writer.transaction() as txn:
            txn.send(world.topic, b"no")
            txn.connection.execute(text(statement.get(how, "BEGIN NOT ATOMIC TRUNCATE TABLE other; END")))
            txn.connection.execute(insert(world, "no"))
        assert world.rows() == []
        assert writer.ready
        world.pay(writer, 2, "a")
        assert committed_values(world.broker, world.topic, 0) == ["a"]


@pytest.mark.gate(1)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", ["unwinds", "commits"])
def test_a_forked_child_leaves_the_transaction_to_its_parent(
    broker: EmbeddedBroker, postgresql: PostgreSQL, how: str
) -> None:
    """[DW-11] Its ROLLBACK would go over the parent's socket."""
    url = make_url(postgresql.url(postgresql.new_database())).set(drivername="postgresql+psycopg")
    for make in worlds(broker, lambda _: create_engine(url, poolclass=NullPool)):
        world = make()
        writer = ready(world)
        child = -1
        try:
            with writer.transaction() as txn:
                txn.connection.execute(insert(world, "a"))
                txn.send(world.topic, b"a").result(30)
                child = os.fork()
                if child == 0 and how == "unwinds":
                    raise SystemExit(7)
                if child:
                    _, status = os.waitpid(child, 0)
                    assert os.waitstatus_to_exitcode(status) == 7
        except (SystemExit, ManagedByWriter) as exc:
            if child == 0:
                os._exit(7 if isinstance(exc, SystemExit) or "is a fork of it" in str(exc) else 8)
            raise
        finally:
            if child == 0:
                os._exit(9)
        assert world.check() == ["a"]


# ---- savepoints


@pytest.mark.gate(2)
@pytest.mark.parametrize("sent_by", ["transaction", "text", "savepoint"])
def test_records_of_a_savepoint_that_is_rolled_back_do_not_go_out(any_world: MakeWorld, sent_by: str) -> None:
    """[DW-2] Those that have gone already take the whole transaction with them."""
    world = any_world()
    writer = ready(world)

    def pay_three() -> None:
        with writer.transaction() as txn:
            for n, what in enumerate(("good", "bad", "good2")):
                with suppress(ValueError):
                    _one(world, txn, n, what, sent_by)

    if sent_by != "savepoint":
        with pytest.raises(ManagedByWriter, match="savepoint that was rolled back"):
            pay_three()
        assert writer.ready
        assert world.check() == []
        return
    pay_three()
    assert world.check() == ["good", "good2"]


def _one(world: World, txn: Any, n: int, what: str, sent_by: str) -> None:
    row = text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')")
    if sent_by == "text":
        txn.connection.execute(text("SAVEPOINT mine"))
        txn.connection.execute(row)
        txn.send(world.topic, what.encode())
        ending = "ROLLBACK TO SAVEPOINT" if what == "bad" else "RELEASE SAVEPOINT"
        txn.connection.execute(text(f"{ending} mine"))
        return
    if sent_by == "transaction":
        with txn.connection.begin_nested():
            txn.connection.execute(row)
            txn.send(world.topic, what.encode())
            _refuse_bad(what)
        return
    with txn.savepoint() as part:
        txn.connection.execute(row)
        part.send(world.topic, what.encode())
        _refuse_bad(what)


def _refuse_bad(what: str) -> None:
    if what == "bad":
        raise ValueError(what)


# ---- sessions


class Base(DeclarativeBase):
    pass


class Here(Base):
    __tablename__ = "here"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    what: Mapped[str] = mapped_column(String)


class There(Base):
    __tablename__ = "there"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    what: Mapped[str] = mapped_column(String)


def test_a_session_that_takes_rows_to_another_database_is_refused(
    sqlite_world: MakeWorld, tmp_path: Path
) -> None:
    """[DW-2] They would be dropped without a word."""
    world = sqlite_world()
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    Base.metadata.create_all(world.engine)
    Base.metadata.create_all(other)
    store = SqlStore(world.engine, session_factory=sessionmaker(binds={There: other}))
    with DualWriter(store, world.config) as writer:
        writer.recover()
        with pytest.raises(ManagedByWriter, match=r"other\.db"), writer.transaction() as txn:
            txn.session.add(Here(what="here"))
            txn.session.add(There(what="there"))
            txn.send(world.topic, b"no")
        with writer.transaction() as txn:
            txn.session.add(Here(what="here"))
    assert committed_values(world.broker, world.topic, 0) == []


def test_rows_that_a_session_had_not_written_yet_take_their_records_along(sqlite_world: MakeWorld) -> None:
    """[DW-2] A session makes no savepoint before its first statement."""
    world = sqlite_world()
    Base.metadata.create_all(world.engine)
    writer = ready(world)
    with pytest.raises(ManagedByWriter, match="savepoint that was rolled back"), writer.transaction() as txn:
        txn.send(world.topic, b"before")
        with suppress(ValueError), txn.session.begin_nested():
            txn.session.add(Here(what="bad"))
            txn.send(world.topic, b"bad")
            raise ValueError
    with writer.transaction() as txn, txn.session.begin_nested():
        txn.session.add(Here(what="good"))
        txn.send(world.topic, b"good")
    assert eventually(lambda: committed_values(world.broker, world.topic, 0)) == ["good"]


def test_the_events_of_a_session_are_those_of_a_commit_and_may_send(sqlite_world: MakeWorld) -> None:
    """Caches and search indexes listen to them."""
    world = sqlite_world()
    Base.metadata.create_all(world.engine)
    seen: list[str] = []

    class Listening(Session):
        pass

    def send_new(session: Session, *_: object) -> None:
        for each in session.new:
            txn.send(world.topic, each.what.encode())

    event.listen(Listening, "before_commit", lambda _: seen.append("before_commit"))
    event.listen(Listening, "after_commit", lambda _: seen.append("after_commit"))
    event.listen(Listening, "after_flush", send_new)
    with DualWriter(SqlStore(world.engine, session_factory=Listening), world.config) as writer:
        writer.recover()
        with writer.transaction(wait_visible=True) as txn:
            txn.session.add(Here(what="a"))
        assert seen == ["before_commit", "after_commit"]
        with pytest.raises(KeyError), writer.transaction() as txn:
            txn.session.add(Here(what="b"))
            raise KeyError
    assert seen == ["before_commit", "after_commit"]
    assert committed_values(world.broker, world.topic, 0) == ["a"]


# ---- a database that has lost its last commits [DW-12]


class Backup:
    """A copy of an SQLite database: restored, it stands for a replica that was behind."""

    def __init__(self, world: World) -> None:
        self._path = str(world.engine.url.database)
        self._copy = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(self._path)) as live:
            live.backup(self._copy)

    def restore(self) -> None:
        with closing(sqlite3.connect(self._path)) as live:
            self._copy.backup(live)


def test_a_live_writer_finds_at_once_that_the_database_went_back(sqlite_world: MakeWorld) -> None:
    """[DW-12] And keeps to it, until somebody has made it good."""
    world = sqlite_world()
    writer = ready(world)
    world.pay(writer, 1, "a")
    backup = Backup(world)
    world.pay(writer, 2, "lost")
    backup.restore()
    with pytest.raises(DatabaseBehind, match="has lost commits"):
        world.pay(writer, 3, "b")
    for _ in range(2):
        with pytest.raises(DatabaseBehind, match=r"recover\(accept_mixed=True\)"):
            writer.recover()
    writer.recover(accept_mixed=True)
    world.pay(writer, 3, "b")
    assert world.rows() == ["a", "b"]
    assert committed_values(world.broker, world.topic, 0) == ["a", "lost", "b"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("recovered", [False, True])
def test_a_new_writer_finds_that_the_database_went_back(
    sqlite_world: MakeWorld, before: int, lost: int, recovered: bool
) -> None:
    """[DW-12] By a commit that the cluster shows, and the row does not know."""
    world = sqlite_world()
    writer = ready(world)
    for n in range(before):
        world.pay(writer, n, f"{n}")
    if recovered:
        writer.recover()
    backup = Backup(world)
    for n in range(lost):
        world.pay(writer, 10 + n, f"lost {n}")
    backup.restore()
    world.close()
    second = world.life()
    (found,) = second.inspect().ids
    assert found.finding is Finding.BEHIND
    assert found.action == "would raise DatabaseBehind"
    with pytest.raises(DatabaseBehind, match="has lost commits"):
        second.recover()
    assert second.recover(accept_mixed=True).ids[0].finding is Finding.BEHIND
    assert second.recover().clean


@pytest.mark.gate(1)
@pytest.mark.parametrize("times", [1, 3])
def test_a_recovery_that_was_ended_is_no_lost_commit(sqlite_world: MakeWorld, times: int) -> None:
    """[DW-12] InitProducerId moves the pair on: what is then committed is still what the row names."""
    world = sqlite_world()
    crash = Crash(at="commit database")
    with suppress(Crashed):
        first = world.life(crash)
        first.recover()
        world.pay(first, 1, "a")
    world.cut()
    for _ in range(times):
        for step in ("init", "complete"):
            with suppress(Crashed):
                world.life(Crash(at=step)).recover()
            world.cut()
    (found,) = world.life().recover().ids
    assert found.finding in (Finding.FINISHED, Finding.IDLE)  # the latter where it was noted before
    assert world.check() == ["a"]


# ---- what nothing proves


def test_ordinary_aborts_leave_nothing_to_wonder_at(sqlite_world: MakeWorld) -> None:
    """[DW-6] Neither for this writer nor for the next one."""
    world = sqlite_world()
    for n in range(2):
        writer = ready(world)
        world.pay(writer, n, f"{n}")
        with pytest.raises(KeyError), writer.transaction() as txn:
            txn.send(world.topic, b"no").result(30)
            raise KeyError
        if n:
            assert writer.recover().clean
        world.close()
        assert world.life().recover().clean
    assert world.check() == ["0", "1"]


def test_an_abort_by_another_client_is_said(sqlite_world: MakeWorld) -> None:
    """[DW-6] The row says committed, and a client that does not ask the row has aborted it."""
    world = sqlite_world()
    with suppress(Crashed):
        first = world.life(Crash(at="commit database"))
        first.recover()
        world.pay(first, 1, "a")
    world.cut()
    config = {**world.config, "transaction.two.phase.commit.enable": True}
    with Producer(config) as other:
        other.init_transactions(keep_prepared_txn=True)
        other.abort_transaction()
    second = world.life()
    for _ in range(2):
        with pytest.raises(HeuristicMixed, match="was aborted there"):
            second.recover()
    assert second.recover(accept_mixed=True).ids[0].finding is Finding.OVERRULED
    assert second.recover().clean


class Lagging(SqlStore):
    """Its plain reads are answered by a replica that is behind: a proxy splits reads and writes."""

    stale: Any = None

    def read_state(self, transactional_id: str) -> Any:
        return self.stale if self.stale is not None else super().read_state(transactional_id)


def test_the_owner_is_not_asked_of_a_replica(sqlite_world: MakeWorld) -> None:
    """[DW-9] A recovery stalls before its init, and wakes when another has decided."""
    world = sqlite_world()
    store = Lagging(world.make_engine())

    def overtake(_: int, step: Any, done: bool) -> None:
        if step.name == "describe" and done and store.stale is None:
            store.stale = SqlStore(world.engine).read_state(world.topic)
            with suppress(Crashed):
                other = world.life(Crash(at="commit database"))
                other.recover()
                world.pay(other, 1, "decided")
            world.cut()

    with DualWriter(store, world.config, watch=overtake) as slow, pytest.raises(WriterFenced):
        slow.recover()
    world.life().recover()
    assert world.check() == ["decided"]


# ---- what was in doubt


@pytest.mark.parametrize("committed", [False, True])
def test_what_was_in_doubt_is_known_after_a_recovery(sqlite_world: MakeWorld, committed: bool) -> None:
    """[DW-3] So that nobody has to guess before writing again."""
    world = sqlite_world()
    writer = ready(world)
    with pytest.raises(WriteInDoubt) as raised, writer.transaction() as txn:
        txn.connection.execute(insert(world, "a"))
        txn.send(world.topic, b"a")
        _lose_answer(txn.database, committed=committed)
    assert raised.value.outcome() is Outcome.UNKNOWN
    assert list(raised.value.states) == [world.topic]
    writer.recover()
    assert raised.value.outcome() is (Outcome.COMMITTED if committed else Outcome.NOT_COMMITTED)
    assert world.check() == (["a"] if committed else [])


@pytest.mark.gate(1)
@pytest.mark.parametrize("what", [CommitUnknown("the connection ended"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("committed", [False, True])
def test_a_writer_that_is_closed_in_doubt_leaves_kafkas_half_to_recovery(
    sqlite_world: MakeWorld, committed: bool, what: BaseException
) -> None:
    """[DW-3] The end of a `with` block comes right behind; an abort there would tear what has committed."""
    world = sqlite_world()

    def lose() -> None:
        raise what

    writer = ready(world)
    with pytest.raises((WriteInDoubt, KeyboardInterrupt)), writer, writer.transaction() as txn:
        txn.connection.execute(insert(world, "a"))
        txn.send(world.topic, b"a")
        _lose_answer(txn.database, committed=committed, then=lose)
    world.life().recover()
    assert world.check() == (["a"] if committed else [])


def _lose_answer(database: Any, *, committed: bool, then: Callable[[], None] = lambda: None) -> None:
    commit, roll_back = database.commit, database.rollback

    def lose() -> None:
        if committed:
            commit()
        else:
            roll_back()
        then()
        raise CommitUnknown("the connection ended")

    database.commit = lose


@pytest.mark.parametrize("committed", [False, True])
def test_work_whose_end_was_in_doubt_is_not_done_twice(sqlite_world: MakeWorld, committed: bool) -> None:
    """[DW-3] A retry decorator around the block would pay twice."""
    world = sqlite_world()
    attempts: list[int] = []

    def pay(txn: Any) -> str:
        attempts.append(len(attempts))
        txn.connection.execute(insert(world, "a"))
        txn.send(world.topic, b"a")
        if len(attempts) == 1:
            _lose_answer(txn.database, committed=committed)
        return "paid"

    with WriterPool(world.store, world.config, 1) as pool:
        pool.recover()
        assert pool.run(pay, retries=2) == "paid"
    assert len(attempts) == (1 if committed else 2)
    assert world.check() == ["a"]


@pytest.mark.parametrize("sends", [False, True])
def test_two_pools_of_one_name_are_told_of_each_other(
    sqlite_world: MakeWorld, caplog: pytest.LogCaptureFixture, sends: bool
) -> None:
    """`WriterFenced` alone does not say that they take the ids from each other for ever."""
    world = sqlite_world()
    with WriterPool(world.store, world.config, 1) as pool, WriterPool(world.store, world.config, 1) as other:
        pool.recover()
        other.recover()
        with pytest.raises(TallystickError), pool.transaction() as txn:
            txn.connection.execute(insert(world, "no"))
            if sends:
                txn.send(world.topic, b"no")
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert f"the pool {world.topic!r} has lost an id" in said
    assert f"{world.topic}-0" in said


@pytest.mark.slow
def test_waits_for_a_lock_of_our_row_have_a_limit(broker: EmbeddedBroker, postgresql: PostgreSQL) -> None:
    """[DW-1] PostgreSQL keeps the lock of a client whose host is gone for two hours; a note does not wait."""
    url = make_url(postgresql.url(postgresql.new_database())).set(drivername="postgresql+psycopg")
    for make in worlds(broker, lambda _: create_engine(url, poolclass=NullPool)):
        world = make()
        limits: list[object] = []

        def look(_: int, step: Any, done: bool, limits: list[object] = limits) -> None:
            if step.name == "settle" and done:
                database = step.call.__self__
                limits.append(database.connection.execute(text("SHOW lock_timeout")).scalar_one())

        with DualWriter(world.store, world.config, watch=look) as writer:
            writer.recover()
            limits.clear()  # of the note that the id has recovered
            world.pay(writer, 1, "a")
            with pytest.raises(KeyError), writer.transaction() as txn:
                txn.send(world.topic, b"no").result(30)
                assert txn.connection.execute(text("SHOW lock_timeout")).scalar_one() == "0"
                raise KeyError
        assert limits == ["1min"]


@pytest.mark.slow
def test_rows_that_stay_as_they_are_fence_no_writer(broker: EmbeddedBroker, mariadb: MariaDB) -> None:
    """[DW-2] Without CLIENT.FOUND_ROWS the server counts only rows that it has changed."""
    url = make_url(mariadb.url(mariadb.new_database()))

    def connect() -> Any:
        return pymysql.connect(
            host=url.host,
            port=url.port,
            user=url.username,
            password=url.password or "",
            database=url.database,
        )

    def engine(_: str) -> Any:
        return create_engine("mysql+pymysql://", creator=connect, poolclass=NullPool)

    for make in worlds(broker, engine):
        world = make()
        writer = ready(world)
        for n in range(2):
            with writer.transaction() as txn:
                txn.connection.execute(insert(world, f"{n}"))
        world.life().recover()
        with pytest.raises(WriterFenced), writer.transaction() as txn:
            txn.connection.execute(insert(world, "no"))
        assert world.rows() == ["0", "1"]


@pytest.mark.parametrize("committed", [False, True])
def test_what_another_writer_has_followed_stays_unknown(sqlite_world: MakeWorld, committed: bool) -> None:
    """[DW-3] Its row names a later one, whatever became of the one in doubt: to repeat it may pay twice."""
    world = sqlite_world()
    writer = ready(world)
    attempts: list[int] = []

    def pay(txn: Any) -> None:
        attempts.append(len(attempts))
        txn.connection.execute(insert(world, "a"))
        txn.send(world.topic, b"a")
        _lose_answer(txn.database, committed=committed, then=overtake)

    def overtake() -> None:
        other = world.life()
        other.recover()
        world.pay(other, 2, "b")

    with pytest.raises(WriteInDoubt) as raised:
        writer.run(pay, retries=2)
    assert len(attempts) == 1
    assert raised.value.outcome() is Outcome.UNKNOWN
    assert world.check() == (["a", "b"] if committed else ["b"])
