"""Blocks that end when the database has decided, and the Kafka transaction that ends beside what follows."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import MakeWorld, World, Writer
from tests.support.raw_producer import committed_values

from tallystick.client.errors import ClientError, ConnectionLost, DecisionExpired, Unreachable
from tallystick.client.transactions.end_txn import TxnEnder
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.dualwrite import (
    AsyncSqlStore,
    DualWriter,
    HeuristicMixed,
    Lease,
    NotRecovered,
    Outcome,
    WriteInDoubt,
    WriterPool,
    aio,
)
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.kernel.errors import Effect
from tallystick.testing import eventually

pytestmark = pytest.mark.server


class Gate:
    """Holds every end of a transaction back, before EndTxn is sent, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        end: Callable[[TxnEnder], Awaitable[None]] = TxnEnder.end

        async def end_later(ender: TxnEnder) -> None:
            self._loop = asyncio.get_running_loop()
            await self._open.wait()
            await end(ender)

        monkeypatch.setattr(TxnEnder, "end", end_later)

    def open(self) -> None:
        eventually(lambda: self._loop is not None)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._open.set)


def fail_once(monkeypatch: pytest.MonkeyPatch, error: ClientError) -> None:
    """Let the next EndTxn fail with `error`."""
    end_txn = TxnRequestSender.end_txn
    errors = [error]

    async def fail(sender: TxnRequestSender, end: Any) -> Any:
        if errors:
            raise errors.pop()
        return await end_txn(sender, end)

    monkeypatch.setattr(TxnRequestSender, "end_txn", fail)


def lost(effect: Effect = Effect.UNKNOWN) -> ClientError:
    """Return an error after which EndTxn has had an effect, perhaps, or certainly none."""
    error = (
        ConnectionLost("test", "EndTxn", "cut") if effect is Effect.UNKNOWN else Unreachable("test", "cut")
    )
    assert error.effect is effect
    return error


def ready_writer(world: World) -> Writer:
    writer = world.life()
    writer.recover()
    return writer


def seen(world: World) -> list[str]:
    return committed_values(world.broker, world.topic, 0)


def test_a_block_ends_before_kafka_has_answered(
    sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-7] The row is committed, and readers of committed records see its record when Kafka has."""
    world, gate = sqlite_world("decided"), Gate(monkeypatch)
    writer = ready_writer(world)
    world.pay(writer, 1, "a")
    assert world.rows() == ["a"]
    assert seen(world) == []
    assert writer.ready
    gate.open()
    writer.wait_committed()
    assert world.check() == ["a"]


def test_the_next_block_waits_for_the_end_before(sqlite_world: MakeWorld) -> None:
    """[DW-17] A transaction begins when the one before it is committed on both sides."""
    world, steps = sqlite_world("decided"), list[str]()

    def watch(_: int, step: RecipeStep, done: bool) -> None:
        if done:
            steps.append(step.name)

    with DualWriter(world.store, world.config, wait="decided", watch=watch) as writer:
        writer.recover()
        world.pay(writer, 1, "a")
        steps.clear()
        world.pay(writer, 2, "b")
    payment = ["begin database", "begin", "send", "prepare", "record", "commit database", "start commit"]
    assert steps[: len(payment) + 2] == ["confirm commit", *payment, "confirm commit"]
    assert world.check() == ["a", "b"]


def test_visible_waits_for_the_end(sqlite_world: MakeWorld) -> None:
    world = sqlite_world("decided")
    writer = ready_writer(world)
    with writer.transaction(wait_visible=True) as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
        txn.send(world.topic, b"a")
    assert seen(world) == ["a"]


def test_a_failure_is_told_to_who_waits(sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DW-7] The write is committed, whatever Kafka said: recovery finishes it."""
    world = sqlite_world("decided")
    writer = ready_writer(world)
    fail_once(monkeypatch, lost())
    world.pay(writer, 1, "a")
    with pytest.raises(WriteInDoubt, match="the database has committed") as failed:
        writer.wait_committed()
    assert failed.value.outcome() is Outcome.COMMITTED
    assert not writer.ready
    writer.recover()
    assert world.check() == ["a"]


@pytest.mark.parametrize("effect", [Effect.UNKNOWN, Effect.NONE])
def test_the_next_block_finishes_what_failed(
    sqlite_world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    effect: Effect,
) -> None:
    """[DW-13, DW-17] It is not told of another block's doubt, which it could take for its own."""
    world = sqlite_world("decided")
    writer = ready_writer(world)
    fail_once(monkeypatch, lost(effect))
    world.pay(writer, 1, "a")
    world.pay(writer, 2, "b")
    assert "the transaction before" in caplog.text
    writer.wait_committed()
    assert world.check() == ["a", "b"]


def test_in_resume_the_next_block_asks_for_recovery(
    sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-9] There nothing but a recovery may initialise the id."""
    world = sqlite_world("decided", **{"tallystick.modes": "resume"})
    writer = ready_writer(world)
    fail_once(monkeypatch, lost())
    world.pay(writer, 1, "a")
    with pytest.raises(NotRecovered, match="recover"):
        world.pay(writer, 2, "b")
    writer.recover()
    world.pay(writer, 2, "b")
    assert world.check() == ["a", "b"]


def test_what_the_cluster_has_aborted_is_told_to_the_next_block(
    sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = sqlite_world("decided")
    writer = ready_writer(world)
    fail_once(monkeypatch, DecisionExpired("it was aborted"))
    world.pay(writer, 1, "a")
    with pytest.raises(
        NotRecovered, match=r"nothing of this block was begun.*the cluster has aborted it"
    ) as told:
        world.pay(writer, 2, "b")
    assert isinstance(told.value.__cause__, HeuristicMixed)
    assert not writer.ready
    assert world.rows() == ["a"]


def test_closing_tells_of_a_failure(sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside the error of a `with` block, which stays the one that is raised."""
    world = sqlite_world("decided")
    writer = ready_writer(world)
    fail_once(monkeypatch, lost())
    world.pay(writer, 1, "a")
    with pytest.raises(WriteInDoubt):
        writer.close()
    writer.close()
    writer = ready_writer(world)
    fail_once(monkeypatch, lost())
    with pytest.raises(KeyError) as failed, writer:
        world.pay(writer, 2, "b")
        raise KeyError
    assert any("WriteInDoubt" in note for note in failed.value.__notes__)
    ready_writer(world)
    assert world.check() == ["a", "b"]


def test_what_is_decided_is_never_aborted(sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DW-17] EndTxn had no effect, the next block cannot finish it, and the writer is closed."""
    world = sqlite_world("decided")
    writer = ready_writer(world)
    fail_once(monkeypatch, lost(Effect.NONE))
    world.pay(writer, 1, "a")
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(type(world.store), "begin_briefly", _refuse)
        with pytest.raises(ConnectionRefusedError):
            world.pay(writer, 2, "b")
        writer.close()
    ready_writer(world)
    assert world.check() == ["a"]


def _refuse(_: object) -> None:
    raise ConnectionRefusedError


@pytest.mark.gate(1)
@pytest.mark.parametrize("lease", [None, Lease(duration_ms=86_400_000)], ids=["names", "leases"])
def test_a_pool_closes_every_writer_and_tells_of_a_failure(
    sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, lease: Lease | None
) -> None:
    world = sqlite_world("decided")
    pool = WriterPool(world.store, world.config, 2, wait="decided", lease=lease)
    pool.recover()
    with pool.writer() as first, pool.writer() as second:
        world.pay(second, 1, "a")
        second.wait_committed()
        fail_once(monkeypatch, lost())
        world.pay(first, 2, "b")
    with pytest.raises(WriteInDoubt):
        pool.close()
    assert "it is closed" in repr(first)
    assert "it is closed" in repr(second)
    with WriterPool(world.store, world.config, 2) as after:
        after.recover()
    assert world.check() == ["a", "b"]


def test_an_unknown_wait_is_refused(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    with pytest.raises(ValueError, match="'committed', 'decided'"):
        DualWriter(world.store, world.config, wait="visible")  # type: ignore[arg-type]


# ---- processes


ENDING = """
import sys
from sqlalchemy import create_engine, text
from tallystick.dualwrite import DualWriter, SqlStore

url, servers, topic, table = sys.argv[1:]
config = {"bootstrap.servers": servers, "transactional.id": topic}
writer = DualWriter(SqlStore(create_engine(url)), config, wait="decided")
writer.recover()
with writer.transaction() as txn:
    txn.connection.execute(text(f"INSERT INTO {table} VALUES (1, 'a')"))
    txn.send(topic, b"a")
"""


def run_program(program: str, world: World) -> list[str]:
    """Run a program, and return what both sides have then."""
    url = world.engine.url.render_as_string()
    arguments = [url, world.broker.bootstrap_servers, world.topic, world.table]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, timeout=120)
    return world.check()


def test_a_program_that_ends_without_closing_has_committed_both(sqlite_world: MakeWorld) -> None:
    """[CLI-63] The interpreter's exit closes the clients, which wait for the commit."""
    assert run_program(ENDING, sqlite_world("decided")) == ["a"]


FORKING = (
    ENDING
    + """
import os
from tallystick.dualwrite import ManagedByWriter

child = os.fork()
if not child:
    for call in (writer.wait_committed, lambda: writer.transaction().__enter__()):
        try:
            call()
        except ManagedByWriter:
            continue
        os._exit(1)
    writer.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.wait_committed()
writer.close()
"""
)


@pytest.mark.gate(0)
def test_a_forked_child_waits_for_nothing(sqlite_world: MakeWorld) -> None:
    """[DW-11] What was started is the parent's, and the parent hears of it."""
    assert run_program(FORKING, sqlite_world("decided")) == ["a"]


# ---- asyncio


async def pay_async(writer: Any, world: World, n: int, what: str) -> None:
    async with writer.transaction() as txn:
        await txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
        await txn.send(world.topic, what.encode())


def test_a_cancelled_wait_can_be_repeated(sqlite_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DW-7] Before its block begins: the writer stays ready, and the end goes on."""
    world, gate = sqlite_world("decided"), Gate(monkeypatch)

    async def main() -> None:
        url = world.engine.url.set(drivername="sqlite+aiosqlite")
        engine = create_async_engine(url, poolclass=NullPool)
        async with aio.DualWriter(AsyncSqlStore(engine), world.config, wait="decided") as writer:
            await writer.recover()
            await pay_async(writer, world, 1, "a")
            waiting = asyncio.create_task(pay_async(writer, world, 2, "b"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert writer.ready
            gate.open()
            await pay_async(writer, world, 3, "c")
        await engine.dispose()

    asyncio.run(main())
    assert world.check() == ["a", "c"]
