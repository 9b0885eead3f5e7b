"""IncrementalAlterConfigs: set, delete, append to and subtract from single settings."""

from tallystick.broker.broker import Broker
from tallystick.broker.config_view import Alteration, Change, alter
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
    asked = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            tuple(Change(config.name, config.config_operation, config.value) for config in resource.configs),
        )
        for resource in request.resources
    ]
    outcomes = await alter(broker, asked, replace=False, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if refused is None else refused.code,
                error_message=None if refused is None else refused.reason,
                resource_type=each.kind,
                resource_name=each.name,
            )
            for each, refused in zip(asked, outcomes, strict=True)
        )
    )
