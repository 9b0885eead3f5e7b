"""AlterReplicaLogDirs: does nothing, because every log is in the only data directory already."""

from collections.abc import ItemsView
from pathlib import Path

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.ports import LogDirsPort
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedTopicResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.topics.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


async def handle(
    broker: LogDirsPort, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> SlicedTopicResponse:
    is_allowed = may_on_cluster(broker, context, Operation.ALTER)
    # The path as DescribeLogDirs reports it, or the absolute path.
    own_paths = {broker.data_dir, broker.data_dir.absolute()}
    codes: dict[str, dict[int, ErrorCode]] = {}
    answers: dict[str, ItemsView[int, ErrorCode]] = {}
    pacer = LoopYielder()
    for directory in request.dirs:
        await pacer.count_entry()
        is_current = Path(directory.path) in own_paths
        for topic in directory.topics:
            await pacer.count_entry()
            of_topic = codes.setdefault(topic.name, {})
            answers[topic.name] = of_topic.items()
            for index in topic.partitions:
                await pacer.count_entry()
                of_topic[index] = (
                    _check_partition(broker, topic.name, index, is_current)
                    if is_allowed
                    else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                )
    return SlicedTopicResponse(
        lambda results: AlterReplicaLogDirsResponse(results=results),
        lambda name, partitions: AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions),
        answers,
        lambda _, answer: AlterReplicaLogDirPartitionResult(partition_index=answer[0], error_code=answer[1]),
    )


def _check_partition(broker: LogDirsPort, topic: str, index: int, known_directory: bool) -> ErrorCode:
    """Check the directory first, then the partition, as Kafka does.

    Source: KIP-113; ReplicaManager.alterReplicaLogDirs.
    """
    if not known_directory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if broker.topics.find_partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
