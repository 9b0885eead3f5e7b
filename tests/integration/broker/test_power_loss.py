"""A power loss under `flush.policy=os`: every log loses its end, and each another stretch of it.

The broker is killed, files are cut to a size they had before, and it is started again on what is left.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.raw_producer import RawProducer, Versions, committed_values, make_topic
from tests.support.raw_wire import RawConnection

from tallystick.broker.embedded import EmbeddedBroker
from tallystick.protocol.messages.txn.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tallystick.testing import eventually

pytestmark = pytest.mark.server

TOPIC = "orders"
STATE = "__transaction_state"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path, transaction_state_log_num_partitions=1) as running:
        make_topic(running, TOPIC, 2)
        yield running


@pytest.fixture(params=[Versions(), Versions(produce=11, end=4)], ids=["version-2", "version-0"])
def producer(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[RawProducer]:
    with RawProducer(broker, "pay-7", request.param) as made:
        made.find()
        made.init()
        yield made


class Sizes:
    """How long the logs are now; the data's timestamps are so old that each marker begins a segment."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._sizes = {log: self._segments(*log) for log in ((TOPIC, 0), (TOPIC, 1), (STATE, 0))}

    def _directory(self, topic: str, partition: int) -> Path:
        return self._broker.data_dir / f"{topic}-{partition}"

    def _segments(self, topic: str, partition: int) -> dict[str, int]:
        return {path.stem: path.stat().st_size for path in self._directory(topic, partition).glob("*.log")}

    def lose(self, producer: RawProducer, *logs: tuple[str, int]) -> None:
        """Power fails now, and these logs are again what they were."""
        self._broker.kill()
        for log in logs:
            before, now = self._sizes[log], self._segments(*log)
            assert before != now
            for stem in now:
                for path in self._directory(*log).glob(f"{stem}.*"):
                    if stem not in before:
                        path.unlink()
                if stem in before:
                    os.truncate(self._directory(*log) / f"{stem}.log", before[stem])
        self._broker.start()
        producer.reconnect()


def is_open(broker: EmbeddedBroker, partition: int) -> bool:
    request = DescribeProducersRequest(topics=(TopicRequest(name=TOPIC, partition_indexes=(partition,)),))
    with RawConnection(broker.bootstrap_servers) as connection:
        answer = connection.ask(request, DescribeProducersResponse, 0)
    producers = answer.topics[0].partitions[0].active_producers
    return any(producer.current_txn_start_offset >= 0 for producer in producers)


def values(broker: EmbeddedBroker) -> list[list[str]]:
    return [committed_values(broker, TOPIC, partition) for partition in range(2)]


def said(capfd: pytest.CaptureFixture[str], text: str) -> bool:
    return text in capfd.readouterr().err


def test_a_lost_marker_is_written_again(
    broker: EmbeddedBroker, producer: RawProducer, capfd: pytest.CaptureFixture[str]
) -> None:
    producer.write(TOPIC, 0, "a")
    producer.write(TOPIC, 1, "b")
    before = Sizes(broker)
    producer.end()
    producer.completed()
    before.lose(producer, (TOPIC, 0))
    assert values(broker) == [["a"], ["b"]]
    assert said(capfd, "commit of orders-0 from offset 0")
    producer.write(TOPIC, 0, "c")
    producer.end(commit=False)
    producer.completed()
    assert values(broker) == [["a"], ["b"]]


def test_a_lost_decision_is_read_off_a_marker(
    broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client was told of the commit; the coordinator has forgotten it, and one partition its marker."""
    with RawProducer(broker, "pay-7") as producer:
        producer.find()
        producer.init()
        producer.write(TOPIC, 0, "a")
        producer.write(TOPIC, 1, "b")
        before = Sizes(broker)
        producer.end()
        producer.completed()
        before.lose(producer, (STATE, 0), (TOPIC, 1))
        producer.completed()
        assert values(broker) == [["a"], ["b"]]
        assert said(capfd, "a lost decision was written again")
        producer.write(TOPIC, 1, "c")
        assert producer.end().error_code == 0, "the pair the client was given is the one the coordinator has"


def test_a_partition_the_coordinator_forgot_is_part_of_the_transaction_again(broker: EmbeddedBroker) -> None:
    """Else its records would never be ended, although the client is told that they are."""
    with RawProducer(broker, "pay-7") as producer:
        producer.find()
        producer.init()
        producer.write(TOPIC, 0, "a")
        before = Sizes(broker)
        producer.write(TOPIC, 1, "b")
        before.lose(producer, (STATE, 0))
        assert producer.end().error_code == 0
        producer.completed()
        assert values(broker) == [["a"], ["b"]]


@pytest.mark.gate(1)
def test_what_no_coordinator_knows_is_listed_and_left_alone(
    broker: EmbeddedBroker, producer: RawProducer, capfd: pytest.CaptureFixture[str]
) -> None:
    with RawProducer(broker, "other") as other:
        before = Sizes(broker)
        other.init()
        other.write(TOPIC, 0, "a")
        other.end()
        other.completed()
        other.write(TOPIC, 0, "b")
        before.lose(producer, (STATE, 0))
        assert said(capfd, "hanging transaction, which no coordinator will end: orders-0 from offset 2")
        assert is_open(broker, 0)
        assert values(broker) == [["a"], []]


def test_an_id_never_writes_into_its_own_lost_past(broker: EmbeddedBroker) -> None:
    """Its records of the pair after next are in the partition; one marker would end them with new ones."""
    with RawProducer(broker, "pay-7") as producer:
        producer.find()
        producer.init()
        first = producer.pair
        before = Sizes(broker)
        for _ in range(2):
            producer.write(TOPIC, 1, "done")
            producer.end()
            producer.completed()
        producer.write(TOPIC, 0, "lost")
        before.lose(producer, (STATE, 0), (TOPIC, 1))
        producer.init()
        assert producer.pair[0] != first[0], "another producer id"
        producer.write(TOPIC, 0, "new")
        producer.end()
        producer.completed()
        assert is_open(broker, 0)
        assert values(broker) == [[], []], "nothing is handed out past what hangs"


def test_what_is_gone_below_a_commit_is_said_by_offset(
    broker: EmbeddedBroker, producer: RawProducer, capfd: pytest.CaptureFixture[str]
) -> None:
    before = Sizes(broker)
    producer.write(TOPIC, 0, "a", "b", "c")
    producer.write(TOPIC, 1, "d")
    producer.end()
    producer.completed()
    before.lose(producer, (TOPIC, 0))
    assert said(
        capfd,
        "orders-0: offsets 0 to 2 were lost, and with them records of committed transactions; write them"
        " again or restore a backup. Transactional ids: 'pay-7'",
    )
    assert values(broker) == [[], ["d"]]


def test_offsets_in_a_transaction_get_their_lost_marker_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The group's partition is still being replayed when the comparison begins."""
    with EmbeddedBroker(
        tmp_path, transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1
    ) as broker:
        make_topic(broker, TOPIC)
        at = TopicPartition(TOPIC, 0, 5)
        group = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "flights"}
        consumer = Consumer(group)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "pay-7"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([at], consumer.consumer_group_metadata(), 20)
        log = broker.data_dir / "__consumer_offsets-0" / f"{0:020}.log"
        before = log.stat().st_size
        producer.commit_transaction(20)
        eventually(lambda: log.stat().st_size > before)
        eventually(lambda: [found.offset for found in consumer.committed([at], 20)] == [5])
        consumer.close()
        broker.kill()
        os.truncate(log, before)
        broker.start()
        again = Consumer(group)
        eventually(lambda: [found.offset for found in again.committed([at], 20)] == [5])
        again.close()
        assert said(capfd, "commit of __consumer_offsets-0")


def test_after_a_clean_stop_nothing_is_compared(
    broker: EmbeddedBroker, producer: RawProducer, capfd: pytest.CaptureFixture[str]
) -> None:
    producer.write(TOPIC, 0, "a")
    broker.restart()
    producer.reconnect()
    assert producer.end().error_code == 0
    eventually(lambda: values(broker) == [["a"], []])
    assert "hanging" not in capfd.readouterr().err
