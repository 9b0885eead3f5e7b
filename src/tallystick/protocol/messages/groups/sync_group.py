"""SyncGroup (14): the leader sends the assignment, and every member gets its part."""

from typing import Annotated

from tallystick.protocol.wire import BYTES, INT16, INT32, STRING, array, message, struct, wire


@struct
class SyncGroupRequestAssignment:
    member_id: Annotated[str, wire(STRING, "0+")]
    assignment: Annotated[bytes, wire(BYTES, "0+")]  # for consumers, a ConsumerProtocolAssignment


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """A member's wait for its assignment; the leader sends those of all members.

    3 adds static members (KIP-345); 5 names the protocol, so that a mismatch is detected (KIP-559).

    Source: Kafka SyncGroupRequest.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    generation_id: Annotated[int, wire(INT32, "0+")]
    member_id: Annotated[str, wire(STRING, "0+")]
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")] = None
    protocol_type: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    # From the leader only.
    assignments: Annotated[
        tuple[SyncGroupRequestAssignment, ...], wire(array(SyncGroupRequestAssignment), "0+")
    ] = ()


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """This member's part of the assignment, as the leader wrote it.

    Source: Kafka SyncGroupResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    protocol_type: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    assignment: Annotated[bytes, wire(BYTES, "0+")]
