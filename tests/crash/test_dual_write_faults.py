"""What fails around a dual write: servers that go at any step, networks that are cut, two writers of one id.

PostgreSQL and the broker are real, behind proxies that lose what they are told to lose. Whatever fails, and
wherever it does, the next recovery brings both sides to the same end.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from tests.support.cutting_proxy import CuttingProxy
from tests.support.dual_world import World, new_name
from tests.support.effort import LONG
from tests.support.servers import PostgreSQL, running
from tools.servers import apache_kafka

from tallystick.dualwrite import DualWriter, Finding, NotRecovered, Report, SqlStore, WriterFenced
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt, TallystickError
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.slow, pytest.mark.server]

MODES = ("2pc", "keep", "resume")
ON_KAFKA = "2pc,resume"
PAYMENT = ("begin database", "begin", "send", "prepare", "record", "commit database", "commit")
RECOVERY = ("claim", "describe cluster", "describe", "init", "check owner", "complete")
# What a client of either side may say when the other end is gone.
FAILED = (TallystickError, DBAPIError, InDoubt)
Writer = DualWriter[SqlTransaction]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """A server of this module's own: it is killed."""
    yield from running(PostgreSQL)


@dataclass
class KafkaAddress:
    """What a world needs of a broker."""

    bootstrap_servers: str


class At:
    """Watches a writer, and does something before or after the first step of a name.

    done  the names of the steps that were done
    """

    def __init__(self, name: str, do: Callable[[], object], *, after: bool = False) -> None:
        self.did = False
        self.done: set[str] = set()
        self._at = (name, after)
        self._do = do

    def __call__(self, _: int, step: RecipeStep, done: bool) -> None:
        if done:
            self.done.add(step.name)
        if not self.did and (step.name, done) == self._at:
            self.did = True
            self._do()


@pytest.fixture
def proxied(server: PostgreSQL, broker: EmbeddedBroker) -> Iterator[tuple[World, CuttingProxy]]:
    """A world whose database is behind a proxy; `world.rows` goes there, too."""
    database = server.new_database()
    with CuttingProxy(server.port) as proxy:
        world = World(broker, lambda: engine_of(server, database, proxy.port), new_name())
        yield world, proxy
        proxy.restore()
        world.close()


def engine_of(server: PostgreSQL, database: str, port: int | None = None) -> Engine:
    url = make_url(server.url(database, port=port)).set(drivername="postgresql+psycopg")
    return create_engine(url, poolclass=NullPool)


def writer_of(world: World, watch: At | None = None) -> Writer:
    writer = DualWriter(SqlStore(world.make_engine()), world.config, watch=watch)
    world.lives.append((writer, None, []))
    return writer


def settled(world: World) -> Report:
    """The next writer recovers, finds nothing the second time, and goes on. What the first time found."""
    last = writer_of(world)
    found = last.recover()
    assert last.recover().clean
    world.check()
    world.pay(last, 100_000, "after")
    assert world.check()[-1] == "after"
    return found


# ---- the database


@pytest.mark.gate(0)
@pytest.mark.parametrize("arrives", [True, False])
def test_the_answer_to_the_commit_is_lost(proxied: tuple[World, CuttingProxy], arrives: bool) -> None:
    """[DW-3] The writer cannot know, and does nothing to Kafka's half; the claim knows."""
    world, proxy = proxied
    lose = proxy.lose_answer if arrives else proxy.lose_request
    writer = writer_of(world, At("commit database", lambda: lose(b"COMMIT")))
    writer.recover()
    with pytest.raises(InDoubt, match="recover"):
        world.pay(writer, 1, "a")
    with pytest.raises(NotRecovered):
        world.pay(writer, 2, "b")
    (found,) = settled(world).ids
    assert found.finding is (Finding.DECIDED if arrives else Finding.UNDECIDED)
    assert world.rows() == (["a", "after"] if arrives else ["after"])


@pytest.mark.gate(1)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [*RECOVERY, *PAYMENT])
def test_the_network_to_the_database_is_cut(
    proxied: tuple[World, CuttingProxy], step: str, after: bool
) -> None:
    """[DW-3, DW-7] And stays cut until the writer has said that it failed."""
    world, proxy = proxied
    cut = At(step, proxy.cut, after=after)
    writer = writer_of(world, cut)
    with suppress(*FAILED):
        writer.recover()
        world.pay(writer, 1, "a")
    assert cut.did
    proxy.restore()
    settled(world)


@pytest.mark.gate(1)
@pytest.mark.parametrize("step", ["begin database", "record", "commit database"])
def test_the_database_is_killed(server: PostgreSQL, proxied: tuple[World, CuttingProxy], step: str) -> None:
    """[DW-3, DW-7] kill -9 before the step; it is there again when the next writer comes."""
    world, _ = proxied
    writer = writer_of(world, At(step, server.kill))
    writer.recover()
    with pytest.raises(FAILED):
        world.pay(writer, 1, "a")
    server.start()
    settled(world)


@pytest.mark.gate(1)
@pytest.mark.parametrize("ends", [True, False])
def test_a_commit_that_still_runs_when_recovery_starts(
    server: PostgreSQL, proxied: tuple[World, CuttingProxy], ends: bool
) -> None:
    """[DW-1] The claim waits for it: however it ends is in the row when recovery reads it.

    A deferred trigger holds the COMMIT inside the server for as long as somebody else has a lock.
    """
    world, proxy = proxied
    with psycopg.connect(server.url(world.engine.url.database or ""), autocommit=True) as holder:
        make_slow(holder, world.table)
        holder.execute("SELECT pg_advisory_lock(1)")
        writer = writer_of(world, At("commit database", lambda: cut_when_waiting(server, proxy)))
        writer.recover()
        with pytest.raises(InDoubt):
            world.pay(writer, 1, "slow")
        proxy.restore()
        recovering = Recovering(writer_of(world))
        eventually(lambda: waiting(server, "transactionid") == 1)
        if not ends:
            kill_backend(server)
        holder.execute("SELECT pg_advisory_unlock(1)")
        (found,) = recovering.report().ids
    assert found.finding is (Finding.DECIDED if ends else Finding.UNDECIDED)
    settled(world)
    assert world.rows() == (["slow", "after"] if ends else ["after"])


def make_slow(connection: psycopg.Connection[tuple[object, ...]], table: str) -> None:
    connection.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END'"
    )
    connection.execute(
        f"CREATE CONSTRAINT TRIGGER held AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW WHEN (NEW.what = 'slow') EXECUTE FUNCTION hold()"
    )


def cut_when_waiting(server: PostgreSQL, proxy: CuttingProxy) -> None:
    """Cut as soon as the COMMIT waits in the server."""

    def cut() -> None:
        eventually(lambda: waiting(server, "advisory") == 1)
        proxy.cut()

    threading.Thread(target=cut, daemon=True).start()


def waiting(server: PostgreSQL, kind: str) -> int:
    """How many backends wait for a lock of this kind."""
    with psycopg.connect(server.url("postgres")) as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = %s"
        row = connection.execute(asked, [kind]).fetchone()
        assert row is not None
        return int(row[0])


def kill_backend(server: PostgreSQL) -> None:
    """An administrator ends the session whose COMMIT waits."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'advisory'"
        )


class Recovering(threading.Thread):
    """A recovery that may have to wait."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(daemon=True)
        self._writer = writer
        self._found: Report | BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._writer.recover()
        except BaseException as exc:
            self._found = exc

    def report(self) -> Report:
        self.join(30)
        assert isinstance(self._found, Report), self._found
        return self._found


@pytest.mark.gate(0)
def test_the_disk_of_the_database_is_full(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-7] Both halves are taken back, whether a statement fails or the commit; later there is room."""
    most: list[int] = []

    def limited() -> Engine:
        engine = create_engine(f"sqlite:///{tmp_path / 'full.db'}", poolclass=NullPool)

        def limit(connection: sqlite3.Connection, _: object) -> None:
            connection.execute("PRAGMA busy_timeout = 20000")
            for pages in most:
                connection.execute(f"PRAGMA max_page_count = {pages}")

        event.listen(engine, "connect", limit)
        return engine

    world = World(broker, limited, new_name())
    writer = writer_of(world)
    writer.recover()
    world.pay(writer, 0, "first")
    with world.engine.connect() as connection:
        most.append(connection.execute(text("PRAGMA page_count")).scalar_one())
    with pytest.raises(DBAPIError, match="full"):
        pay_on(world, writer)
    full = world.check()
    assert writer.ready, "nothing is in doubt"
    with pytest.raises(DBAPIError, match="full"):
        world.pay(writer, 999, "9" * 50)
    assert world.check() == full
    most[:] = [10_000]
    world.pay(writer, 1000, "room")
    assert world.check() == [*full, "room"]
    settled(world)
    world.close()


def pay_on(world: World, writer: Writer) -> None:
    """Until it fails."""
    for n in count(1):
        world.pay(writer, n, f"{n:050}")


# ---- the broker


@pytest.fixture(scope="module")
def mortal() -> Iterator[EmbeddedBroker]:
    """A broker in a process of its own."""
    with EmbeddedBroker() as broker:
        yield broker


IMPATIENT: dict[str, object] = {
    "max.block.ms": 1_000,
    "request.timeout.ms": 500,
    "delivery.timeout.ms": 1_000,
    "linger.ms": 0,
}


@pytest.mark.gate(1)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["init", "send", "prepare", "record", "commit database", "commit"])
def test_the_broker_is_killed(server: PostgreSQL, mortal: EmbeddedBroker, step: str, after: bool) -> None:
    """[DW-7] kill -9 at the step, and it is gone until the writer has said that it failed."""
    database = server.new_database()
    world = World(mortal, lambda: engine_of(server, database), new_name(), IMPATIENT)
    killing = At(step, mortal.kill, after=after)
    writer = writer_of(world, killing)
    with suppress(*FAILED):
        writer.recover()
        world.pay(writer, 1, "a")
    # Not by the name of the step: so impatient a writer may have failed before it, on a busy machine.
    is_prepared = "prepare" in killing.done
    assert world.rows() == (["a"] if is_prepared else []), "from there on the database alone decides"
    mortal.restart()
    settled(world)
    world.close()


@pytest.mark.gate(0)
@pytest.mark.parametrize("arrives", [True, False])
def test_both_are_gone_at_the_commit(server: PostgreSQL, mortal: EmbeddedBroker, arrives: bool) -> None:
    """[DW-3, DW-7] Both servers are killed when the COMMIT is answered, or before it is sent."""
    database = server.new_database()

    def kill_both() -> None:
        server.kill()
        mortal.kill()

    world = World(mortal, lambda: engine_of(server, database), new_name(), IMPATIENT)
    writer = writer_of(world, At("commit database", kill_both, after=arrives))
    writer.recover()
    with pytest.raises(InDoubt):
        world.pay(writer, 1, "a")
    server.start()
    mortal.restart()
    (found,) = settled(world).ids
    assert found.finding is (Finding.DECIDED if arrives else Finding.UNDECIDED)
    world.close()


# ---- two writers of one id


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaAddress]:
    """Apache Kafka, which grants Enable2Pc and refuses KeepPreparedTxn."""
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    settings = {
        "transaction.state.log.num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "unstable.api.versions.enable": "true",
        "transaction.two.phase.commit.enable": "true",
    }
    directory = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=settings) as node:
        yield KafkaAddress(node.bootstrap)


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", [*MODES, ON_KAFKA] if LONG else MODES[:1])
@pytest.mark.parametrize("step", [*RECOVERY, *PAYMENT])
def test_the_old_writer_resumes_when_the_new_one_has_recovered(
    server: PostgreSQL, broker: EmbeddedBroker, request: pytest.FixtureRequest, step: str, mode: str
) -> None:
    """[DW-1, DW-2, DW-7] It stalls after each step in turn; the new one recovers and pays, then it goes on.

    Where it holds the row, the new one waits for it. Either way a payment is in both or in neither.
    """
    database = server.new_database()
    settings: dict[str, object] = {} if mode == "2pc" else {"tallystick.modes": mode}
    cluster = request.getfixturevalue("kafka") if mode == ON_KAFKA else broker
    world = World(cluster, lambda: engine_of(server, database), new_name(), settings)
    new = writer_of(world)
    recovering: list[Recovering] = []

    def overtake() -> None:
        recovering.append(Recovering(new))
        eventually(lambda: not recovering[0].is_alive() or waiting(server, "transactionid") == 1)
        if not recovering[0].is_alive():
            world.pay(new, 2, "new")

    old = writer_of(world, At(step, overtake, after=True))
    outcome = "paid"
    try:
        old.recover()
        world.pay(old, 1, "old")
    except FAILED as exc:
        outcome = "fenced" if isinstance(exc, WriterFenced) else "failed"
    recovering[0].report()
    if outcome == "fenced":
        assert "old" not in world.rows()
    if outcome == "paid":
        assert "old" in world.rows()
    settled(world)
    assert not old.ready or outcome == "paid"
    world.close()
