"""What a request names many times is answered once, and a waiting fetch counts only what moved [SRV-3]."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, on_a_loop

from tallystick.broker.handlers.data import fetch
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tallystick.protocol.messages.cluster.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
)
from tallystick.protocol.messages.cluster.describe_quorum import DescribeQuorumRequestTopic as QuorumOf
from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorRequest
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic
from tallystick.protocol.messages.data.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.messages.groups.administration import DescribeGroupsRequest
from tallystick.protocol.messages.groups.consumer_group_describe import ConsumerGroupDescribeRequest
from tallystick.protocol.messages.groups.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tallystick.protocol.messages.topics.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tallystick.protocol.messages.topics.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from tallystick.protocol.messages.topics.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from tallystick.protocol.messages.topics.describe_topic_partitions import TopicRequest as PartitionsOf
from tallystick.protocol.messages.topics.elect_leaders import ElectLeadersRequest, TopicPartitions
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataRequestTopic
from tallystick.protocol.messages.topics.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tallystick.protocol.messages.txn.describe_producers import DescribeProducersRequest
from tallystick.protocol.messages.txn.describe_producers import TopicRequest as ProducersOf
from tallystick.protocol.messages.txn.describe_transactions import DescribeTransactionsRequest
from tallystick.protocol.primitives import NIL
from tallystick.protocol.records import BatchMeta, Record, encode_batch

MANY = 300


def entries(value: Any) -> int:
    """Structs in the lists of an answer, nested ones too."""
    if isinstance(value, tuple):
        return sum(1 + entries(each) for each in value if not isinstance(each, (int, str, bytes)))
    fields = getattr(value, "__slots__", ())
    return sum(entries(getattr(value, name)) for name in fields)


def repeated(times: int) -> list[tuple[Any, int]]:
    """One request of each API that takes names, each naming one thing so many times."""
    groups = tuple(
        OffsetFetchRequestGroup(
            group_id="g", topics=(OffsetFetchRequestTopic(name="t", partition_indexes=(0,) * times),) * times
        )
        for _ in range(times)
    )
    return [
        (MetadataRequest(topics=(MetadataRequestTopic(name="t"),) * times), 12),
        (DescribeConfigsRequest(resources=_resources(times)), 4),
        (DescribeGroupsRequest(groups=("g",) * times), 5),
        (
            DescribeProducersRequest(topics=(ProducersOf(name="t", partition_indexes=(0,) * times),) * times),
            0,
        ),
        (DescribeTransactionsRequest(transactional_ids=("x",) * times), 0),
        (DescribeLogDirsRequest(topics=(DescribableLogDirTopic(topic="t", partitions=(0,) * times),)), 4),
        (DescribeTopicPartitionsRequest(topics=(PartitionsOf(name="t"),) * times), 0),
        (FindCoordinatorRequest(key_type=0, coordinator_keys=("g",) * times), 4),
        (OffsetFetchRequest(groups=groups), 8),
        (OffsetForLeaderEpochRequest(topics=_epochs(times)), 4),
        (OffsetDeleteRequest(group_id="g", topics=_offsets(times)), 0),
        (DeleteTopicsRequest(topics=_gone(times), timeout_ms=1000), 6),
        (ElectLeadersRequest(election_type=0, topic_partitions=_elections(times), timeout_ms=1000), 2),
        (DescribeQuorumRequest(topics=_quorums(times)), 2),
        (AlterPartitionReassignmentsRequest(topics=_assignments(times), timeout_ms=1000), 1),
        (ConsumerGroupDescribeRequest(group_ids=("g",) * times, include_authorized_operations=False), 1),
    ]


def _producers(times: int) -> tuple[ProducersOf, ...]:
    return (ProducersOf(name="t", partition_indexes=(0,) * times),) * times


def _gone(times: int) -> tuple[DeleteTopicState, ...]:
    return (DeleteTopicState(name="gone", topic_id=NIL),) * times


def _resources(times: int) -> tuple[DescribeConfigsResource, ...]:
    return (DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None),) * times


def _epochs(times: int) -> tuple[OffsetForLeaderTopic, ...]:
    partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return (OffsetForLeaderTopic(topic="t", partitions=(partition,) * times),) * times


def _offsets(times: int) -> tuple[OffsetDeleteRequestTopic, ...]:
    partition = OffsetDeleteRequestPartition(partition_index=0)
    return (OffsetDeleteRequestTopic(name="t", partitions=(partition,) * times),) * times


def _elections(times: int) -> tuple[TopicPartitions, ...]:
    return (TopicPartitions(topic="t", partitions=(0,) * times),) * times


def _quorums(times: int) -> tuple[QuorumOf, ...]:
    partition = DescribeQuorumRequestPartition(partition_index=0)
    return (QuorumOf(topic_name="t", partitions=(partition,) * times),) * times


def _assignments(times: int) -> tuple[ReassignableTopic, ...]:
    partition = ReassignablePartition(partition_index=0, replicas=(1,))
    return (ReassignableTopic(name="t", partitions=(partition,) * times),) * times


@pytest.mark.parametrize("api", range(len(repeated(1))))
@on_a_loop
@pytest.mark.slow
async def test_what_is_named_many_times_is_answered_once(
    api: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()  # DescribeLogDirs asks the machine about its volume
    monkeypatch.chdir(tmp_path)
    async with memory_broker() as memory:
        await memory.make_topic("t", 1)
        (request, version), (many, _) = repeated(1)[api], repeated(20)[api]
        assert entries(await memory.ask(many, version)) == entries(await memory.ask(request, version))


def a_batch(size: int = 10) -> bytes:
    record = Record(offset=0, timestamp_ms=1_700_000_000_000, key=b"k", value=b"v" * size, headers=())
    return encode_batch([record], BatchMeta())


async def produce(memory: MemoryBroker, topic: str) -> None:
    part = PartitionProduceData(index=0, records=a_batch())
    data = TopicProduceData(name=topic, partition_data=(part,))
    answer = await memory.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(data,)), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def fetch_request(topic: str, partitions: list[FetchPartition], **limits: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=limits.get("max_wait_ms", 0),
        min_bytes=limits.get("min_bytes", 1),
        topics=(FetchTopic(topic=topic, partitions=tuple(partitions)),),
    )


def at(partition: int, offset: int) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)


@on_a_loop
async def test_a_fetch_reads_a_partition_once_and_as_it_is_named_last() -> None:
    async with memory_broker() as memory:
        await memory.make_topic("t", 1)
        for _ in range(3):
            await produce(memory, "t")
        answer = await memory.ask(fetch_request("t", [at(0, 0), at(0, 2)]), 11)
        (part,) = answer.responses[0].partitions
        assert part.error_code == 0
        assert len(bytes(part.records)) == len(a_batch())


@on_a_loop
@pytest.mark.slow
async def test_a_waiting_fetch_counts_only_the_partition_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker() as memory:
        await memory.make_topic("t", MANY)
        counted: list[object] = []
        count = fetch._DelayedFetch._update_readable_bytes

        def counting(self: Any, partition: Any, wanted: Any) -> bool:
            counted.append(partition)
            return count(self, partition, wanted)

        monkeypatch.setattr(fetch._DelayedFetch, "_update_readable_bytes", counting)
        request = fetch_request("t", [at(n, 0) for n in range(MANY)], max_wait_ms=3_600_000, min_bytes=150)
        waiting = asyncio.ensure_future(memory.ask(request, 11))
        await asyncio.sleep(0)
        assert len(counted) == MANY
        await produce(memory, "t")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(counted) == MANY + 1
        assert not waiting.done()
        await produce(memory, "t")
        await produce(memory, "t")
        assert sum(len(bytes(p.records)) for p in (await waiting).responses[0].partitions) >= 150


@pytest.mark.parametrize("version", [10, 11])
@on_a_loop
async def test_metadata_by_id_is_refused_where_kafka_has_only_names(version: int) -> None:
    async with memory_broker() as memory:
        await memory.make_topic("t", 1)
        known = memory.broker.topics.find("t")
        assert known is not None
        for topic_id in (known.topic_id, NIL):
            wanted = MetadataRequestTopic(topic_id=topic_id, name=None)
            answer = await memory.ask(MetadataRequest(topics=(wanted,)), version)
            assert [(t.error_code, t.name) for t in answer.topics] == [(ErrorCode.INVALID_REQUEST, "")]


@on_a_loop
async def test_a_cursor_before_the_first_partition_is_refused() -> None:
    async with memory_broker() as memory:
        await memory.make_topic("t", 3)
        wanted = (PartitionsOf(name="t"),)
        request = DescribeTopicPartitionsRequest(
            topics=wanted, cursor=Cursor(topic_name="t", partition_index=-1)
        )
        (topic,) = (await memory.ask(request, 0)).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST
        assert topic.partitions == ()


@on_a_loop
async def test_a_page_of_unknown_topics_ends_too() -> None:
    async with memory_broker(max_request_partition_size_limit="5") as memory:
        wanted = tuple(PartitionsOf(name=f"no{n}") for n in range(12))
        page = await memory.ask(DescribeTopicPartitionsRequest(topics=wanted), 0)
        assert len(page.topics) == 5
        assert page.next_cursor.topic_name == sorted(t.name for t in wanted)[5]


@on_a_loop
async def test_a_large_request_is_decoded_beside_the_loop_and_answered_whole() -> None:
    async with memory_broker() as memory:
        names = tuple(f"unknown-topic-number-{n}" for n in range(5000))
        request = MetadataRequest(
            topics=tuple(MetadataRequestTopic(name=name) for name in names), allow_auto_topic_creation=False
        )
        answer = await memory.ask(request, 12)
        assert tuple(topic.name for topic in answer.topics) == names
