"""AlterReplicaLogDirs (34): move replicas between the data directories of a broker."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, array, message, struct, wire


@struct
class AlterReplicaLogDirTopic:
    name: Annotated[str, wire(STRING, "1+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "1+")] = ()


@struct
class AlterReplicaLogDir:
    path: Annotated[str, wire(STRING, "1+")]
    topics: Annotated[tuple[AlterReplicaLogDirTopic, ...], wire(array(AlterReplicaLogDirTopic), "1+")] = ()


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """The partitions to move to each directory.

    Source: KIP-113; Kafka AlterReplicaLogDirsRequest.
    """

    dirs: Annotated[tuple[AlterReplicaLogDir, ...], wire(array(AlterReplicaLogDir), "1+")] = ()


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: Annotated[int, wire(INT32, "1+")]
    error_code: Annotated[int, wire(INT16, "1+")] = 0


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: Annotated[str, wire(STRING, "1+")]
    partitions: Annotated[
        tuple[AlterReplicaLogDirPartitionResult, ...], wire(array(AlterReplicaLogDirPartitionResult), "1+")
    ] = ()


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """The result per partition.

    Source: Kafka AlterReplicaLogDirsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+")] = 0
    results: Annotated[
        tuple[AlterReplicaLogDirTopicResult, ...], wire(array(AlterReplicaLogDirTopicResult), "1+")
    ] = ()
