"""AlterConfigs: replaces all settings of a resource (KIP-133). Deprecated for IncrementalAlterConfigs."""

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.config_view import Alteration, Change, Operation, alter, alterations
from tallystick.broker.handlers.listing import Listed
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, context: RequestContext) -> Listed:
    asked = await alterations(
        (
            resource.resource_type,
            resource.resource_name,
            (Change(config.name, Operation.SET, config.value) for config in resource.configs),
        )
        for resource in request.resources
    )
    outcomes = await alter(broker, asked, replace=True, validate_only=request.validate_only)
    return Listed(
        lambda responses: AlterConfigsResponse(responses=responses),
        tuple(zip(asked, outcomes, strict=True)),
        lambda outcome: _answer(*outcome),
    )


def _answer(asked: Alteration, refused: Reject | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if refused is None else refused.code,
        error_message=None if refused is None else refused.reason,
        resource_type=asked.kind,
        resource_name=asked.name,
    )
