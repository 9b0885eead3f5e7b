"""DeleteGroups: empty groups, with their offsets (KIP-229)."""

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.group.commands import DeleteGroup
from tallystick.broker.handlers.group_wire import code_of, distinct
from tallystick.kernel.ids import GroupId
from tallystick.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    results = [
        DeletableGroupResult(
            group_id=name, error_code=code_of(await broker.groups.execute(GroupId(name), DeleteGroup()))
        )
        for name in distinct(request.groups_names)
    ]
    return DeleteGroupsResponse(results=tuple(results))
