"""Topics, settings, groups, offsets and features through Admin, on our broker."""

import asyncio

import pytest
from tests.support.raw_producer import RawProducer

from tallystick.admin import aio
from tallystick.admin.client import Admin
from tallystick.admin.configs import ConfigResource, ConfigValueSource, ResourceType
from tallystick.admin.topics import EARLIEST, LATEST, NewTopic
from tallystick.client.errors import BrokerRefused, NotSupported, UnknownTopic
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server, pytest.mark.broker(in_process=False)]


def code_of(failure: Exception) -> int:
    assert isinstance(failure, BrokerRefused)
    return failure.code


def test_topics_are_made_grown_listed_and_deleted(admin: Admin) -> None:
    wanted = NewTopic(name="life", partitions=2, config={"retention.ms": "60000"})
    made = admin.create_topics([wanted, NewTopic(name="no such name!")])
    assert made.one("life").partitions == 2
    assert code_of(made.failures["no such name!"]) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(admin.create_topics([wanted]).failures["life"]) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert admin.create_topics([NewTopic(name="only-asked")], validate_only=True).complete
    admin.create_partitions({"life": 3}).all()
    assert code_of(admin.create_partitions({"life": 1}).failures["life"]) == ErrorCode.INVALID_PARTITIONS
    described = admin.describe_topics(["life", "only-asked"])
    assert sorted(described.one("life").partitions) == [0, 1, 2]
    assert isinstance(described.failures["only-asked"], UnknownTopic)
    assert "life" in admin.list_topics()
    assert not any(topic.is_internal for topic in admin.list_topics().values())
    gone = admin.delete_topics(["life", "only-asked"])
    assert set(gone.found) == {"life"}
    assert isinstance(gone.failures["only-asked"], UnknownTopic)
    assert "life" not in admin.list_topics()


def test_records_and_offsets(broker: EmbeddedBroker, admin: Admin) -> None:
    at, missing = TopicPartition("records", 0), TopicPartition("records", 7)
    admin.create_topics([NewTopic(name="records", partitions=1)]).all()
    with RawProducer(broker, "writer") as producer:
        producer.find()
        producer.init()
        assert producer.write("records", 0, "a", "b", "c") == 0
        ends = admin.list_offsets({at: LATEST}, read_committed=True)
        assert ends.one(at).offset == 0, "nothing is committed yet"
        producer.end()
        producer.completed()
    ends = admin.list_offsets({at: LATEST, missing: LATEST})
    assert ends.one(at).offset == 4, "three records and a marker"
    assert isinstance(ends.failures[missing], UnknownTopic)
    assert admin.delete_records({at: 2}).one(at) == 2
    assert admin.list_offsets({at: EARLIEST}).one(at).offset == 2
    assert admin.delete_records({at: None}).one(at) == 4
    assert code_of(admin.delete_records({at: 99}).failures[at]) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_settings(admin: Admin) -> None:
    admin.create_topics([NewTopic(name="set", partitions=1)]).all()
    topic, broker = ConfigResource(ResourceType.TOPIC, "set"), ConfigResource(ResourceType.BROKER, "1")
    before = admin.describe_configs([topic], ["retention.ms"]).one(topic)["retention.ms"]
    assert before.is_default
    admin.alter_configs({topic: {"retention.ms": "1234"}}).all()
    after = admin.describe_configs([topic]).one(topic)["retention.ms"]
    assert (after.value, after.source) == ("1234", ConfigValueSource.TOPIC)
    admin.alter_configs({topic: {"retention.ms": None}}).all()
    assert admin.describe_configs([topic]).one(topic)["retention.ms"] == before
    refused = admin.alter_configs({topic: {"retention.ms": "soon"}}).failures[topic]
    assert code_of(refused) == ErrorCode.INVALID_CONFIG
    assert admin.describe_configs([broker]).one(broker)["num.partitions"].value == "1"
    nobody = ConfigResource(ResourceType.BROKER, "9")
    assert isinstance(admin.describe_configs([nobody]).failures[nobody], NotSupported)


def test_a_group_without_members_is_moved_listed_and_deleted(admin: Admin) -> None:
    at, other = TopicPartition("grouped", 0), TopicPartition("grouped", 1)
    admin.create_topics([NewTopic(name="grouped", partitions=2)]).all()
    admin.alter_group_offsets("g", {at: OffsetAndMetadata(5), other: OffsetAndMetadata(6)}).all()
    assert {p: o.offset for p, o in admin.list_group_offsets("g").items()} == {at: 5, other: 6}
    admin.delete_group_offsets("g", [other]).all()
    assert set(admin.list_group_offsets("g", require_stable=True)) == {at}
    (listed,) = [each for each in admin.list_groups().one(1) if each.group_id == "g"]
    assert listed.coordinator == 1
    described = admin.describe_groups(["g", "nobody"])
    assert (described.one("g").state, described.one("g").members) == ("Empty", ())
    assert code_of(described.failures["nobody"]) == ErrorCode.GROUP_ID_NOT_FOUND
    deleted = admin.delete_groups(["g", "nobody"])
    assert set(deleted.found) == {"g"}
    assert code_of(deleted.failures["nobody"]) == ErrorCode.GROUP_ID_NOT_FOUND
    assert admin.list_group_offsets("g") == {}


def test_the_cluster_and_its_features(admin: Admin, broker: EmbeddedBroker) -> None:
    found = admin.describe_cluster()
    assert [str(each.address) for each in found.brokers] == [broker.bootstrap_servers]
    assert found.cluster_id
    assert admin.describe_features() == {"transaction.version": 2}
    with pytest.raises(BrokerRefused, match="downgrade"):
        admin.update_features({"transaction.version": 1})
    admin.update_features({"transaction.version": 1}, downgrade=True, validate_only=True)
    assert admin.describe_features() == {"transaction.version": 2}


def test_the_same_on_a_loop_of_ones_own(broker: EmbeddedBroker) -> None:
    async def main() -> None:
        async with aio.Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            made, cluster = await asyncio.gather(
                admin.create_topics([NewTopic(name="looped")]), admin.describe_cluster()
            )
            assert made.one("looped").partitions == 1
            assert cluster.controller == 1

    asyncio.run(main())


def test_both_have_the_same_methods() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert public(Admin) - {"mark_forked"} == public(aio.Admin)
