"""FindCoordinator: this broker, for every group."""

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP = 0
TRANSACTION = 1

# Not COORDINATOR_NOT_AVAILABLE: a client would ask again until its timeout, for what is not there.
NO_TRANSACTIONS = Reject(ErrorCode.INVALID_REQUEST, "this broker has no transaction coordinator")
NO_SUCH_TYPE = Reject(ErrorCode.INVALID_REQUEST, "only group coordinators can be looked up here")


async def handle(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    refused = await _refusal(broker, request.key_type)
    if context.api_version >= 4:
        found = tuple(_coordinator(broker, key, refused) for key in request.coordinator_keys)
        return FindCoordinatorResponse(coordinators=found)
    only = _coordinator(broker, request.key, refused)
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _refusal(broker: Broker, key_type: int) -> Reject | None:
    """None when this broker coordinates the type; the offsets topic is there then."""
    if key_type == TRANSACTION:
        return NO_TRANSACTIONS
    if key_type != GROUP:
        return NO_SUCH_TYPE
    refused = await broker.groups.prepare()
    return refused and Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.reason)


def _coordinator(broker: Broker, key: str, refused: Reject | None) -> Coordinator:
    if refused is not None:
        return Coordinator(
            key=key,
            node_id=-1,
            host="",
            port=-1,
            error_code=refused.code,
            error_message=refused.reason,
        )
    address = broker.address
    return Coordinator(key=key, node_id=broker.config.node_id, host=address.host, port=address.port)
