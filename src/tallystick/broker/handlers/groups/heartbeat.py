"""Heartbeat: keeps a member's session alive."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import Heartbeat
from tallystick.broker.handlers.authorization import may_on_group
from tallystick.broker.handlers.groups.group_wire import get_error_code, parse_instance_id
from tallystick.broker.handlers.ports import GroupsPort
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, MemberId
from tallystick.protocol.messages.groups.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(broker: GroupsPort, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    if not may_on_group(broker, context, Operation.READ, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    command = Heartbeat(
        member_id=MemberId(request.member_id),
        instance_id=parse_instance_id(request.group_instance_id),
        generation=request.generation_id,
    )
    code = get_error_code(await broker.groups.execute(GroupId(request.group_id), command))
    # Sessions start when loading ends, so a heartbeat during loading succeeds.
    return HeartbeatResponse(error_code=0 if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else code)
