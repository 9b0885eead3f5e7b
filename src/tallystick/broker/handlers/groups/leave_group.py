"""LeaveGroup: removes members at once, without waiting for their session timeouts."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import LeaveGroup, LeaveGroupResult, LeavingMember
from tallystick.broker.handlers.authorization import may_on_group
from tallystick.broker.handlers.groups.group_wire import get_error_code, parse_instance_id, parse_member_id
from tallystick.broker.handlers.ports import GroupsPort
from tallystick.broker.handlers.sliced_response import collect_in_slices
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, MemberId
from tallystick.protocol.messages.groups.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)


async def handle(
    broker: GroupsPort, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    if not may_on_group(broker, context, Operation.READ, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    single = context.api_version < 3  # KIP-345: from version 3 on several members leave in one request
    members = (
        (LeavingMember(member_id=MemberId(request.member_id)),)
        if single
        else await collect_in_slices(
            LeavingMember(
                member_id=parse_member_id(member.member_id),
                instance_id=parse_instance_id(member.group_instance_id),
                reason=member.reason,
            )
            for member in request.members
        )
    )
    answer = await broker.groups.execute(GroupId(request.group_id), LeaveGroup(members=members))
    if not isinstance(answer, LeaveGroupResult):
        return LeaveGroupResponse(error_code=get_error_code(answer))
    codes = [ErrorCode.NONE if outcome is None else outcome for outcome in answer.errors]
    if single:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=await collect_in_slices(
            MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
            )
            for member, code in zip(request.members, codes, strict=True)
        )
    )
