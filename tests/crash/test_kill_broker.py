"""kill -9 of the broker, again and again, while an idempotent librdkafka producer runs.

Afterwards every acknowledged message is there once, and each partition is in the order of sending.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.effort import LONG
from tools.servers.broker_process import BrokerProcess, make_tallystick_process

from tallystick.testing import eventually

KILLS = 50 if LONG else 5
PARTITIONS = 3
TOPIC = "killed"
# Enough acknowledgements between two kills that the broker is at work when the next one comes.
ACKNOWLEDGED_BETWEEN = 2000

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(60 + 20 * KILLS)]


@dataclass
class Sending:
    """What the producer was told so far. A message is its number within its partition."""

    acknowledged: list[set[int]] = field(default_factory=lambda: [set() for _ in range(PARTITIONS)])
    sent: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    refused: list[KafkaError] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(error)
        else:
            self.acknowledged[message.partition() or 0].add(int(message.value() or b""))


@contextmanager
def sending(broker: BrokerProcess) -> Iterator[Sending]:
    """A producer that sends without a pause until the block ends, and then waits for what it sent."""
    told, stop = Sending(), threading.Event()
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 100,
            "queue.buffering.max.messages": 5000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "message.timeout.ms": 120_000,
            "log_level": 0,
        }
    )

    def run() -> None:
        while not stop.is_set():
            for partition in range(PARTITIONS):
                number = told.sent[partition]
                try:
                    producer.produce(TOPIC, str(number), partition=partition, on_delivery=told.delivered)
                except BufferError:
                    producer.poll(0.01)
                else:
                    told.sent[partition] += 1
            producer.poll(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join(30)
    assert producer.flush(120) == 0, "everything sent is answered in the end"


def read_everything(broker: BrokerProcess) -> list[list[int]]:
    """The numbers of each partition in the order of offsets, up to the end that the broker shows."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    taken: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()

    def at_the_end() -> bool:
        for message in consumer.consume(5000, 0.1):
            error = message.error()
            if error is None:
                taken[message.partition() or 0].append(int(message.value() or b""))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
        return len(ended) == PARTITIONS

    eventually(at_the_end, 120)
    consumer.close()
    return taken


@pytest.mark.gate(1)
@pytest.mark.parametrize("policy", ["ack", "os"])
def test_every_acknowledged_message_is_there_once_and_in_order(tmp_path: Path, policy: str) -> None:
    """A dead process loses what it had not handed to the operating system: under neither policy is that
    anything it acknowledged."""
    when = random.Random(policy)
    broker = make_tallystick_process(tmp_path, {"flush.policy": policy, "log.segment.bytes": "1048576"})
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        with sending(broker) as told:
            for _ in range(KILLS):
                enough = told.count + when.randrange(ACKNOWLEDGED_BETWEEN // 2, ACKNOWLEDGED_BETWEEN * 2)
                eventually(lambda enough=enough: told.count >= enough or told.refused, 60)  # type: ignore[misc]
                broker.kill()
                broker.start()
        assert not told.refused, told.refused[0]
        assert told.count == sum(told.sent)
        stored = read_everything(broker)
        for partition, values in enumerate(stored):
            assert values == list(range(told.sent[partition])), f"partition {partition}"
    assert broker.stop() == 0
