"""What consume_into must not read, and what must not be passed over: aborted records, and lost ones."""

# ruff: noqa: PT012 - what a batch raises comes from the block

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tallystick import Admin, Consumer, Producer, TopicPartition
from tallystick import aio as tallystick_aio
from tallystick.admin import NewTopic
from tallystick.dualwrite import DataLoss, SqlStore, aio, consume_into
from tallystick.dualwrite.stores.sql_async import AsyncSqlStore
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

_names = (f"in-{n}" for n in itertools.count())


class World:
    """A topic, and a database that it is read into."""

    def __init__(self, broker: EmbeddedBroker, path: Path) -> None:
        self.bootstrap = {"bootstrap.servers": broker.bootstrap_servers}
        self.topic = next(_names)
        self.at = TopicPartition(self.topic, 0)
        self.engine: Engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE copied (what TEXT)"))
        self.store = SqlStore(self.engine)
        self.store.create()
        self.create()

    def create(self) -> None:
        with Admin(self.bootstrap) as admin:
            admin.create_topics([NewTopic(name=self.topic, partitions=1)])

    def write(self, *values: str) -> None:
        with Producer(self.bootstrap) as producer:
            for value in values:
                producer.send(self.topic, value.encode()).result(30)

    def cut(self, before: int) -> None:
        with Admin(self.bootstrap) as admin:
            admin.delete_records({self.at: before})

    def copied(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT what FROM copied ORDER BY rowid")).scalars())

    def copy(self, upto: str, *, on_data_loss: str = "fail", reset: str = "earliest") -> None:
        """Read until this value is in the table."""
        config = self.bootstrap | {"auto.offset.reset": reset, "group.id": self.topic}
        with Consumer(config) as consumer:
            reading = consume_into(
                self.store,
                consumer,
                partitions=[self.at],
                on_data_loss=on_data_loss,  # type: ignore[arg-type]
            )

            def step() -> bool:
                with reading.batch(timeout_s=0.2, most=3) as batch:
                    for record in batch.records:
                        values = {"what": (record.value or b"").decode()}
                        batch.connection.execute(text("INSERT INTO copied VALUES (:what)"), values)
                return upto in self.copied()

            eventually(step)


@pytest.fixture
def world(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[World]:
    made = World(broker, tmp_path / "copy.db")
    yield made
    made.engine.dispose()


def test_aborted_records_leave_no_rows_though_the_consumer_would_read_them(world: World) -> None:
    """[DW-25] The default of isolation.level is read_uncommitted, as in Kafka."""
    with Producer(world.bootstrap | {"transactional.id": world.topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(world.topic, b"aborted")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(world.topic, b"committed")
        producer.commit_transaction()
    world.copy("committed")
    assert world.copied() == ["committed"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_records_that_are_gone_behind_the_databases_offset_are_an_error(world: World, reset: str) -> None:
    """[DW-25] Retention, or DeleteRecords, while the reader was away."""
    world.write("r0", "r1")
    world.copy("r1")
    world.write("r2", "r3", "r4")
    world.cut(before=4)
    for _ in range(2):
        with pytest.raises(DataLoss, match="records 2 to 3 are gone"):
            world.copy("r4", reset=reset)
    world.copy("r4", reset=reset, on_data_loss="skip")
    assert world.copied() == ["r0", "r1", "r4"]
    world.write("r5")
    world.copy("r5", reset=reset)
    assert world.copied() == ["r0", "r1", "r4", "r5"]


def test_records_that_go_while_they_are_being_read_are_an_error(world: World) -> None:
    """[DW-25] The first batch gave the partition its offset in the database; the rest is lost after it."""
    world.write(*(f"r{n}" for n in range(3)))
    config = world.bootstrap | {"auto.offset.reset": "earliest", "group.id": world.topic}
    with Consumer(config) as consumer:
        reading = consume_into(world.store, consumer, partitions=[world.at])
        read: list[int] = []

        def step() -> bool:
            with reading.batch(timeout_s=0.2, most=3) as batch:
                read.extend(record.offset for record in batch.records)
            return len(read) >= 3

        eventually(step)
        # Fetched to here: the next fetch is for offset 3, which is gone by then.
        consumer.pause([world.at])
        world.write(*(f"r{n}" for n in range(3, 8)))
        world.cut(before=6)
        consumer.seek(world.at, 3)
        consumer.resume([world.at])
        with pytest.raises(DataLoss, match="records 3 to 5 are gone"):
            eventually(lambda: step() and False)
    assert read == [0, 1, 2]


@pytest.mark.gate(1)
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_log_that_is_shorter_than_the_databases_offset_is_an_error(world: World, reset: str) -> None:
    """[DW-25] The topic was deleted and made again. Nothing was read before the old offset was passed."""
    world.write("old0", "old1", "old2")
    world.copy("old2")
    with Admin(world.bootstrap) as admin:
        admin.delete_topics([world.topic])
        eventually(lambda: world.topic not in admin.list_topics())
    world.create()
    world.write("new0")
    with pytest.raises(DataLoss, match="deleted and made again"):
        world.copy("new0", reset=reset)
    assert world.copied() == ["old0", "old1", "old2"]


def test_awaited_records_that_are_gone_are_an_error(world: World, tmp_path: Path) -> None:
    """[DW-25] The same under asyncio, for a member of a group."""
    world.write("r0", "r1")
    world.copy("r1")
    world.write("r2", "r3")
    world.cut(before=3)

    async def main() -> None:
        store = AsyncSqlStore(
            create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'copy.db'}", poolclass=NullPool)
        )
        config = world.bootstrap | {"auto.offset.reset": "latest", "group.id": world.topic}
        async with tallystick_aio.Consumer(config) as consumer, asyncio.timeout(60):
            reading = aio.consume_into(store, consumer, [world.topic])
            with pytest.raises(DataLoss, match="records 2 to 2 are gone"):
                while True:
                    async with reading.batch(timeout_s=0.2) as batch:
                        assert not batch.records
        await store.close()

    asyncio.run(main())


def test_what_to_do_about_a_loss_is_one_of_two_words(world: World) -> None:
    with Consumer(world.bootstrap) as consumer, pytest.raises(ValueError, match="skipp"):
        consume_into(world.store, consumer, group="g", on_data_loss="skipp")  # type: ignore[arg-type]
