"""ListGroups (16), DescribeGroups (15) and DeleteGroups (42): groups as an operator sees them."""

from typing import Annotated

from tallystick.protocol.messages.topics.metadata import OPERATIONS_NOT_ASKED
from tallystick.protocol.wire import BOOL, BYTES, INT16, INT32, STRING, array, message, struct, wire


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    """Filters by state (4+, KIP-518) and type (5+, KIP-848); an empty filter matches all.

    Source: Kafka ListGroupsRequest.
    """

    states_filter: Annotated[tuple[str, ...], wire(array(STRING), "4+")] = ()
    types_filter: Annotated[tuple[str, ...], wire(array(STRING), "5+")] = ()


@struct
class ListedGroup:
    group_id: Annotated[str, wire(STRING, "0+")]
    protocol_type: Annotated[str, wire(STRING, "0+")]
    group_state: Annotated[str, wire(STRING, "4+", ignorable=True)] = ""
    group_type: Annotated[str, wire(STRING, "5+", ignorable=True)] = ""


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """Group ids, protocol types and, depending on the version, states and group types.

    Source: Kafka ListGroupsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    groups: Annotated[tuple[ListedGroup, ...], wire(array(ListedGroup), "0+")] = ()


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


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    """Ids of the groups to delete.

    Source: KIP-229; Kafka DeleteGroupsRequest.
    """

    groups_names: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()


@struct
class DeletableGroupResult:
    group_id: Annotated[str, wire(STRING, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    """One result per group.

    Source: Kafka DeleteGroupsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    results: Annotated[tuple[DeletableGroupResult, ...], wire(array(DeletableGroupResult), "0+")] = ()
