"""FindCoordinator: this broker coordinates every group and every transactional id."""

from typing import Final

from tallystick.broker.authorizer.authorizer import Operation, group_resource, transactional_id_resource
from tallystick.broker.handlers.deduplicate import deduplicate
from tallystick.broker.handlers.ports import CoordinatorsPort
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedListResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.cluster.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP: Final = 0
TRANSACTION: Final = 1

UNKNOWN_KEY_TYPE: Final = Reject(
    ErrorCode.INVALID_REQUEST, "this key type is not supported; groups and transactions have coordinators"
)
_NOT_AUTHORIZED: Final = {
    GROUP: Reject(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    TRANSACTION: Reject(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
    ),
}


async def handle(
    broker: CoordinatorsPort, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | SlicedListResponse:
    is_batched = context.api_version >= 4  # KIP-699
    keys = deduplicate(request.coordinator_keys) if is_batched else (request.key,)
    pacer, refusals = LoopYielder(), dict[str, Reject | None]()
    for key in keys:
        await pacer.count_entry()
        refusals[key] = _check_key(broker, context, request.key_type, key)
    # The coordinator's topic is created on demand, but not for a client without the right to use it.
    unready = await _create_coordinator_topic(broker, request.key_type) if None in refusals.values() else None
    if is_batched:
        return SlicedListResponse(
            lambda coordinators: FindCoordinatorResponse(coordinators=coordinators),
            keys,
            lambda key: _build_coordinator(broker, context, key, refusals[key] or unready),
        )
    coordinator = _build_coordinator(broker, context, request.key, refusals[request.key] or unready)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _check_key(broker: CoordinatorsPort, context: RequestContext, key_type: int, key: str) -> Reject | None:
    if key_type not in _NOT_AUTHORIZED:
        return UNKNOWN_KEY_TYPE
    resource = group_resource(key) if key_type == GROUP else transactional_id_resource(key)
    return (
        None if broker.authorizer.allows(context, Operation.DESCRIBE, resource) else _NOT_AUTHORIZED[key_type]
    )


async def _create_coordinator_topic(broker: CoordinatorsPort, key_type: int) -> Reject | None:
    """Create the coordinator's topic if needed; return why it cannot coordinate, or None."""
    coordinator = broker.groups if key_type == GROUP else broker.transactions
    refusal = await coordinator.ensure_topic()
    return refusal and Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.reason)


def _build_coordinator(
    broker: CoordinatorsPort, context: RequestContext, key: str, refusal: Reject | None
) -> Coordinator:
    if refusal is not None:
        return Coordinator(
            key=key,
            node_id=-1,
            host="",
            port=-1,
            error_code=refusal.code,
            error_message=refusal.reason,
        )
    address = broker.get_address(context.listener)
    return Coordinator(key=key, node_id=broker.config.node_id, host=address.host, port=address.port)
