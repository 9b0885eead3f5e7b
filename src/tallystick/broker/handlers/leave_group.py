"""LeaveGroup: removes members at once, without waiting for their session timeouts."""

from tallystick.broker.broker import Broker
from tallystick.broker.group.machine.commands import Leave, LeavingMember, Left
from tallystick.broker.handlers.group_wire import code_of, instance_id_of, member_id_of
from tallystick.broker.handlers.listing import in_slices
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, MemberId
from tallystick.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)


async def handle(broker: Broker, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    single = context.api_version < 3  # KIP-345: from version 3 on several members leave in one request
    leaving = (
        (LeavingMember(member_id=MemberId(request.member_id)),)
        if single
        else await in_slices(
            LeavingMember(
                member_id=member_id_of(member.member_id),
                instance_id=instance_id_of(member.group_instance_id),
                reason=member.reason,
            )
            for member in request.members
        )
    )
    answer = await broker.groups.execute(GroupId(request.group_id), Leave(members=leaving))
    if not isinstance(answer, Left):
        return LeaveGroupResponse(error_code=code_of(answer))
    codes = [ErrorCode.NONE if outcome is None else outcome for outcome in answer.outcomes]
    if single:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=await in_slices(
            MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
            )
            for member, code in zip(request.members, codes, strict=True)
        )
    )
