"""Batches longer than what a log is read by, in a real broker that is killed, stopped and cleaned.

Whatever reads a log again reads it in pieces: the start after a crash, the indexes made anew, the compaction.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tools.servers.broker_process import BrokerProcess, make_tallystick_process

from tallystick.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(180)]

TOPIC = "large"
SIZE = 2_000_000
SETTINGS = {"flush.policy": "ack", "message.max.bytes": "9000000", "log.cleaner.backoff.ms": "100"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with make_tallystick_process(tmp_path, SETTINGS) as process:
        yield process


def create_topic(broker: BrokerProcess, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config or {})])[TOPIC].result(30)


def send(broker: BrokerProcess, keys: list[str], size: int = SIZE) -> list[tuple[str, bytes]]:
    """Send one batch a key, wait until each is acknowledged, and return what was sent."""
    sent: list[tuple[str, bytes]] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 9_000_000, "linger.ms": 0}
    )
    for key in keys:
        sent.append((key, os.urandom(size)))
        producer.produce(TOPIC, sent[-1][1], key=key, partition=0, on_delivery=delivered)
        assert producer.flush(30) == 0
    assert not failed
    return sent


def read(broker: BrokerProcess) -> list[tuple[str, bytes]]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True}
    found: list[tuple[str, bytes]] = []
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, "the broker sends neither a record nor the end"
            if (error := message.error()) is None:
                found.append(((message.key() or b"").decode(), message.value() or b""))
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            return found


def get_log_directory(broker: BrokerProcess) -> Path:
    return broker.log.parent / "data" / f"{TOPIC}-0"


def test_large_batches_survive_a_kill(broker: BrokerProcess) -> None:
    """[LOG-7] The third one, too, and the small one behind them."""
    create_topic(broker)
    sent = send(broker, ["a", "b", "c"]) + send(broker, ["d"], 1)
    for _ in range(2):
        broker.kill()
        broker.start()
        assert read(broker) == sent
    assert not list(get_log_directory(broker).glob("*.cut-*"))


@pytest.mark.gate(0)
def test_large_batches_are_indexed_again_after_a_clean_stop(broker: BrokerProcess) -> None:
    create_topic(broker)
    sent = send(broker, ["a", "b", "c"])
    assert broker.stop() == 0
    for path in get_log_directory(broker).glob("*index"):
        path.unlink()
    broker.start()
    assert read(broker) == sent


def test_large_batches_are_compacted(broker: BrokerProcess) -> None:
    settings = {"cleanup.policy": "compact", "segment.bytes": "9000000", "min.cleanable.dirty.ratio": "0.01"}
    create_topic(broker, settings)
    sent = send(broker, ["a", "b", "c", "d"] * 2) + send(broker, ["e", "f", "g", "h", "i"])
    newest = list(dict(sent).items())
    eventually(lambda: sorted(read(broker)) == sorted(newest), 60)
    broker.kill()
    broker.start()
    assert sorted(read(broker)) == sorted(newest)
    assert "compaction failed" not in broker.log.read_text()
