"""DescribeGroups (15): state and members of classic groups."""

from typing import Annotated

from tallystick.protocol.messages.topics.metadata import OPERATIONS_NOT_ASKED
from tallystick.protocol.wire import BOOL, BYTES, INT16, INT32, STRING, array, message, struct, wire


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """Ids of classic groups; 3 can ask for authorized operations (KIP-430).

    Source: Kafka DescribeGroupsRequest.
    """

    groups: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    include_authorized_operations: Annotated[bool, wire(BOOL, "3+")] = False


@struct
class DescribedGroupMember:
    member_id: Annotated[str, wire(STRING, "0+")]
    group_instance_id: Annotated[str | None, wire(STRING, "4+", nullable="4+", ignorable=True)] = None
    client_id: Annotated[str, wire(STRING, "0+")]
    client_host: Annotated[str, wire(STRING, "0+")]
    # Empty unless the group is stable, as is the assignment.
    member_metadata: Annotated[bytes, wire(BYTES, "0+")]
    member_assignment: Annotated[bytes, wire(BYTES, "0+")]


@struct
class DescribedGroup:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "6+", nullable="6+")] = None
    group_id: Annotated[str, wire(STRING, "0+")]
    group_state: Annotated[str, wire(STRING, "0+")]
    protocol_type: Annotated[str, wire(STRING, "0+")]
    protocol_data: Annotated[str, wire(STRING, "0+")]  # name of the chosen protocol
    members: Annotated[tuple[DescribedGroupMember, ...], wire(array(DescribedGroupMember), "0+")] = ()
    authorized_operations: Annotated[int, wire(INT32, "3+")] = OPERATIONS_NOT_ASKED


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """One entry per group; 4 adds the ids of static members (KIP-345).

    Up to version 5 an unknown group is in state "Dead" without an error; 6 answers GROUP_ID_NOT_FOUND
    (KIP-1043).

    Source: Kafka DescribeGroupsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    groups: Annotated[tuple[DescribedGroup, ...], wire(array(DescribedGroup), "0+")] = ()
