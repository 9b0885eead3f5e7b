"""SyncGroup: stores the leader's assignment, and returns each member its own."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import SyncGroup, SyncGroupResult
from tallystick.broker.handlers.authorization import may_on_group
from tallystick.broker.handlers.groups.group_wire import get_error_code, parse_instance_id
from tallystick.broker.handlers.ports import GroupsPort
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, MemberId
from tallystick.protocol.messages.groups.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle(broker: GroupsPort, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    refused = _check_request(broker, request, context)
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


def _check_request(
    broker: GroupsPort, request: SyncGroupRequest, context: RequestContext
) -> ErrorCode | None:
    """Check the form and the right. Source: KafkaApis.handleSyncGroupRequest, which has this order."""
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if request.group_id and context.api_version >= 5 and not names_protocol:
        # KIP-559: from version 5 on the member sends the protocol that it expects.
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not may_on_group(broker, context, Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None if request.group_id else ErrorCode.INVALID_GROUP_ID
