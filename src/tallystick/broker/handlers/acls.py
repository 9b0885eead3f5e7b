"""DescribeAcls, CreateAcls, DeleteAcls: refused, because there is no authorizer.

An empty list would mean that there are rules and none matched. As in Kafka, the answer is SECURITY_DISABLED,
so that tools tell their user that access is not controlled at all.

Source: KIP-140; AclApis.
"""

from typing import Final

from tallystick.broker.handlers.ports import HasAuthorizer
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from tallystick.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tallystick.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER_REASON: Final = "this broker has no authorizer: every client that can connect may do everything"


def describe(
    broker: HasAuthorizer, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER_REASON)


def create(broker: HasAuthorizer, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER_REASON)
    return CreateAclsResponse(results=(refused,) * len(request.creations))


def delete(broker: HasAuthorizer, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER_REASON
    )
    return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))
