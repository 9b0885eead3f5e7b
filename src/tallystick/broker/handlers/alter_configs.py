"""AlterConfigs: replace all settings of a resource. Deprecated by Kafka for IncrementalAlterConfigs."""

from collections import Counter

from tallystick.broker.broker import Broker
from tallystick.broker.config_view import ASKED_TWICE, Change, Operation, alter
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
                [Change(config.name, Operation.SET, config.value) for config in resource.configs],
                replace=True,
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
    return AlterConfigsResponse(responses=tuple(responses))
