"""JoinGroup (11), SyncGroup (14), Heartbeat (12) and LeaveGroup (13): members of classic groups."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, BYTES, INT16, INT32, STRING, array, message, struct, wire


@struct
class JoinGroupRequestProtocol:
    name: Annotated[str, wire(STRING, "0+")]
    metadata: Annotated[bytes, wire(BYTES, "0+")]  # of consumers: a ConsumerProtocolSubscription


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    """A request for membership; the response waits for the end of the rebalance.

    1 separates the rebalance timeout from the session timeout (KIP-62); from 4 on a member without an id
    first gets one with MEMBER_ID_REQUIRED (KIP-394); 5 adds static members (KIP-345), 8 the reason (KIP-800).

    Source: Kafka JoinGroupRequest.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    session_timeout_ms: Annotated[int, wire(INT32, "0+")]
    rebalance_timeout_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = -1  # -1: the session timeout
    member_id: Annotated[str, wire(STRING, "0+")]  # "" in the first request
    group_instance_id: Annotated[str | None, wire(STRING, "5+", nullable="5+")] = None
    protocol_type: Annotated[str, wire(STRING, "0+")]  # "consumer", "connect", ...
    # In order of preference.
    protocols: Annotated[
        tuple[JoinGroupRequestProtocol, ...], wire(array(JoinGroupRequestProtocol), "0+")
    ] = ()
    reason: Annotated[str | None, wire(STRING, "8+", nullable="8+", ignorable=True)] = None


@struct
class JoinGroupResponseMember:
    member_id: Annotated[str, wire(STRING, "0+")]
    group_instance_id: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    metadata: Annotated[bytes, wire(BYTES, "0+")]


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The new generation; `members` is filled for the leader only.

    7 adds the protocol type (KIP-559); 9 lets a returning static leader skip the assignment (KIP-814).

    Source: Kafka JoinGroupResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "2+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    generation_id: Annotated[int, wire(INT32, "0+")] = -1
    protocol_type: Annotated[str | None, wire(STRING, "7+", nullable="7+", ignorable=True)] = None
    protocol_name: Annotated[str | None, wire(STRING, "0+", nullable="7+")]  # supported by every member
    leader: Annotated[str, wire(STRING, "0+")]  # the leader's member id
    skip_assignment: Annotated[bool, wire(BOOL, "9+")] = False
    member_id: Annotated[str, wire(STRING, "0+")]
    members: Annotated[tuple[JoinGroupResponseMember, ...], wire(array(JoinGroupResponseMember), "0+")] = ()


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


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """The member's proof of liveness in a generation.

    Source: Kafka HeartbeatRequest; v3 KIP-345.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    generation_id: Annotated[int, wire(INT32, "0+")]
    member_id: Annotated[str, wire(STRING, "0+")]
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")] = None


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS tells the member to rejoin.

    Source: Kafka HeartbeatResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0


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
