"""Our consumer on both brokers, and in groups with Apache's Java consumer and librdkafka's."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition

PARTITIONS = 6
SETTINGS = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "100", "auto.offset.reset": "earliest"}


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await test

    asyncio.run(limited())


@asynccontextmanager
async def ours(cluster: Any, **config: str) -> AsyncIterator[ConsumerEngine]:
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    settings = {"bootstrap.servers": cluster.bootstrap, **SETTINGS, **dotted}
    consumer = ConsumerEngine(ConsumerConfig.parse(settings))
    try:
        yield consumer
    finally:
        await consumer.close()


class Java:
    """The driver's group member."""

    def __init__(self, java: Any, cluster: Any, name: str, group: str, topic: str, assignor: str) -> None:
        self._java, self._name = java, name
        strategy = f"org.apache.kafka.clients.consumer.{assignor}"
        config = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "partition.assignment.strategy": strategy,
            **SETTINGS,
        }
        answer = java("member-start", name=name, config=config, topics=[topic])
        assert "error" not in answer, answer

    def look(self) -> tuple[set[int], Counter[tuple[int, int]]]:
        log = self._java("member-log", name=self._name)
        assert log["failure"] is None, log["failure"]
        return set(log["assigned"]), Counter((p, o) for _, p, o, _ in log["seen"])

    def stop(self) -> Counter[tuple[int, int]]:
        log = self._java("member-stop", name=self._name, how="close")
        assert log["failure"] is None, log["failure"]
        return Counter((p, o) for _, p, o, _ in log["seen"])


def fill(cluster: Any, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for partition in range(PARTITIONS):
        for i in range(count):
            producer.produce(topic, b"%d" % i, partition=partition)
    assert producer.flush(30) == 0


async def until(
    consumer: ConsumerEngine, seen: Counter[tuple[int, int]], condition: Any, limit_s: float = 40
) -> None:
    """Poll ours until the condition on the group holds."""
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(condition):
            seen.update((record.partition, record.offset) for record in await consumer.poll(50))


def mine(consumer: ConsumerEngine) -> set[int]:
    return {at.partition for at in consumer.assignment}


EVERYTHING = set(range(PARTITIONS))
JAVA_NAMES = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


@pytest.mark.gate(1)
@pytest.mark.parametrize("strategy", sorted(JAVA_NAMES))
@pytest.mark.parametrize("leader", ["java", "ours"])
def test_a_group_with_javas_consumer_shares_its_topic(
    cluster: Any, java: Any, strategy: str, leader: str
) -> None:
    """Whoever leads: each reads its half, every record is read once, and who is left reads all."""
    topic, group = cluster.topic(PARTITIONS), cluster.fresh_name("mixed")
    fill(cluster, topic, 5)

    async def test() -> None:
        seen: Counter[tuple[int, int]] = Counter()
        theirs: Java | None = None

        def start() -> Java:
            return Java(java, cluster, group, group, topic, JAVA_NAMES[strategy])

        if leader == "java":
            theirs = await asyncio.to_thread(start)
            async with asyncio.timeout(30):
                while (await asyncio.to_thread(theirs.look))[0] != EVERYTHING:
                    pass
        async with ours(cluster, group_id=group, partition_assignment_strategy=strategy) as consumer:
            consumer.subscribe([topic])
            if theirs is None:
                await until(consumer, seen, lambda: mine(consumer) == EVERYTHING)
                theirs = await asyncio.to_thread(start)
            other = theirs
            await until(
                consumer,
                seen,
                lambda: len(mine(consumer)) == 3 and other.look()[0] == EVERYTHING - mine(consumer),
            )
            await asyncio.to_thread(fill, cluster, topic, 2)
            await until(consumer, seen, lambda: sum((seen + other.look()[1]).values()) >= 7 * PARTITIONS)
            stopped = asyncio.create_task(asyncio.to_thread(other.stop))
            await until(consumer, seen, lambda: mine(consumer) == EVERYTHING)
            seen += await stopped
            assert seen == Counter({(p, o): 1 for p in range(PARTITIONS) for o in range(7)})

    run(test())


@pytest.mark.gate(1)
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_with_librdkafka_shares_its_topic(cluster: Any, strategy: str) -> None:
    topic, group = cluster.topic(PARTITIONS), cluster.fresh_name("mixed")
    fill(cluster, topic, 5)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
    theirs = Consumer({**settings, **SETTINGS, "partition.assignment.strategy": strategy})
    theirs.subscribe([topic])
    seen: Counter[tuple[int, int]] = Counter()

    def poll() -> set[int]:
        """What it has, and takes over with what it is given."""
        for message in theirs.consume(100, 0.02):
            if message.error() is None:
                seen[message.partition() or 0, message.offset() or 0] += 1
        if seen:
            try:
                theirs.commit(asynchronous=False)
            except Exception:  # the group is rebalancing, or nothing is new
                pass
        return {at.partition for at in theirs.assignment()}

    async def test() -> None:
        async with ours(cluster, group_id=group, partition_assignment_strategy=strategy) as consumer:
            consumer.subscribe([topic])
            ourselves: Counter[tuple[int, int]] = Counter()
            shared = lambda: poll() == EVERYTHING - mine(consumer) and len(mine(consumer)) == 3  # noqa: E731
            await until(consumer, ourselves, shared)
            await until(consumer, ourselves, lambda: poll() and set(seen | ourselves) >= set(records(5)))
            await asyncio.to_thread(theirs.close)
            await until(consumer, ourselves, lambda: mine(consumer) == EVERYTHING)

    run(test())


def records(count: int) -> list[tuple[int, int]]:
    return [(p, o) for p in range(PARTITIONS) for o in range(count)]


def test_transactions_are_seen_when_they_are_committed(cluster: Any) -> None:
    """[CLI-33]"""
    topic = cluster.topic()
    config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": cluster.fresh_name("t")}
    producer = Producer(config)
    producer.init_transactions(30)
    for i in range(20):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % i)
        producer.flush(30)
        producer.commit_transaction(30) if i % 3 else producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    at = TopicPartition(topic, 0)

    async def test() -> None:
        async with ours(cluster, isolation_level="read_committed") as consumer:
            consumer.assign([at])
            read: list[ConsumerRecord] = []
            async with asyncio.timeout(30):
                while len(read) < 13:
                    read += await consumer.poll(500)
            assert [record.value for record in read] == [b"%d" % i for i in range(20) if i % 3]
            assert await consumer.poll(300) == []
            assert await consumer.log_offsets.end_offsets([at]) == {at: 40}
            assert await consumer.positions.position(at) == 40

    run(test())
    producer.abort_transaction(30)


def test_offsets_times_and_commits(cluster: Any) -> None:
    topic, group = cluster.topic(2), cluster.fresh_name("offsets")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for i in range(10):
        producer.produce(topic, b"%d" % i, partition=0, timestamp=1_000_000_000 + i)
        producer.flush(30)
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def test() -> None:
        async with ours(cluster, group_id=group, isolation_level="read_committed") as consumer:
            consumer.assign([a, b])
            assert await consumer.committed([a, b]) == {a: None, b: None}
            await consumer.commit({a: 4})
            assert await consumer.log_offsets.beginning_offsets([a, b]) == {a: 0, b: 0}
            assert await consumer.log_offsets.end_offsets([a, b]) == {a: 10, b: 0}
            found = (await consumer.log_offsets.offsets_for_times({a: 1_000_000_007}))[a]
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (7, 1_000_000_007)
            read = await consumer.poll(5_000)
            assert read[0].offset == 4, "from the committed offset"

    run(test())
