"""kafka-transactions and kafka-features on the broker under test (KIP-664, KIP-584)."""

import time
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.raw_wire import RawConnection

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.data import produce
from tallystick.protocol.messages.txn import describe_producers
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.testing import eventually

HOUR_MS = 3_600_000
HANGING_PRODUCER_ID = 888_000


def table(printed: str) -> list[dict[str, str]]:
    """The rows of a table with a heading, columns apart by blanks and tabs."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    return [dict(zip(lines[0], words, strict=False)) for words in lines[1:]]


def open_transaction(cluster: Any, topic: str, name: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(30) == 0
    return producer


def found(java: Any, cluster: Any, *arguments: str) -> list[dict[str, str]]:
    return table(java.tool("kafka-transactions", "--bootstrap-server", cluster.bootstrap, *arguments))


def test_list_and_describe(cluster: Any, java: Any) -> None:
    topic, name = cluster.topic(2), cluster.fresh_name("listed")
    producer = open_transaction(cluster, topic, name)
    listed = {row["TransactionalId"]: row for row in found(java, cluster, "list")}[name]
    assert listed["TransactionState"] == "Ongoing"
    assert listed["Coordinator"] == "1"
    (described,) = found(java, cluster, "describe", "--transactional-id", name)
    assert described["TransactionalId"] == name
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["ProducerEpoch"] == "0"
    assert described["TransactionState"] == "Ongoing"
    assert described["TransactionTimeoutMs"] == "600000"
    assert described["TopicPartitions"] == f"{topic}-0"
    assert 0 <= int(described["TransactionDurationMs"]) < HOUR_MS
    producer.commit_transaction(30)
    eventually(
        lambda: (
            found(java, cluster, "describe", "--transactional-id", name)[0]["TransactionState"]
            == "CompleteCommit"
        )
    )


def test_list_by_pattern_and_duration(cluster: Any, java: Any) -> None:
    """KIP-1152 and KIP-994."""
    topic, name = cluster.topic(), cluster.fresh_name("pattern")
    producer = open_transaction(cluster, topic, name)
    ids = [
        row["TransactionalId"]
        for row in found(java, cluster, "list", "--transactional-id-pattern", f"^{name}$")
    ]
    assert ids == [name]
    longer = found(java, cluster, "list", "--duration-filter", str(HOUR_MS))
    assert name not in [row["TransactionalId"] for row in longer]
    at = ("--bootstrap-server", cluster.bootstrap, "list", "--transactional-id-pattern", "(")
    assert "Failed to list transactions" in java.failing_tool("kafka-transactions", *at)
    producer.abort_transaction(30)


def test_describing_an_unknown_id(cluster: Any, java: Any) -> None:
    at = ("--bootstrap-server", cluster.bootstrap, "describe", "--transactional-id", "nobody")
    assert "nobody" in java.failing_tool("kafka-transactions", *at)


def test_describe_producers(cluster: Any, java: Any) -> None:
    topic, name = cluster.topic(), cluster.fresh_name("producers")
    producer = open_transaction(cluster, topic, name)
    at = ("describe-producers", "--topic", topic, "--partition", "0")
    (row,) = found(java, cluster, *at)
    assert row["ProducerEpoch"] == "0"
    assert row["LatestCoordinatorEpoch"] == "-1"
    assert row["LastSequence"] == "0"
    assert row["CurrentTransactionStartOffset"] == "0"
    producer.commit_transaction(30)
    eventually(lambda: found(java, cluster, *at)[0]["CurrentTransactionStartOffset"] == "None")
    assert int(found(java, cluster, *at)[0]["LatestCoordinatorEpoch"]) >= 0


def test_force_terminate(cluster: Any, java: Any) -> None:
    """KIP-939: the transaction is aborted, and its producer is fenced."""
    topic, name = cluster.topic(), cluster.fresh_name("forced")
    producer = open_transaction(cluster, topic, name)
    java.tool(
        "kafka-transactions",
        "--bootstrap-server",
        cluster.bootstrap,
        "forceTerminateTransaction",
        "--transactionalId",
        name,
    )
    eventually(
        lambda: (
            found(java, cluster, "describe-producers", "--topic", topic, "--partition", "0")[0][
                "CurrentTransactionStartOffset"
            ]
            == "None"
        )
    )
    with pytest.raises(Exception, match=r"(?i)fenced"):
        producer.commit_transaction(30)


@pytest.fixture
def unverified(cluster: Any, java: Any) -> Any:
    """A broker that takes the first batch of a transaction without asking the coordinator, as old ones do."""
    at = (
        "--bootstrap-server",
        cluster.bootstrap,
        "--entity-type",
        "brokers",
        "--entity-name",
        "1",
        "--alter",
    )
    name = "transaction.partition.verification.enable"
    java.tool("kafka-configs", *at, "--add-config", f"{name}=false")
    yield
    java.tool("kafka-configs", *at, "--delete-config", name)


def hang(cluster: Any, topic: str, producer_id: int) -> int:
    """Open a transaction that no coordinator knows; the offset it starts at."""
    long_ago = int(time.time() * 1000) - HOUR_MS
    record = Record(offset=0, timestamp_ms=long_ago, key=None, value=b"hanging", headers=())
    data = encode_batch(
        [record], BatchMeta(producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
    )
    part = produce.PartitionProduceData(index=0, records=data)
    request = produce.ProduceRequest(
        transactional_id="hanging",
        acks=-1,
        timeout_ms=10_000,
        topic_data=(produce.TopicProduceData(name=topic, partition_data=(part,)),),
    )
    told: list[produce.PartitionProduceResponse] = []

    def taken() -> bool:
        # The setting reaches a Kafka broker a moment after the tool that changed it ended.
        told[:] = wire.ask(request, produce.ProduceResponse, 11).responses[0].partition_responses
        return told[0].error_code == ErrorCode.NONE

    with RawConnection(cluster.bootstrap) as wire:
        eventually(taken)
    return told[0].base_offset


@pytest.mark.gate(1)
@pytest.mark.parametrize("how", ["start offset", "pair"])
def test_a_hanging_transaction_is_found_and_aborted(
    cluster: Any, java: Any, unverified: Any, how: str
) -> None:
    """KIP-664: open in a partition, known to no coordinator, past every timeout."""
    topic = cluster.topic()
    producer_id = HANGING_PRODUCER_ID + len(how)
    start = hang(cluster, topic, producer_id)
    at = ("--topic", topic, "--partition", "0")
    (row,) = found(java, cluster, "find-hanging", *at)
    assert row["Topic"] == topic
    assert row["ProducerId"] == str(producer_id)
    assert row["StartOffset"] == str(start)
    assert int(row["Duration(min)"]) == 60
    named = (
        ("--start-offset", str(start))
        if how == "start offset"
        else ("--producer-id", str(producer_id), "--producer-epoch", "0", "--coordinator-epoch", "0")
    )
    java.tool("kafka-transactions", "--bootstrap-server", cluster.bootstrap, "abort", *at, *named)
    assert found(java, cluster, "find-hanging", *at) == []
    asked = describe_producers.DescribeProducersRequest(
        topics=(describe_producers.TopicRequest(name=topic, partition_indexes=(0,)),)
    )
    with RawConnection(cluster.bootstrap) as wire:
        answer = wire.ask(asked, describe_producers.DescribeProducersResponse, 0)
    (left,) = answer.topics[0].partitions[0].active_producers
    assert left.current_txn_start_offset == -1
    assert left.producer_id == producer_id


def test_an_open_transaction_is_not_hanging(cluster: Any, java: Any) -> None:
    topic = cluster.topic()
    producer = open_transaction(cluster, topic, cluster.fresh_name("not-hanging"))
    at = ("--max-transaction-timeout", "0", "--topic", topic)
    assert found(java, cluster, "find-hanging", *at) == []
    producer.commit_transaction(30)


def test_features(cluster: Any, java: Any) -> None:
    printed = java.tool("kafka-features", "--bootstrap-server", cluster.bootstrap, "describe")
    (line,) = [line for line in printed.splitlines() if "transaction.version" in line]
    assert "SupportedMinVersion: 0" in line
    assert "SupportedMaxVersion: 2" in line
    assert "FinalizedVersionLevel: 2" in line


def test_the_level_of_a_feature_goes_down_and_up(cluster: Any, java: Any) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)

    def level() -> str:
        printed = java.tool("kafka-features", *at, "describe")
        (line,) = [line for line in printed.splitlines() if "transaction.version" in line]
        return str(line.split("FinalizedVersionLevel:")[1].split()[0])

    topic = cluster.topic()
    java.tool("kafka-features", *at, "downgrade", "--feature", "transaction.version=1")
    try:
        eventually(lambda: level() == "1")
        producer = open_transaction(cluster, topic, cluster.fresh_name("older"))
        producer.commit_transaction(30)
    finally:
        java.tool("kafka-features", *at, "upgrade", "--feature", "transaction.version=2")
    eventually(lambda: level() == "2")
