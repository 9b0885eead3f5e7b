"""An answer that is encoded entry by entry is the same bytes as one encoded at once."""

from typing import Any

import pytest

from tallystick.broker.handlers.sliced_response import SLICE_ENTRIES, SlicedListResponse, SlicedTopicResponse
from tallystick.protocol import encode
from tallystick.protocol.messages.cluster.describe_quorum import (
    DescribeQuorumNode,
    DescribeQuorumPartition,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tallystick.protocol.messages.groups.administration import DescribedGroup, DescribeGroupsResponse
from tallystick.protocol.messages.topics.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tallystick.protocol.messages.topics.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

BROKER = MetadataResponseBroker(node_id=1, host="h", port=1)


def metadata(topics: tuple[MetadataResponseTopic, ...]) -> MetadataResponse:
    return MetadataResponse(brokers=(BROKER,), cluster_id="c", controller_id=1, topics=topics)


def topic(number: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=f"t{number}", is_internal=bool(number % 2))


@pytest.mark.parametrize("count", [0, 1, 2, SLICE_ENTRIES, SLICE_ENTRIES + 1, 126, 127, 128, 300])
@pytest.mark.parametrize("version", range(14))
@pytest.mark.slow
def test_slices_of_metadata_are_the_bytes_of_the_whole(version: int, count: int) -> None:
    listed = SlicedListResponse(metadata, range(count), topic)
    assert b"".join(listed.iter_slices(version)) == encode(listed.build(), version)


@pytest.mark.parametrize("version", range(7))
def test_slices_of_a_list_at_the_end_are_the_bytes_of_the_whole(version: int) -> None:
    def group(number: int) -> DescribedGroup:
        return DescribedGroup(group_id=f"g{number}", group_state="Dead", protocol_type="", protocol_data="")

    listed = SlicedListResponse(lambda groups: DescribeGroupsResponse(groups=groups), range(200), group)
    assert b"".join(listed.iter_slices(version)) == encode(listed.build(), version)


def test_no_slice_holds_more_entries_than_one_go() -> None:
    made: list[int] = []

    def counting(number: int) -> MetadataResponseTopic:
        made.append(number)
        return topic(number)

    before = 0
    for _ in SlicedListResponse(metadata, range(1000), counting).iter_slices(12):
        assert len(made) - before <= SLICE_ENTRIES
        before = len(made)
    assert made == list(range(1000))


def offsets(wanted: dict[str, range], made: list[Any]) -> SlicedTopicResponse:
    """An answer that notes which partitions it has made."""

    def answer(name: str, index: int) -> ListOffsetsPartitionResponse:
        made.append((name, index))
        return ListOffsetsPartitionResponse(partition_index=index, offset=index)

    return SlicedTopicResponse(
        lambda topics: ListOffsetsResponse(topics=topics),
        lambda name, partitions: ListOffsetsTopicResponse(name=name, partitions=partitions),
        wanted,
        answer,
    )


def sizes(*counts: int) -> dict[str, range]:
    return {f"t{number}": range(count) for number, count in enumerate(counts)}


BY_TOPIC = [
    sizes(),
    sizes(0),
    sizes(1),
    sizes(SLICE_ENTRIES - 1, 1, SLICE_ENTRIES, SLICE_ENTRIES + 1),
    sizes(0, 126, 0, 127, 128, 1),
    sizes(*[1] * 300),
    sizes(300, 2, 2, 300),
]


@pytest.mark.parametrize("wanted", BY_TOPIC, ids=lambda wanted: str([*map(len, wanted.values())])[:30])
@pytest.mark.parametrize("version", range(1, 12))
def test_slices_of_topics_and_partitions_are_the_bytes_of_the_whole(
    version: int, wanted: dict[str, range]
) -> None:
    listed = offsets(wanted, [])
    assert b"".join(listed.iter_slices(version)) == encode(listed.build(), version)


@pytest.mark.parametrize("wanted", BY_TOPIC, ids=lambda wanted: str([*map(len, wanted.values())])[:30])
@pytest.mark.parametrize("version", range(3))
def test_slices_with_more_behind_the_topics_are_the_bytes_of_the_whole(
    version: int, wanted: dict[str, range]
) -> None:
    nodes = (DescribeQuorumNode(node_id=1),) if version >= 2 else ()
    listed = SlicedTopicResponse(
        lambda topics: DescribeQuorumResponse(topics=topics, nodes=nodes),
        lambda name, partitions: DescribeQuorumTopic(topic_name=name, partitions=partitions),
        wanted,
        lambda _, index: DescribeQuorumPartition(
            partition_index=index, leader_id=1, leader_epoch=0, high_watermark=0
        ),
    )
    assert b"".join(listed.iter_slices(version)) == encode(listed.build(), version)


@pytest.mark.parametrize("wanted", BY_TOPIC, ids=lambda wanted: str([*map(len, wanted.values())])[:30])
@pytest.mark.parametrize("version", range(1, 5))
def test_slices_of_topics_within_an_entry_are_the_bytes_of_the_whole(
    version: int, wanted: dict[str, range]
) -> None:
    def in_one_directory(topics: tuple[DescribeLogDirsTopic, ...]) -> DescribeLogDirsResponse:
        return DescribeLogDirsResponse(results=(DescribeLogDirsResult(log_dir="/d", topics=topics),))

    listed = SlicedTopicResponse(
        in_one_directory,
        lambda name, partitions: DescribeLogDirsTopic(name=name, partitions=partitions),
        wanted,
        lambda _, index: DescribeLogDirsPartition(
            partition_index=index, partition_size=index, offset_lag=0, is_future_key=False
        ),
    )
    assert b"".join(listed.iter_slices(version)) == encode(listed.build(), version)


@pytest.mark.parametrize("wanted", [sizes(1000), sizes(*[1] * 1000), sizes(*[SLICE_ENTRIES - 1, 700] * 3)])
def test_no_slice_holds_more_partitions_than_one_go(wanted: dict[str, range]) -> None:
    made: list[Any] = []
    before = 0
    for _ in offsets(wanted, made).iter_slices(7):
        assert len(made) - before <= SLICE_ENTRIES
        before = len(made)
    assert made == [(name, index) for name, indexes in wanted.items() for index in indexes]


def test_few_topics_of_few_partitions_are_answered_without_a_pause() -> None:
    assert offsets(sizes(*[1] * SLICE_ENTRIES), []).is_short
    assert not offsets(sizes(SLICE_ENTRIES, 1), []).is_short
    assert not offsets(sizes(*[0] * (SLICE_ENTRIES + 1)), []).is_short
