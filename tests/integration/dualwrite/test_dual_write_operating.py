"""A pool of writers, consuming into a database, an operator's resolve, and the same under asyncio."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import PAYMENT, RECOVERY, Crash, Crashed, MakeWorld, World, new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick import Admin, Consumer, TopicPartition
from tallystick.cli.main import main
from tallystick.dualwrite import (
    DualWriter,
    HeuristicMixed,
    NoFreeId,
    NotRecovered,
    SqlStore,
    WriterFenced,
    WriterPool,
    aio,
    consume_into,
)
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.stores.sql_async import AsyncSqlStore, AsyncSqlTransaction
from tallystick.errors import TallystickError
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


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


def test_a_pool_leaves_other_writers_alone_whose_names_are_like_its_own(
    sqlite_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a pool `payments-7`, and of a DualWriter `payments-7` that has recorded a transaction."""
    world = sqlite_world()
    single = {**world.config, "transactional.id": f"{world.topic}-7"}
    nested = {**world.config, "transactional.id": f"{world.topic}-8"}
    with DualWriter(world.store, single) as writer, WriterPool(world.store, nested, 1) as other:
        writer.recover()
        other.recover()
        with writer.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
            txn.send(world.topic, b"a")
        with WriterPool(world.store, world.config, 2) as pool:
            recovered = [each.transactional_id for each in pool.recover().ids]
        assert recovered == [f"{world.topic}-0", f"{world.topic}-1"]
        assert f"'{world.topic}-7' has an id like those of the pool" in caplog.text
        with writer.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (2, 'b')"))
            txn.send(world.topic, b"b")
        with other.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (3, 'c')"))
            txn.send(world.topic, b"c")
    assert world.check() == ["a", "b", "c"]


def test_a_torn_id_of_a_pool_keeps_no_other_from_being_recovered(sqlite_world: MakeWorld) -> None:
    """At the start all are recovered before it is said; at work another one is handed out."""
    world = sqlite_world()
    names = [f"{world.topic}-{n}" for n in range(2)]

    def decide_and_be_gone(n: int) -> None:
        config = {**world.config, "transactional.id": names[n]}
        engine = world.make_engine()
        writer = DualWriter(SqlStore(engine), config, watch=Crash(at="commit database"))
        with suppress(Crashed):
            writer.recover()
            with writer.transaction() as txn:
                txn.send(world.topic, names[n].encode())
        world.lives.append((writer, writer._steps._watch, []))

    def force() -> None:
        with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
            admin.force_terminate_transaction(names[0], force=True)

    decide_and_be_gone(0)
    decide_and_be_gone(1)
    force()
    with WriterPool(world.store, world.config, 2) as pool:
        with pytest.raises(HeuristicMixed, match=names[0]):
            pool.recover()
        eventually(lambda: committed_values(world.broker, world.topic, 0) == [names[1]])
        pool.recover(accept_mixed=True)
        decide_and_be_gone(0)
        force()
        with pytest.raises(TallystickError), pool.transaction() as txn:
            txn.send(world.topic, b"the pool's own writer of the id was fenced")
        for n, what in enumerate("ab"):
            with pool.transaction() as txn:
                txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
                txn.send(world.topic, what.encode())
        assert world.rows() == ["a", "b"]


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


@pytest.mark.gate(2)
@pytest.mark.parametrize("step", ["read offsets", "position", "begin database", "move offsets"])
def test_records_that_were_read_in_vain_are_read_again(sqlite_world: MakeWorld, step: str) -> None:
    """[DW-4] The database was not there, say; it has no offset yet that would bring them back."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    for n, what in enumerate("abc"):
        world.pay(writer, n, what)
    config = {
        "bootstrap.servers": world.broker.bootstrap_servers,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "max.poll.records": 2,
    }
    failures = [OSError("gone"), KeyboardInterrupt()]

    def fail(_: int, taken: RecipeStep, done: bool) -> None:
        if failures and not done and taken.name == step:
            raise failures.pop()

    seen: list[bytes | None] = []
    with Consumer(config) as consumer:
        at = TopicPartition(world.topic, 0)
        reading = consume_into(world.store, consumer, partitions=[at], group="copy", watch=fail)
        while len(seen) < 3:
            with suppress(OSError, KeyboardInterrupt):
                with reading.batch() as batch:
                    values = [record.value for record in batch.records]
                seen += values
    assert not failures
    assert seen == [b"a", b"b", b"c"]


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
        with pytest.raises(WriterFenced), late.batch(timeout_s=30) as batch:
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


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("step", "verdict", "has"), [("prepare", "ABORT", []), ("commit database", "COMMIT", ["a"])]
)
def test_an_operator_resolves_what_a_host_left(
    sqlite_world: MakeWorld, capsys: pytest.CaptureFixture[str], step: str, verdict: str, has: list[str]
) -> None:
    """[DW-6] Both sides and the verdict, nothing changed; then finished; then there is nothing left."""
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
    owner = world.store.read_state(world.topic)
    code, (row,) = resolve(world, capsys, "--yes")
    assert (code, row["Finding"]) == (3, "FORCED")
    assert row["Result"].startswith("left alone: send its records again")
    assert world.store.read_state(world.topic) == owner


def test_an_id_that_the_store_does_not_have_is_left_alone(
    sqlite_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """[DW-6] It may be another database's, which has decided to commit what is in doubt."""
    world, other = sqlite_world(), sqlite_world()
    with suppress(Crashed):
        writer = world.life(Crash(at="commit database"))
        writer.recover()
        world.pay(writer, 1, "a")
    world.cut()
    code, (row,) = resolve(other, capsys, "--yes", "--transactional-id", world.topic)
    assert code == 1
    assert "has no row" in row["Result"]
    assert other.store.read_state(world.topic) is None
    world.life().recover()
    assert world.check() == ["a"]


def leave_open(world: World, transactional_id: str) -> None:
    """Let the process of an id end in its block, when its record is in Kafka."""
    world.settings["transactional.id"] = transactional_id
    writer = world.life(Crash(at="prepare"))
    with suppress(Crashed):
        writer.recover()
        world.pay(writer, 1, "lost")
    world.cut()
    del world.settings["transactional.id"]


def test_a_row_that_cannot_be_claimed_hides_no_other(
    sqlite_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the database's driver raises belongs to one id."""
    world = sqlite_world()
    for each in (f"{world.topic}-0", world.topic):
        leave_open(world, each)
    with world.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TRIGGER stuck BEFORE UPDATE ON kafka_transaction_state "
                "WHEN OLD.transactional_id LIKE '%-0' BEGIN SELECT RAISE(FAIL, 'somebody has the row'); END"
            )
        )
    code, rows = resolve(world, capsys, "--yes")
    assert code == 1
    found = {row["TransactionalId"]: row["Finding"] for row in rows}
    assert found == {world.topic: "UNDECIDED", f"{world.topic}-0": ""}
    assert "somebody has the row" in rows[1]["Result"]


@pytest.mark.gate(0)
def test_an_operator_allows_what_the_application_does(
    postgresql_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """[DW-8] Else nobody could finish what is left on a database that shows such a setting."""
    world = postgresql_world()
    leave_open(world, world.topic)
    careless = world.engine.url.update_query_dict({"options": "-c synchronous_commit=off"})
    world.engine = create_engine(careless, poolclass=NullPool)
    code, rows = resolve(world, capsys, "--yes")
    assert code == 1
    assert 'allow_unsafe_durability={"synchronous_commit"}' in rows[0]["Result"]
    code, rows = resolve(world, capsys, "--yes", "--allow-unsafe-durability", "synchronous_commit")
    assert (code, rows[0]["Finding"]) == (0, "UNDECIDED")
    assert main(["transactions", "resolve", "--store", "sqlite://", "--allow-unsafe-durability", "x"]) == 2
    assert "allow_unsafe_durability: 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql+nosuch://me:secret@localhost/db", 2),
        ("me:secret@localhost", 2),
        ("postgresql+psycopg://me:secret@localhost:1/db", 1),
        ("sqlite://", 1),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line_without_its_password(
    capsys: pytest.CaptureFixture[str], url: str, code: int
) -> None:
    words = ["transactions", "resolve", "--store", url, "--bootstrap-server", "localhost:1", "--dry-run"]
    assert main(words) == code
    said = capsys.readouterr().err
    assert said.startswith("tallystick: --store")
    assert said.count("\n") == 1
    assert "secret" not in said


# ---- under asyncio


def test_the_same_under_asyncio(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-3, DW-7] One recipe: committed, taken back, from a pool."""
    topic = new_name()
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


def test_the_example_of_the_readme_runs(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Twice: the second life recovers what the first has left."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    (table,) = re.findall(r'^\$ python -c "(.+)"$', text, re.MULTILINE)
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "DualWriter" in each]
    make_topic(broker, "orders")
    program = block.replace("localhost:9092", broker.bootstrap_servers)
    for code in (table, program, program):
        run = [sys.executable, "-W", "error", "-c", code]
        subprocess.run(run, cwd=tmp_path, check=True, timeout=60)
    assert committed_values(broker, "orders", 0) == ["coffee", "coffee"]
