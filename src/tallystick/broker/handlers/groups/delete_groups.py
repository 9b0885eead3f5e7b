"""DeleteGroups: deletes empty groups and their offsets (KIP-229), unless they are pending (ADR 0023).

Offsets that are part of an open transaction are pending.
"""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import DeleteGroup
from tallystick.broker.handlers.authorization import may_on_group
from tallystick.broker.handlers.deduplicate import deduplicate
from tallystick.broker.handlers.groups.group_wire import get_error_code, log_blocking_transactions
from tallystick.broker.handlers.ports import DeletionPort
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId
from tallystick.protocol.messages.groups.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(
    broker: DeletionPort, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    pacer, results = LoopYielder(), list[DeletableGroupResult]()
    for name in deduplicate(request.groups_names):
        await pacer.count_entry()
        code = (
            await _delete(broker, GroupId(name))
            if may_on_group(broker, context, Operation.DELETE, name)
            else ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
        results.append(DeletableGroupResult(group_id=name, error_code=code))
    return DeleteGroupsResponse(results=tuple(results))


async def _delete(broker: DeletionPort, group_id: GroupId) -> int:
    command = DeleteGroup(may_discard_pending=broker.config.delete_open_transactions)
    code = get_error_code(await broker.groups.execute(group_id, command))
    if code == ErrorCode.POLICY_VIOLATION:
        log_blocking_transactions(broker, group_id, "DeleteGroups")
        broker.metrics.deletions_refused.add()
    return code
