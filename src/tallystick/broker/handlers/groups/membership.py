"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the life of a member of a classic group."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import (
    Heartbeat,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
    MemberIdRequired,
    SyncGroup,
    SyncGroupResult,
)
from tallystick.broker.group.machine.model import MemberProtocol
from tallystick.broker.handlers.authorization import may_on_group
from tallystick.broker.handlers.groups.group_wire import get_error_code, parse_instance_id, parse_member_id
from tallystick.broker.handlers.ports import GroupsPort
from tallystick.broker.handlers.sliced_response import collect_in_slices
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, MemberId
from tallystick.protocol.messages.groups.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


async def join(broker: GroupsPort, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Answer JoinGroup when the next generation begins."""
    if not may_on_group(broker, context, Operation.READ, request.group_id):
        return _refuse_join(request, context, ErrorCode.GROUP_AUTHORIZATION_FAILED, "")
    if not request.group_id:
        return _refuse_join(request, context, ErrorCode.INVALID_GROUP_ID)
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
            return _answer_join(answer, context)
        case MemberIdRequired(member_id=member_id):
            return _refuse_join(request, context, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        case Reject(code=ErrorCode.GROUP_MAX_SIZE_REACHED as code):
            return _refuse_join(request, context, code, "")
        case Reject(code=code):
            return _refuse_join(request, context, code)
        case _:
            raise AssertionError(f"JoinGroup is not answered by {answer}")


def _answer_join(answer: JoinGroupResult, context: RequestContext) -> JoinGroupResponse:
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


def _refuse_join(
    request: JoinGroupRequest, context: RequestContext, code: ErrorCode, member_id: str | None = None
) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code,
        # The field is nullable from version 7 on.
        protocol_name=None if context.api_version >= 7 else "",
        leader="",
        member_id=request.member_id if member_id is None else member_id,
    )


async def sync(broker: GroupsPort, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """Store the leader's assignment, and return each member its own."""
    refused = _check_sync(broker, request, context)
    if refused is not None:
        return SyncGroupResponse(error_code=refused, assignment=b"")
    command = SyncGroup(
        member_id=MemberId(request.member_id),
        instance_id=parse_instance_id(request.group_instance_id),
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={MemberId(member.member_id): member.assignment for member in request.assignments},
        ticket=broker.groups.create_ticket(),
    )
    answer = await broker.groups.execute(GroupId(request.group_id), command)
    if isinstance(answer, SyncGroupResult):
        return SyncGroupResponse(
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )
    return SyncGroupResponse(error_code=get_error_code(answer), assignment=b"")


def _check_sync(broker: GroupsPort, request: SyncGroupRequest, context: RequestContext) -> ErrorCode | None:
    """Check the form and the right. Source: KafkaApis.handleSyncGroupRequest, which has this order."""
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if request.group_id and context.api_version >= 5 and not names_protocol:
        # KIP-559: from version 5 on the member sends the protocol that it expects.
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not may_on_group(broker, context, Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None if request.group_id else ErrorCode.INVALID_GROUP_ID


async def heartbeat(
    broker: GroupsPort, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse:
    """Keep a member's session alive."""
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


async def leave(
    broker: GroupsPort, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    """Remove members immediately, without waiting for their session timeouts."""
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
