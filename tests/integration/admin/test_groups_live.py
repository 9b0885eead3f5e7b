"""Consumer groups with librdkafka: members in processes of their own join, leave and are killed."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.effort import LONG

from tallystick.broker.embedded import EmbeddedBroker
from tallystick.testing import eventually

pytestmark = pytest.mark.server

PARTITIONS = 6
GROUP = "flights"

# A consumer that says what happens to it, one JSON line each. It commits when it loses partitions, so
# that a member that leaves, or rebalances, repeats nothing; one that is killed cannot.
MEMBER = """
import json, signal, sys, time
from confluent_kafka import Consumer, KafkaException

settings, topic = json.loads(sys.argv[1]), sys.argv[2]
consumer = Consumer(settings)
leaving = False

def say(kind, **more):
    print(json.dumps({"kind": kind, **more}), flush=True)

def leave(*_):
    global leaving
    leaving = True

def commit():
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as exc:
        say("commit refused", code=exc.args[0].name())

def revoked(_, partitions):
    commit()
    say("revoked", partitions=[p.partition for p in partitions])

signal.signal(signal.SIGTERM, leave)
consumer.subscribe(
    [topic],
    on_assign=lambda _, partitions: say("assigned", partitions=[p.partition for p in partitions]),
    on_revoke=revoked,
)
while not leaving:
    record = consumer.poll(0.05)
    if record is not None and record.error() is None:
        say("record", partition=record.partition(), offset=record.offset(), value=record.value().decode())
commit()
consumer.close()
say("left")
"""


class Member:
    """One consumer process and what it has said so far."""

    def __init__(self, broker: EmbeddedBroker, name: str, topic: str, **settings: Any) -> None:
        given = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": GROUP,
            "client.id": name,
            "session.timeout.ms": 1500,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        self.name = name
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, json.dumps(given), topic], stdout=subprocess.PIPE
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

    def owned(self) -> set[int]:
        """The partitions it believes to own now."""
        partitions: set[int] = set()
        for event in list(self.events):
            if event["kind"] == "assigned":
                partitions |= set(event["partitions"])
            elif event["kind"] == "revoked":
                partitions -= set(event["partitions"])
        return partitions

    def records(self) -> list[tuple[int, int, str]]:
        return [
            (event["partition"], event["offset"], event["value"])
            for event in list(self.events)
            if event["kind"] == "record"
        ]

    def leave(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.wait(30)
        self._reader.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Flow:
    """A producer that runs until told to stop; `sent` are the values that were acknowledged."""

    def __init__(self, broker: EmbeddedBroker, topic: str) -> None:
        self.sent: set[str] = set()
        self._topic = topic
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.005):
            self._producer.produce(
                self._topic, str(number), partition=number % PARTITIONS, callback=self._acknowledged
            )
            self._producer.poll(0)
            number += 1

    def _acknowledged(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.sent.add(message.value().decode())

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert self._producer.flush(30) == 0


@pytest.fixture(params=["os", "ack"] if LONG else ["ack"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    settings = {
        "flush.policy": request.param,
        "group.min.session.timeout.ms": 1000,
        "group.initial.rebalance.delay.ms": 100,
    }
    with EmbeddedBroker(config=settings) as running:
        yield running


def make_topic(broker: EmbeddedBroker, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def all_owned_by(*members: Member) -> bool:
    owned = [member.owned() for member in members]
    return all(owned) and sorted(p for part in owned for p in part) == list(range(PARTITIONS))


@pytest.mark.gate(0)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_three_members_join_leave_and_die_while_a_producer_runs(
    broker: EmbeddedBroker, strategy: str
) -> None:
    """Nothing is lost; and what is repeated was read by the member that was killed before it could commit."""
    topic = make_topic(broker, "flow")
    flow = Flow(broker, topic)
    members = {}
    try:
        for name in "abc":
            members[name] = Member(broker, name, topic, partition_assignment_strategy=strategy)
            eventually(lambda: all_owned_by(*members.values()))
        eventually(lambda: all(len(member.records()) > 50 for member in members.values()))
        members["b"].leave()
        assert members["b"].events[-1]["kind"] == "left"
        eventually(lambda: all_owned_by(members["a"], members["c"]))
        members["c"].kill()
        eventually(lambda: members["a"].owned() == set(range(PARTITIONS)))
        flow.stop()
        eventually(lambda: flow.sent <= {value for m in members.values() for _, _, value in m.records()})
    finally:
        flow.stop()
        for member in members.values():
            member.leave() if member.name != "c" else member.kill()

    for member in members.values():
        assert not [
            event
            for event in member.events
            if event["kind"] == "commit refused" and event["code"] != "_NO_OFFSET"
        ]
        seen = [(partition, offset) for partition, offset, _ in member.records()]
        assert len(seen) == len(set(seen)), f"{member.name} read a record twice"
    readers: dict[tuple[int, int], list[str]] = {}
    for member in members.values():
        for partition, offset, _ in member.records():
            readers.setdefault((partition, offset), []).append(member.name)
    twice = {place: names for place, names in readers.items() if len(names) > 1}
    assert all("c" in names and len(names) == 2 for names in twice.values()), twice
    # Offsets of a partition have no holes: nothing was skipped on the way from one owner to the next.
    for partition, newest in Counter(p for p, _ in readers).items():
        assert {offset for p, offset in readers if p == partition} == set(range(newest))


@pytest.mark.gate(0)
def test_a_static_member_restarts_without_a_rebalance(broker: EmbeddedBroker) -> None:
    """KIP-345, with a client that leaves no LeaveGroup behind."""
    topic = make_topic(broker, "static")
    settings = {"session_timeout_ms": 20_000}
    first = Member(broker, "a", topic, group_instance_id="i1", **settings)
    second = Member(broker, "b", topic, group_instance_id="i2", **settings)
    try:
        eventually(lambda: all_owned_by(first, second))
        owned = second.owned()
        calm = len(first.events)
        second.kill()
        second = Member(broker, "b2", topic, group_instance_id="i2", **settings)
        eventually(lambda: second.owned() == owned)
        assert not [event for event in first.events[calm:] if event["kind"] in ("assigned", "revoked")]
    finally:
        first.leave()
        second.leave()


def test_offsets_and_members_survive_a_broker_restart(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker, "again")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(60):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "again",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    wanted = {index: 3 + index for index in range(PARTITIONS)}
    consumer = Consumer(settings)
    consumer.commit(
        offsets=[
            TopicPartition(topic, index, offset, metadata=f"m{index}") for index, offset in wanted.items()
        ],
        asynchronous=False,
    )
    consumer.close()

    member = Member(broker, "live", topic, group_id="live", session_timeout_ms=20_000)
    try:
        eventually(lambda: len(member.records()) == 60)
        broker.kill()
        broker.start()

        def committed() -> bool:
            asked = [ConsumerGroupTopicPartitions("again")]
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            answer = admin.list_consumer_group_offsets(asked)["again"].result(10)
            found = {p.partition: (p.offset, p.metadata) for p in answer.topic_partitions}
            return found == {index: (offset, f"m{index}") for index, offset in wanted.items()}

        eventually(committed)
        producer.produce(topic, "after", partition=0)
        assert producer.flush(30) == 0
        eventually(lambda: member.records()[-1][2] == "after")
        assert len(member.records()) == 61, "the member went on where it was"
    finally:
        member.leave()


def committed_offsets(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
    return {(p.topic, p.partition): p.offset for p in answer.topic_partitions}


@pytest.mark.gate(0)
def test_a_deleted_topic_takes_its_offsets_with_it(broker: EmbeddedBroker) -> None:
    """A topic made anew under the name begins without offsets, whatever the groups of the old one read."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = [make_topic(broker, "gone"), make_topic(broker, "kept")]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7) for topic in topics], asynchronous=False)
    consumer.close()
    admin.delete_topics(["gone"])["gone"].result(30)
    eventually(lambda: committed_offsets(admin, "reader") == {("kept", 0): 7})
    broker.restart()
    # librdkafka's admin client loses its cached coordinator when every broker it knows was down.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    eventually(lambda: committed_offsets(admin, "reader") == {("kept", 0): 7})


def test_an_administrator_lists_describes_alters_and_deletes_groups(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker, "admin")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    member = Member(broker, "m", topic, group_id="watched", session_timeout_ms=20_000)
    try:
        eventually(lambda: member.owned() == set(range(PARTITIONS)))
        eventually(lambda: describe_group(admin).state.name == "STABLE")
        (described,) = describe_group(admin).members
        assert described.client_id == "m"
        assert len(described.assignment.topic_partitions) == PARTITIONS
        listed = admin.list_consumer_groups().result(10)
        assert [(group.group_id, group.state.name) for group in listed.valid] == [("watched", "STABLE")]
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["watched"])["watched"].result(10)
    finally:
        member.leave()
    eventually(lambda: describe_group(admin).state.name == "EMPTY")
    wanted = ConsumerGroupTopicPartitions("watched", [TopicPartition(topic, 1, 4)])
    admin.alter_consumer_group_offsets([wanted])["watched"].result(10)
    assert committed_offsets(admin, "watched") == {(topic, 1): 4}
    admin.delete_consumer_groups(["watched"])["watched"].result(10)
    assert not admin.list_consumer_groups().result(10).valid
    broker.restart()
    eventually(lambda: not admin.list_consumer_groups().result(10).valid)


def describe_group(admin: AdminClient) -> Any:
    return admin.describe_consumer_groups(["watched"])["watched"].result(10)
