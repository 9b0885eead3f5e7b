"""Transactions of librdkafka, which speaks transaction version 1: no epoch moves at a commit."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tallystick.testing import eventually

TIMEOUT_S = 30


def transactional(cluster: Any, name: str, **config: Any) -> Producer:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0, **settings}
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


@pytest.fixture
def producer(cluster: Any) -> Producer:
    return transactional(cluster, cluster.fresh_name("rd-txn"))


def send(producer: Producer, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture
def reader(cluster: Any) -> Iterator[Consumer]:
    made = consumer(cluster)
    yield made
    made.close()


def consumer(cluster: Any, isolation: str = "read_committed", **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 2,
            **config,
        }
    )


def read(reader: Consumer, topic: str, count: int, partitions: int = 1) -> list[str]:
    """Read from the beginning until so many came and, a little longer, no more did."""
    reader.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    taken: list[str] = []

    def enough() -> bool:
        for message in reader.consume(500, 0.2):
            assert message.error() is None, message.error()
            taken.append(message.value().decode())
        return len(taken) >= count

    eventually(enough, TIMEOUT_S)
    taken.extend(message.value().decode() for message in reader.consume(500, 0.2))
    return taken


def test_committed_is_seen_and_aborted_is_not(cluster: Any, producer: Producer, reader: Consumer) -> None:
    topic = cluster.topic(2)
    producer.begin_transaction()
    send(producer, topic, "a")
    send(producer, topic, "b", partition=1)
    producer.commit_transaction(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, "not this")
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, "c")
    producer.commit_transaction(TIMEOUT_S)
    assert sorted(read(reader, topic, 3, 2)) == ["a", "b", "c"]
    everything = consumer(cluster, "read_uncommitted")
    assert sorted(read(everything, topic, 4, 2)) == ["a", "b", "c", "not this"]
    everything.close()


def test_nothing_behind_an_open_transaction_is_stable(
    cluster: Any, producer: Producer, reader: Consumer
) -> None:
    topic = cluster.topic()
    producer.begin_transaction()
    send(producer, topic, "open")
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    send(plain, topic, "behind it")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def end(isolation: IsolationLevel) -> int:
        asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
        found = admin.list_offsets(asked, isolation_level=isolation)
        return int(found[TopicPartition(topic, 0)].result(TIMEOUT_S).offset)

    assert end(IsolationLevel.READ_COMMITTED) == 0
    assert end(IsolationLevel.READ_UNCOMMITTED) == 2
    producer.commit_transaction(TIMEOUT_S)
    eventually(lambda: end(IsolationLevel.READ_COMMITTED) == 3)
    assert read(reader, topic, 2) == ["open", "behind it"]


def test_a_second_producer_fences_the_first(cluster: Any, reader: Consumer) -> None:
    topic, name = cluster.topic(), cluster.fresh_name("rd-fenced")
    first = transactional(cluster, name)
    first.begin_transaction()
    send(first, topic, "of the first")
    second = transactional(cluster, name)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    send(second, topic, "of the second")
    second.commit_transaction(TIMEOUT_S)
    assert read(reader, topic, 1) == ["of the second"]


def test_offsets_belong_to_the_transaction(cluster: Any, producer: Producer) -> None:
    topic, group = cluster.topic(), cluster.fresh_name("rd-offsets")
    member = consumer(cluster, **{"group.id": group})
    member.subscribe([topic])
    eventually(lambda: member.poll(0.1) is None and len(member.assignment()) == 1)

    def stored() -> int:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        found = admin.list_consumer_group_offsets([wanted])[group].result(TIMEOUT_S)
        return int(found.topic_partitions[0].offset)

    for offset, ends in ((5, "commit"), (9, "abort"), (6, "commit")):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, offset)], member.consumer_group_metadata(), TIMEOUT_S
        )
        if ends == "commit":
            producer.commit_transaction(TIMEOUT_S)
            eventually(lambda offset=offset: stored() == offset)
        else:
            producer.abort_transaction(TIMEOUT_S)
            assert stored() == 5
    member.close()


def test_a_member_that_was_replaced_commits_nothing(cluster: Any, producer: Producer) -> None:
    """KIP-447: fencing is by generation and member id, not by the transactional id."""
    topic, group = cluster.topic(), cluster.fresh_name("rd-fence-group")
    member = consumer(cluster, **{"group.id": group, "session.timeout.ms": 6000})
    member.subscribe([topic])
    eventually(lambda: member.poll(0.1) is None and len(member.assignment()) == 1)
    old = member.consumer_group_metadata()
    member.close()
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], old, TIMEOUT_S)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)


def test_a_transaction_past_its_timeout_is_aborted(cluster: Any, reader: Consumer) -> None:
    topic = cluster.topic()
    slow = transactional(cluster, cluster.fresh_name("rd-slow"), transaction_timeout_ms=1000)
    slow.begin_transaction()
    send(slow, topic, "too late")
    partition = TopicPartition(topic, 0)
    eventually(lambda: reader.get_watermark_offsets(partition, timeout=10, cached=False)[1] == 2)
    with pytest.raises(KafkaException) as fenced:
        slow.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()


def test_many_producers_at_once(cluster: Any, reader: Consumer) -> None:
    topic = cluster.topic(4)
    producers = [transactional(cluster, cluster.fresh_name("rd-many")) for _ in range(8)]
    wanted = []
    for turn in range(6):
        for number, one in enumerate(producers):
            one.begin_transaction()
            for partition in range(4):
                one.produce(topic, b"%d-%d" % (number, turn), partition=partition)
        for one in producers:
            # An abort of what was never sent asks Kafka to end nothing, which it refuses (FINDINGS.md).
            assert one.flush(TIMEOUT_S) == 0
        for number, one in enumerate(producers):
            if (turn + number) % 3 == 0:
                one.abort_transaction(TIMEOUT_S)
            else:
                one.commit_transaction(TIMEOUT_S)
                wanted.extend([f"{number}-{turn}"] * 4)
    assert sorted(read(reader, topic, len(wanted), 4)) == sorted(wanted)


def test_a_broker_that_restarts_amid_transactions(cluster: Any, reader: Consumer) -> None:
    """An open transaction outlives the broker, and so do the pairs of its producer."""
    topic = cluster.topic()
    producer = transactional(cluster, cluster.fresh_name("rd-restart"))
    producer.begin_transaction()
    send(producer, topic, "before")
    cluster.stop()
    cluster.start()
    send(producer, topic, "after")
    producer.commit_transaction(TIMEOUT_S)
    assert read(reader, topic, 2) == ["before", "after"]
