"""ListGroups, DescribeGroups and DeleteGroups: what an operator sees of groups, and may remove."""

from typing import Final

from tallystick.broker.authorizer.authorizer import Operation, group_resource
from tallystick.broker.group.machine.commands import DeleteGroup
from tallystick.broker.group.machine.model import GroupState
from tallystick.broker.group.machine.queries import GROUP_TYPE, describe_group, list_groups
from tallystick.broker.handlers.authorization import may_on_cluster, may_on_group
from tallystick.broker.handlers.deduplicate import deduplicate
from tallystick.broker.handlers.groups.group_wire import (
    OPERATIONS_NOT_REQUESTED,
    get_error_code,
    log_blocking_transactions,
)
from tallystick.broker.handlers.ports import DeletionPort, GroupsPort
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedListResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId
from tallystick.protocol.messages.groups.administration import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)


def list_all(
    broker: GroupsPort, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse | SlicedListResponse:
    """List the groups, on request those of some states (KIP-518) and types (KIP-848)."""
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


_NOT_AUTHORIZED: Final = Reject(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")


def describe(
    broker: GroupsPort, request: DescribeGroupsRequest, context: RequestContext
) -> SlicedListResponse:
    """Describe state, protocol and members of groups."""
    return SlicedListResponse(
        lambda groups: DescribeGroupsResponse(groups=groups),
        deduplicate(request.groups),
        lambda name: _describe_if_allowed(broker, name, request, context),
    )


def _describe_if_allowed(
    broker: GroupsPort, name: str, request: DescribeGroupsRequest, context: RequestContext
) -> DescribedGroup:
    if not may_on_group(broker, context, Operation.DESCRIBE, name):
        return _describe_absent(name, "", OPERATIONS_NOT_REQUESTED, _NOT_AUTHORIZED)
    operations = (
        broker.authorizer.find_authorized_operations(context, group_resource(name))
        if request.include_authorized_operations
        else OPERATIONS_NOT_REQUESTED
    )
    return _describe(broker, name, operations, context.api_version)


def _describe(broker: GroupsPort, name: str, operations: int, version: int) -> DescribedGroup:
    group = broker.groups.get_group(GroupId(name))
    if isinstance(group, Reject):
        return _describe_absent(name, "", operations, group)
    if group is None:
        # KIP-1043: up to version 5 an unknown group is "Dead", without an error.
        refusal = Reject(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found.")
        return _describe_absent(name, GroupState.DEAD.value, operations, refusal if version >= 6 else None)
    description = describe_group(group)
    return DescribedGroup(
        group_id=name,
        group_state=description.state.value,
        protocol_type=description.protocol_type,
        protocol_data=description.protocol_name,
        members=tuple(
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in description.members
        ),
        authorized_operations=operations,
    )


def _describe_absent(name: str, state: str, operations: int, refusal: Reject | None) -> DescribedGroup:
    is_not_found = refusal is not None and refusal.code is ErrorCode.GROUP_ID_NOT_FOUND
    return DescribedGroup(
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=refusal.reason if is_not_found and refusal is not None else None,
        group_id=name,
        group_state=state,
        protocol_type="",
        protocol_data="",
        authorized_operations=operations if refusal is None else OPERATIONS_NOT_REQUESTED,
    )


async def delete(
    broker: DeletionPort, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Delete empty groups and their offsets (KIP-229).

    Offsets that are part of an open transaction are pending: their group stays (ADR 0022).
    """
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
