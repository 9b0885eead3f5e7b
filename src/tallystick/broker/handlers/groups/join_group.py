"""JoinGroup: joins a group; the response comes with the next generation."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import JoinGroup, JoinGroupResult, MemberIdRequired
from tallystick.broker.group.machine.model import MemberProtocol
from tallystick.broker.handlers.authorization import may_on_group
from tallystick.broker.handlers.groups.group_wire import parse_instance_id, parse_member_id
from tallystick.broker.handlers.ports import GroupsPort
from tallystick.broker.handlers.sliced_response import collect_in_slices
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId
from tallystick.protocol.messages.groups.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)


async def handle(broker: GroupsPort, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    if not may_on_group(broker, context, Operation.READ, request.group_id):
        return _refused_response(request, context, ErrorCode.GROUP_AUTHORIZATION_FAILED, "")
    if not request.group_id:
        return _refused_response(request, context, ErrorCode.INVALID_GROUP_ID)
    version = context.api_version
    command = JoinGroup(
        member_id=parse_member_id(request.member_id),
        instance_id=parse_instance_id(request.group_instance_id),
        client_id=context.client_id or "",
        # Java's format of an address, as tools show it.
        client_host=f"/{context.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        # KIP-62: version 0 has one timeout for both.
        rebalance_timeout_ms=request.session_timeout_ms if version == 0 else request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=await collect_in_slices(
            MemberProtocol(offer.name, offer.metadata) for offer in request.protocols
        ),
        # KIP-394: from version 4 on a new member gets its id first, and joins again with it.
        requires_known_member_id=version >= 4,
        # KIP-814: a static leader that rejoins learns that its group needs no new assignment.
        supports_skip_assignment=version >= 9,
        reason=request.reason,
        ticket=broker.groups.create_ticket(),
    )
    answer = await broker.groups.execute(GroupId(request.group_id), command)
    match answer:
        case JoinGroupResult():
            return _joined_response(answer, context)
        case MemberIdRequired(member_id=member_id):
            return _refused_response(request, context, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        case Reject(code=ErrorCode.GROUP_MAX_SIZE_REACHED as code):
            return _refused_response(request, context, code, "")
        case Reject(code=code):
            return _refused_response(request, context, code)
        case _:
            raise AssertionError(f"JoinGroup is not answered by {answer}")


def _joined_response(answer: JoinGroupResult, context: RequestContext) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        leader=answer.leader_id or "",
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ),
    )


def _refused_response(
    request: JoinGroupRequest, context: RequestContext, code: ErrorCode, member_id: str | None = None
) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code,
        # The field is nullable from version 7 on.
        protocol_name=None if context.api_version >= 7 else "",
        leader="",
        member_id=request.member_id if member_id is None else member_id,
    )
