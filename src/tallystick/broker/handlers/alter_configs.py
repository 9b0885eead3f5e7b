"""AlterConfigs: replaces all settings of a resource (KIP-133). Deprecated for IncrementalAlterConfigs."""

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.config_view import (
    AlterConfigOp,
    ConfigAlteration,
    ConfigChange,
    alter_configs,
    collect_alterations,
)
from tallystick.broker.handlers.sliced_response import SlicedListResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, context: RequestContext) -> SlicedListResponse:
    asked = await collect_alterations(
        (
            resource.resource_type,
            resource.resource_name,
            (ConfigChange(config.name, AlterConfigOp.SET, config.value) for config in resource.configs),
        )
        for resource in request.resources
    )
    outcomes = await alter_configs(broker, asked, replace=True, validate_only=request.validate_only)
    return SlicedListResponse(
        lambda responses: AlterConfigsResponse(responses=responses),
        tuple(zip(asked, outcomes, strict=True)),
        lambda outcome: _build_response(*outcome),
    )


def _build_response(asked: ConfigAlteration, refused: Reject | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if refused is None else refused.code,
        error_message=None if refused is None else refused.reason,
        resource_type=asked.resource_type,
        resource_name=asked.name,
    )
