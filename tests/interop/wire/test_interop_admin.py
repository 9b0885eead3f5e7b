"""Admin and `tallystick transactions` on both brokers: Kafka knows no guard and keeps no forced outcomes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.hanging import hang

from tallystick.admin.client import Admin
from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.admin.topics import EARLIEST, LATEST, NewTopic
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.admin.txn.transactions import AbortSpec
from tallystick.cli.main import main
from tallystick.client.errors import BrokerRefused
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import eventually

OURS = "tallystick"
BROKER = ConfigResource(ResourceType.BROKER, "1")
VERIFYING = "transaction.partition.verification.enable"


@pytest.fixture
def admin(cluster: Any) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as opened:
        yield opened


@pytest.fixture
def unverified(admin: Admin) -> Iterator[None]:
    """A broker that takes the first batch of a transaction without asking the coordinator, as old ones do."""
    admin.alter_configs({BROKER: {VERIFYING: "false"}}).all()
    eventually(lambda: admin.describe_configs([BROKER], [VERIFYING]).one(BROKER)[VERIFYING].value == "false")
    yield
    admin.alter_configs({BROKER: {VERIFYING: None}}).all()


def open_transaction(cluster: Any, topic: str, name: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(30) == 0
    return producer


def test_hanging_and_slow_are_told_apart_and_only_one_is_ended(
    cluster: Any, admin: Admin, unverified: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """[ADM-1] [ADM-3]"""
    topic, name = cluster.topic(2), cluster.fresh_name("slow")
    producer = open_transaction(cluster, topic, name)
    slow, hanging = TopicPartition(topic, 0), TopicPartition(topic, 1)
    start = eventually(lambda: [hang(cluster.bootstrap, hanging, 777_001)])[0]
    report = admin.find_hanging_transactions(topic=topic, limit_ms=0)
    assert report.complete
    by_partition = {case.transaction.partition: case for case in report.cases}
    assert by_partition[slow].verdict is HangingVerdict.SLOW
    assert (by_partition[hanging].verdict, by_partition[hanging].finding) == (
        HangingVerdict.HANGING,
        HangingFinding.UNKNOWN_PRODUCER_ID,
    )
    with pytest.raises(NotSafe, match="another outcome"):
        admin.abort_transaction(AbortSpec(partition=slow, start_offset=0))
    plan = admin.plan_abort(AbortSpec(partition=hanging, start_offset=start))
    assert plan.guarded == (cluster.name == OURS)
    at = ("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--partition", "1")
    assert main(["transactions", "find-hanging", *at]) == 3
    capsys.readouterr()
    words = ("abort", *at, "--start-offset", str(start), "--yes", "--output", "json")
    assert main(["transactions", *words]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["Result"] == "aborted"
    assert ("does not check the start offset" in printed.err) == (cluster.name != OURS)
    assert main(["transactions", "find-hanging", *at]) == 0
    with pytest.raises(NothingOpen):
        admin.abort_transaction(plan)
    producer.commit_transaction(30)


def test_force_terminate_keeps_the_timeout_of_the_id(cluster: Any, admin: Admin) -> None:
    """Kafka's tool replaces it by its own request timeout."""
    topic, name = cluster.topic(), cluster.fresh_name("forced")
    producer = open_transaction(cluster, topic, name)
    before = admin.describe_transactions([name]).one(name)
    assert before.partitions == {TopicPartition(topic, 0)}
    assert admin.force_terminate_transaction(name).epoch > before.writer.epoch
    after = admin.describe_transactions([name]).one(name)
    assert (after.state, after.timeout_ms) == ("CompleteAbort", 600_000)
    assert bool(after.forced_outcomes) == (cluster.name == OURS)
    with pytest.raises(Exception, match=r"(?i)fenced"):
        producer.commit_transaction(30)


def test_listing_by_pattern_and_duration(cluster: Any, admin: Admin) -> None:
    topic, name = cluster.topic(), cluster.fresh_name("listed")
    producer = open_transaction(cluster, topic, name)
    (found,) = admin.list_transactions(transactional_id_pattern=f"{name}$", longer_than_ms=0).all().values()
    assert [(each.transactional_id, each.state) for each in found] == [(name, "Ongoing")]
    producer.abort_transaction(30)
    refused = admin.list_transactions(transactional_id_pattern="(").failures[1]
    assert isinstance(refused, BrokerRefused)
    assert refused.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_topics_settings_offsets_and_groups(cluster: Any, admin: Admin) -> None:
    name, group = cluster.fresh_name("admin-topic"), cluster.fresh_name("admin-group")
    at = TopicPartition(name, 0)
    holder = ConfigResource(ResourceType.TOPIC, name)
    made = admin.create_topics([NewTopic(name=name, partitions=2, config={"retention.ms": "60000"})])
    assert made.one(name).partitions == 2
    eventually(lambda: admin.describe_configs([holder]).one(holder)["retention.ms"].value == "60000")
    admin.create_partitions({name: 3}).all()
    eventually(lambda: len(admin.describe_topics([name]).one(name).partitions) == 3)
    ends = eventually(lambda: admin.list_offsets({at: LATEST}).found)
    assert ends[at].offset == 0
    assert admin.delete_records({at: None}).one(at) == 0
    assert admin.list_offsets({at: EARLIEST}).one(at).offset == 0
    admin.alter_group_offsets(group, {at: OffsetAndMetadata(0, metadata="by hand")}).all()
    assert admin.list_group_offsets(group)[at].metadata == "by hand"
    assert admin.describe_groups([group]).one(group).state == "Empty"
    assert [each for each in admin.list_groups().one(1) if each.group_id == group]
    assert set(admin.delete_group_offsets(group, [at]).found) == {at}
    gone = admin.delete_groups([group, "no-such-group"])
    assert "no-such-group" in gone.failures
    admin.delete_topics([name]).all()
    assert admin.describe_features()["transaction.version"] == 2
