"""A loop over a consumer's records: what it has fetched and not yielded counts as not read, on both faces."""

import asyncio
import re
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer as TheirConsumer
from confluent_kafka import TopicPartition as TheirPartition

from tallystick import Consumer, Producer, TopicPartition, aio
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

COUNT = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> str:
    """A topic of ten records, which one Fetch brings."""
    name = re.sub(r"\W", "-", str(request.node.name))
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50}) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number, partition=0)
    return name


def settings(broker: EmbeddedBroker, topic: str, **others: str) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in others.items()}
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **named,
    }


def committed(broker: EmbeddedBroker, group: str) -> int:
    """The group's offset, as librdkafka reads it."""
    consumer = TheirConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    (at,) = consumer.committed([TheirPartition(group, 0)], timeout=10)
    consumer.close()
    return int(at.offset)


def read(consumer: Consumer[bytes, bytes], count: int) -> list[bytes | None]:
    """Leave the loop after some records, as `break` does."""
    seen = []
    for record in consumer:
        seen.append(record.value)
        if len(seen) == count:
            break
    return seen


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_a_commit_in_the_loop_passes_what_was_yielded_and_no_more(broker: EmbeddedBroker, topic: str) -> None:
    """A process that dies after its third record is given the fourth next."""
    with Consumer(settings(broker, topic)) as consumer:
        consumer.subscribe([topic])
        for seen, record in enumerate(consumer, 1):
            consumer.commit()
            assert committed(broker, topic) == record.offset + 1 == seen
            if seen == 3:
                break


def test_the_next_loop_and_poll_go_on_where_the_last_loop_was_left(
    broker: EmbeddedBroker, topic: str
) -> None:
    at = TopicPartition(topic, 0)
    with Consumer(settings(broker, topic)) as consumer:
        consumer.assign([at])
        assert read(consumer, 2) == numbers(0, 2)
        assert next(iter(consumer)).value == b"2"
        assert consumer.position(at) == 3
        assert [record.value for record in consumer.poll(1.0, 2)] == numbers(3, 5)
        assert consumer.poll_arrow(1.0, 100).column("value").to_pylist() == numbers(5, COUNT)
        assert consumer.position(at) == COUNT


def test_a_seek_and_another_assignment_drop_what_was_not_yielded(broker: EmbeddedBroker, topic: str) -> None:
    at = TopicPartition(topic, 0)
    with Consumer(settings(broker, topic)) as consumer:
        consumer.assign([at])
        assert read(consumer, 2) == numbers(0, 2)
        consumer.seek(at, 8)
        assert read(consumer, 2) == numbers(8, 10)
        consumer.seek(at, 1)
        assert read(consumer, 1) == numbers(1, 2)
        consumer.assign([])
        consumer.assign([at])
        consumer.seek_to_beginning()
        assert read(consumer, COUNT) == numbers(0, COUNT)


def test_the_last_commit_of_a_consumer_that_is_closed_does_not_pass_it(
    broker: EmbeddedBroker, topic: str
) -> None:
    with Consumer(settings(broker, topic, enable_auto_commit="true")) as consumer:
        consumer.subscribe([topic])
        assert read(consumer, 4) == numbers(0, 4)
    assert committed(broker, topic) == 4


def test_an_asynchronous_loop_is_left_the_same_way(broker: EmbeddedBroker, topic: str) -> None:
    at = TopicPartition(topic, 0)

    async def run() -> None:
        async with aio.Consumer(settings(broker, topic)) as consumer:
            consumer.subscribe([topic])
            seen = []
            async for record in consumer:
                seen.append(record.value)
                if len(seen) == 3:
                    break
            await consumer.commit()
            assert committed(broker, topic) == 3
            assert await consumer.position(at) == 3
            assert [record.value for record in await consumer.poll(1.0)] == numbers(3, COUNT)
            done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            consumer.commit_soon(on_done=done.set_result)
            assert await done is None
        assert committed(broker, topic) == COUNT

    asyncio.run(run())
