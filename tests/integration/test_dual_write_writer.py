"""Dual writes over real databases and a real broker: crashed at every step, and what a user meets."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from raw_producer import committed_values, make_topic
from servers import PostgreSQL
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tallystick import Admin, Consumer, TopicPartition
from tallystick.cli.main import main
from tallystick.client.modes import Mode
from tallystick.dualwrite import (
    CommitUnknown,
    DualWriter,
    Fenced,
    Finding,
    ForeignCluster,
    NoFreeId,
    NotRecovered,
    NotYours,
    SqlStore,
    Torn,
    UnsafeStore,
    WriterPool,
    aio,
    consume_into,
)
from tallystick.dualwrite.driving import Step
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.dualwrite.stores.sql_async import AsyncSqlStore, AsyncSqlTransaction
from tallystick.errors import InDoubt
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

MODES: dict[Mode, dict[str, object]] = {
    Mode.TWO_PHASE: {},
    Mode.KEEP: {"tallystick.modes": "keep"},
    Mode.RESUME: {"tallystick.modes": "resume"},
}
STEPS_MAX = 60
RECOVERY = ["claim", "describe cluster", "describe", "init", "complete"]
PAYMENT = ["begin database", "begin", "send", "prepare", "record", "commit database", "commit"]
_names = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True) as broker:
        yield broker


Writer = DualWriter[SqlTransaction]


class DbApiConnection(Protocol):
    def close(self) -> None: ...


class Crashed(BaseException):
    """The process would be gone."""


@dataclass
class Crash:
    """Watches steps: after the n-th one the process is gone, and takes no more steps."""

    after: int = 0
    struck: bool = False
    over: bool = False
    names: list[str] = field(default_factory=list)

    def __call__(self, number: int, step: Step, done: bool) -> None:
        if self.over:
            return
        if self.struck:
            raise Crashed
        if done:
            self.names.append(step.name)
            if number == self.after:
                self.struck = True
                raise Crashed


@dataclass
class World:
    """A table and a topic that must agree; every life has connections of its own."""

    broker: EmbeddedBroker
    make_engine: Callable[[], Engine]
    topic: str
    settings: dict[str, object] = field(default_factory=dict)
    lives: list[tuple[Writer, Crash | None, list[DbApiConnection]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_topic(self.broker, self.topic)
        self.engine = self.make_engine()
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.table} (n INTEGER, what VARCHAR(50))"))
        self.store = SqlStore(self.engine)
        self.store.create()

    @property
    def table(self) -> str:
        return self.topic.replace("-", "_")

    @property
    def config(self) -> dict[str, object]:
        servers = self.broker.bootstrap_servers
        return {"bootstrap.servers": servers, "transactional.id": self.topic, **self.settings}

    def life(self, watch: Crash | None = None) -> Writer:
        engine = self.make_engine()
        opened: list[DbApiConnection] = []
        event.listen(engine, "connect", lambda connection, _: opened.append(connection))
        writer = DualWriter(SqlStore(engine), self.config, watch=watch)
        self.lives.append((writer, watch, opened))
        return writer

    def cut(self) -> None:
        """The last life's connections to the database end, as those of a process that is gone."""
        for connection in self.lives[-1][2]:
            connection.close()

    def pay(self, writer: Writer, n: int, what: str) -> None:
        with writer.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {self.table} VALUES ({n}, '{what}')"))
            txn.send(self.topic, what.encode())

    def rows(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(f"SELECT what FROM {self.table} ORDER BY n")).scalars())

    def check(self) -> list[str]:
        """What both sides have."""
        rows = self.rows()
        eventually(lambda: committed_values(self.broker, self.topic, 0) == rows)
        return rows

    def close(self) -> None:
        for writer, watch, _ in self.lives:
            if watch is not None:
                watch.over = True
            with suppress(InDoubt):
                writer.close()
        self.lives.clear()
        self.engine.dispose()


MakeWorld = Callable[..., World]


@pytest.fixture
def sqlite_world(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[MakeWorld]:
    yield from _worlds(
        broker, lambda name: create_engine(f"sqlite:///{tmp_path / name}.db", poolclass=NullPool)
    )


@pytest.fixture
def postgresql_world(broker: EmbeddedBroker, postgresql: PostgreSQL) -> Iterator[MakeWorld]:
    database = postgresql.new_database()
    url = make_url(postgresql.url(database)).set(drivername="postgresql+psycopg")
    yield from _worlds(broker, lambda _: create_engine(url, poolclass=NullPool))


def _worlds(broker: EmbeddedBroker, make_engine: Callable[[str], Engine]) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(**settings: object) -> World:
        name = f"pay-{next(_names)}"
        made.append(World(broker, lambda: make_engine(name), name, settings))
        return made[-1]

    yield make
    for world in made:
        world.close()


def story(world: World, first: Crash, second: Crash) -> bool:
    """Two payments, a recovery, and one more payment; each plan strikes in its part. Did one?"""
    with suppress(Crashed):
        writer = world.life(first)
        writer.recover()
        world.pay(writer, 1, "a")
        world.pay(writer, 2, "b")
    if first.struck:
        world.cut()
    with suppress(Crashed):
        world.life(second).recover()
    if second.struck:
        world.cut()
    third = world.life()
    third.recover()
    world.check()
    assert third.recover().clean, "recovering twice finds nothing the second time"
    world.pay(third, 3, "c")
    assert world.check()[-1] == "c"
    world.close()
    return first.struck or second.struck


def strikes(run: Callable[[Crash], bool]) -> int:
    """Strike after each step in turn, until there is none."""
    for after in range(1, STEPS_MAX):
        if not run(Crash(after)):
            return after
    raise AssertionError(f"more than {STEPS_MAX} steps")


slow = pytest.mark.slow
EVERY_MODE = [Mode.TWO_PHASE, pytest.param(Mode.KEEP, marks=slow), pytest.param(Mode.RESUME, marks=slow)]


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_both_sides_agree_after_a_crash_at_any_step(sqlite_world: MakeWorld, mode: Mode) -> None:
    """[DW-3, DW-5, DW-6, DW-7] After each step of a recovery and two payments."""
    assert strikes(lambda crash: story(sqlite_world(**MODES[mode]), crash, Crash())) > len(
        RECOVERY
    ) + 2 * len(PAYMENT)


@pytest.mark.slow
def test_both_sides_agree_after_a_crash_at_any_step_on_postgresql(postgresql_world: MakeWorld) -> None:
    """[DW-3, DW-7]"""
    assert strikes(lambda crash: story(postgresql_world(), crash, Crash())) > len(RECOVERY) + 2 * len(PAYMENT)


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("step", ["prepare", "commit database", "commit"])
def test_both_sides_agree_after_a_crash_in_recovery(sqlite_world: MakeWorld, mode: Mode, step: str) -> None:
    """[DW-5] Recovery itself is ended after each of its steps, whatever it had to do."""
    at = [*RECOVERY, *PAYMENT].index(step) + 1

    def run(second: Crash) -> bool:
        first = Crash(at)
        story(sqlite_world(**MODES[mode]), first, second)
        assert first.names == [*RECOVERY, *PAYMENT][:at]
        return second.struck

    assert strikes(run) > len(RECOVERY)


# ---- what a user meets


def test_nothing_sent_leaves_no_trace_in_kafka(sqlite_world: MakeWorld) -> None:
    """[DW-7] The database commits alone; the row is still the fence."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    world.pay(writer, 1, "a")
    before = _described(world)
    with writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (2, 'b')"))
    assert _described(world) == before
    assert world.rows() == ["a", "b"]
    assert committed_values(world.broker, world.topic, 0) == ["a"]


def _described(world: World) -> object:
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        return admin.describe_transactions([world.topic]).one(world.topic)


def test_no_rows_still_record_the_decision(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    with writer.transaction(wait_visible=True) as txn:
        txn.send(world.topic, b"a")
    row = world.store.read_state(world.topic)
    assert row is not None
    assert row.state
    assert row.transaction_version == 2
    assert committed_values(world.broker, world.topic, 0) == ["a"]


@pytest.mark.parametrize("what", [KeyError, KeyboardInterrupt, GeneratorExit])
def test_what_leaves_the_block_takes_both_back(sqlite_world: MakeWorld, what: type[BaseException]) -> None:
    """[DW-7]"""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    with pytest.raises(what), writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no")
        raise what
    world.pay(writer, 1, "a")
    assert world.check() == ["a"]
    with pytest.raises(NotYours, match="has ended"):
        txn.send(world.topic, b"late")


def test_a_writer_is_recovered_first_and_has_one_transaction(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    writer = world.life()
    with pytest.raises(NotRecovered, match="call recover"), writer.transaction():
        pass
    writer.recover()
    with (
        pytest.raises(NotRecovered, match="one at a time"),
        writer.transaction(),
        writer.transaction(),
    ):
        pass
    assert writer.ready


def test_the_block_s_session_is_not_committed_by_its_user(sqlite_world: MakeWorld) -> None:
    """And nothing of it is: neither by the session nor by the connection. A savepoint is the user's."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    insert = text(f"INSERT INTO {world.table} VALUES (1, 'no')")
    for name in ("session", "connection"):
        with pytest.raises(NotYours, match="savepoint"), writer.transaction() as txn:
            txn.session.execute(insert)
            (txn.session if name == "session" else txn.connection).commit()
    with pytest.raises(NotYours, match="ended inside the block"), writer.transaction() as txn:
        txn.session.execute(insert)
        txn.session.rollback()
    with writer.transaction() as txn:
        assert isinstance(txn.session, Session)
        with txn.session.begin_nested():
            txn.session.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
        txn.send(world.topic, b"a")
    assert world.check() == ["a"]


@pytest.mark.slow
def test_a_writer_that_was_taken_over_commits_neither_half(postgresql_world: MakeWorld) -> None:
    """[DW-2] It stalls in its block; another recovers its id; it wakes, and would commit."""
    world = postgresql_world()
    stalled = world.life()
    stalled.recover()
    with pytest.raises(Fenced), stalled.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no").result(30)
        other = world.life()
        (found,) = other.recover().ids
        assert found.finding is Finding.UNDECIDED
    assert not stalled.ready
    world.pay(other, 2, "a")
    assert world.check() == ["a"]


def test_a_lost_answer_to_the_commit_is_in_doubt_and_recovered(sqlite_world: MakeWorld) -> None:
    """[DW-3] Kafka's half stays prepared, until a claim tells; both outcomes."""
    for committed in (False, True):
        world = sqlite_world()
        writer = world.life()
        writer.recover()
        with pytest.raises(InDoubt, match="recover"), writer.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
            txn.send(world.topic, b"a")
            txn.database.commit = _losing(txn.database.commit, committed)  # type: ignore[method-assign]
        with pytest.raises(NotRecovered), writer.transaction():
            pass
        (found,) = writer.recover().ids
        assert found.finding is (Finding.DECIDED if committed else Finding.UNDECIDED)
        assert world.check() == (["a"] if committed else [])


def test_ctrl_c_while_the_database_commits_leaves_the_outcome_to_recovery(sqlite_world: MakeWorld) -> None:
    """[DW-3, DW-7] What was interrupted is raised, and says what is to be done."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised, writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no")
        txn.database.commit = interrupted  # type: ignore[method-assign]
    assert "recover() finds out" in raised.value.__notes__[0]
    assert not writer.ready
    (found,) = writer.recover().ids
    assert found.finding is Finding.UNDECIDED
    world.pay(writer, 2, "a")
    assert world.check() == ["a"]


def _losing(commit: Callable[[], None], committed: bool) -> Callable[[], None]:
    def lose() -> None:
        if committed:
            commit()
        raise CommitUnknown("the connection ended")

    return lose


def test_what_an_operator_aborted_is_torn_until_it_is_accepted(sqlite_world: MakeWorld) -> None:
    """A forced outcome: the rows are there, the records are not, and it is said until somebody says so."""
    world = sqlite_world()
    crash = Crash(len(RECOVERY) + PAYMENT.index("commit database") + 1)
    with suppress(Crashed):
        writer = world.life(crash)
        writer.recover()
        world.pay(writer, 1, "a")
    world.cut()
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.force_terminate_transaction(world.topic, force=True)
    second = world.life()
    for _ in range(2):
        with pytest.raises(Torn, match="has aborted it"):
            second.recover()
    (found,) = second.recover(accept_torn=True).ids
    assert found.finding is Finding.FORCED
    assert second.recover().clean
    world.pay(second, 2, "b")
    assert world.rows() == ["a", "b"]
    assert committed_values(world.broker, world.topic, 0) == ["b"]


def test_the_row_of_another_cluster_halts(sqlite_world: MakeWorld) -> None:
    """[DW-5] Nothing is changed there."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    world.pay(writer, 1, "a")
    with EmbeddedBroker(in_process=True) as other:
        config = {**world.config, "bootstrap.servers": other.bootstrap_servers}
        with DualWriter(world.store, config) as lost, pytest.raises(ForeignCluster, match="of cluster"):
            lost.recover()
        with Admin({"bootstrap.servers": other.bootstrap_servers}) as admin:
            assert world.topic in admin.describe_transactions([world.topic]).failures


def test_two_clusters_and_a_database_commit_together(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    with EmbeddedBroker(in_process=True) as west:
        make_topic(west, "there")
        clusters: dict[str, dict[str, object]] = {
            "east": world.config,
            "west": {"bootstrap.servers": west.bootstrap_servers, "transactional.id": "there"},
        }
        with DualWriter(world.store, clusters=clusters) as writer:
            assert len(writer.recover().ids) == 2
            with writer.transaction(wait_visible=True) as txn:
                txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
                txn.send(world.topic, b"a", cluster="east")
                txn.send("there", b"b", cluster="west")
                with pytest.raises(ValueError, match="east, west"):
                    txn.send("there", b"c")
        assert list(world.store.transactional_ids()) == sorted([world.topic, "there"])
        assert world.check() == ["a"]
        assert committed_values(west, "there", 0) == ["b"]


@pytest.mark.parametrize(
    ("statement", "named"),
    [("PRAGMA synchronous = OFF", "synchronous"), ("PRAGMA journal_mode = MEMORY", "journal_mode")],
)
def test_a_database_that_may_lose_a_commit_is_refused(
    sqlite_world: MakeWorld, statement: str, named: str
) -> None:
    """[DW-8] Unless somebody insists."""
    world = sqlite_world()
    engine = world.make_engine()
    event.listen(engine, "connect", lambda connection, _: connection.execute(statement))
    with DualWriter(SqlStore(engine), world.config) as writer, pytest.raises(UnsafeStore, match=named):
        writer.recover()
    with DualWriter(SqlStore(engine, allow_unsafe_durability=True), world.config) as writer:
        writer.recover()
        world.pay(writer, 1, "a")
    assert world.check() == ["a"]


def test_autocommit_is_refused(sqlite_world: MakeWorld) -> None:
    """[DW-8]"""
    world = sqlite_world()
    store = SqlStore(world.engine.execution_options(isolation_level="AUTOCOMMIT"))
    with DualWriter(store, world.config) as writer, pytest.raises(UnsafeStore, match="AUTOCOMMIT"):
        writer.recover()


@pytest.mark.slow
def test_postgresql_without_synchronous_commit_is_refused(postgresql_world: MakeWorld) -> None:
    """[DW-8] Also where one transaction turns it off for itself."""
    world = postgresql_world()
    writer = world.life()
    writer.recover()
    with pytest.raises(UnsafeStore, match="synchronous_commit"), writer.transaction() as txn:
        txn.connection.execute(text("SET LOCAL synchronous_commit = off"))
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no")
    world.pay(writer, 1, "a")
    assert world.check() == ["a"]


# ---- a pool, and consuming into a database


def test_a_pool_hands_out_ids_and_recovers_what_a_larger_one_left(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    with WriterPool(world.store, world.config, 3) as pool:
        pool.recover()
        with pool.writer(), pool.writer(), pool.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
            txn.send(world.topic, b"a")
            with pytest.raises(NoFreeId), pool.writer(wait_s=0):
                pass
    with WriterPool(world.store, world.config, 1) as pool:
        with pytest.raises(NotRecovered), pool.writer():
            pass
        assert [each.transactional_id for each in pool.recover().ids] == [
            f"{world.topic}-{n}" for n in range(3)
        ]
        with pool.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (2, 'b')"))
            txn.send(world.topic, b"b")
    assert world.check() == ["a", "b"]


def test_what_is_consumed_goes_in_once_with_its_offset(sqlite_world: MakeWorld) -> None:
    """[DW-4] Taken back, and read again; another reader goes on where the database says."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    for n, what in enumerate("abc"):
        world.pay(writer, n, what)
    with world.engine.begin() as connection:
        connection.execute(text("CREATE TABLE copied (what VARCHAR(50))"))
    config = {
        "bootstrap.servers": world.broker.bootstrap_servers,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "max.poll.records": 2,
    }
    at = TopicPartition(world.topic, 0)

    def copy(consumer: Consumer, wanted: int, fail: bool) -> None:
        reading = consume_into(world.store, consumer, partitions=[at], group="copy")
        while len(copied()) < wanted:
            with reading.batch(timeout_s=1.0) as batch:
                for record in batch.records:
                    value = (record.value or b"").decode()
                    batch.connection.execute(text(f"INSERT INTO copied VALUES ('{value}')"))
                if fail and batch.records:
                    raise KeyError

    def copied() -> list[str]:
        with world.engine.connect() as connection:
            return list(connection.execute(text("SELECT what FROM copied")).scalars())

    with Consumer(config) as consumer:
        with pytest.raises(KeyError):
            copy(consumer, 1, fail=True)
        assert copied() == []
        copy(consumer, 2, fail=False)
    with Consumer(config) as consumer:
        copy(consumer, 3, fail=False)
    assert copied() == ["a", "b", "c"]


@pytest.mark.slow
def test_a_reader_whose_partition_has_moved_cannot_write(postgresql_world: MakeWorld) -> None:
    """[DW-4] It reads, another writes the same records' rows first, and its own are refused."""
    world = postgresql_world()
    writer = world.life()
    writer.recover()
    for n, what in enumerate("ab"):
        world.pay(writer, n, what)
    config = {
        "bootstrap.servers": world.broker.bootstrap_servers,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    at = TopicPartition(world.topic, 0)
    with Consumer(config) as slow, Consumer(config) as fast:
        late, early = (
            consume_into(world.store, each, partitions=[at], group="copy") for each in (slow, fast)
        )
        with pytest.raises(Fenced), late.batch(timeout_s=30) as batch:
            assert batch.records
            with early.batch(timeout_s=30) as other:
                assert other.records == batch.records
        assert world.store.read_offsets("copy")[at] >= 2
        with late.batch(timeout_s=0.1) as batch:
            assert not batch.records, "it goes on where the database says"


# ---- what an operator does after a host is gone


def resolve(
    world: World, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, list[dict[str, str]]]:
    servers = ("--bootstrap-server", world.broker.bootstrap_servers, "--output", "json")
    store = ("--store", world.engine.url.render_as_string(hide_password=False))
    capsys.readouterr()
    code = main(["transactions", "resolve", *words, *store, *servers])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("step", "verdict", "has"), [("prepare", "ABORT", []), ("commit database", "COMMIT", ["a"])]
)
def test_an_operator_resolves_what_a_host_left(
    sqlite_world: MakeWorld, capsys: pytest.CaptureFixture[str], step: str, verdict: str, has: list[str]
) -> None:
    """[DW-6] Both halves and the verdict, nothing changed; then finished; then there is nothing left."""
    world = sqlite_world()
    with suppress(Crashed):
        writer = world.life(Crash(len(RECOVERY) + PAYMENT.index(step) + 1))
        writer.recover()
        world.pay(writer, 1, "a")
    world.cut()
    owner = world.store.read_state(world.topic)
    code, (row,) = resolve(world, capsys, "--dry-run")
    assert (code, row["TransactionalId"], row["Verdict"]) == (3, world.topic, verdict)
    assert row["InDoubt"]
    assert world.store.read_state(world.topic) == owner
    code, (row,) = resolve(world, capsys, "--yes")
    assert (code, row["Verdict"]) == (0, verdict)
    assert world.check() == has
    code, (row,) = resolve(world, capsys, "--dry-run")
    assert (code, row["Finding"]) == (0, "IDLE" if has else row["Finding"])


def test_an_operator_is_told_of_halves_that_contradict_each_other(
    sqlite_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = sqlite_world()
    with suppress(Crashed):
        writer = world.life(Crash(len(RECOVERY) + PAYMENT.index("commit database") + 1))
        writer.recover()
        world.pay(writer, 1, "a")
    world.cut()
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.force_terminate_transaction(world.topic, force=True)
    code, (row,) = resolve(world, capsys, "--yes")
    assert code == 3
    assert "has aborted it" in row["Result"]


# ---- under asyncio


def test_the_same_under_asyncio(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-3, DW-7] One recipe: committed, taken back, from a pool."""
    topic = f"pay-{next(_names)}"
    make_topic(broker, topic)
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}", poolclass=NullPool)

    async def pay(writer: aio.DualWriter[AsyncSqlTransaction], what: str) -> None:
        async with writer.transaction(wait_visible=True) as txn:
            await txn.connection.execute(text(f"INSERT INTO pay VALUES ('{what}')"))
            await txn.send(topic, what.encode())

    async def story() -> list[str]:
        store = AsyncSqlStore(engine)
        await store.create()
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE pay (what VARCHAR(50))"))
        async with aio.DualWriter(store, config) as writer:
            with pytest.raises(NotRecovered):
                await pay(writer, "early")
            await writer.recover()
            await pay(writer, "a")
            with pytest.raises(KeyError):
                async with writer.transaction() as txn:
                    await txn.connection.execute(text("INSERT INTO pay VALUES ('no')"))
                    await txn.send(topic, b"no")
                    raise KeyError
            await pay(writer, "b")
            assert (await writer.recover()).clean
        async with aio.WriterPool(store, config, 2) as pool:
            await pool.recover()
            async with pool.transaction() as txn:
                await txn.connection.execute(text("INSERT INTO pay VALUES ('c')"))
                await txn.send(topic, b"c")
        async with engine.connect() as connection:
            rows = list((await connection.execute(text("SELECT what FROM pay ORDER BY what"))).scalars())
        await engine.dispose()
        return rows

    rows = asyncio.run(story())
    assert rows == ["a", "b", "c"]
    eventually(lambda: committed_values(broker, topic, 0) == rows)
