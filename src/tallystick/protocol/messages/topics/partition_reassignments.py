"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): moves of replicas."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT16, INT32, STRING, array, message, struct, wire


@struct
class ReassignablePartition:
    partition_index: Annotated[int, wire(INT32, "0+")]
    replicas: Annotated[tuple[int, ...] | None, wire(array(INT32), "0+", nullable="0+")] = None


@struct
class ReassignableTopic:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[ReassignablePartition, ...], wire(array(ReassignablePartition), "0+")] = ()


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """The target replicas of partitions; null cancels an ongoing reassignment.

    Source: KIP-455, the replication factor KIP-860 (v1); Kafka AlterPartitionReassignmentsRequest.
    """

    timeout_ms: Annotated[int, wire(INT32, "0+")] = 60_000
    allow_replication_factor_change: Annotated[bool, wire(BOOL, "1+")] = True
    topics: Annotated[tuple[ReassignableTopic, ...], wire(array(ReassignableTopic), "0+")] = ()


@struct
class ReassignablePartitionResponse:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None


@struct
class ReassignableTopicResponse:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[ReassignablePartitionResponse, ...], wire(array(ReassignablePartitionResponse), "0+")
    ] = ()


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """The result per partition.

    Source: Kafka AlterPartitionReassignmentsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    allow_replication_factor_change: Annotated[bool, wire(BOOL, "1+")] = True
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    responses: Annotated[
        tuple[ReassignableTopicResponse, ...], wire(array(ReassignableTopicResponse), "0+")
    ] = ()


@struct
class ListPartitionReassignmentsTopics:
    name: Annotated[str, wire(STRING, "0+")]
    partition_indexes: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """Topics to list; null means all.

    Source: KIP-455; Kafka ListPartitionReassignmentsRequest.
    """

    timeout_ms: Annotated[int, wire(INT32, "0+")] = 60_000
    topics: Annotated[
        tuple[ListPartitionReassignmentsTopics, ...] | None,
        wire(array(ListPartitionReassignmentsTopics), "0+", nullable="0+"),
    ] = None


@struct
class OngoingPartitionReassignment:
    partition_index: Annotated[int, wire(INT32, "0+")]
    replicas: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()
    adding_replicas: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()
    removing_replicas: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class OngoingTopicReassignment:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[OngoingPartitionReassignment, ...], wire(array(OngoingPartitionReassignment), "0+")
    ] = ()


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """Partitions with an ongoing reassignment.

    Source: Kafka ListPartitionReassignmentsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    topics: Annotated[tuple[OngoingTopicReassignment, ...], wire(array(OngoingTopicReassignment), "0+")] = ()
