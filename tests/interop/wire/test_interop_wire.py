"""Requests no client library sends, answered by code and number as Apache Kafka answers them."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.raw_wire import RawConnection

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster import (
    alter_configs,
    describe_cluster,
    incremental_alter_configs,
    list_config_resources,
)
from tallystick.protocol.messages.data import (
    delete_records,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from tallystick.protocol.messages.topics import create_partitions, describe_log_dirs
from tallystick.protocol.messages.txn import init_producer_id
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.testing import eventually

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
OK = ErrorCode.NONE

# What Kafka answers for a moment after a start, or to whoever asks for a topic it has just made.
STARTING = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@pytest.fixture
def wire(cluster: Any) -> Iterator[RawConnection]:
    with RawConnection(cluster.bootstrap) as connection:
        yield connection


def batch(*keys: bytes | None, first_ms: int = 1000) -> bytes:
    records = [
        Record(offset=i, timestamp_ms=first_ms + i, key=key, value=b"v", headers=())
        for i, key in enumerate(keys)
    ]
    return encode_batch(records, BatchMeta())


def put(wire: RawConnection, topic: str, data: bytes) -> produce.PartitionProduceResponse:
    part = produce.PartitionProduceData(index=0, records=data)
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=(produce.TopicProduceData(name=topic, partition_data=(part,)),),
    )
    told: list[produce.PartitionProduceResponse] = []

    def led() -> bool:
        told[:] = wire.ask(request, produce.ProduceResponse, 9).responses[0].partition_responses
        return told[0].error_code not in STARTING

    eventually(led)
    return told[0]


@pytest.fixture
def filled(cluster: Any, wire: RawConnection) -> str:
    """Two partitions; the first has timestamps 1000, 1001, 1002 and then 500."""
    name: str = cluster.topic(partitions=2)
    assert put(wire, name, batch(b"k", b"k", b"k")).error_code == OK
    assert put(wire, name, batch(b"k", first_ms=500)).error_code == OK
    return name


@pytest.mark.parametrize(
    ("current", "asked", "answer"),
    [
        (-1, 0, (OK, 0, 4)),
        (0, 0, (OK, 0, 4)),
        (5, 0, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
        (-1, 5, (OK, -1, -1)),
        (-1, -1, (OK, -1, -1)),
    ],
)
def test_where_an_epoch_ended(
    wire: RawConnection, filled: str, current: int, asked: int, answer: tuple[int, int, int]
) -> None:
    part = offset_for_leader_epoch.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=asked
    )
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=filled, partitions=(part,))
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=-1, topics=(topic,))
    (told,) = wire.ask(request, offset_for_leader_epoch.OffsetForLeaderEpochResponse, 4).topics[0].partitions
    assert (told.error_code, told.leader_epoch, told.end_offset) == answer


@pytest.mark.parametrize(
    ("endpoint", "code"),
    [(1, OK), (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_a_cluster_is_described_by_its_brokers_alone(
    wire: RawConnection, endpoint: int, code: ErrorCode
) -> None:
    request = describe_cluster.DescribeClusterRequest(
        endpoint_type=endpoint, include_cluster_authorized_operations=False
    )
    told = wire.ask(request, describe_cluster.DescribeClusterResponse, 1)
    found = (told.error_code, told.endpoint_type, len(told.brokers), bool(told.cluster_id))
    assert found == (code, 1, int(code is OK), code is OK)


def test_log_dirs_tell_sizes_and_leave_out_what_is_not_there(wire: RawConnection, filled: str) -> None:
    def sizes(topic: str, *partitions: int) -> list[tuple[int, int]]:
        wanted = describe_log_dirs.DescribableLogDirTopic(topic=topic, partitions=partitions)
        request = describe_log_dirs.DescribeLogDirsRequest(topics=(wanted,))
        (told,) = wire.ask(request, describe_log_dirs.DescribeLogDirsResponse, 4).results
        assert told.error_code == OK
        assert told.total_bytes > told.usable_bytes > 0
        return [(p.partition_index, p.partition_size) for t in told.topics for p in t.partitions]

    written = len(batch(b"k", b"k", b"k")) + len(batch(b"k"))
    assert sorted(sizes(filled, 0, 1)) == [(0, written), (1, 0)]
    assert sizes(filled, 7) == []
    assert sizes("nowhere", 0) == []


def replaced(wire: RawConnection, kind: int, name: str, *configs: tuple[str, str | None]) -> int:
    resource = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(alter_configs.AlterableConfig(name=n, value=v) for n, v in configs),
    )
    request = alter_configs.AlterConfigsRequest(resources=(resource,), validate_only=False)
    return wire.ask(request, alter_configs.AlterConfigsResponse, 2).responses[0].error_code


def changed(
    wire: RawConnection, kind: int, name: str, *configs: tuple[str, int, str | None], times: int = 1
) -> set[int]:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            incremental_alter_configs.AlterableConfig(name=n, config_operation=o, value=v)
            for n, o, v in configs
        ),
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=(resource,) * times, validate_only=False
    )
    told = wire.ask(request, incremental_alter_configs.IncrementalAlterConfigsResponse, 1).responses
    return {one.error_code for one in told}


def test_replacing_settings_is_refused_with_kafkas_codes(wire: RawConnection, filled: str) -> None:
    assert replaced(wire, TOPIC, filled, ("retention.ms", "5")) == OK
    assert replaced(wire, TOPIC, filled, ("retention.ms", "soon")) == ErrorCode.INVALID_CONFIG
    assert replaced(wire, TOPIC, filled, ("retention.mss", "5")) == ErrorCode.INVALID_CONFIG
    assert replaced(wire, TOPIC, filled, ("retention.ms", None)) == ErrorCode.INVALID_REQUEST
    twice = (("retention.ms", "1"), ("retention.ms", "2"))
    assert replaced(wire, TOPIC, filled, *twice) == ErrorCode.INVALID_REQUEST
    assert replaced(wire, TOPIC, "nowhere", ("retention.ms", "5")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replaced(wire, TOPIC, "", ("retention.ms", "5")) == ErrorCode.INVALID_REQUEST
    assert replaced(wire, BROKER, "99", ("message.max.bytes", "2000")) == ErrorCode.INVALID_REQUEST
    assert replaced(wire, 7, "x", ("a", "b")) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("cleanup.policy", APPEND, "compact"), OK),
        (("cleanup.policy", SUBTRACT, "compact"), OK),
        (("cleanup.policy", DELETE, "ignored"), OK),
        (("retention.mss", DELETE, None), OK),
        (("retention.ms", SET, " 12 "), OK),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("retention.mss", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", APPEND, "shrink"), ErrorCode.INVALID_CONFIG),
        (("remote.storage.enable", SET, "true"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_change_of_a_topics_setting(
    wire: RawConnection, filled: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    assert changed(wire, TOPIC, filled, change) == {code}


def test_changes_that_contradict_each_other_are_refused(wire: RawConnection, filled: str) -> None:
    retention = ("retention.ms", SET, "1")
    assert changed(wire, TOPIC, filled, retention, retention) == {ErrorCode.INVALID_REQUEST}
    assert changed(wire, TOPIC, filled, retention, times=2) == {ErrorCode.INVALID_REQUEST}
    assert changed(wire, BROKER, "1", ("node.id", SET, "2")) == {ErrorCode.INVALID_REQUEST}
    assert changed(wire, BROKER, "1", ("message.max.bytes", SET, "x")) == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("kinds", [(2,), (4,), (8,), (7,), (2, 4)])
def test_resources_with_settings_are_listed_by_kind(
    wire: RawConnection, filled: str, kinds: tuple[int, ...]
) -> None:
    request = list_config_resources.ListConfigResourcesRequest(resource_types=kinds)
    told = wire.ask(request, list_config_resources.ListConfigResourcesResponse, 1)
    known = 7 not in kinds
    assert told.error_code == (OK if known else ErrorCode.UNSUPPORTED_VERSION)
    assert {one.resource_type for one in told.config_resources} == (set(kinds) if known else set())


@pytest.mark.parametrize(
    ("count", "assigned", "code"),
    [
        (3, None, OK),
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (-1, None, ErrorCode.INVALID_PARTITIONS),
        (3, ((1,),), OK),
        (4, ((1,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((99,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 1),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_are_added_as_asked(
    wire: RawConnection, filled: str, count: int, assigned: tuple[tuple[int, ...], ...] | None, code: int
) -> None:
    made = (
        None
        if assigned is None
        else tuple(create_partitions.CreatePartitionsAssignment(broker_ids=b) for b in assigned)
    )
    topic = create_partitions.CreatePartitionsTopic(name=filled, count=count, assignments=made)

    def grow(*topics: create_partitions.CreatePartitionsTopic) -> list[int]:
        request = create_partitions.CreatePartitionsRequest(
            topics=topics, timeout_ms=5000, validate_only=True
        )
        told = wire.ask(request, create_partitions.CreatePartitionsResponse, 3).results
        return [one.error_code for one in told]

    assert grow(topic) == [code]
    assert grow(topic, topic) == [ErrorCode.INVALID_REQUEST]


def test_offsets_of_every_kind_of_time(wire: RawConnection, filled: str) -> None:
    def offset(timestamp: int, *, partition: int = 0, version: int = 11, epoch: int = -1) -> tuple[int, ...]:
        part = list_offsets.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=(list_offsets.ListOffsetsTopic(name=filled, partitions=(part,)),)
        )
        (told,) = wire.ask(request, list_offsets.ListOffsetsResponse, version).topics[0].partitions
        return told.error_code, told.offset, told.timestamp, told.leader_epoch

    none = (OK, -1, -1, -1)
    assert offset(-1) == (OK, 4, -1, 0)
    assert offset(-2) == (OK, 0, -1, 0)
    assert offset(-3) == (OK, 2, 1002, 0)
    assert offset(-4) == (OK, 0, -1, 0)
    assert offset(-5) == offset(-6) == none
    assert offset(501) == (OK, 0, 1000, 0)
    assert offset(1001) == (OK, 1, 1001, 0)
    assert offset(10**15) == offset(-3, partition=1) == none
    assert offset(-7)[0] == offset(-3, version=6)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert offset(-1, epoch=9)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert offset(-1, partition=77)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("offset", "last_epoch", "answer"),
    [
        (0, -1, (OK, 4, 4, 0, -1, -1)),
        (5, -1, (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1, -1, -1)),
        (-1, -1, (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1, -1, -1)),
        (4, 0, (OK, 4, 4, 0, -1, -1)),
        (9, 0, (OK, 4, 4, 0, 0, 4)),
        (0, 5, (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1, -1, -1)),
    ],
)
def test_a_reader_whose_history_is_another_is_told_where_they_part(
    wire: RawConnection, filled: str, offset: int, last_epoch: int, answer: tuple[int, ...]
) -> None:
    part = fetch.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, last_fetched_epoch=last_epoch
    )
    request = fetch.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=(fetch.FetchTopic(topic=filled, partitions=(part,)),),
    )
    (told,) = wire.ask(request, fetch.FetchResponse, 12).responses[0].partitions
    ends = (told.high_watermark, told.last_stable_offset, told.log_start_offset)
    diverging = told.diverging_epoch
    assert (told.error_code, *ends, diverging.epoch, diverging.end_offset) == answer


def test_records_are_deleted_up_to_the_high_watermark(cluster: Any, wire: RawConnection, filled: str) -> None:
    def delete(offset: int, topic: str = filled) -> tuple[int, int]:
        part = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
        request = delete_records.DeleteRecordsRequest(
            topics=(delete_records.DeleteRecordsTopic(name=topic, partitions=(part,)),), timeout_ms=5000
        )
        (told,) = wire.ask(request, delete_records.DeleteRecordsResponse, 2).topics[0].partitions
        return told.error_code, told.low_watermark

    assert delete(-2) == delete(5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(2) == delete(1) == (OK, 2)
    assert delete(-1) == (OK, 4)
    assert delete(0, "nowhere") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(0, cluster.topic(cleanup_policy="compact")) == (ErrorCode.POLICY_VIOLATION, -1)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({}, OK),
        ({"transaction_timeout_ms": -1}, OK),
        ({"producer_id": 5, "producer_epoch": 3}, OK),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_producer_ids_are_given_to_whole_pairs(
    wire: RawConnection, asked: dict[str, Any], code: ErrorCode
) -> None:
    given = {"transactional_id": None, "transaction_timeout_ms": 1000} | asked
    told: list[init_producer_id.InitProducerIdResponse] = []

    def ready() -> bool:
        request = init_producer_id.InitProducerIdRequest(**given)
        told[:] = [wire.ask(request, init_producer_id.InitProducerIdResponse, 5)]
        return told[0].error_code not in STARTING

    eventually(ready)
    assert (told[0].error_code, told[0].producer_epoch) == (code, 0 if code is OK else -1)


def test_records_that_may_not_be_in_a_topic_are_named(cluster: Any, wire: RawConnection) -> None:
    compacted = put(wire, cluster.topic(cleanup_policy="compact"), batch(b"k", None, b"k", None))
    assert compacted.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in compacted.record_errors] == [1, 3]
    assert compacted.error_message
    late = put(wire, cluster.topic(message_timestamp_before_max_ms="1000"), batch(b"k", b"k"))
    assert late.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [one.batch_index for one in late.record_errors] == [0, 1]
