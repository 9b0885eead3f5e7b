"""What hangs on three brokers of Apache Kafka is found, also with one down; what was not asked is told."""

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests.support.hanging import hang
from tests.support.three_brokers import NODES, ThreeBrokers
from tools.servers import apache_kafka

from tallystick.admin.client import Admin
from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.admin.txn.transactions import HangingReport
from tallystick.cli.main import main
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.server, pytest.mark.gate(0), pytest.mark.timeout(600)]

LONG = "1" in (os.environ.get("TALLYSTICK_LONG"), os.environ.get("TALLYSTICK_INTEROP_KAFKA"))
VERIFYING = "transaction.partition.verification.enable"
BROKERS = tuple(ConfigResource(ResourceType.BROKER, str(node_id)) for node_id in range(1, NODES + 1))
# Longer than an election; a partition that nobody leads is waited for half of it.
TIMEOUT_MS = 20_000

if not LONG:
    pytest.skip("three brokers: make interop, or TALLYSTICK_LONG=1", allow_module_level=True)


@pytest.fixture
def admin(three: ThreeBrokers) -> Iterator[Admin]:
    limits = {"request.timeout.ms": TIMEOUT_MS, "default.api.timeout.ms": TIMEOUT_MS}
    with Admin({"bootstrap.servers": three.bootstrap, **limits}) as opened:
        yield opened


@pytest.fixture
def unverified(three: ThreeBrokers, admin: Admin) -> Iterator[None]:
    """Brokers that take the first batch of a transaction without asking the coordinator, as old ones do."""

    def verifying() -> set[str | None]:
        told = admin.describe_configs(BROKERS, [VERIFYING])
        return {told.one(broker)[VERIFYING].value for broker in BROKERS}

    admin.alter_configs({broker: {VERIFYING: "false"} for broker in BROKERS}).all()
    eventually(lambda: verifying() == {"false"})
    yield
    three.bring_back()
    admin.alter_configs({broker: {VERIFYING: None} for broker in BROKERS}).all()


@pytest.fixture
def hanging(three: ThreeBrokers, unverified: None, admin: Admin) -> Iterator[list[TopicPartition]]:
    """A transaction that no coordinator knows, in a partition of each broker, in the order of their ids."""
    topic = three.topic("hanging", NODES)
    by_leader = {three.leader(topic, p): TopicPartition(topic, p) for p in range(NODES)}
    for node_id, place in by_leader.items():  # a broker acts on a setting a moment after it shows it
        address, producer_id = three.broker(node_id).bootstrap, 777_000 + node_id
        eventually(lambda a=address, p=place, i=producer_id: hang(a, p, i) == 0)
    yield [by_leader[node_id] for node_id in range(1, NODES + 1)]
    three.bring_back()
    admin.delete_topics([topic]).all()


@pytest.fixture
def lone(three: ThreeBrokers, admin: Admin) -> Iterator[list[TopicPartition]]:
    """A partition of each broker without another copy, in the order of their ids."""
    topic = three.topic("lone", NODES, copies=1)
    by_leader = {three.leader(topic, p): TopicPartition(topic, p) for p in range(NODES)}
    yield [by_leader[node_id] for node_id in range(1, NODES + 1)]
    three.bring_back()
    admin.delete_topics([topic]).all()


def find(three: ThreeBrokers, *words: str) -> int:
    at = ("--bootstrap-server", three.bootstrap, "--timeout-ms", str(TIMEOUT_MS))
    return main(["transactions", "find-hanging", *at, *words])


def test_what_hangs_and_what_is_slow_on_three_brokers(
    three: ThreeBrokers, admin: Admin, hanging: list[TopicPartition], capsys: pytest.CaptureFixture[str]
) -> None:
    """[ADM-1] Kafka's own tool is of the same opinion."""
    topic = three.topic("slow")
    slow = Producer({"bootstrap.servers": three.bootstrap, "transactional.id": topic})
    slow.init_transactions(30)
    slow.begin_transaction()
    slow.produce(topic, b"open", partition=0)
    assert slow.flush(30) == 0
    report = admin.find_hanging_transactions(limit_ms=0)
    assert report.complete
    verdicts = {case.transaction.partition: (case.verdict, case.finding) for case in report.cases}
    assert verdicts == {
        **dict.fromkeys(hanging, (HangingVerdict.HANGING, HangingFinding.UNKNOWN_PRODUCER_ID)),
        TopicPartition(topic, 0): (HangingVerdict.SLOW, HangingFinding.OVERDUE),
    }
    assert find(three) == 3
    ours = {
        (words[1], words[2], words[3]) for words in map(str.split, capsys.readouterr().out.splitlines()[1:])
    }
    theirs = apache_kafka.run_tool(
        "kafka-transactions", "--bootstrap-server", three.bootstrap, "find-hanging", "--broker-id", "1"
    )
    told = {tuple(words[:3]) for words in map(str.split, theirs.stdout.splitlines()[1:])}
    assert told == ours
    slow.abort_transaction(30)


@pytest.mark.parametrize("node_id", range(1, NODES + 1))
def test_with_a_broker_down_nothing_is_hidden(
    three: ThreeBrokers,
    admin: Admin,
    hanging: list[TopicPartition],
    lone: list[TopicPartition],
    node_id: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """[ADM-2] Before the cluster knows that it is gone, and where a partition was its alone."""
    topic, lost = hanging[0].topic, str(lone[node_id - 1])
    elsewhere = hanging[node_id % NODES]
    three.broker(node_id).kill()
    at_once = admin.find_hanging_transactions(topic=topic, partition=elsewhere.partition)
    assert [(case.verdict, case.finding) for case in at_once.cases] == [
        (HangingVerdict.UNKNOWN, HangingFinding.MAYBE_UNLISTED)
    ]
    assert f"broker {node_id}" in at_once.failures
    assert not at_once.complete

    def found() -> HangingReport:
        report = admin.find_hanging_transactions(topic=topic)
        assert {case.transaction.partition for case in report.hanging} == set(hanging), report.failures
        return report

    assert eventually(found).complete
    assert find(three, "--topic", topic) == 3
    capsys.readouterr()
    whole = admin.find_hanging_transactions()
    assert {case.transaction.partition for case in whole.hanging} == set(hanging)
    assert set(whole.failures) == {lost}
    assert not whole.complete
    assert find(three, "--topic", lone[0].topic) == 4
    assert lost in capsys.readouterr().err
