"""OffsetFetch (9): fetch the committed offsets of groups."""

import uuid
from typing import Annotated

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import BOOL, INT16, INT32, INT64, STRING, UUID, array, message, struct, wire


@struct
class OffsetFetchRequestTopic:
    name: Annotated[str, wire(STRING, "1-9", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "10+", ignorable=True)] = NIL
    partition_indexes: Annotated[tuple[int, ...], wire(array(INT32), "1+")] = ()


@struct
class OffsetFetchRequestGroup:
    group_id: Annotated[str, wire(STRING, "8+")]
    member_id: Annotated[str | None, wire(STRING, "9+", nullable="9+", ignorable=True)] = None
    member_epoch: Annotated[int, wire(INT32, "9+", ignorable=True)] = -1
    # Null for all.
    topics: Annotated[
        tuple[OffsetFetchRequestTopic, ...] | None,
        wire(array(OffsetFetchRequestTopic), "8+", nullable="8+"),
    ]


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """One group (1-7) or several (8+, KIP-709) whose committed offsets to read.

    Null topics (from version 2) ask for all of a group. 7 adds `require_stable` (KIP-447); 9 the member id
    and epoch that the consumer protocol checks (KIP-848); 10 identifies topics by id (KIP-848).

    Source: Kafka OffsetFetchRequest.
    """

    group_id: Annotated[str, wire(STRING, "1-7")] = ""
    topics: Annotated[
        tuple[OffsetFetchRequestTopic, ...] | None,
        wire(array(OffsetFetchRequestTopic), "1-7", nullable="2-7"),
    ] = ()
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], wire(array(OffsetFetchRequestGroup), "8+")] = ()
    # Refuse offsets with a pending transactional commit.
    require_stable: Annotated[bool, wire(BOOL, "7+")] = False


@struct
class OffsetFetchResponsePartition:
    partition_index: Annotated[int, wire(INT32, "1+")]
    committed_offset: Annotated[int, wire(INT64, "1+")]  # -1 for none
    committed_leader_epoch: Annotated[int, wire(INT32, "5+", ignorable=True)] = -1
    metadata: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    error_code: Annotated[int, wire(INT16, "1+")] = 0


@struct
class OffsetFetchResponseTopic:
    name: Annotated[str, wire(STRING, "1-9", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "10+", ignorable=True)] = NIL
    partitions: Annotated[
        tuple[OffsetFetchResponsePartition, ...], wire(array(OffsetFetchResponsePartition), "1+")
    ] = ()


@struct
class OffsetFetchResponseGroup:
    group_id: Annotated[str, wire(STRING, "8+")]
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], wire(array(OffsetFetchResponseTopic), "8+")] = ()
    error_code: Annotated[int, wire(INT16, "8+")] = 0


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """The committed offsets: `topics` and `error_code` up to version 7, one of `groups` per group from 8 on.

    Source: Kafka OffsetFetchResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "3+", ignorable=True)] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], wire(array(OffsetFetchResponseTopic), "1-7")] = ()
    error_code: Annotated[int, wire(INT16, "2-7", ignorable=True)] = 0
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], wire(array(OffsetFetchResponseGroup), "8+")] = ()
