"""Administration that means little on one broker is answered as one broker of Apache Kafka answers it."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from tests.support.raw_wire import RawConnection

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.value import replace
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster import (
    api_versions,
    describe_configs,
    describe_quorum,
    incremental_alter_configs,
)
from tallystick.protocol.messages.groups import consumer_group_describe, consumer_group_heartbeat
from tallystick.protocol.messages.security import acls
from tallystick.protocol.messages.topics import (
    alter_replica_log_dirs,
    create_topics,
    describe_log_dirs,
    elect_leaders,
    partition_reassignments,
)
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataResponse

NODE = 1
GROUP = 32
SET, DELETE = 0, 1
METADATA = "__cluster_metadata"
OK, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def wire(cluster: Any) -> Iterator[RawConnection]:
    with RawConnection(cluster.bootstrap) as connection:
        yield connection


# ----------------------------------------------------------------------------- ApiVersions


@pytest.mark.parametrize(
    ("who", "node", "code"),
    [
        (None, -1, OK),
        ("this", NODE, OK),
        ("this", NODE + 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", NODE, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", NODE, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("this", -1, ErrorCode.INVALID_REQUEST),
        (None, NODE, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_that_wants_another_broker_is_told(
    cluster: Any, wire: RawConnection, who: str | None, node: int, code: ErrorCode
) -> None:
    """KIP-1242, "Provide both ClusterId and NodeId, if known": the connection can go on to be used."""
    request = api_versions.ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    newest = wire.ask(request, api_versions.ApiVersionsResponse, 3)
    if max(key.max_version for key in newest.api_keys if key.api_key == ApiKey.API_VERSIONS) < 5:
        pytest.skip("Apache Kafka before 4.4")
    cluster_id = wire.ask(MetadataRequest(topics=()), MetadataResponse, 12).cluster_id
    wanted = replace(request, cluster_id=cluster_id if who == "this" else who, node_id=node)
    answer = wire.ask(wanted, api_versions.ApiVersionsResponse, 5)
    assert answer.error_code == code
    assert bool(answer.api_keys) == (code == OK)
    assert wire.ask(MetadataRequest(topics=()), MetadataResponse, 12).cluster_id == cluster_id


# ---------------------------------------------------------------------------- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (-1, -1, OK),
        (-1, 1, OK),
        (2, -1, OK),
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_partitions_and_replicas_left_to_the_broker(
    cluster: Any, wire: RawConnection, version: int, partitions: int, replicas: int, code: ErrorCode
) -> None:
    """KIP-464 is of version 4; Apache Kafka takes -1 in every version."""
    topic = create_topics.CreatableTopic(
        name=cluster.fresh_name("topic"), num_partitions=partitions, replication_factor=replicas
    )
    request = create_topics.CreateTopicsRequest(topics=(topic,), timeout_ms=10_000, validate_only=True)
    (created,) = wire.ask(request, create_topics.CreateTopicsResponse, version).topics
    assert created.error_code == code
    if code == OK and version >= 5:
        assert created.num_partitions == max(partitions, 1)


# ------------------------------------------------------------------------------------ ACLs


def test_acls_without_an_authorizer(wire: RawConnection) -> None:
    """SECURITY_DISABLED, and not an answer that looks as if there were no rules."""
    for version in (1, 2, 3):
        everything = acls.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        described = wire.ask(everything, acls.DescribeAclsResponse, version)
        assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, ())
        rule = acls.AclCreation(
            resource_type=2,
            resource_name="t",
            resource_pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )
        creating = acls.CreateAclsRequest(creations=(rule, rule))
        created = wire.ask(creating, acls.CreateAclsResponse, version).results
        assert [each.error_code for each in created] == [ErrorCode.SECURITY_DISABLED] * 2
        matching = acls.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        deleting = acls.DeleteAclsRequest(filters=(matching,))
        (deleted,) = wire.ask(deleting, acls.DeleteAclsResponse, version).filter_results
        assert (deleted.error_code, deleted.matching_acls) == (ErrorCode.SECURITY_DISABLED, ())


# ------------------------------------------------------------------ leaders and replicas


@pytest.mark.parametrize(("version", "kind"), [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)])
def test_no_election_is_needed(cluster: Any, wire: RawConnection, version: int, kind: int) -> None:
    topic = cluster.topic(2)
    wanted = (
        elect_leaders.TopicPartitions(topic=topic, partitions=(0, 1, 7)),
        elect_leaders.TopicPartitions(topic="not-there", partitions=(0,)),
    )
    request = elect_leaders.ElectLeadersRequest(election_type=kind, topic_partitions=wanted)
    answer = wire.ask(request, elect_leaders.ElectLeadersResponse, version)
    assert answer.error_code == OK
    assert {
        (each.topic, part.partition_id): part.error_code
        for each in answer.replica_election_results
        for part in each.partition_result
    } == {
        (topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
        (topic, 1): ErrorCode.ELECTION_NOT_NEEDED,
        (topic, 7): UNKNOWN,
        ("not-there", 0): UNKNOWN,
    }


def test_elections_for_all_partitions_tell_of_those_that_took_place(
    cluster: Any, wire: RawConnection
) -> None:
    topic = cluster.topic()
    request = elect_leaders.ElectLeadersRequest(topic_partitions=None)
    answer = wire.ask(request, elect_leaders.ElectLeadersResponse, 2)
    results = {each.topic: each.partition_result for each in answer.replica_election_results}
    assert answer.error_code == OK
    assert topic in results
    assert set(results.values()) == {()}


def test_an_unknown_kind_of_election(cluster: Any, wire: RawConnection) -> None:
    topic = cluster.topic()
    wanted = (elect_leaders.TopicPartitions(topic=topic, partitions=(0,)),)
    request = elect_leaders.ElectLeadersRequest(election_type=2, topic_partitions=wanted)
    answer = wire.ask(request, elect_leaders.ElectLeadersResponse, 2)
    (result,) = answer.replica_election_results
    assert answer.error_code == result.partition_result[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1])
def test_replicas_stay_where_they_are(cluster: Any, wire: RawConnection, version: int) -> None:
    """To the broker that has them: done. Anything else is refused, with Kafka's code."""
    topic = cluster.topic()
    codes = {}
    for replicas in ((NODE,), None, (), (7,), (NODE, 7), (NODE, NODE)):
        parts = tuple(
            partition_reassignments.ReassignablePartition(partition_index=index, replicas=replicas)
            for index in (0, 9)
        )
        request = partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=(
                partition_reassignments.ReassignableTopic(name=topic, partitions=parts),
                partition_reassignments.ReassignableTopic(name="not-there", partitions=parts[:1]),
            )
        )
        cls = partition_reassignments.AlterPartitionReassignmentsResponse
        answer = wire.ask(request, cls, version)
        assert answer.error_code == OK
        there, missing = answer.responses
        assert [part.error_code for part in (there.partitions[1], *missing.partitions)] == [UNKNOWN] * 2
        codes[replicas] = there.partitions[0].error_code
    assert codes == {
        (NODE,): OK,
        None: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        (): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        (7,): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        (NODE, 7): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        (NODE, NODE): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
    listing = partition_reassignments.ListPartitionReassignmentsRequest()
    under_way = wire.ask(listing, partition_reassignments.ListPartitionReassignmentsResponse, 0)
    assert (under_way.error_code, under_way.topics) == (OK, ())


@pytest.mark.parametrize("version", [1, 2])
def test_logs_stay_in_the_directory_they_are_in(cluster: Any, wire: RawConnection, version: int) -> None:
    topic = cluster.topic()
    describing = describe_log_dirs.DescribeLogDirsRequest(topics=None)
    (described,) = wire.ask(describing, describe_log_dirs.DescribeLogDirsResponse, 4).results

    def codes(path: str) -> dict[tuple[str, int], int]:
        directory = alter_replica_log_dirs.AlterReplicaLogDir(
            path=path,
            topics=(
                alter_replica_log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=(0, 9)),
                alter_replica_log_dirs.AlterReplicaLogDirTopic(name="not-there", partitions=(0,)),
            ),
        )
        request = alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=(directory,))
        answer = wire.ask(request, alter_replica_log_dirs.AlterReplicaLogDirsResponse, version)
        return {
            (each.topic_name, part.partition_index): part.error_code
            for each in answer.results
            for part in each.partitions
        }

    names = ((topic, 0), (topic, 9), ("not-there", 0))
    assert codes(described.log_dir) == dict(zip(names, (OK, UNKNOWN, UNKNOWN), strict=True))
    assert codes("/nowhere") == dict.fromkeys(names, ErrorCode.LOG_DIR_NOT_FOUND)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_the_broker(wire: RawConnection, version: int) -> None:
    def asking(topic: str, index: int) -> describe_quorum.DescribeQuorumPartition:
        part = describe_quorum.DescribeQuorumRequestPartition(partition_index=index)
        wanted = describe_quorum.DescribeQuorumRequestTopic(topic_name=topic, partitions=(part,))
        request = describe_quorum.DescribeQuorumRequest(topics=(wanted,))
        answer = wire.ask(request, describe_quorum.DescribeQuorumResponse, version)
        assert answer.error_code == OK
        (described,) = answer.topics
        assert described.topic_name == topic
        (partition,) = described.partitions
        if topic == METADATA and index == 0:
            assert [node.node_id for node in answer.nodes] == ([NODE] if version >= 2 else [])
        return partition

    quorum = asking(METADATA, 0)
    assert (quorum.error_code, quorum.leader_id, quorum.observers) == (OK, NODE, ())
    (voter,) = quorum.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (NODE, quorum.high_watermark)
    assert (voter.last_caught_up_timestamp > 0) == (version >= 1)
    for topic, index in ((METADATA, 1), ("not-there", 0)):
        other = asking(topic, index)
        assert (other.error_code, other.current_voters) == (UNKNOWN, ())


# ------------------------------------------------------------------------ groups' settings


def altering(*changes: tuple[str, int, str | None], name: str) -> Any:
    configs = tuple(
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=GROUP, resource_name=name, configs=configs
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=(resource,), validate_only=False
    )


def test_settings_of_groups(cluster: Any, wire: RawConnection) -> None:
    """What DescribeConfigs does not show cannot be set either; to reset it changes nothing."""
    group = cluster.fresh_name("group")

    def described(name: str) -> Any:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=GROUP, resource_name=name, configuration_keys=None
        )
        request = describe_configs.DescribeConfigsRequest(resources=(resource,))
        (result,) = wire.ask(request, describe_configs.DescribeConfigsResponse, 4).results
        return result

    def altered(*changes: tuple[str, int, str | None], name: str = group) -> int:
        cls = incremental_alter_configs.IncrementalAlterConfigsResponse
        (response,) = wire.ask(altering(*changes, name=name), cls, 1).responses
        return int(response.error_code)

    assert described(group).error_code == OK
    assert described("").error_code == ErrorCode.INVALID_REQUEST
    assert "no.such.setting" not in [config.name for config in described(group).configs]
    assert altered(("no.such.setting", SET, "1")) == ErrorCode.INVALID_CONFIG
    assert altered(("consumer.heartbeat.interval.ms", DELETE, None)) == OK
    assert altered() == OK
    assert altered(name="") == ErrorCode.INVALID_REQUEST


# --------------------------------------------------- groups of the consumer protocol, KIP-848


def heartbeat(group: str) -> consumer_group_heartbeat.ConsumerGroupHeartbeatRequest:
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=group, member_id="m", member_epoch=0, rebalance_timeout_ms=1_000, subscribed_topic_names=()
    )


def test_the_consumer_protocol_is_refused_at_once(cluster: Any, wire: RawConnection) -> None:
    """As by a cluster of Kafka whose group.version is 0; one that has the protocol is not asked."""
    if cluster.name != "tallystick":
        pytest.skip("Apache Kafka 4 has the consumer protocol")
    for version in (0, 1):
        cls = consumer_group_heartbeat.ConsumerGroupHeartbeatResponse
        answer = wire.ask(heartbeat("g"), cls, version)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "group.protocol=classic" in (answer.error_message or "")
        describing = consumer_group_describe.ConsumerGroupDescribeRequest(
            group_ids=("g", "h"), include_authorized_operations=False
        )
        described = wire.ask(describing, consumer_group_describe.ConsumerGroupDescribeResponse, version)
        assert [(each.group_id, each.error_code) for each in described.groups] == [
            ("g", ErrorCode.UNSUPPORTED_VERSION),
            ("h", ErrorCode.UNSUPPORTED_VERSION),
        ]


def test_librdkafka_with_the_consumer_protocol_fails_and_does_not_wait_for_ever(cluster: Any) -> None:
    if cluster.name != "tallystick":
        pytest.skip("Apache Kafka 4 has the consumer protocol")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": cluster.fresh_name("group"),
            "group.protocol": "consumer",
        }
    )
    consumer.subscribe([cluster.topic()])
    try:
        # An event, not an exception: the error of the group arrives where the records would.
        message = consumer.poll(60)
        assert message is not None, "nothing in a minute"
    finally:
        consumer.close()
    error = message.error()
    assert (error.code(), "API version not supported" in error.str()) == (KafkaError._FATAL, True)
