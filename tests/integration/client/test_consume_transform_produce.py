"""Consume, transform, produce: three instances of one group, one producer each for all its input partitions.

What KIP-447 is for. An instance reads committed records, writes what comes of them and commits its offsets in
one transaction, and fences by its group's generation alone: partitions move between instances while
transactions are open. Instances are killed, abandoned amid a transaction, and frozen amid one until others
have taken over; whatever happens, every record of the input is in the output exactly once.

A transaction that was abandoned holds back whoever takes over its partitions until its producer comes back
under the same transactional id, or, when it does not, until the coordinator ends it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.effort import LONG

from tallystick.broker.embedded import EmbeddedBroker
from tallystick.testing import eventually

RECORDS: Final = 100_000 if LONG else 2_000  # at least: records come as long as instances are disrupted
DISRUPTIONS: Final = 30 if LONG else 4
RECORDS_PER_TURN: Final = 8 if LONG else 1  # of the feeder, every few milliseconds
AHEAD_MAX: Final = 4_000 if LONG else 500  # so that there is always something to read, and not too much
DEADLINE_S: Final = 600.0 if LONG else 120.0

pytestmark = [pytest.mark.server, pytest.mark.timeout(2 * DEADLINE_S)]

PARTITIONS = 6
GROUP = "transformers"
SOURCE, SINK = "source", "sink"

# One instance. It says what happens to it, one JSON line each, and ends when its producer cannot go on.
INSTANCE = """
import json, os, signal, sys
from confluent_kafka import Consumer, KafkaException, OFFSET_BEGINNING, Producer, TopicPartition

settings, source, sink = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
consumer, producer = Consumer(settings["consumer"]), Producer(settings["producer"])
asked = set()

def say(kind, **more):
    print(json.dumps({"kind": kind, **more}), flush=True)

for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: asked.add(number))

def rewind():
    for place in consumer.committed(consumer.assignment(), 30):
        offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
        consumer.seek(TopicPartition(place.topic, place.partition, offset))

def commit():
    while True:
        try:
            return producer.commit_transaction()
        except KafkaException as exc:
            if not exc.args[0].retriable():
                raise

def transform(records):
    producer.begin_transaction()
    for record in records:
        place = f"{record.partition()}-{record.offset()}"
        producer.produce(sink, key=place, value=record.value(), partition=record.partition())
    positions, metadata = consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
    if signal.SIGUSR2 in asked:
        asked.discard(signal.SIGUSR2)
        say("frozen")
        os.kill(os.getpid(), signal.SIGSTOP)
    producer.send_offsets_to_transaction(positions, metadata)
    if signal.SIGUSR1 in asked:
        say("abandoned")
        os._exit(0)
    commit()
    say("committed", count=len(records))

producer.init_transactions()
consumer.subscribe(
    [source],
    on_assign=lambda _, partitions: say("assigned", partitions=[p.partition for p in partitions]),
    on_revoke=lambda _, partitions: say("revoked", partitions=[p.partition for p in partitions]),
    on_lost=lambda _, partitions: say("revoked", partitions=[p.partition for p in partitions]),
)
while signal.SIGTERM not in asked:
    records = [record for record in consumer.consume(40, 0.05) if record.error() is None]
    if not records:
        continue
    try:
        transform(records)
    except KafkaException as exc:
        error = exc.args[0]
        say("failed", code=error.name(), fatal=error.fatal())
        if error.fatal():
            os._exit(1)
        producer.abort_transaction()
        rewind()
consumer.close()
say("left")
"""


class Instance:
    """One process and what it has said so far."""

    def __init__(self, broker: EmbeddedBroker, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.events: list[dict[str, Any]] = []
        common = {"bootstrap.servers": broker.bootstrap_servers, "client.id": transactional_id}
        settings = {
            "consumer": common
            | {
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 2_000,
                "heartbeat.interval.ms": 200,
            },
            "producer": common
            | {"transactional.id": transactional_id, "transaction.timeout.ms": 4_000, "linger.ms": 1},
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", INSTANCE, json.dumps(settings), SOURCE, SINK], stdout=subprocess.PIPE
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                pass  # the line a kill cut short

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["kind"] == kind]

    def committed(self) -> int:
        return sum(event["count"] for event in self.said("committed"))

    def owned(self) -> set[int]:
        partitions: set[int] = set()
        for event in list(self.events):
            if event["kind"] == "assigned":
                partitions |= set(event["partitions"])
            elif event["kind"] == "revoked":
                partitions -= set(event["partitions"])
        return partitions

    def signal(self, number: int) -> None:
        if not self.ended:
            os.kill(self._process.pid, number)

    def end(self, number: int) -> None:
        self.signal(number)
        self._process.wait(60)
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Instances:
    """Three of them; one that ended is replaced by one with the same transactional id."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._names = 0
        self.past: list[Instance] = []
        self.running = [Instance(broker, self.new_name()) for _ in range(3)]

    def new_name(self) -> str:
        self._names += 1
        return f"instance-{self._names}"

    def replace(self, old: Instance, name: str | None = None) -> None:
        old.end(signal.SIGKILL)
        self.past.append(old)
        self.running[self.running.index(old)] = Instance(self._broker, name or old.transactional_id)

    def tend(self) -> None:
        for instance in list(self.running):
            if instance.ended:
                self.replace(instance)

    def committed(self) -> int:
        return sum(instance.committed() for instance in (*self.past, *self.running))

    def have_committed(self, count: int) -> bool:
        self.tend()
        return self.committed() >= count

    def end(self) -> None:
        for instance in self.running:
            instance.signal(signal.SIGCONT)
            instance.end(signal.SIGTERM)

    # ---- what may happen to one

    def kill(self, victim: Instance) -> None:
        """At whatever it is just doing; its successor fences it and aborts what it left."""
        self.replace(victim)

    def abandon(self, victim: Instance) -> None:
        """Between its offsets and its commit, and its transactional id is never heard of again."""
        victim.signal(signal.SIGUSR1)
        eventually(lambda: victim.ended, DEADLINE_S)
        self.replace(victim, self.new_name())

    def freeze(self, victim: Instance) -> None:
        """Before it commits its offsets, until others own its partitions; then it goes on as if nothing had
        happened, a zombie: it is the group coordinator that must not believe it."""
        others = [instance for instance in self.running if instance is not victim]
        before = len(victim.said("frozen")), len(victim.said("failed"))
        victim.signal(signal.SIGUSR2)
        eventually(lambda: victim.ended or len(victim.said("frozen")) > before[0], DEADLINE_S)
        eventually(lambda: self._have_all(others), DEADLINE_S)
        victim.signal(signal.SIGCONT)
        eventually(lambda: victim.ended or len(victim.said("failed")) > before[1], DEADLINE_S)

    def _have_all(self, others: list[Instance]) -> bool:
        # One of them may have ended for reasons of its own; then whoever lives has taken over.
        left = [instance for instance in others if not instance.ended]
        return {p for instance in left for p in instance.owned()} == set(range(PARTITIONS))


class Feeder:
    """Writes the input while it is read, a little ahead of the readers."""

    def __init__(self, broker: EmbeddedBroker, read: Callable[[], int]) -> None:
        self._read = read
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        self.count = 0
        self._failed: list[KafkaError] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.004):
            for _ in range(RECORDS_PER_TURN if self.count - self._read() < AHEAD_MAX else 0):
                self._producer.produce(
                    SOURCE, str(self.count), partition=self.count % PARTITIONS, callback=self._delivered
                )
                self.count += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._failed.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert self._producer.flush(60) == 0
        assert not self._failed


@pytest.fixture(params=["os", "ack"] if LONG else ["ack"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    settings = {
        "flush.policy": request.param,
        "group.min.session.timeout.ms": 1_000,
        "group.initial.rebalance.delay.ms": 100,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }
    with EmbeddedBroker(config=settings) as running:
        yield running


class Output:
    """A reader of committed records, and what it has seen."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.records: list[tuple[str, str]] = []
        self._at_end: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "readers",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        self._consumer.assign([TopicPartition(SINK, partition, 0) for partition in range(PARTITIONS)])

    def read(self) -> int:
        """Read on, and say how much there is by now."""
        for record in self._consumer.consume(1_000, 0.1):
            error = record.error()
            if error is None:
                self.records.append((record.key().decode(), record.value().decode()))
                self._at_end.discard(record.partition())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self._at_end.add(record.partition())
        return len(self.records)

    def is_read(self) -> bool:
        self.read()
        return len(self._at_end) == PARTITIONS

    def close(self) -> None:
        self._consumer.close()


def test_every_record_is_in_the_output_exactly_once(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (SOURCE, SINK)]).values():
        future.result(30)
    instances = Instances(broker)
    feeder = Feeder(broker, instances.committed)
    try:
        kinds = cycle((instances.kill, instances.abandon, instances.freeze))
        for number in range(DISRUPTIONS):
            due = RECORDS * (number + 1) // (DISRUPTIONS + 1)
            eventually(lambda due=due: instances.have_committed(due), DEADLINE_S)  # type: ignore[misc]
            disrupt = next(kinds)
            disrupt(instances.running[number % len(instances.running)])
        eventually(lambda: feeder.count >= RECORDS, DEADLINE_S)
        feeder.stop()
        output = Output(broker)
        # What an instance committed and could not say any more is in the output all the same.
        eventually(lambda: (instances.tend(), output.read() >= feeder.count)[1], DEADLINE_S)
    finally:
        feeder.stop()
        instances.end()

    eventually(output.is_read)
    output.close()
    assert {key: count for key, count in Counter(key for key, _ in output.records).items() if count > 1} == {}
    assert sorted(int(value) for _, value in output.records) == list(range(feeder.count))
    # A transaction was left open, a zombie was refused, and partitions did move.
    everyone = [*instances.past, *instances.running]
    assert any(instance.said("abandoned") for instance in everyone)
    assert any(instance.said("frozen") for instance in everyone)
    assert sum(len(instance.said("assigned")) for instance in everyone) > 3
