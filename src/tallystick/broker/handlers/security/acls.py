"""DescribeAcls, CreateAcls, DeleteAcls: what the ACLs are, and changes of them.

Without an authorizer the answer is SECURITY_DISABLED, as in Kafka, so that tools tell their user that access
is not controlled at all: an empty list would mean that there are rules and none matched.

Source: KIP-140, KIP-290; AclApis.
"""

from typing import Final

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation
from tallystick.broker.authorizer.bindings import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    ResourcePattern,
    parse_binding,
    parse_filter,
)
from tallystick.broker.handlers.ports import AclsPort
from tallystick.broker.metadata.acl_controller import AclController
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.security.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

NO_AUTHORIZER_REASON: Final = "this broker has no authorizer: every client that can connect may do everything"
_NO_AUTHORIZER: Final = Reject(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER_REASON)
_NOT_AUTHORIZED: Final = Reject(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def describe(broker: AclsPort, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """List the ACLs that match a filter, by pattern."""
    acls = _get_controller(broker, context, Operation.DESCRIBE)
    if isinstance(acls, Reject):
        return DescribeAclsResponse(error_code=acls.code, error_message=acls.reason)
    acl_filter = parse_filter(
        (request.resource_type_filter, request.resource_name_filter, request.pattern_type_filter),
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if isinstance(acl_filter, Reject):
        return DescribeAclsResponse(error_code=acl_filter.code, error_message=acl_filter.reason)
    entries: dict[ResourcePattern, list[AccessControlEntry]] = {}
    for acl in acls.index.find(acl_filter):
        entries.setdefault(acl.pattern, []).append(acl.entry)
    return DescribeAclsResponse(
        resources=tuple(
            DescribeAclsResource(
                resource_type=pattern.resource_type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
                acls=tuple(_to_description(entry) for entry in each),
            )
            for pattern, each in entries.items()
        )
    )


async def create(broker: AclsPort, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Add the valid ACLs of the request in one step; refuse the others, each with its reason."""
    acls = _get_controller(broker, context, Operation.ALTER)
    if isinstance(acls, Reject):
        return CreateAclsResponse(results=(_to_creation_result(acls),) * len(request.creations))
    bindings = [_parse_creation(each) for each in request.creations]
    failure = await acls.create([each for each in bindings if isinstance(each, AclBinding)])
    return CreateAclsResponse(
        results=tuple(_to_creation_result(each if isinstance(each, Reject) else failure) for each in bindings)
    )


async def delete(broker: AclsPort, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Remove what the valid filters match in one step; answer each filter with what it matched."""
    acls = _get_controller(broker, context, Operation.ALTER)
    if isinstance(acls, Reject):
        return DeleteAclsResponse(filter_results=(_to_filter_result(acls),) * len(request.filters))
    filters = [_parse_filter(each) for each in request.filters]
    matches = await acls.delete([each for each in filters if isinstance(each, AclBindingFilter)])
    if isinstance(matches, Reject):
        results = [each if isinstance(each, Reject) else matches for each in filters]
        return DeleteAclsResponse(filter_results=tuple(_to_filter_result(each) for each in results))
    remaining = iter(matches)
    return DeleteAclsResponse(
        filter_results=tuple(
            _to_filter_result(each)
            if isinstance(each, Reject)
            else DeleteAclsFilterResult(matching_acls=tuple(_to_matching_acl(acl) for acl in next(remaining)))
            for each in filters
        )
    )


def _get_controller(
    broker: AclsPort, context: RequestContext, operation: Operation
) -> AclController | Reject:
    if broker.acl_controller is None:
        return _NO_AUTHORIZER
    if not broker.authorizer.allows(context, operation, CLUSTER_RESOURCE):
        return _NOT_AUTHORIZED
    return broker.acl_controller


def _parse_creation(each: AclCreation) -> AclBinding | Reject:
    return parse_binding(
        (each.resource_type, each.resource_name, each.resource_pattern_type),
        each.principal,
        each.host,
        each.operation,
        each.permission_type,
    )


def _parse_filter(each: DeleteAclsFilter) -> AclBindingFilter | Reject:
    return parse_filter(
        (each.resource_type_filter, each.resource_name_filter, each.pattern_type_filter),
        each.principal_filter,
        each.host_filter,
        each.operation,
        each.permission_type,
    )


def _to_creation_result(refusal: Reject | None) -> AclCreationResult:
    if refusal is None:
        return AclCreationResult()
    return AclCreationResult(error_code=refusal.code, error_message=refusal.reason)


def _to_filter_result(refusal: Reject) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=refusal.code, error_message=refusal.reason)


def _to_description(entry: AccessControlEntry) -> AclDescription:
    return AclDescription(
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _to_matching_acl(acl: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=acl.pattern.resource_type,
        resource_name=acl.pattern.name,
        pattern_type=acl.pattern.pattern_type,
        principal=acl.entry.principal,
        host=acl.entry.host,
        operation=acl.entry.operation,
        permission_type=acl.entry.permission,
    )
