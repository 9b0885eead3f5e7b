"""kill -9 of the broker, again and again, under 8 transactional producers and 2 read_committed consumers.

The clients are librdkafka's. Afterwards every transaction that was told to be committed is there whole, of
one that was aborted nothing, of one nobody knows all or nothing; no record is there twice; and both
consumers, who read while the broker was killed, were shown just that.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.effort import LONG
from tools.servers.broker_process import BrokerProcess, make_tallystick_process

from tallystick.testing import eventually

KILLS = 100 if LONG else 3
PRODUCERS = 8
PARTITIONS = 3
RECORDS = 5
TOPIC = "killed"
LAST = "last"
# Commits between two kills, over all producers: the broker is at work when the next one comes.
COMMITS_BETWEEN = 40
ENDED_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(120 + 30 * KILLS)]


@dataclass
class Told:
    """How transactions ended, by name, as one producer was told. A record is `name:index`."""

    committed: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    incarnations: int = 0
    surprises: list[str] = field(default_factory=list)


class Client(threading.Thread):
    """One transactional id: transaction after transaction, one in five aborted on purpose, until stopped."""

    def __init__(self, number: int, broker: BrokerProcess, stop: threading.Event) -> None:
        super().__init__(name=f"producer-{number}", daemon=True)
        self.told = Told()
        self.id = f"killed-{number}"
        self.config: dict[str, str | int] = {
            "bootstrap.servers": broker.bootstrap,
            "transaction.timeout.ms": 60_000,
            "linger.ms": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "socket.timeout.ms": 10_000,
            "log_level": 0,
        }
        self._stop_asked = stop
        self._random = random.Random(number)
        self._begun = 0

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                self._incarnation()
            except Exception as exc:
                self.told.surprises.append(repr(exc))
                return

    def _incarnation(self) -> None:
        """A producer for as long as it lives: a fatal error, or a lost answer, ends it."""
        self.told.incarnations += 1
        producer = Producer({**self.config, "transactional.id": self.id})
        if not self._again(lambda: producer.init_transactions(30)):
            return
        while not self._stop_asked.is_set():
            if not self._transaction(producer):
                return

    def _transaction(self, producer: Producer) -> bool:
        """One transaction; False when the producer is of no more use."""
        name = f"{self.id}-{self._begun}"
        self._begun += 1
        producer.begin_transaction()
        for index in range(RECORDS):
            producer.produce(TOPIC, f"{name}:{index}", partition=self._random.randrange(PARTITIONS))
        abort = self._random.random() < 0.2
        if not abort:
            try:
                if self._again(lambda: producer.commit_transaction(30)):
                    self.told.committed.append(name)
                    return True
            except _MustAbort:
                abort = True
        if abort and self._again(lambda: producer.abort_transaction(30)):
            self.told.aborted.append(name)
            return True
        self.told.unknown.append(name)
        return False

    def _again(self, call: Callable[[], None]) -> bool:
        """Make a call until it is through; False after a fatal error. Raises: _MustAbort."""
        for _ in range(20):
            try:
                call()
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                if error.txn_requires_abort():
                    raise _MustAbort from exc
                if not error.retriable():
                    if not error.fatal():
                        self.told.surprises.append(f"{error} is neither fatal nor retriable")
                    return False
            else:
                return True
        self.told.surprises.append("a call was retriable twenty times over")
        return False


class _MustAbort(Exception):
    """The transaction can only be aborted."""


class Reader(threading.Thread):
    """A read_committed consumer of all partitions; it stops at the LAST record of each."""

    def __init__(self, number: int, broker: BrokerProcess) -> None:
        super().__init__(name=f"reader-{number}", daemon=True)
        self.shown: list[list[str]] = [[] for _ in range(PARTITIONS)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": f"reader-{number}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        consumer, ended = self._consumer, set[int]()
        consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    partition, text = message.partition() or 0, (message.value() or b"").decode()
                    if text == LAST:
                        ended.add(partition)
                    else:
                        self.shown[partition].append(text)
        consumer.close()


@contextmanager
def running(clients: list[Client], stop: threading.Event) -> Iterator[None]:
    """The producers at work; afterwards a new incarnation of each has ended what was open, and said LAST."""
    for client in clients:
        client.start()
    try:
        yield
    finally:
        stop.set()
    for client in clients:
        client.join(ENDED_S)
    assert not any(client.is_alive() for client in clients), "nobody waits for ever"
    for client in clients:
        Producer({**client.config, "transactional.id": client.id}).init_transactions(60)
    last = Producer({"bootstrap.servers": clients[0].config["bootstrap.servers"]})
    for partition in range(PARTITIONS):
        last.produce(TOPIC, LAST, partition=partition)
    assert last.flush(30) == 0


def check(clients: list[Client], shown: list[list[str]]) -> None:
    """All or nothing, nothing twice, and as everybody was told."""
    counts = Counter(record.rpartition(":")[0] for records in shown for record in records)
    records = [record for found in shown for record in found]
    assert len(records) == len(set(records)), "no record is there twice"
    for client in clients:
        told = client.told
        assert {name: counts[name] for name in told.committed} == dict.fromkeys(told.committed, RECORDS)
        assert [name for name in told.aborted if counts[name]] == []
        assert {counts[name] for name in told.unknown} <= {0, RECORDS}


@pytest.mark.gate(0)
@pytest.mark.parametrize("policy", ["ack", "os"])
def test_every_committed_transaction_is_whole(tmp_path: Path, policy: str) -> None:
    """A dead process loses what it had not handed to the operating system: nothing it had acknowledged."""
    when = random.Random(policy)
    stop = threading.Event()
    settings = {
        "flush.policy": policy,
        "log.segment.bytes": "1048576",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }
    broker = make_tallystick_process(tmp_path, settings)
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        clients = [Client(number, broker, stop) for number in range(PRODUCERS)]
        readers = [Reader(number, broker) for number in range(2)]

        def commits() -> int:
            assert [client.told.surprises for client in clients] == [[] for _ in clients]
            return sum(len(client.told.committed) for client in clients)

        for reader in readers:
            reader.start()
        with running(clients, stop):
            for _ in range(KILLS):
                enough = commits() + when.randrange(COMMITS_BETWEEN // 2, COMMITS_BETWEEN * 2)
                eventually(lambda enough=enough: commits() >= enough, ENDED_S)  # type: ignore[misc]
                broker.kill()
                broker.start()
            enough = commits() + COMMITS_BETWEEN
            eventually(lambda: commits() >= enough, ENDED_S)
        for reader in readers:
            reader.join(ENDED_S)
            assert not reader.is_alive(), "a reader comes to the end"
        assert commits() >= KILLS * COMMITS_BETWEEN // 2
        for reader in readers:
            check(clients, reader.shown)
        assert readers[0].shown == readers[1].shown
    assert broker.stop() == 0
