"""OffsetForLeaderEpoch (23): find the end of a leader epoch, to detect log truncation."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, INT64, STRING, array, message, struct, wire


@struct
class OffsetForLeaderPartition:
    partition: Annotated[int, wire(INT32, "2+")]
    # The leader epoch known to the client; -1 skips the check.
    current_leader_epoch: Annotated[int, wire(INT32, "2+")] = -1
    leader_epoch: Annotated[int, wire(INT32, "2+")]


@struct
class OffsetForLeaderTopic:
    topic: Annotated[str, wire(STRING, "2+")]
    partitions: Annotated[
        tuple[OffsetForLeaderPartition, ...], wire(array(OffsetForLeaderPartition), "2+")
    ] = ()


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Leader epochs; the response has the end offset of the largest epoch up to each.

    Source: KIP-101, for consumers KIP-320; Kafka OffsetForLeaderEpochRequest.
    """

    replica_id: Annotated[int, wire(INT32, "3+", ignorable=True)] = -2  # -1 a consumer, -2 a tool
    topics: Annotated[tuple[OffsetForLeaderTopic, ...], wire(array(OffsetForLeaderTopic), "2+")] = ()


@struct
class EpochEndOffset:
    error_code: Annotated[int, wire(INT16, "2+")] = 0
    partition: Annotated[int, wire(INT32, "2+")]
    leader_epoch: Annotated[int, wire(INT32, "2+")] = -1
    end_offset: Annotated[int, wire(INT64, "2+")] = -1


@struct
class OffsetForLeaderTopicResult:
    topic: Annotated[str, wire(STRING, "2+")]
    partitions: Annotated[tuple[EpochEndOffset, ...], wire(array(EpochEndOffset), "2+")] = ()


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The epoch found and its end offset; both -1 if the leader knows none.

    Source: Kafka OffsetForLeaderEpochResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "2+")] = 0
    topics: Annotated[
        tuple[OffsetForLeaderTopicResult, ...], wire(array(OffsetForLeaderTopicResult), "2+")
    ] = ()
