"""LeaveGroup (13): leave a classic group."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, array, message, struct, wire


@struct
class MemberIdentity:
    member_id: Annotated[str, wire(STRING, "3+")]
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")] = None
    reason: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """One member (0-2) or several (3+, KIP-345) to remove from a group; 5 adds the reason (KIP-800).

    Source: Kafka LeaveGroupRequest.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    member_id: Annotated[str, wire(STRING, "0-2")] = ""  # one member
    members: Annotated[tuple[MemberIdentity, ...], wire(array(MemberIdentity), "3+")] = ()  # several members


@struct
class MemberResponse:
    member_id: Annotated[str, wire(STRING, "3+")]
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")]
    error_code: Annotated[int, wire(INT16, "3+")] = 0


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """One error code per member from version 3 on.

    Source: Kafka LeaveGroupResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    members: Annotated[tuple[MemberResponse, ...], wire(array(MemberResponse), "3+")] = ()
