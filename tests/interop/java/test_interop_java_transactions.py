"""Transactions of Apache's Java client, which speaks transaction version 2 (KIP-890)."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tallystick.testing import eventually

pytestmark = pytest.mark.gate(0)


class Transactional:
    """A producer in the driver's JVM. Every call asserts that the client did not raise, but `fails`."""

    def __init__(self, java: Any, cluster: Any, name: str, **config: str) -> None:
        self._java, self._name = java, name
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "linger.ms": "0",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        # The driver knows it under a name of its own: two may have one transactional id.
        self._handle = f"{name}-{id(self)}"
        self._call("open", config=settings)

    def _call(self, call: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._java("txn", name=self._handle, call=call, **arguments)
        assert "error" not in answer, answer
        return answer

    def fails(self, call: str, **arguments: Any) -> str:
        answer = self._java("txn", name=self._handle, call=call, **arguments)
        return str(answer["error"])

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, *values: str, partition: int = 0, **more: Any) -> list[int]:
        records = records_of(topic, *values, partition=partition, **more)
        offsets: list[int] = self._call("send", records=records)["offsets"]
        return offsets

    def offsets(self, group: str, *offsets: tuple[str, int, int]) -> None:
        self._call("offsets", group=group, offsets=offsets)

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def abandon(self) -> None:
        self._call("abandon")

    def close(self) -> None:
        self._call("close")


def records_of(topic: str, *values: str, partition: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": partition,
            "key": None,
            "value": base64.b64encode(value.encode()).decode(),
            **more,
        }
        for value in values
    ]


@pytest.fixture
def producer(java: Any, cluster: Any) -> Iterator[Transactional]:
    made = Transactional(java, cluster, cluster.fresh_name("java-txn"))
    yield made
    made.close()


def committed(java: Any, cluster: Any, topic: str, count: int, partitions: int = 1) -> list[str]:
    """What a read_committed consumer of the same client sees."""
    answer = java(
        "consume",
        config={"bootstrap.servers": cluster.bootstrap, "isolation.level": "read_committed"},
        topic=topic,
        partitions=list(range(partitions)),
        count=count,
    )
    assert "error" not in answer, answer
    return [base64.b64decode(record["value"]).decode() for record in answer["records"]]


def group_offset(cluster: Any, group: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    found = admin.list_consumer_group_offsets([wanted])[group].result(30)
    return int(found.topic_partitions[0].offset)


def test_committed_is_seen_and_aborted_is_not(cluster: Any, java: Any, producer: Transactional) -> None:
    topic = cluster.topic(2)
    producer.begin()
    producer.send(topic, "a", "b")
    producer.send(topic, "c", partition=1)
    producer.commit()
    producer.begin()
    producer.send(topic, "not this")
    producer.abort()
    producer.begin()
    producer.send(topic, "d")
    producer.commit()
    assert sorted(committed(java, cluster, topic, 4, 2)) == ["a", "b", "c", "d"]


def test_transactions_follow_each_other_without_a_pause(
    cluster: Any, java: Any, producer: Transactional
) -> None:
    """KAFKA-18575: the next transaction begins while the markers of the last one are still going out."""
    topic = cluster.topic(8)
    for number in range(40):
        producer.begin()
        for partition in range(8):
            producer.send(topic, f"{number}", partition=partition)
        if number % 4 == 3:
            producer.abort()
        else:
            producer.commit()
    wanted = sorted([f"{number}" for number in range(40) if number % 4 != 3] * 8)
    assert sorted(committed(java, cluster, topic, len(wanted), 8)) == wanted


def test_an_empty_transaction(cluster: Any, java: Any, producer: Transactional) -> None:
    topic = cluster.topic()
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    producer.begin()
    producer.send(topic, "after")
    producer.commit()
    assert committed(java, cluster, topic, 1) == ["after"]


def test_a_second_producer_fences_the_first(cluster: Any, java: Any) -> None:
    topic, name = cluster.topic(), cluster.fresh_name("java-fenced")
    first = Transactional(java, cluster, name)
    first.begin()
    first.send(topic, "of the first")
    second = Transactional(java, cluster, name)
    assert first.fails("commit") in ("ProducerFencedException", "InvalidProducerEpochException")
    second.begin()
    second.send(topic, "of the second")
    second.commit()
    assert committed(java, cluster, topic, 1) == ["of the second"]
    first.abandon()
    second.close()


def test_offsets_belong_to_the_transaction(cluster: Any, producer: Transactional) -> None:
    topic, group = cluster.topic(), cluster.fresh_name("java-offsets")
    producer.begin()
    producer.offsets(group, (topic, 0, 7))
    producer.commit()
    eventually(lambda: group_offset(cluster, group, topic) == 7)
    producer.begin()
    producer.offsets(group, (topic, 0, 9))
    producer.abort()
    producer.begin()
    producer.offsets(group, (topic, 0, 8))
    producer.commit()
    eventually(lambda: group_offset(cluster, group, topic) == 8)


def test_a_transaction_past_its_timeout_is_aborted(cluster: Any, java: Any) -> None:
    topic = cluster.topic()
    slow = Transactional(java, cluster, cluster.fresh_name("java-slow"), transaction_timeout_ms="1000")
    slow.begin()
    slow.send(topic, "too late")
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": False,
        }
    )
    try:
        # The end a read_committed consumer may read to lies behind the marker then.
        eventually(
            lambda: reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10, cached=False)[1] == 2
        )
    finally:
        reader.close()
    slow.fails("commit")
    slow.abandon()
    other = Transactional(java, cluster, cluster.fresh_name("java-other"))
    other.begin()
    other.send(topic, "in time")
    other.commit()
    assert committed(java, cluster, topic, 1) == ["in time"]
    other.close()


class Transformer:
    """Consume, transform, produce on a thread of the driver's JVM."""

    def __init__(self, java: Any, cluster: Any, name: str, group: str, topics: tuple[str, str]) -> None:
        self._java, self._name = java, name
        at = {"bootstrap.servers": cluster.bootstrap}
        answer = java(
            "transformer-start",
            name=name,
            consumer={
                **at,
                "group.id": group,
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": "3000",
                "heartbeat.interval.ms": "300",
                # Its heartbeats go on after it was abandoned; this ends them.
                "max.poll.interval.ms": "4000",
                "max.poll.records": "100",
            },
            producer={**at, "transactional.id": name, "transaction.timeout.ms": "3000", "linger.ms": "0"},
            **{"from": topics[0], "to": topics[1]},
        )
        assert "error" not in answer, answer

    def look(self) -> dict[str, Any]:
        log: dict[str, Any] = self._java("transformer-log", name=self._name)
        return log

    def stop(self, how: str) -> None:
        self._java("transformer-stop", name=self._name, how=how)


def test_consume_transform_produce(cluster: Any, java: Any) -> None:
    """KIP-447: one producer an instance, for whichever partitions the group gives it; one instance is left
    with an open transaction, another takes its place, and every record comes out once."""
    source, target = cluster.topic(4), cluster.topic(4)
    group = cluster.fresh_name("java-transform")
    feeder = Transactional(java, cluster, f"{group}-feeder")
    wanted: list[Any] = []

    def feed(count: int) -> None:
        feeder.begin()
        for partition in range(4):
            values = [f"{partition}-{len(wanted) + i}" for i in range(count)]
            feeder.send(source, *values, partition=partition)
            wanted.extend(values)
        feeder.commit()

    feed(200)
    first = Transformer(java, cluster, f"{group}-1", group, (source, target))
    second = Transformer(java, cluster, f"{group}-2", group, (source, target))
    eventually(lambda: first.look()["committed"] + second.look()["committed"] > 3)
    feed(200)
    first.stop("abandon")
    third = Transformer(java, cluster, f"{group}-3", group, (source, target))
    feed(200)
    got = committed(java, cluster, target, len(wanted), 4)
    second.stop("close")
    third.stop("close")
    feeder.close()
    assert len(got) == len(set(got)), "a record came out twice"
    assert set(got) == set(wanted)
    assert second.look()["failure"] is None
    assert third.look()["failure"] is None
