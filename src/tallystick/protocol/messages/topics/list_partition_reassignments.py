"""ListPartitionReassignments (46): list ongoing reassignments of replicas."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, array, message, struct, wire


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
