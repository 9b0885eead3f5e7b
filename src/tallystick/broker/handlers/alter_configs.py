"""AlterConfigs: replace all settings of a resource. Deprecated by Kafka for IncrementalAlterConfigs."""

from tallystick.broker.broker import Broker
from tallystick.broker.config_view import Alteration, Change, Operation, alter
from tallystick.broker.context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    asked = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            tuple(Change(config.name, Operation.SET, config.value) for config in resource.configs),
        )
        for resource in request.resources
    ]
    outcomes = await alter(broker, asked, replace=True, validate_only=request.validate_only)
    return AlterConfigsResponse(
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
