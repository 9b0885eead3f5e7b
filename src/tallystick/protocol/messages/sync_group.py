"""SyncGroup (14): the leader hands in the assignment, every member takes its part."""

from typing import Annotated

from tallystick.protocol.wire import BYTES, INT16, INT32, STRING, array, message, struct, wire


@struct
class SyncGroupRequestAssignment:
    member_id: Annotated[str, wire(STRING, "0+")]
    assignment: Annotated[bytes, wire(BYTES, "0+")]  # of consumers: a ConsumerProtocolAssignment


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """Wait for an assignment; the leader brings those of all members.

    3 adds static members (KIP-345); 5 names the protocol, so that a mix-up is noticed (KIP-559).

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
    """The part of the assignment that belongs to this member, as the leader wrote it.

    Source: Kafka SyncGroupResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    protocol_type: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    assignment: Annotated[bytes, wire(BYTES, "0+")]
