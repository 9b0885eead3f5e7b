"""DescribeLogDirs: sizes of the partitions, and of the volume of the data directory (KIP-113, KIP-827)."""

from collections.abc import Collection, Mapping

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.deduplicate import group_distinct, identity_key
from tallystick.broker.handlers.ports import LogDirsPort
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedTopicResponse
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.topics.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(
    broker: LogDirsPort, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse | SlicedTopicResponse:
    if not may_on_cluster(broker, context, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    indexes_by_topic: Mapping[str, Collection[int]]
    if request.topics is None:
        indexes_by_topic = {topic.name: range(topic.partitions) for topic in broker.topics}
    else:
        indexes_by_topic = await group_distinct(
            ((topic.topic, topic.partitions) for topic in request.topics), identity_key
        )
    total_bytes, usable_bytes = broker.data_directory.measure_volume()

    def answer(topics: tuple[DescribeLogDirsTopic, ...]) -> DescribeLogDirsResponse:
        result = DescribeLogDirsResult(
            log_dir=str(broker.data_dir), topics=topics, total_bytes=total_bytes, usable_bytes=usable_bytes
        )
        return DescribeLogDirsResponse(results=(result,))

    return SlicedTopicResponse(
        answer,
        lambda name, partitions: DescribeLogDirsTopic(name=name, partitions=partitions),
        await _find_partitions(broker, indexes_by_topic),
        lambda _, entry: DescribeLogDirsPartition(
            partition_index=entry[0],
            partition_size=entry[1].log.size_bytes,
            offset_lag=0,
            is_future_key=False,
        ),
    )


async def _find_partitions(
    broker: LogDirsPort, indexes_by_topic: Mapping[str, Collection[int]]
) -> dict[str, list[tuple[int, Partition]]]:
    """Look up the partitions, by topic; unknown ones are left out."""
    pacer, partitions = LoopYielder(), dict[str, list[tuple[int, Partition]]]()
    for name, indexes in indexes_by_topic.items():
        await pacer.count_entry()
        for index in indexes:
            await pacer.count_entry()
            partition = broker.topics.find_partition(name, index)
            if partition is not None:
                partitions.setdefault(name, []).append((index, partition))
    return partitions
