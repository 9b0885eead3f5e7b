"""KIP-664 on our broker: what is running, what is in doubt, what hangs, and what may be ended (KIP-939)."""

import logging
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.hanging import HOUR_MS, hang
from tests.support.raw_producer import RawProducer, make_topic

from tallystick.admin.client import Admin
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.admin.model import AbortCause
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.admin.txn.transactions import AbortSpec
from tallystick.client.errors import IdExpired, IllegalState, NotSupported, UnknownTopic
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

AT = TopicPartition("orders", 0)


def pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedBroker]:
    """It takes the first batch of a transaction without asking the coordinator, as old brokers do."""
    with EmbeddedBroker(transaction_partition_verification_enable=False) as broker:
        with RawProducer(broker, "first") as first:
            first.find()
        yield broker


@pytest.fixture
def broker(running: EmbeddedBroker) -> EmbeddedBroker:
    return running


@pytest.fixture
def at(running: EmbeddedBroker, request: pytest.FixtureRequest) -> TopicPartition:
    name = f"t-{request.node.name}".replace("[", "-").replace("]", "").replace(" ", "-")
    make_topic(running, name, 2)
    return TopicPartition(name, 0)


def test_list_and_describe(broker: EmbeddedBroker, admin: Admin, at: TopicPartition) -> None:
    with RawProducer(broker, "listed") as producer:
        producer.init()
        assert producer.write(at.topic, 0, "a") == 0
        (listed,) = admin.list_transactions(transactional_id_pattern="liste.").one(1)
        assert (listed.transactional_id, listed.state, listed.coordinator) == ("listed", "Ongoing", 1)
        assert listed.producer_id == producer.pair[0]
        found = admin.describe_transactions(["listed", "nobody"])
        described = found.one("listed")
        assert described.partitions == {at}
        assert described.writer == pair(*producer.pair)
        assert described.timeout_ms == 60_000
        assert described.started_ms is not None
        assert not found.complete
        with pytest.raises(IdExpired, match="TRANSACTIONAL_ID_NOT_FOUND"):
            found.one("nobody")
        (state,) = admin.describe_producers([at]).one(at)
        assert (state.identity, state.txn_start_offset) == (pair(*producer.pair), 0)
        assert state.coordinator_epoch is None
        producer.end()
        producer.completed()
    assert admin.describe_producers([at]).one(at)[0].txn_start_offset is None


def test_a_duration_alone_lists_no_ids_that_have_nothing_open(broker: EmbeddedBroker, admin: Admin) -> None:
    """protocol-wise an id that never began has a start of -1, and passes any duration."""
    with RawProducer(broker, "never-began") as producer:
        producer.init()
        listed = admin.list_transactions(longer_than_ms=0, transactional_id_pattern="never-began").one(1)
        assert listed == ()
        (idle,) = admin.list_transactions(transactional_id_pattern="never-began").one(1)
        assert idle.state == "Empty"


@pytest.mark.gate(1)
def test_what_is_no_broker_no_state_and_no_topic_is_said_at_once(admin: Admin) -> None:
    with pytest.raises(NotSupported, match="the cluster lists 1"):
        admin.list_transactions(coordinators=[7])
    assert isinstance(admin.list_transactions(states=["Sleeping"]).failures[1], NotSupported)
    with pytest.raises(UnknownTopic):
        admin.find_hanging_transactions(topic="no-such-topic")
    missing = TopicPartition("no-such-topic", 0)
    assert isinstance(admin.describe_producers([missing]).failures[missing], UnknownTopic)


def test_a_hanging_transaction_is_found_and_aborted(
    broker: EmbeddedBroker, admin: Admin, at: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    """[ADM-1] [ADM-3] Open in a partition, known to no coordinator; ended where it begins."""
    start = hang(broker.bootstrap_servers, at, 888_001)
    report = admin.find_hanging_transactions(topic=at.topic)
    (case,) = report.hanging
    assert report.complete
    assert case.transaction.writer == pair(888_001, 0)
    assert case.transaction.start_offset == start
    assert case.idle_ms is not None
    assert HOUR_MS <= case.idle_ms < HOUR_MS + 60_000
    with pytest.raises(NothingOpen, match=f"offset {start} by producer 888001/0"):
        admin.plan_abort(AbortSpec(partition=at, start_offset=start + 1))
    plan = admin.plan_abort(AbortSpec(partition=at, start_offset=start))
    assert plan.guarded
    with caplog.at_level(logging.WARNING, "tallystick.audit"):
        assert admin.abort_transaction(plan)
    assert [f"abort {at} offset {start} producer 888001/0" in r.getMessage() for r in caplog.records] == [
        True
    ] * 2
    assert admin.find_hanging_transactions(topic=at.topic).cases == ()
    with pytest.raises(NothingOpen):
        admin.abort_transaction(plan)  # the leader's guard: what was planned is no longer there
    assert admin.find_hanging_transactions(limit_ms=0, topic=at.topic).cases == ()


def test_an_abort_by_producer(broker: EmbeddedBroker, admin: Admin, at: TopicPartition) -> None:
    hang(broker.bootstrap_servers, at, 888_002, 3)
    with pytest.raises(NothingOpen, match="of producer 888002/2"):
        admin.abort_transaction(AbortSpec(partition=at, producer=pair(888_002, 2), coordinator_epoch=0))
    assert admin.abort_transaction(AbortSpec(partition=at, producer=pair(888_002, 3), coordinator_epoch=0))


def test_open_slow_and_in_doubt_are_not_hanging_and_not_ended(
    broker: EmbeddedBroker, admin: Admin, at: TopicPartition
) -> None:
    """KIP-939: what is prepared looks like what is open, but that nothing times it out."""
    other = TopicPartition(at.topic, 1)
    with RawProducer(broker, "running") as plain, RawProducer(broker, "prepared") as prepared:
        plain.init()
        prepared.init(two_phase=True)
        assert plain.write(at.topic, 0, "a") == prepared.write(at.topic, 1, "b") == 0
        by_partition = {c.transaction.partition: c for c in eventually(lambda: late(admin, at.topic))}
        assert by_partition[at].verdict is HangingVerdict.SLOW
        assert by_partition[other].verdict is HangingVerdict.IN_DOUBT
        description = by_partition[other].description
        assert description is not None
        assert description.in_doubt
        assert admin.find_hanging_transactions(topic=at.topic).cases == ()
        for partition in (at, other):
            with pytest.raises(NotSafe):
                admin.abort_transaction(AbortSpec(partition=partition, start_offset=0))
        with pytest.raises(NotSafe, match="in doubt"):
            admin.force_terminate_transaction("prepared")
        assert prepared.describe().transaction_state == "Ongoing"
        assert admin.force_terminate_transaction("prepared", force=True).epoch > prepared.pair[1]
        admin.force_terminate_transaction("running")
        forced = admin.describe_transactions(["prepared"]).one("prepared").forced_outcomes
        assert [(each.writer, each.cause) for each in forced] == [
            (pair(*prepared.pair), AbortCause.TERMINATED)
        ]
        assert prepared.end().error_code == ErrorCode.PRODUCER_FENCED


def late(admin: Admin, topic: str) -> list[Any]:
    cases = admin.find_hanging_transactions(topic=topic, limit_ms=0).cases
    return list(cases) if len(cases) == 2 else []


def test_an_older_transaction_under_a_later_one_is_found(
    broker: EmbeddedBroker, admin: Admin, at: TopicPartition
) -> None:
    """Kafka's tool, which compares no epochs, takes the later one for this one."""
    with RawProducer(broker, "later") as producer:
        producer.init_until(3)
        hang(broker.bootstrap_servers, at, producer.pair[0], 1)
        assert producer.add(at.topic, 0) == {0}
        (case,) = admin.find_hanging_transactions(topic=at.topic).hanging
        assert case.finding is HangingFinding.STALE_EPOCH
        assert admin.abort_transaction(AbortSpec(partition=at, start_offset=0))
        producer.end()


def test_terminating_an_id_that_is_none_makes_none(admin: Admin) -> None:
    with pytest.raises(IdExpired):
        admin.force_terminate_transaction("never-heard-of")
    assert admin.list_transactions(transactional_id_pattern="never-heard-of").one(1) == ()


@pytest.mark.gate(1)
def test_an_admin_refuses_after_a_fork_and_another_one_works(broker: EmbeddedBroker, admin: Admin) -> None:
    """[CLI-61]"""
    admin.list_transactions()
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def child() -> None:
        try:
            admin.list_transactions()
        except IllegalState:
            with Admin({"bootstrap.servers": broker.bootstrap_servers}) as own:
                told.put(own.list_transactions().complete)
        else:
            told.put("it was answered")

    process = context.Process(target=child)
    process.start()
    assert told.get() is True
    process.join(20)
    assert process.exitcode == 0
    assert admin.list_transactions().complete


def test_no_broker_at_all_is_an_error_with_a_limit() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 300, "request.timeout.ms": 300}
    with Admin(config) as admin, pytest.raises(Exception, match=r"default\.api\.timeout\.ms"):
        admin.list_transactions()
