"""IncrementalAlterConfigs: sets, deletes, appends to and subtracts from single settings (KIP-339)."""

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.config_view import (
    ConfigAlteration,
    ConfigChange,
    alter_configs,
    collect_alterations,
)
from tallystick.broker.handlers.sliced_response import SlicedListResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> SlicedListResponse:
    asked = await collect_alterations(
        (
            resource.resource_type,
            resource.resource_name,
            (ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs),
        )
        for resource in request.resources
    )
    outcomes = await alter_configs(broker, asked, replace=False, validate_only=request.validate_only)
    return SlicedListResponse(
        lambda responses: IncrementalAlterConfigsResponse(responses=responses),
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
