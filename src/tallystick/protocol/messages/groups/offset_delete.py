"""OffsetDelete (47): delete a group's committed offsets of some partitions."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, array, message, struct, wire


@struct
class OffsetDeleteRequestPartition:
    partition_index: Annotated[int, wire(INT32, "0+")]


@struct
class OffsetDeleteRequestTopic:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[OffsetDeleteRequestPartition, ...], wire(array(OffsetDeleteRequestPartition), "0+")
    ] = ()


@message(api_key=47, versions="0")
class OffsetDeleteRequest:
    """Partitions whose committed offsets are deleted; the group must not be subscribed to them.

    Source: KIP-496; Kafka OffsetDeleteRequest.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    topics: Annotated[tuple[OffsetDeleteRequestTopic, ...], wire(array(OffsetDeleteRequestTopic), "0+")] = ()


@struct
class OffsetDeleteResponsePartition:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0


@struct
class OffsetDeleteResponseTopic:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[OffsetDeleteResponsePartition, ...], wire(array(OffsetDeleteResponsePartition), "0+")
    ] = ()


@message(api_key=47, versions="0")
class OffsetDeleteResponse:
    """A result for the group, and one per partition. Here the throttle time is the second field.

    Source: Kafka OffsetDeleteResponse.
    """

    error_code: Annotated[int, wire(INT16, "0+")] = 0
    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    topics: Annotated[
        tuple[OffsetDeleteResponseTopic, ...], wire(array(OffsetDeleteResponseTopic), "0+")
    ] = ()
