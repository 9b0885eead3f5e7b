"""What librdkafka's users do: produce, consume, configure, restart."""

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tallystick.testing import eventually

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# What a coordinator that has just started may answer for a moment.
LOADING = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}


def producer(cluster: Any, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, **dotted(config)})


def consumer(cluster: Any, group: str | None = None, **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group or uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
            **dotted(config),
        }
    )


def dotted(config: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in config.items()}


def send(to: Producer, topic: str, records: Sequence[dict[str, Any]]) -> list[Message]:
    """Send all and wait for all; the acknowledged messages in the order of their acknowledgement."""
    acknowledged: list[Message] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append(message)

    for record in records:
        to.produce(topic, on_delivery=delivered, **record)
    assert to.flush(30) == 0
    assert len(acknowledged) == len(records)
    return acknowledged


def read(reader: Consumer, count: int, at_most_s: float = 30) -> list[Message]:
    """Read until `count` messages came."""
    taken: list[Message] = []

    def enough() -> bool:
        for message in reader.consume(count - len(taken), 0.2):
            assert message.error() is None, message.error()
            taken.append(message)
        return len(taken) >= count

    eventually(enough, at_most_s)
    return taken


def read_topic(cluster: Any, topic: str, count: int, partitions: int = 1) -> list[Message]:
    reader = consumer(cluster)
    reader.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    messages = read(reader, count)
    reader.close()
    return messages


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_were_sent(cluster: Any, codec: str) -> None:
    topic = cluster.topic()
    records: list[dict[str, Any]] = [
        {"value": b"plain", "key": b"k"},
        {"value": None, "key": b"tombstone"},
        {"value": b"", "key": b""},
        {"value": b"no key", "key": None},
        {
            "value": b"headers",
            "key": b"h",
            "headers": [("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None)],
        },
        {"value": bytes(range(256)) * 20, "key": "ключ".encode(), "timestamp": 1_600_000_000_123},
    ]
    records += [{"value": b"v%d" % i * 50, "key": b"%d" % i} for i in range(500)]
    send(producer(cluster, compression_type=codec), topic, records)
    back = read_topic(cluster, topic, len(records))
    assert [(m.key(), m.value(), m.headers()) for m in back] == [
        (r["key"], r["value"], r.get("headers")) for r in records
    ]
    assert [m.offset() for m in back] == list(range(len(records)))
    assert back[5].timestamp()[1] == 1_600_000_000_123


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_mode_stores(cluster: Any, acks: str) -> None:
    topic = cluster.topic()
    send(producer(cluster, acks=acks), topic, [{"value": b"%d" % i} for i in range(1000)])
    assert [m.value() for m in read_topic(cluster, topic, 1000)] == [b"%d" % i for i in range(1000)]


def test_idempotent_producer_keeps_order_over_partitions(cluster: Any) -> None:
    topic = cluster.topic(4)
    sender = producer(cluster, enable_idempotence=True, batch_num_messages=50)
    send(sender, topic, [{"value": b"%d" % i, "partition": i % 4} for i in range(8000)])
    back = read_topic(cluster, topic, 8000, 4)
    for partition in range(4):
        values = [int(m.value() or b"") for m in back if m.partition() == partition]
        assert values == list(range(partition, 8000, 4))


def test_messages_of_a_megabyte(cluster: Any) -> None:
    topic = cluster.topic(max_message_bytes="2000000")
    values = [bytes([i]) * 1_048_576 for i in range(8)]
    send(producer(cluster, message_max_bytes=2_000_000), topic, [{"value": v} for v in values])
    assert [m.value() for m in read_topic(cluster, topic, 8)] == values


def test_a_message_above_the_topics_maximum_is_refused(cluster: Any) -> None:
    topic = cluster.topic(max_message_bytes="2000")
    sender = producer(cluster, message_max_bytes=100_000)
    errors: list[KafkaError | None] = []
    sender.produce(topic, b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    sender.flush(30)
    assert [e and e.code() for e in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_hundred_partitions(cluster: Any) -> None:
    topic = cluster.topic(100)
    send(producer(cluster), topic, [{"value": b"%d" % i, "partition": i % 100} for i in range(5000)])
    back = read_topic(cluster, topic, 5000, 100)
    assert sorted(int(m.value() or b"") for m in back) == list(range(5000))
    assert {m.partition() for m in back} == set(range(100))


def test_offsets_by_time_and_at_the_ends(cluster: Any) -> None:
    topic = cluster.topic()
    records = [{"value": b"x", "timestamp": 1_700_000_000_000 + 1000 * i} for i in range(10)]
    sender = producer(cluster)
    for record in records:
        send(sender, topic, [record])  # a batch each, so that the answer is not the start of a batch
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def offset(spec: OffsetSpec) -> int:
        key = TopicPartition(topic, 0)
        return int(admin.list_offsets({key: spec})[key].result(10).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(1_700_000_004_000)) == 4
    assert offset(OffsetSpec.for_timestamp(1_700_000_004_001)) == 5
    assert offset(OffsetSpec.for_timestamp(1_800_000_000_000)) == -1


def test_committed_offsets_and_records_survive_a_restart(cluster: Any) -> None:
    topic, group = cluster.topic(2), cluster.fresh_name("group")
    sender = producer(cluster, enable_idempotence=True)
    send(sender, topic, [{"value": b"%d" % i, "partition": i % 2} for i in range(100)])
    first = consumer(cluster, group)
    first.subscribe([topic])
    read(first, 100)
    first.commit(asynchronous=False, offsets=[TopicPartition(topic, 0, 20), TopicPartition(topic, 1, 30)])
    first.close()
    cluster.stop()
    cluster.start()
    # The producer lived through it: same producer id, sequences go on.
    send(sender, topic, [{"value": b"after", "partition": 0}])
    second = consumer(cluster, group)

    def committed() -> list[int]:
        try:
            asked = [TopicPartition(topic, p) for p in range(2)]
            return [p.offset for p in second.committed(asked, timeout=20)]
        except KafkaException as exc:
            if exc.args[0].code() not in (
                KafkaError.NOT_COORDINATOR,
                KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            ):
                raise
            return []

    assert eventually(committed) == [20, 30]
    second.subscribe([topic])
    back = read(second, 51)
    second.close()
    assert sorted(m.offset() for m in back if m.partition() == 0) == list(range(20, 51))
    assert sorted(m.offset() for m in back if m.partition() == 1) == list(range(30, 50))


def test_topics_are_created_grown_described_and_deleted(cluster: Any) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    name = cluster.topic(2, retention_ms="1234567", cleanup_policy="compact")
    with pytest.raises(KafkaException) as again:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(10)
    assert again.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(name, 5)])[name].result(10)
    eventually(lambda: len(cluster.leaders(admin, name)) == 5)
    resource = ConfigResource(ResourceType.TOPIC, name)
    shown = admin.describe_configs([resource])[resource].result(10)
    assert shown["retention.ms"].value == "1234567"
    assert shown["cleanup.policy"].value == "compact"
    assert shown["segment.bytes"].value == "1073741824"
    admin.delete_topics([name])[name].result(10)
    eventually(lambda: name not in admin.list_topics(timeout=10).topics)


@pytest.mark.parametrize(
    ("name", "partitions", "config", "code"),
    [
        ("bad name!", 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("no-partitions", 0, {}, KafkaError.INVALID_PARTITIONS),
        ("bad-config", 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("unknown-config", 1, {"retention.parsecs": "12"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_topics_that_cannot_be(
    cluster: Any, name: str, partitions: int, config: dict[str, str], code: int
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(10)
    assert refused.value.args[0].code() == code


def test_an_unknown_topic_is_said_to_be_unknown(cluster: Any) -> None:
    sender = producer(cluster, topic_metadata_propagation_max_ms=100)
    errors: list[KafkaError | None] = []
    sender.produce(cluster.fresh_name("absent"), b"x", on_delivery=lambda error, _: errors.append(error))
    sender.flush(20)
    assert [e and e.code() for e in errors] == [KafkaError.UNKNOWN_TOPIC_OR_PART]


def test_records_are_deleted_up_to_an_offset(cluster: Any) -> None:
    topic = cluster.topic()
    send(producer(cluster), topic, [{"value": b"%d" % i} for i in range(50)])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = TopicPartition(topic, 0, 20)
    deleted = admin.delete_records([partition])
    assert next(iter(deleted.values())).result(10).low_watermark == 20
    reader = consumer(cluster)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (20, 50)
    reader.assign([TopicPartition(topic, 0, 0)])  # gone: the reset policy takes the earliest
    assert [m.offset() for m in read(reader, 30)] == list(range(20, 50))
    reader.close()


def test_a_group_is_listed_described_moved_and_deleted(cluster: Any) -> None:
    topic, group = cluster.topic(), cluster.fresh_name("group")
    send(producer(cluster), topic, [{"value": b"%d" % i} for i in range(10)])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    member = consumer(cluster, group, client_id="the-member")
    member.subscribe([topic])
    read(member, 10)
    member.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(10)
    assert described.state.name == "STABLE"
    assert [m.client_id for m in described.members] == ["the-member"]
    assert [p.partition for p in described.members[0].assignment.topic_partitions] == [0]
    with pytest.raises(KafkaException) as busy:
        admin.delete_consumer_groups([group])[group].result(10)
    assert busy.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    eventually(lambda: admin.describe_consumer_groups([group])[group].result(10).state.name == "EMPTY")
    assert group in {g.group_id for g in admin.list_consumer_groups().result(10).valid}
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 4)])
    admin.alter_consumer_group_offsets([wanted])[group].result(10)
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    listed = admin.list_consumer_group_offsets([asked])[group].result(10)
    assert [p.offset for p in listed.topic_partitions] == [4]
    admin.delete_consumer_groups([group])[group].result(10)
    assert group not in {g.group_id for g in admin.list_consumer_groups().result(10).valid}
