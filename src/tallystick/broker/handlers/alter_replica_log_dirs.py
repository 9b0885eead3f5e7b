"""AlterReplicaLogDirs: there is one data directory, and every log is in it already."""

from pathlib import Path

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    # The path as DescribeLogDirs shows it, or in full.
    here = {broker.data_dir, broker.data_dir.absolute()}
    codes: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        known = Path(directory.path) in here
        for topic in directory.topics:
            of_topic = codes.setdefault(topic.name, {})
            for index in topic.partitions:
                of_topic[index] = _code(broker, topic.name, index, known)
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=tuple(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in of_topic.items()
                ),
            )
            for name, of_topic in codes.items()
        )
    )


def _code(broker: Broker, topic: str, index: int, known_directory: bool) -> ErrorCode:
    """Kafka looks at the directory first.

    Source: KIP-113; ReplicaManager.alterReplicaLogDirs.
    """
    if not known_directory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if broker.topics.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
