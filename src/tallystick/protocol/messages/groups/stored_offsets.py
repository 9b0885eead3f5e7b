"""Records of `__consumer_offsets` for classic groups: committed offsets and group metadata.

In the log an int16 precedes each key and value; it is not in these schemas. Before a key it is the record
type: 0 and 1 an offset (0 by very old brokers only), 2 a group; here it serves as the key's version. Before a
value it is the value's version.

From version 4 on values may only add tagged fields, so that an older broker can read them after a downgrade
(KIP-915).

Source: Kafka OffsetCommitKey/Value, GroupMetadataKey/Value.
"""

import uuid
from typing import Annotated

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import BYTES, INT32, INT64, STRING, UUID, array, message, struct, wire


@message(versions="0-1")
class OffsetCommitKey:
    """Types 0 and 1: group, topic and partition of a committed offset."""

    group: Annotated[str, wire(STRING, "0+")]
    topic: Annotated[str, wire(STRING, "0+")]
    partition: Annotated[int, wire(INT32, "0+")]


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    """A committed offset; version 1 if it has its own expiry time, otherwise 3 or 4."""

    offset: Annotated[int, wire(INT64, "0+")]
    leader_epoch: Annotated[int, wire(INT32, "3+", ignorable=True)] = -1
    metadata: Annotated[str, wire(STRING, "0+")]
    commit_timestamp: Annotated[int, wire(INT64, "0+")]
    expire_timestamp: Annotated[int, wire(INT64, "1", ignorable=True)] = -1
    topic_id: Annotated[uuid.UUID, wire(UUID, "4+", tag=0, ignorable=True)] = NIL


@message(versions="2")
class GroupMetadataKey:
    """Type 2: the group id."""

    group: Annotated[str, wire(STRING, "2")]


@struct
class MemberMetadata:
    member_id: Annotated[str, wire(STRING, "0+")]
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+", ignorable=True)] = None
    client_id: Annotated[str, wire(STRING, "0+")]
    client_host: Annotated[str, wire(STRING, "0+")]
    rebalance_timeout: Annotated[int, wire(INT32, "1+", ignorable=True)] = -1  # -1: the session timeout
    session_timeout: Annotated[int, wire(INT32, "0+")]
    subscription: Annotated[bytes, wire(BYTES, "0+")]
    assignment: Annotated[bytes, wire(BYTES, "0+")]


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A generation of a group with its members, as of its last stable or empty state."""

    protocol_type: Annotated[str, wire(STRING, "0+")]
    generation: Annotated[int, wire(INT32, "0+")]
    protocol: Annotated[str | None, wire(STRING, "0+", nullable="0+")]
    leader: Annotated[str | None, wire(STRING, "0+", nullable="0+")]
    current_state_timestamp: Annotated[int, wire(INT64, "2+", ignorable=True)] = -1
    members: Annotated[tuple[MemberMetadata, ...], wire(array(MemberMetadata), "0+")] = ()
