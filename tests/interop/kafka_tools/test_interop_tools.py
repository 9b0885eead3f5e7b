"""Apache Kafka's command-line tools on the broker under test: they print what they print for Kafka."""

import json
import re
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tallystick.testing import eventually


def fill(cluster: Any, topic: str, counts: list[int]) -> None:
    """So many records in each partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for partition, count in enumerate(counts):
        for i in range(count):
            producer.produce(topic, b"%d" % i, partition=partition)
    assert producer.flush(30) == 0


def commit(cluster: Any, group: str, topic: str, offsets: list[int]) -> None:
    """Offsets of a group without members."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, p, o) for p, o in enumerate(offsets)]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def columns(printed: str, key: str) -> list[dict[str, str]]:
    """The rows of a table whose heading contains `key`."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    at = next(i for i, words in enumerate(lines) if key in words)
    return [dict(zip(lines[at], words, strict=False)) for words in lines[at + 1 :]]


def test_kafka_topics(cluster: Any, java: Any) -> None:
    name = cluster.fresh_name("tool-topic")
    at = ("--bootstrap-server", cluster.bootstrap)
    created = java.tool(
        "kafka-topics",
        *at,
        "--create",
        "--topic",
        name,
        "--partitions",
        "3",
        "--config",
        "retention.ms=60000",
    )
    assert f"Created topic {name}." in created
    eventually(lambda: name in java.tool("kafka-topics", *at, "--list").split())
    described = java.tool("kafka-topics", *at, "--describe", "--topic", name)
    assert re.search(
        rf"Topic: {name}\s+TopicId: [\w-]{{22}}\s+PartitionCount: 3\s+ReplicationFactor: 1", described
    )
    assert "retention.ms=60000" in described
    assert len(re.findall(r"Partition: \d\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    java.tool("kafka-topics", *at, "--alter", "--topic", name, "--partitions", "5")
    eventually(lambda: "PartitionCount: 5" in java.tool("kafka-topics", *at, "--describe", "--topic", name))
    fewer = java.failing_tool("kafka-topics", *at, "--alter", "--topic", name, "--partitions", "2")
    assert "5 partition" in fewer
    again = java.failing_tool("kafka-topics", *at, "--create", "--topic", name)
    assert f"Topic '{name}' already exists" in again
    java.tool("kafka-topics", *at, "--delete", "--topic", name)
    eventually(lambda: name not in java.tool("kafka-topics", *at, "--list").split())
    assert "does not exist" in java.failing_tool("kafka-topics", *at, "--describe", "--topic", name)


def test_kafka_topics_says_what_is_wrong_with_a_topic(cluster: Any, java: Any) -> None:
    at = ("--bootstrap-server", cluster.bootstrap, "--create", "--topic")
    assert "replication factor" in java.failing_tool(
        "kafka-topics", *at, cluster.fresh_name("copies"), "--replication-factor", "3"
    )
    assert "249" in java.failing_tool("kafka-topics", *at, "x" * 250)


def test_kafka_configs(cluster: Any, java: Any) -> None:
    topic = cluster.topic()
    at = ("--bootstrap-server", cluster.bootstrap, "--entity-type", "topics", "--entity-name", topic)
    changed = "max.message.bytes=777777,cleanup.policy=[compact,delete]"
    java.tool("kafka-configs", *at, "--alter", "--add-config", changed)

    def described() -> str:
        return str(java.tool("kafka-configs", *at, "--describe"))

    eventually(lambda: "max.message.bytes=777777 sensitive=false" in described())
    assert "cleanup.policy=compact,delete" in described()
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=777777" in described()
    java.tool("kafka-configs", *at, "--alter", "--delete-config", "max.message.bytes")
    eventually(lambda: "max.message.bytes" not in described())
    everything = java.tool("kafka-configs", *at, "--describe", "--all")
    assert "max.message.bytes=1048588 sensitive=false synonyms={" in everything
    refused = java.failing_tool("kafka-configs", *at, "--alter", "--add-config", "retention.ms=soon")
    assert "InvalidConfigurationException" in refused


def test_kafka_configs_of_the_broker(cluster: Any, java: Any) -> None:
    at = ("--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers", "--entity-name", "1")
    everything = java.tool("kafka-configs", *at, "--describe", "--all")
    assert "All configs for broker 1 are:" in everything
    assert re.search(r"^  log\.retention\.hours=168 ", everything, re.MULTILINE)
    assert re.search(r"^  num\.partitions=1 ", everything, re.MULTILINE)


def test_kafka_get_offsets(cluster: Any, java: Any) -> None:
    topic = cluster.topic(3)
    fill(cluster, topic, [5, 0, 7])
    at = ("--bootstrap-server", cluster.bootstrap, "--topic", topic)

    def lines(*more: str) -> list[str]:
        return str(java.tool("kafka-get-offsets", *at, *more)).split()

    assert lines() == [f"{topic}:0:5", f"{topic}:1:0", f"{topic}:2:7"]
    assert lines("--time", "earliest") == [f"{topic}:0:0", f"{topic}:1:0", f"{topic}:2:0"]
    assert lines("--time", "-1", "--partitions", "2") == [f"{topic}:2:7"]
    assert f"{topic}:0:" in " ".join(lines("--time", "max-timestamp"))


def test_kafka_consumer_groups(cluster: Any, java: Any) -> None:
    topic, group = cluster.topic(2), cluster.fresh_name("tool-group")
    fill(cluster, topic, [10, 20])
    commit(cluster, group, topic, [4, 20])
    at = ("--bootstrap-server", cluster.bootstrap)
    named = (*at, "--group", group)
    assert group in java.tool("kafka-consumer-groups", *at, "--list").split()
    states = java.tool("kafka-consumer-groups", *at, "--list", "--state")
    assert re.search(rf"{group}\s+Empty", states)
    rows = columns(java.tool("kafka-consumer-groups", *named, "--describe"), "CURRENT-OFFSET")
    assert sorted((r["PARTITION"], r["CURRENT-OFFSET"], r["LOG-END-OFFSET"], r["LAG"]) for r in rows) == [
        ("0", "4", "10", "6"),
        ("1", "20", "20", "0"),
    ]
    state = java.tool("kafka-consumer-groups", *named, "--describe", "--state")
    assert re.search(rf"{group}\s+127\.0\.0\.1:\d+\s+\(1\)\s+-\s+Empty\s+0", state)

    def reset(*how: str) -> list[tuple[str, str]]:
        printed = java.tool(
            "kafka-consumer-groups", *named, "--reset-offsets", "--topic", topic, *how, "--execute"
        )
        return sorted((r["PARTITION"], r["NEW-OFFSET"]) for r in columns(printed, "NEW-OFFSET"))

    assert reset("--to-earliest") == [("0", "0"), ("1", "0")]
    assert reset("--shift-by", "3") == [("0", "3"), ("1", "3")]
    assert reset("--to-latest") == [("0", "10"), ("1", "20")]
    java.tool("kafka-consumer-groups", *named, "--delete-offsets", "--topic", f"{topic}:0")
    rows = columns(java.tool("kafka-consumer-groups", *named, "--describe"), "CURRENT-OFFSET")
    assert {r["PARTITION"]: r["CURRENT-OFFSET"] for r in rows}["1"] == "20"
    assert "0" not in {r["PARTITION"] for r in rows if r["CURRENT-OFFSET"] != "-"}
    assert "was successful" in java.tool("kafka-consumer-groups", *named, "--delete")
    assert group not in java.tool("kafka-consumer-groups", *at, "--list").split()
    assert "not found" in java.tool_output("kafka-consumer-groups", *named, "--describe").lower()


def test_kafka_consumer_groups_with_a_member(cluster: Any, java: Any) -> None:
    topic, group = cluster.topic(2), cluster.fresh_name("tool-group")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": "someone"})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.05) is not None or len(consumer.assignment()) == 2)
    named = ("--bootstrap-server", cluster.bootstrap, "--group", group)
    shown = java.tool("kafka-consumer-groups", *named, "--describe", "--members", "--verbose")
    row = columns(shown, "CLIENT-ID")[0]
    assert (row["CLIENT-ID"], row["#PARTITIONS"]) == ("someone", "2")
    assert row["HOST"] == "/127.0.0.1"
    assert "GroupNotEmptyException" in java.tool_output("kafka-consumer-groups", *named, "--delete")
    reset = ("--reset-offsets", "--all-topics", "--to-earliest", "--execute")
    assert "Stable" in java.tool_output("kafka-consumer-groups", *named, *reset)
    consumer.close()


def test_kafka_delete_records(cluster: Any, java: Any, tmp_path: Any) -> None:
    topic = cluster.topic()
    fill(cluster, topic, [10])
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 6}], "version": 1}
    (tmp_path / "delete.json").write_text(json.dumps(wanted))
    at = ("--bootstrap-server", cluster.bootstrap)
    printed = java.tool("kafka-delete-records", *at, "--offset-json-file", str(tmp_path / "delete.json"))
    assert f"partition: {topic}-0\tlow_watermark: 6" in printed
    offsets = java.tool("kafka-get-offsets", *at, "--topic", topic, "--time", "earliest")
    assert offsets.split() == [f"{topic}:0:6"]


def test_kafka_log_dirs(cluster: Any, java: Any) -> None:
    topic = cluster.topic(2)
    fill(cluster, topic, [10, 0])
    at = ("--bootstrap-server", cluster.bootstrap, "--describe", "--topic-list", topic)
    printed = java.tool("kafka-log-dirs", *at)
    shown = json.loads(printed.splitlines()[-1])
    (log_dir,) = shown["brokers"][0]["logDirs"]
    assert log_dir["error"] is None
    sizes = {p["partition"]: p["size"] for p in log_dir["partitions"]}
    file = cluster.partition_directory(topic, 0) / f"{0:020d}.log"
    assert sizes == {f"{topic}-0": file.stat().st_size, f"{topic}-1": 0}


def test_console_producer_and_consumer(cluster: Any, java: Any) -> None:
    topic = cluster.topic()
    at = ("--bootstrap-server", cluster.bootstrap, "--topic", topic)
    separator = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    java.tool("kafka-console-producer", *at, *separator, stdin="a:one\nb:two\nc:drei\n")
    printed = java.tool(
        "kafka-console-consumer",
        *at,
        "--from-beginning",
        "--max-messages",
        "3",
        "--timeout-ms",
        "20000",
        "--formatter-property",
        "print.key=true",
    )
    assert printed.splitlines() == ["a\tone", "b\ttwo", "c\tdrei"]


@pytest.mark.gate(0)
def test_producer_perf_test(cluster: Any, java: Any) -> None:
    topic = cluster.topic(3)
    load = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    config = (
        "--bootstrap-server",
        cluster.bootstrap,
        "--command-property",
        "acks=all",
        "--command-property",
        "compression.type=lz4",
    )
    printed = java.tool("kafka-producer-perf-test", "--topic", topic, *load, *config)
    # The sum is the last line; a slow machine has one every five seconds, too.
    assert printed.splitlines()[-1].startswith("20000 records sent")
    offsets = java.tool("kafka-get-offsets", "--bootstrap-server", cluster.bootstrap, "--topic", topic)
    assert sum(int(line.rsplit(":", 1)[1]) for line in offsets.split()) == 20000


def test_kafka_broker_api_versions_and_cluster(cluster: Any, java: Any) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)
    printed = java.tool("kafka-broker-api-versions", *at)
    for api in ("Produce(0)", "Fetch(1)", "InitProducerId(22)", "OffsetCommit(8)", "DescribeLogDirs(35)"):
        line = next(line for line in printed.splitlines() if line.strip().startswith(api))
        assert "usable" in line
    assert re.search(r"Cluster ID: [\w-]{22}", java.tool("kafka-cluster", "cluster-id", *at))


@pytest.mark.gate(1)
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_described_configs_name_their_source(cluster: Any, java: Any, policy: str) -> None:
    topic = cluster.topic(cleanup_policy=policy)
    at = ("--bootstrap-server", cluster.bootstrap)
    described = java.tool("kafka-topics", *at, "--describe", "--topic", topic)
    assert f"cleanup.policy={policy}" in described
