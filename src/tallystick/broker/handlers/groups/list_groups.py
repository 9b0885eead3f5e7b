"""ListGroups: lists the groups, filtered by state (KIP-518) and type (KIP-848) on request."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.queries import GROUP_TYPE, list_groups
from tallystick.broker.handlers.authorization import may_on_cluster, may_on_group
from tallystick.broker.handlers.ports import GroupsPort
from tallystick.broker.handlers.sliced_response import SlicedListResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.groups.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(
    broker: GroupsPort, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse | SlicedListResponse:
    groups = broker.groups.list_groups()
    if isinstance(groups, Reject):
        return ListGroupsResponse(error_code=groups.code)
    entries = list_groups(groups, frozenset(request.states_filter), frozenset(request.types_filter))
    if not may_on_cluster(broker, context, Operation.DESCRIBE, log_denied=False):
        entries = tuple(
            group
            for group in entries
            if may_on_group(broker, context, Operation.DESCRIBE, group.group_id, log_denied=False)
        )
    return SlicedListResponse(
        lambda listed_groups: ListGroupsResponse(groups=listed_groups),
        tuple(entries),
        lambda group: ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state.value,
            group_type=GROUP_TYPE,
        ),
    )
