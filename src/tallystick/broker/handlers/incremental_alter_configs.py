"""IncrementalAlterConfigs: set, delete, append to and subtract from single settings."""

from collections import Counter

from tallystick.broker.broker import Broker
from tallystick.broker.config_view import ASKED_TWICE, Change, alter
from tallystick.broker.context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    responses = []
    asked = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    for resource in request.resources:
        twice = asked[resource.resource_type, resource.resource_name] > 1
        refused = (
            ASKED_TWICE
            if twice
            else await alter(
                broker,
                resource.resource_type,
                resource.resource_name,
                [Change(config.name, config.config_operation, config.value) for config in resource.configs],
                replace=False,
                validate_only=request.validate_only,
            )
        )
        responses.append(
            AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if refused is None else refused.code,
                error_message=None if refused is None else refused.reason,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=tuple(responses))
