"""Dual writes into a Delta table and a topic: blocks, retries, doubts and rivals."""

import asyncio
import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.dual_world import Crash, Crashed, new_name
from tests.support.lake_tables import DeltaS3Place
from tests.support.raw_producer import committed_values, make_topic

from tallystick.client.errors import NotSupported
from tallystick.dualwrite import (
    AsyncDeltaStore,
    DeltaStore,
    DualWriter,
    ManagedByWriter,
    Outcome,
    WriteInDoubt,
    WriterFenced,
    WriterPool,
    aio,
)
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.kernel.settings import BadConfig
from tallystick.lake import delta
from tallystick.lake.dual_writes.store import UNKNOWN_MAX, LakeTransaction
from tallystick.lake.entries import CommitOutcome
from tallystick.lake.errors import SchemaDiffers, TableBusy
from tallystick.lake.names import parse_table_url
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

SCHEMA = pa.schema([("n", pa.int64())])


class LakeWorld:
    """A Delta table and a topic that must agree."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.topic = new_name()
        self.place = folder / self.topic
        self._broker = broker
        make_topic(broker, self.topic)
        DeltaTable.create(self.place, schema=SCHEMA)

    @property
    def config(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self._broker.bootstrap_servers,
            "transactional.id": self.topic,
            "linger.ms": 0,
        }

    def open_store(self) -> DeltaStore:
        """Return a store with a table object of its own, as another process has one."""
        store = DeltaStore(self.place)
        own = delta.DeltaLakeTable(parse_table_url(store.url), {})
        store._open = lambda: own
        return store

    def pay(self, txn: Any, n: int) -> int:
        txn.handle.append([{"n": n}])
        txn.send(self.topic, str(n).encode())
        return n

    def rows(self) -> list[int]:
        return sorted(pa.table(DeltaTable(self.place).scan().read_all())["n"].to_pylist())

    def agrees_on(self, numbers: list[int]) -> bool:
        """Return whether table and topic both have these numbers, once each."""
        assert self.rows() == numbers
        eventually(lambda: sorted(map(int, committed_values(self._broker, self.topic, 0))) == numbers)
        return True


@pytest.fixture
def world(broker: EmbeddedBroker, tmp_path: Path) -> LakeWorld:
    return LakeWorld(broker, tmp_path)


@pytest.fixture
def writer(world: LakeWorld) -> Iterator[DualWriter[Any]]:
    with DualWriter(world.open_store(), world.config) as writer:
        writer.recover()
        yield writer


def lose_answers(patch: pytest.MonkeyPatch, count: int, *, made: bool) -> None:
    """Let the next commits with data files end with an error, whether they were made or not."""
    append = delta._append

    def lose(table: Any, files: Any, properties: Any) -> None:
        nonlocal count
        if not files or not count:
            append(table, files, properties)
            return
        count -= 1
        if made:
            append(table, files, properties)
        raise OSError(errno.EIO, "no answer")

    patch.setattr(delta, "_append", lose)


# ------------------------------------------------------------------------------------------------ blocks


def test_a_block_is_in_both_and_one_that_raises_in_neither(world: LakeWorld, writer: DualWriter[Any]) -> None:
    with writer.transaction() as txn:
        world.pay(txn, 1)
        world.pay(txn, 2)

    def fail() -> None:
        with writer.transaction() as txn:
            world.pay(txn, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with writer.transaction() as txn:
        world.pay(txn, 4)
    assert world.agrees_on([1, 2, 4])
    assert len(list(world.place.glob("tallystick-*.parquet"))) == 2


@pytest.mark.gate(0)
def test_a_table_in_an_object_store(broker: EmbeddedBroker, tmp_path: Path) -> None:
    place, topic = DeltaS3Place(tmp_path, SCHEMA), new_name()
    make_topic(broker, topic)
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    store = DeltaStore(place.url.removeprefix("delta:"), storage_options=place.options)

    def pay(number: int, *, fails: bool = False) -> None:
        with writer.transaction() as txn:
            txn.handle.append([{"n": number}])
            txn.send(topic, str(number).encode())
            if fails:
                raise ZeroDivisionError

    with DualWriter(store, config) as writer:
        writer.recover()
        pay(1)
        place.store.lose_answer("_delta_log")
        pay(2)
        with pytest.raises(ZeroDivisionError):
            pay(3, fails=True)
    assert sorted(place.read()["n"].to_pylist()) == [1, 2]
    assert sorted(committed_values(broker, topic, 0)) == ["1", "2"]


def test_rows_that_do_not_fit_take_the_block_with_them(world: LakeWorld, writer: DualWriter[Any]) -> None:
    def fail(txn: Any) -> None:
        world.pay(txn, 1)
        txn.handle.append([{"n": "two"}])

    with pytest.raises(SchemaDiffers):
        writer.run(fail, retries=3)
    assert world.agrees_on([])


def test_records_without_rows_and_rows_without_records(world: LakeWorld, writer: DualWriter[Any]) -> None:
    with writer.transaction() as txn:
        txn.send(world.topic, b"1")
    with writer.transaction() as txn:
        txn.handle.append([{"n": 1}])
    with writer.transaction():
        pass
    assert world.agrees_on([1])


def test_a_savepoint_takes_rows_and_records_back(world: LakeWorld, writer: DualWriter[Any]) -> None:
    with writer.transaction() as txn:
        world.pay(txn, 1)
        with suppress(ZeroDivisionError), txn.savepoint() as part:
            txn.handle.append([{"n": 2}])
            part.send(world.topic, b"2")
            raise ZeroDivisionError
        with txn.savepoint() as part:
            txn.handle.append([{"n": 3}])
            part.send(world.topic, b"3")
    assert world.agrees_on([1, 3])


def test_a_record_that_left_a_savepoint_takes_the_block_back(
    world: LakeWorld, writer: DualWriter[Any]
) -> None:
    def lose(txn: Any) -> None:
        world.pay(txn, 1)
        with suppress(ZeroDivisionError), txn.savepoint():
            world.pay(txn, 2)
            raise ZeroDivisionError

    with pytest.raises(ManagedByWriter, match="inside a savepoint"):
        writer.run(lose)
    assert world.agrees_on([])


# --------------------------------------------------------------------------------- what a writer may be


def test_a_writer_of_several_clusters_is_refused_at_once(world: LakeWorld) -> None:
    clusters = {
        name: {**world.config, "transactional.id": f"{world.topic}-{name}"} for name in ("east", "west")
    }
    with pytest.raises(BadConfig, match="records one id, not 2"):
        DualWriter(world.open_store(), clusters=clusters)
    with pytest.raises(BadConfig, match="records one id, not 2"):
        aio.DualWriter(AsyncDeltaStore(world.place), clusters=clusters)


def test_idempotency_keys_are_refused_at_the_decoration(world: LakeWorld, writer: DualWriter[Any]) -> None:
    with pytest.raises(NotSupported, match="DeltaStore"):
        writer.transactional(idempotency_key="n")(lambda txn, n: world.pay(txn, n))


def test_leases_are_refused(world: LakeWorld) -> None:
    from tallystick.dualwrite import Lease

    with pytest.raises(NotSupported, match="DeltaStore"):
        WriterPool(world.open_store(), world.config, size=1, lease=Lease())


# --------------------------------------------------------------------------------- doubts and retries


@pytest.mark.parametrize("made", [False, True])
def test_a_doubt_is_resolved_by_the_next_recovery(
    world: LakeWorld, writer: DualWriter[Any], monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """[DW-3] The library's answers are lost, and the table cannot be looked up either."""
    with monkeypatch.context() as patch:
        lose_answers(patch, UNKNOWN_MAX, made=made)
        patch.setattr(delta.DeltaLakeTable, "_look_up", lambda *_: CommitOutcome.UNKNOWN)
        patch.setattr(writer._store, "_read_again", lambda decision, _: decision.state)
        with pytest.raises(WriteInDoubt) as doubt, writer.transaction() as txn:
            world.pay(txn, 1)
    assert doubt.value.outcome() is Outcome.UNKNOWN
    writer.recover()
    assert doubt.value.outcome() is (Outcome.COMMITTED if made else Outcome.NOT_COMMITTED)
    assert world.agrees_on([1] if made else [])


@pytest.mark.parametrize("made", [False, True])
def test_run_never_applies_work_twice(
    world: LakeWorld, writer: DualWriter[Any], monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    with monkeypatch.context() as patch:
        lose_answers(patch, UNKNOWN_MAX, made=made)
        assert writer.run(lambda txn: world.pay(txn, 1), retries=1) == 1
    assert world.agrees_on([1])


def test_a_busy_table_is_a_conflict_that_run_repeats(
    world: LakeWorld, writer: DualWriter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    store = world.open_store()
    decide = type(store).decide

    def beaten_once(self: Any, decision: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            monkeypatch.setattr(self._open(), "commit", lambda *_: CommitOutcome.BEATEN)
            try:
                decide(self, decision)
            finally:
                monkeypatch.undo()
        decide(self, decision)

    monkeypatch.setattr(type(store), "decide", beaten_once)
    with pytest.raises(TableBusy):
        writer.run(lambda txn: world.pay(txn, 1))
    monkeypatch.setattr(type(store), "decide", beaten_once)
    calls = 0
    assert writer.run(lambda txn: world.pay(txn, 2), retries=1) == 2
    assert world.agrees_on([2])


# ------------------------------------------------------------------------------------------------ rivals


class After:
    """Watches a writer, and does something once, after the first step of a name."""

    def __init__(self, name: str, do: Any) -> None:
        self._name, self._do, self.did = name, do, False

    def __call__(self, _: int, step: RecipeStep, done: bool) -> None:
        if done and step.name == self._name and not self.did:
            self.did = True
            self._do()


@pytest.mark.parametrize("step", ["begin", "send", "prepare", "record"])
def test_a_writer_that_was_taken_over_before_its_decision_is_fenced(world: LakeWorld, step: str) -> None:
    """[DW-1, DW-2] The newer one goes on, and nothing of the older one is anywhere."""
    newer: list[DualWriter[Any]] = []

    def take_over() -> None:
        newer.append(DualWriter(world.open_store(), world.config))
        newer[0].recover()

    with DualWriter(world.open_store(), world.config, watch=After(step, take_over)) as older:
        older.recover()
        with pytest.raises(Exception) as refused, older.transaction() as txn:
            world.pay(txn, 1)
        assert not isinstance(refused.value, WriteInDoubt)
        if step == "record":
            assert isinstance(refused.value, WriterFenced)
        with newer[0].transaction() as txn:
            world.pay(txn, 2)
        newer[0].close()
    assert world.agrees_on([2])


@pytest.mark.gate(0)
def test_two_writers_that_take_the_id_from_each_other(world: LakeWorld) -> None:
    """[DW-1, DW-2, DW-7] Whatever each is told, table and topic are told the same."""
    committed: list[int] = []
    rounds = threading.Barrier(2)

    def contend(first: int) -> None:
        with DualWriter(world.open_store(), world.config) as writer:
            for n in range(first, first + 8):
                rounds.wait(60)
                while True:
                    try:
                        if not writer.ready:
                            writer.recover()
                        with writer.transaction() as txn:
                            world.pay(txn, n)
                    except Exception:  # fenced in Kafka or in the table, or in doubt
                        if n not in world.rows():
                            continue
                    committed.append(n)
                    break

    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(contend, first) for first in (0, 100)]:
            future.result(120)
    with DualWriter(world.open_store(), world.config) as last:
        last.recover()
    assert world.agrees_on(sorted(committed))
    assert sorted(committed) == [*range(8), *range(100, 108)]


def test_others_write_and_compact_between_a_crash_and_the_recovery(world: LakeWorld) -> None:
    """[LAK-2, DW-6]"""
    crash = Crash(at="commit database")
    writer = DualWriter(world.open_store(), world.config, watch=crash)
    with suppress(Crashed):
        writer.recover()
        with writer.transaction() as txn:
            world.pay(txn, 1)
    for branch in writer._session._branches_by_id:  # a process that is gone has aborted nothing
        producer = branch.detach_producer()
        assert producer is not None
        producer.close(abort=False)
    for n in (50, 51):
        write_deltalake(world.place, pa.table({"n": [n]}), mode="append")
    table = DeltaTable(world.place)
    table.optimize.compact()
    table.create_checkpoint()
    with DualWriter(world.open_store(), world.config) as next_one:
        (line,) = next_one.recover().ids
        assert line.finding.name == "DECIDED"
    assert world.rows() == [1, 50, 51]
    crash.over = True
    writer.close()


def test_a_pool_of_ids_writes_one_table(world: LakeWorld) -> None:
    """Each id has an entry of its own; they take turns at the versions."""
    with WriterPool(world.open_store(), world.config, size=4) as pool:
        pool.recover()
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: pool.run(lambda txn: world.pay(txn, n)), range(12)))
    store = world.open_store()
    assert list(store.transactional_ids()) == [f"{world.topic}-{n}" for n in range(4)]
    assert world.agrees_on(list(range(12)))


# ---------------------------------------------------------------------------------------------- asyncio


def test_the_asyncio_writer(world: LakeWorld) -> None:
    async def live() -> None:
        async with aio.DualWriter(AsyncDeltaStore(world.place), world.config) as writer:
            await writer.recover()
            async with writer.transaction() as txn:
                await txn.handle.append([{"n": 1}])
                await txn.send(world.topic, b"1")
                with suppress(ZeroDivisionError):
                    async with txn.savepoint():
                        await txn.handle.append([{"n": 2}])
                        raise ZeroDivisionError

    asyncio.run(live())
    assert world.agrees_on([1])


@pytest.mark.parametrize("step", ["_append", "append"])
def test_a_cancelled_call_ends_before_its_task_does(
    world: LakeWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """[DW-3] Cancelled in the commit, the outcome is found by the recovery; in an append there is none."""
    reached, goes_on = threading.Event(), threading.Event()
    owner = delta if step == "_append" else LakeTransaction
    original = getattr(owner, step)

    def stall(*args: Any, **options: Any) -> Any:
        if args[1]:
            reached.set()
            assert goes_on.wait(60)
        return original(*args, **options)

    async def live() -> None:
        async with aio.DualWriter(AsyncDeltaStore(world.place), world.config) as writer:
            await writer.recover()
            monkeypatch.setattr(owner, step, stall)

            async def pay() -> None:
                async with writer.transaction() as txn:
                    await txn.handle.append([{"n": 1}])
                    await txn.send(world.topic, b"1")

            task = asyncio.create_task(pay())
            await asyncio.to_thread(reached.wait, 60)
            task.cancel()
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            monkeypatch.setattr(owner, step, original)
            await writer.recover()

    asyncio.run(live())
    assert world.agrees_on([1] if step == "_append" else [])
