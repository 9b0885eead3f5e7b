"""A loop that reads, writes rows and records, and goes on after a block that failed: nothing is left out."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.raw_producer import make_topic

import tallystick
from tallystick import Consumer, Producer
from tallystick.dualwrite import AsyncSqlStore, DualWriter, SqlStore, WriteInDoubt, aio, consume_into
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.errors import NotRecovered, Outcome
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

VALUES = [f"v{n}" for n in range(6)]
_names = (f"offsets-{n}" for n in itertools.count())


class Failed(Exception):
    """What a step raises."""


class Fail:
    """Raises once: before a step, or after it."""

    def __init__(self, at: str, *, after: bool = False, error: type[BaseException] = Failed) -> None:
        self.at, self.after, self.error, self.armed = at, after, error, False

    def __call__(self, number: int, step: RecipeStep, done: bool) -> None:
        if self.armed and step.name == self.at and done is self.after:
            self.armed = False
            raise self.error


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """With a few records."""
    topic = next(_names)
    make_topic(broker, topic)
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for value in VALUES:
            producer.send(topic, value.encode(), partition=0)
        producer.flush()
    return topic


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE lines (what VARCHAR(50))"))
    yield engine
    engine.dispose()


def reader(broker: EmbeddedBroker, topic: str, **settings: object) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "max.poll.records": "2",
        **settings,
    }


def lines(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT what FROM lines ORDER BY rowid")).scalars())


def take(writer: DualWriter, consumer: Consumer) -> int:  # type: ignore[type-arg]
    """One round of the loop; how many records it had."""
    with writer.transaction() as txn:
        records = consumer.poll(10.0)
        txn.send_offsets(consumer)
        for record in records:
            value = (record.value or b"").decode()
            txn.connection.execute(text("INSERT INTO lines VALUES (:what)"), {"what": value})
    return len(records)


FAILURES: dict[str, Callable[[], Fail]] = {
    "before its offsets are sent": lambda: Fail("send offsets"),
    "after its offsets are sent": lambda: Fail("send offsets", after=True),
    "before it is prepared": lambda: Fail("prepare"),
    "after it is prepared": lambda: Fail("prepare", after=True),
    "before the database commits": lambda: Fail("commit database"),
    "after the database committed": lambda: Fail("commit database", after=True),
    "before Kafka commits": lambda: Fail("commit"),
    "after Kafka committed": lambda: Fail("commit", after=True),
    "by Ctrl-C before the database commits": lambda: Fail("commit database", error=KeyboardInterrupt),
    "by Ctrl-C after it": lambda: Fail("commit database", after=True, error=KeyboardInterrupt),
}


@pytest.mark.gate(1)
@pytest.mark.parametrize("first", [True, False], ids=["first block", "second block"])
@pytest.mark.parametrize("fail", FAILURES)
def test_a_loop_that_just_goes_on_commits_every_record_once(
    broker: EmbeddedBroker, topic: str, engine: Engine, fail: str, first: bool
) -> None:
    """[DW-26] It recovers when it has to, and otherwise polls on."""
    store = SqlStore(engine)
    store.create()
    watch = FAILURES[fail]()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    with DualWriter(store, config, watch=watch) as writer, Consumer(reader(broker, topic)) as consumer:
        writer.recover()
        consumer.assign([TopicPartition(topic, 0)])
        took = 1 if first else take(writer, consumer)
        watch.armed = True
        with pytest.raises((Failed, WriteInDoubt, KeyboardInterrupt)):
            take(writer, consumer)
        assert not watch.armed
        if not writer.ready:
            writer.recover()
        while len(lines(engine)) < len(VALUES) and took:
            took = take(writer, consumer)
        assert lines(engine) == VALUES
        (committed,) = consumer.committed([TopicPartition(topic, 0)]).values()
        assert committed is not None
        assert committed.offset == len(VALUES)


@pytest.mark.parametrize("after", [False, True], ids=["not committed", "committed"])
def test_nothing_is_returned_until_the_outcome_is_known(
    broker: EmbeddedBroker, topic: str, engine: Engine, after: bool
) -> None:
    """[DW-26] Records behind those that may be taken back would carry the offset past these."""
    store = SqlStore(engine)
    store.create()
    watch = Fail("commit database", after=after)
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    with DualWriter(store, config, watch=watch) as writer, Consumer(reader(broker, topic)) as consumer:
        writer.recover()
        consumer.assign([TopicPartition(topic, 0)])
        watch.armed = True
        with pytest.raises(WriteInDoubt):
            take(writer, consumer)
        assert consumer.poll(0.0) == []
        assert consumer.paused == consumer.assignment
        writer.recover()
        assert not consumer.paused
        assert [record.offset for record in consumer.poll(10.0)] == ([2, 3] if after else [0, 1])


def _claim_and_write(engine: Engine, config: dict[str, object]) -> None:
    """Let another process take the id over: it aborts what is in doubt, and commits one of its own."""
    with DualWriter(SqlStore(engine), config) as other:
        other.recover()
        with other.transaction() as txn:
            txn.connection.execute(text("INSERT INTO lines VALUES ('other')"))
            txn.send(str(config["transactional.id"]), b"other")


def _pay(writer: DualWriter[SqlTransaction], topic: str) -> None:
    with writer.transaction() as txn:
        txn.connection.execute(text("INSERT INTO lines VALUES ('unrelated')"))
        txn.send(topic, b"unrelated")


@pytest.mark.gate(0)
def test_offsets_of_unknown_outcome_do_not_follow_the_next_block(
    broker: EmbeddedBroker, topic: str, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """[DW-26] That block says nothing of their records, whose rows may be rolled back."""
    store = SqlStore(engine)
    store.create()
    config: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    watch = Fail("commit database")
    with DualWriter(store, config, watch=watch) as writer, Consumer(reader(broker, topic)) as consumer:
        writer.recover()
        _pay(writer, topic)
        consumer.assign([TopicPartition(topic, 0)])
        watch.armed = True
        with pytest.raises(WriteInDoubt) as raised:
            take(writer, consumer)
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
        _claim_and_write(engine, config)
        writer.recover()
        assert raised.value.outcome() is Outcome.UNKNOWN
        (error,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert "nothing tells whether its offsets were committed" in error
        _pay(writer, topic)
        assert consumer.paused == consumer.assignment
        with pytest.raises(NotRecovered, match="open it again"):
            take(writer, consumer)
        assert consumer.committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): None}
    with DualWriter(store, config) as writer, Consumer(reader(broker, topic)) as consumer:
        writer.recover()
        consumer.assign([TopicPartition(topic, 0)])
        while take(writer, consumer):
            pass
    assert [line for line in lines(engine) if line in VALUES] == VALUES


def test_records_that_are_still_held_can_be_processed_again(
    broker: EmbeddedBroker, topic: str, engine: Engine
) -> None:
    """[DW-26] A block that is repeated without a poll commits what it was about."""
    store = SqlStore(engine)
    store.create()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    with DualWriter(store, config) as writer, Consumer(reader(broker, topic)) as consumer:
        writer.recover()
        consumer.assign([TopicPartition(topic, 0)])
        held = [record.offset for record in consumer.poll(10.0)]
        with suppress(Failed), writer.transaction() as txn:
            txn.send_offsets(consumer)
            raise Failed
        with writer.transaction() as txn:
            txn.send_offsets(consumer)
        assert [record.offset for record in consumer.poll(10.0)] == [held[-1] + 1, held[-1] + 2]


@pytest.mark.gate(1)
@pytest.mark.parametrize("fail", FAILURES)
def test_the_same_under_asyncio(broker: EmbeddedBroker, topic: str, tmp_path: Path, fail: str) -> None:
    """[DW-26]"""
    watch = FAILURES[fail]()
    if watch.error is KeyboardInterrupt:  # asyncio's own interrupt is a cancellation
        watch.error = asyncio.CancelledError
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}", poolclass=NullPool)
    insert = text("INSERT INTO lines VALUES (:what)")

    async def take(writer: aio.DualWriter, consumer: tallystick.aio.Consumer) -> int:  # type: ignore[type-arg]
        async with writer.transaction() as txn:
            records = await consumer.poll(10.0)
            await txn.send_offsets(consumer)
            for record in records:
                await txn.connection.execute(insert, {"what": (record.value or b"").decode()})
        return len(records)

    async def rows() -> list[str]:
        async with engine.connect() as connection:
            return list((await connection.execute(text("SELECT what FROM lines ORDER BY rowid"))).scalars())

    async def story() -> list[str]:
        store = AsyncSqlStore(engine)
        await store.create()
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE lines (what VARCHAR(50))"))
        async with (
            aio.DualWriter(store, config, watch=watch) as writer,
            tallystick.aio.Consumer(reader(broker, topic)) as consumer,
        ):
            await writer.recover()
            consumer.assign([TopicPartition(topic, 0)])
            watch.armed = True
            with pytest.raises((Failed, WriteInDoubt, asyncio.CancelledError)):
                await take(writer, consumer)
            if not writer.ready:
                await writer.recover()
            while len(await rows()) < len(VALUES) and await take(writer, consumer):
                pass
        found = await rows()
        await engine.dispose()
        return found

    assert asyncio.run(story()) == VALUES


@pytest.mark.parametrize("refuses", [False, True])
def test_hooks_before_the_commit_run_for_consumed_batches(
    broker: EmbeddedBroker, topic: str, engine: Engine, refuses: bool
) -> None:
    """What `before_commit` writes is committed with the batch; what it raises takes the batch back."""
    store = SqlStore(engine)
    store.create()
    calls: list[str] = []

    def count(session: Any) -> None:
        calls.append("before_commit")
        if refuses and len(calls) == 1:
            raise Failed
        session.execute(text("INSERT INTO lines VALUES (:what)"), {"what": f"batch {len(calls)}"})

    with Consumer(reader(broker, topic)) as consumer:
        reading = consume_into(store, consumer, [topic])
        for _ in range(2 if refuses else 1):
            with suppress(Failed), reading.batch(10.0) as batch:
                event.listen(batch.session, "before_commit", count)
                assert [record.value for record in batch.records] == [b"v0", b"v1"]
    assert lines(engine) == ["batch 2" if refuses else "batch 1"]
    assert store.read_offsets(topic) == {TopicPartition(topic, 0): 2}
