"""ListGroups (16): list the groups that one broker coordinates."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, array, message, struct, wire


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
