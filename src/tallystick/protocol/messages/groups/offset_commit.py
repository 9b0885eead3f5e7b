"""OffsetCommit (8): store a group's committed offsets."""

import uuid
from typing import Annotated

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import INT16, INT32, INT64, STRING, UUID, array, message, struct, wire


@struct
class OffsetCommitRequestPartition:
    partition_index: Annotated[int, wire(INT32, "2+")]
    committed_offset: Annotated[int, wire(INT64, "2+")]  # offset of the next record to read
    committed_leader_epoch: Annotated[int, wire(INT32, "6+", ignorable=True)] = -1
    committed_metadata: Annotated[str | None, wire(STRING, "2+", nullable="2+")]


@struct
class OffsetCommitRequestTopic:
    name: Annotated[str, wire(STRING, "2-9", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "10+", ignorable=True)] = NIL
    partitions: Annotated[
        tuple[OffsetCommitRequestPartition, ...], wire(array(OffsetCommitRequestPartition), "2+")
    ] = ()


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """One offset per partition to store for a group.

    Versions 2-4 carry a retention of their own (KIP-211 moved it to the group); 6 adds the leader epoch
    of the last record read (KIP-320); 7 static members (KIP-345); 9 allows the consumer protocol
    (KIP-848); 10 identifies topics by id.

    Source: Kafka OffsetCommitRequest.
    """

    group_id: Annotated[str, wire(STRING, "2+")]
    # -1 from a consumer with manual assignment.
    generation_id_or_member_epoch: Annotated[int, wire(INT32, "2+")] = -1
    member_id: Annotated[str, wire(STRING, "2+")]
    group_instance_id: Annotated[str | None, wire(STRING, "7+", nullable="7+")] = None
    retention_time_ms: Annotated[int, wire(INT64, "2-4", ignorable=True)] = -1  # -1 for the broker's setting
    topics: Annotated[tuple[OffsetCommitRequestTopic, ...], wire(array(OffsetCommitRequestTopic), "2+")] = ()


@struct
class OffsetCommitResponsePartition:
    partition_index: Annotated[int, wire(INT32, "2+")]
    error_code: Annotated[int, wire(INT16, "2+")] = 0


@struct
class OffsetCommitResponseTopic:
    name: Annotated[str, wire(STRING, "2-9", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "10+", ignorable=True)] = NIL
    partitions: Annotated[
        tuple[OffsetCommitResponsePartition, ...], wire(array(OffsetCommitResponsePartition), "2+")
    ] = ()


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """One error code per partition.

    Source: Kafka OffsetCommitResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "3+", ignorable=True)] = 0
    topics: Annotated[
        tuple[OffsetCommitResponseTopic, ...], wire(array(OffsetCommitResponseTopic), "2+")
    ] = ()
