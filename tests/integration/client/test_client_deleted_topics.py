"""Topics that are deleted, and made again, under a consumer and a producer that go on."""

import pytest

from tallystick import Admin, Consumer, Producer, TopicPartition
from tallystick.admin import NewTopic
from tallystick.client.errors import TopicRecreated, UnknownTopic
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [
    pytest.mark.server,
    pytest.mark.broker(
        in_process=False,
        config={"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"},
    ),
]

HOUR_MS = 3_600_000


@pytest.mark.gate(1)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_the_other_topics_are_read_on_when_one_is_deleted(broker: EmbeddedBroker, strategy: str) -> None:
    """Neither poll, the group's rebalance nor close waits for the offsets of partitions that are gone."""
    bootstrap = {"bootstrap.servers": broker.bootstrap_servers}
    gone, stays = f"gone-{strategy}", f"stays-{strategy}"
    settings = {
        "group.id": strategy,
        "auto.offset.reset": "earliest",
        "metadata.max.age.ms": 200,
        "heartbeat.interval.ms": 100,
        "auto.commit.interval.ms": HOUR_MS,
        "partition.assignment.strategy": strategy,
    }
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics([NewTopic(name=gone, partitions=2), NewTopic(name=stays, partitions=2)])
        for topic in (gone, stays):
            producer.send(topic, b"before").result(30)
        consumer = Consumer(bootstrap | settings)
        consumer.subscribe([gone, stays])
        seen: list[tuple[str, bytes | None]] = []

        def poll() -> list[tuple[str, bytes | None]]:
            seen.extend((record.topic, record.value) for record in consumer.poll(0.05))
            return seen

        assert eventually(lambda: len(poll()) == 2)
        admin.delete_topics([gone])
        assert eventually(lambda: poll() and {at.topic for at in consumer.assignment} == {stays})
        producer.send(stays, b"after").result(30)
        assert eventually(lambda: (stays, b"after") in poll())
        consumer.close()
        assert not admin.describe_groups([strategy]).one(strategy).members


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_recreated_topic_is_read_from_where_the_reset_policy_says(
    broker: EmbeddedBroker, reset: str
) -> None:
    """The old position is past the end of the new log: the reset policy alone decides what is read."""
    bootstrap = {"bootstrap.servers": broker.bootstrap_servers}
    topic, seen = f"recreated-{reset}", list[bytes | None]()
    settings = {"auto.offset.reset": reset, "metadata.max.age.ms": HOUR_MS, "retry.backoff.max.ms": 100}
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer, Consumer(bootstrap | settings) as reader:

        def poll() -> list[bytes | None]:
            seen.extend(record.value for record in reader.poll(0.05))
            return seen

        admin.create_topics([NewTopic(name=topic, partitions=1)])
        reader.assign([TopicPartition(topic, 0)])
        reader.seek_to_beginning()
        for value in (b"old0", b"old1", b"old2"):
            producer.send(topic, value).result(30)
        assert eventually(lambda: len(poll()) == 3)
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(name=topic, partitions=1)])
        with Producer(bootstrap) as other:
            other.send(topic, b"new0").result(30)
            if reset == "latest":
                assert eventually(lambda: poll() and reader.position(TopicPartition(topic, 0)) == 1)
            other.send(topic, b"new1").result(30)
        assert eventually(lambda: b"new1" in poll())
        assert seen[3:] == ([b"new0", b"new1"] if reset == "earliest" else [b"new1"])


def test_a_position_may_name_the_topic_that_it_is_in(broker: EmbeddedBroker) -> None:
    """A reader that comes back to a name tells another topic by its id, though the offset is in its log."""
    bootstrap = {"bootstrap.servers": broker.bootstrap_servers}
    at = TopicPartition("sought", 0)
    with Admin(bootstrap) as admin, Consumer({**bootstrap, "auto.offset.reset": "earliest"}) as reader:
        for _ in range(2):
            admin.create_topics([NewTopic(name=at.topic, partitions=1)])
            topic_id = admin.describe_topics([at.topic]).one(at.topic).id
            with Producer(bootstrap) as producer:
                for value in (b"0", b"1", b"2"):
                    producer.send(at.topic, value).result(30)
            reader.assign([at])
            reader.seek(
                at, 1, topic_id=topic_id
            )  # its metadata is that of the former topic in the second turn
            assert [record.offset for record in reader.poll(10)] == [1, 2]
            admin.delete_topics([at.topic])
        admin.create_topics([NewTopic(name=at.topic, partitions=1)])
        with Producer(bootstrap) as producer:
            producer.send(at.topic, b"other").result(30)
        reader.seek(at, 0, topic_id=topic_id)
        with pytest.raises(TopicRecreated, match="deleted and made anew"):
            reader.poll(10)
        reader.seek(at, 0)
        assert [record.value for record in reader.poll(10)] == [b"other"]


def test_a_topic_made_again_with_fewer_partitions_is_counted_anew(broker: EmbeddedBroker) -> None:
    """Keyed records go where other producers send them; what waits for a partition that is gone fails."""
    bootstrap = {"bootstrap.servers": broker.bootstrap_servers}
    settings = {"metadata.max.age.ms": 100, "retry.backoff.max.ms": 100, "linger.ms": 0}
    keys = [b"k%d" % i for i in range(50)]
    with Admin(bootstrap) as admin, Producer(bootstrap | settings) as producer:
        admin.create_topics([NewTopic(name="fewer", partitions=8)])
        before = {producer.send("fewer", b"v", key=key).result(30).partition for key in keys}
        assert max(before) > 1
        admin.delete_topics(["fewer"])
        waiting = [producer.send("fewer", b"v", partition=p) for p in (0, 7)]
        admin.create_topics([NewTopic(name="fewer", partitions=2)])
        refusal = waiting[1].exception(30)
        assert isinstance(refusal, UnknownTopic)
        assert "made again, and has 2 partitions" in str(refusal)
        assert waiting[0].exception(30) is None
        with Producer(bootstrap) as other:
            where = [other.send("fewer", b"v", key=key).result(30).partition for key in keys]
        assert [producer.send("fewer", b"v", key=key).result(30).partition for key in keys] == where
