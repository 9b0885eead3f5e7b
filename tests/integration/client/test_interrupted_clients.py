"""Interrupted while sending, cancelled while reading or closing, closed in every state of a consumer."""

import asyncio
import itertools
from collections.abc import Callable

import pytest
from tests.support.interrupting import POINTS_MAX, cancelled_at, interrupted, points
from tests.support.raw_producer import committed_values

from tallystick import Consumer, Producer, TopicPartition, aio
from tallystick.client.errors import ClientError, Closed
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


def reader(broker: EmbeddedBroker, topic: str) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.poll.records": 1,
        "group.instance.id": topic,  # who was cut off comes back without waiting for its session's end
    }


def fill(broker: EmbeddedBroker, topic: str, count: int) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def test_a_send_that_waits_and_is_interrupted_sends_its_record_once_or_never(
    broker: EmbeddedBroker, topic: str
) -> None:
    """[CLI-67] A producer's first record waits for the topic's leaders; the producer goes on."""

    def one(at: int) -> bool:
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            hit = interrupted(lambda: producer.send(topic, b"%d first" % at), at, KeyboardInterrupt)
            producer.send(topic, b"%d second" % at)
            producer.flush()
        written = committed_values(broker, topic, 0)
        assert written.count(f"{at} first") in ((0, 1) if hit else (1,))
        assert written.count(f"{at} second") == 1
        return hit

    assert points(one) > 5


def test_an_interrupted_flush_is_asked_for_again(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-67] What was sent goes on, and is there once when the second flush returns."""
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000}) as producer:

        def one(at: int) -> bool:
            delivery = producer.send(topic, b"%d" % at)
            hit = interrupted(producer.flush, at, KeyboardInterrupt)
            producer.flush()
            assert delivery.done()
            assert committed_values(broker, topic, 0) == [str(n) for n in range(1, at + 1)]
            return hit

        assert points(one) > 5


def test_a_cancelled_poll_loses_no_record(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-46] At every wait there is, joining the group among them."""
    fill(broker, topic, 20)

    async def main() -> list[int]:
        seen: list[int] = []
        async with aio.Consumer(reader(broker, topic)) as consumer, asyncio.timeout(60):
            consumer.subscribe([topic])
            for at in itertools.chain((1, 2, 3), itertools.repeat(2)):
                task = cancelled_at(consumer.poll(1.0), at)
                await asyncio.wait([task])
                if not task.cancelled():
                    seen += [record.offset for record in task.result()]  # type: ignore[attr-defined]
                else:
                    seen += [record.offset for record in await consumer.poll(1.0)]
                if len(seen) >= 20:
                    return seen
        raise AssertionError

    assert asyncio.run(main()) == list(range(20))


def test_a_cancelled_commit_is_asked_for_again(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-46] Its place in the row of commits is free again."""
    fill(broker, topic, 1)
    at_zero = TopicPartition(topic, 0)

    async def main() -> int:
        async with aio.Consumer(reader(broker, topic)) as consumer, asyncio.timeout(60):
            consumer.assign([at_zero])
            for at in range(1, POINTS_MAX):
                task = cancelled_at(consumer.commit({at_zero: at}), at)
                await asyncio.wait([task])
                await consumer.commit({at_zero: at})
                committed = (await consumer.committed([at_zero]))[at_zero]
                assert committed is not None
                assert committed.offset == at
                if not task.cancelled():
                    return at
        raise AssertionError

    assert asyncio.run(main()) > 1


async def _nothing_left() -> None:
    """No task goes on: connections and heartbeats are tasks."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=10)
    assert {task for task in left if not task.done()} == set()


def test_a_cancelled_close_of_a_consumer_leaves_nothing_open(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-63] Neither connections nor a member that beats; closing again is harmless."""

    async def main(at: int) -> bool:
        consumer = aio.Consumer(reader(broker, topic) | {"enable.auto.commit": True})
        consumer.subscribe([topic])
        async with asyncio.timeout(60):
            assert await consumer.poll(10.0)
            task = cancelled_at(consumer.close(), at)
            await asyncio.wait([task])
            await consumer.close()
            await _nothing_left()
        with pytest.raises(Closed):
            await consumer.poll(0.0)
        return task.cancelled()

    def one(at: int) -> bool:
        # A record committed by the life before is not read again, and a poll would wait for another.
        fill(broker, topic, 1)
        return asyncio.run(main(at))

    assert points(one) >= 1


def test_a_cancelled_close_of_a_producer_leaves_nothing_open(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-63] With a transaction open: every delivery has its end, and so have the connections."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}

    async def main(at: int) -> bool:
        producer = aio.Producer(settings)
        async with asyncio.timeout(60):
            await producer.init_transactions()
            await producer.begin_transaction()
            delivery = await producer.send(topic, b"x")
            task = cancelled_at(producer.close(), at)
            await asyncio.wait([task])
            await producer.close()
            assert delivery.done()
            await _nothing_left()
        return task.cancelled()

    assert points(lambda at: asyncio.run(main(at))) >= 1
    assert committed_values(broker, topic, 0) == []


STATES: dict[str, Callable[[Consumer, str], object]] = {
    "new": lambda consumer, topic: None,
    "subscribed": lambda consumer, topic: consumer.subscribe([topic]),
    "joining": lambda consumer, topic: (consumer.subscribe([topic]), consumer.poll(0)),
    "assigned": lambda consumer, topic: consumer.assign([TopicPartition(topic, 0)]),
    "with records at hand": lambda consumer, topic: (
        consumer.subscribe([topic]),
        eventually(lambda: consumer.poll(1)),
    ),
    "with a fetch on its way": lambda consumer, topic: (
        consumer.assign([TopicPartition(topic, 0)]),
        consumer.seek_to_end(),
        consumer.position(TopicPartition(topic, 0)),
        consumer.poll(0),
    ),
    "unsubscribed": lambda consumer, topic: (consumer.subscribe([topic]), consumer.unsubscribe()),
}


@pytest.mark.parametrize("state", STATES)
def test_a_consumer_is_closed_in_every_state_and_says_so(
    broker: EmbeddedBroker, topic: str, state: str
) -> None:
    """[CLI-63] Closing again is harmless, and every call after it is refused."""
    fill(broker, topic, 3)
    at = TopicPartition(topic, 0)
    consumer = Consumer(reader(broker, topic))
    STATES[state](consumer, topic)
    consumer.close()
    consumer.close()
    calls: list[Callable[[], object]] = [
        lambda: consumer.poll(0),
        lambda: consumer.commit({at: 1}),
        lambda: consumer.position(at),
        lambda: consumer.subscribe([topic]),
        lambda: consumer.assign([at]),
        consumer.rewind,
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    with Consumer(reader(broker, topic)) as successor:  # the group is free
        successor.subscribe([topic])
        assert eventually(lambda: successor.poll(1))


def test_a_consumer_is_closed_after_its_broker_has_died(topic: str) -> None:
    """[CLI-63]"""
    with EmbeddedBroker(in_process=True) as broker:
        fill(broker, topic, 1)
        consumer = Consumer(reader(broker, topic))
        consumer.subscribe([topic])
        assert eventually(lambda: consumer.poll(1))
    consumer.close(1.0)
    consumer.close()
    with pytest.raises(ClientError):
        consumer.poll(0)
