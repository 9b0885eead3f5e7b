"""DeleteGroups (42): remove empty groups with their offsets."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, array, message, struct, wire


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
