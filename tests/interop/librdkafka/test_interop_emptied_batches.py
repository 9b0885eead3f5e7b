"""Consumers of a compacted topic whose first segments hold nothing but batches that cleaning has emptied.

Apache Kafka hardly ever answers a Fetch with such a batch alone: librdkafka takes that for a fetch size that
is too small, and after ten of them reports MSG_SIZE_TOO_LARGE.
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tools.servers.broker_process import make_tallystick_process

from tallystick import Consumer
from tallystick import TopicPartition as OwnPartition
from tallystick.testing import eventually

TOPIC = "state"
SEGMENTS = 14
SIZE, PER_SEGMENT = 300_000, 3
LEVELS = ("read_uncommitted", "read_committed")


@dataclass(frozen=True)
class Emptied:
    """A broker whose topic has more emptied segments than librdkafka bears, and the values behind them."""

    bootstrap: str
    values: list[bytes]


@pytest.fixture(scope="module")
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emptied]:
    directory: Path = tmp_path_factory.mktemp("emptied")
    process = make_tallystick_process(directory, {"flush.policy": "os", "log.cleaner.backoff.ms": "100"})
    with process as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {"segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
        count = SEGMENTS * PER_SEGMENT + 1
        write(broker.bootstrap, count)
        # Only now, so that one round finds all segments full: a later one would join what it has emptied.
        policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[policy])
        admin.incremental_alter_configs([resource])[resource].result(30)
        logs = directory / "data" / f"{TOPIC}-0"
        eventually(lambda: is_cleaned(logs), 60)
        # The newest of what was closed, and the one in the last segment, which is not cleaned.
        yield Emptied(broker.bootstrap, [b"%06d" % number for number in (count - 2, count - 1)])


def is_cleaned(logs: Path) -> bool:
    """Return whether two records are left; a file that is not there now is being replaced."""
    try:
        sizes = [path.stat().st_size for path in logs.glob("*.log")]
    except FileNotFoundError:
        return False
    return len(sizes) > SEGMENTS and sum(sizes) < 3 * SIZE


def write(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(TOPIC, b"%06d" % number + bytes(SIZE), key="k")
        assert producer.flush(30) == 0


@pytest.mark.gate(1)
@pytest.mark.parametrize("level", LEVELS)
def test_librdkafka_reads_past_emptied_segments(emptied: Emptied, level: str) -> None:
    settings = {"bootstrap.servers": emptied.bootstrap, "group.id": "r", "isolation.level": level}
    found: list[bytes] = []
    with closing(LibrdkafkaConsumer({**settings, "enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while (message := consumer.poll(30)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            found.append((message.value() or b"")[:6])
    assert found == emptied.values


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # at its import
@pytest.mark.parametrize("level", LEVELS)
def test_kafka_python_reads_past_emptied_segments(emptied: Emptied, level: str) -> None:
    kafka = import_module("kafka")
    partition = kafka.TopicPartition(TOPIC, 0)
    settings = {"bootstrap_servers": emptied.bootstrap, "isolation_level": level}
    with closing(kafka.KafkaConsumer(**settings)) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        found = [record.value[:6] for _, record in zip(emptied.values, consumer, strict=False)]
    assert found == emptied.values


@pytest.mark.parametrize("level", LEVELS)
def test_aiokafka_reads_past_emptied_segments(emptied: Emptied, level: str) -> None:
    async def read() -> list[bytes]:
        partition = AioPartition(TOPIC, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=emptied.bootstrap, isolation_level=level)
        await consumer.start()
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            return [(await consumer.getone(partition)).value[:6] for _ in emptied.values]
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == emptied.values


def test_the_own_consumer_reads_past_emptied_segments(emptied: Emptied) -> None:
    with Consumer({"bootstrap.servers": emptied.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([OwnPartition(TOPIC, 0)])
        found = [(record.value or b"")[:6] for _, record in zip(emptied.values, consumer, strict=False)]
    assert found == emptied.values


@pytest.mark.gate(0)
def test_java_reads_past_emptied_segments(emptied: Emptied, java: Any) -> None:
    at = ("--bootstrap-server", emptied.bootstrap, "--topic", TOPIC)
    said = java.tool("kafka-console-consumer", *at, "--from-beginning", "--max-messages", "2")
    assert [line[:6].encode() for line in said.splitlines()] == emptied.values
