"""InitProducerId: allocates a producer id, or takes over a transactional id, perhaps in doubt (KIP-939)."""

from collections.abc import Awaitable
from functools import partial
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.txn_wire import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NOT_ALLOWED,
    answered,
    code_of,
    identity_of,
    may_write,
)
from tallystick.broker.server.acl import CLUSTER, Operation, ResourceType, transactional_id
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import Answer, Initialised, InitProducerId
from tallystick.broker.txn.machine.producer_epochs import first_pair
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NO_IDEMPOTENT_WRITE: Final = Reject(
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "neither IDEMPOTENT_WRITE nor WRITE on any topic"
)
_NO_PAIR: Final = Reject(ErrorCode.INVALID_REQUEST, "a producer id without its epoch, or the reverse")


def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Check the rights, then the producer id and epoch, then ask the coordinator: Kafka's order of errors."""
    refused = _refusal(broker, request, context)
    if refused is not None:
        return _response(context, refused)
    if request.transactional_id is None:
        return _without_transactions(broker, context)
    respond = partial(_response, context)
    return answered(broker, request.transactional_id, _command(request), respond)


async def _without_transactions(broker: Broker, context: RequestContext) -> InitProducerIdResponse:
    """Allocate a new producer id; as in Kafka, also if an idempotent producer sends its old one (KIP-360)."""
    return _response(context, Initialised(client=first_pair(await broker.new_producer_id())))


def _response(context: RequestContext, answer: Answer) -> InitProducerIdResponse:
    if not isinstance(answer, Initialised):
        return InitProducerIdResponse(
            error_code=code_of(context, answer), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
        )
    client, ongoing = answer.client, answer.ongoing
    return InitProducerIdResponse(
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
        ongoing_txn_producer_id=NO_PRODUCER_ID if ongoing is None else ongoing.producer_id,
        ongoing_txn_producer_epoch=NO_PRODUCER_EPOCH if ongoing is None else ongoing.epoch,
    )


def _refusal(broker: Broker, request: InitProducerIdRequest, context: RequestContext) -> Reject | None:
    """Check what needs no coordinator.

    Keeping a prepared transaction needs WRITE alone, because it does not promise that the transaction waits.
    """
    may, name = broker.authorizer, request.transactional_id
    if name is None:
        allowed = may.allows(context, Operation.IDEMPOTENT_WRITE, CLUSTER) or may.allows_any(
            context, Operation.WRITE, ResourceType.TOPIC
        )
    else:
        allowed = may_write(broker, context, name) and (
            not request.enable_2pc or may.allows(context, Operation.TWO_PHASE_COMMIT, transactional_id(name))
        )
    if not allowed:
        return _NO_IDEMPOTENT_WRITE if name is None else NOT_ALLOWED
    is_pair = request.producer_id >= 0 and request.producer_epoch >= 0
    return None if is_pair or _knows_none(request) else _NO_PAIR


def _knows_none(request: InitProducerIdRequest) -> bool:
    return (request.producer_id, request.producer_epoch) == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def _command(request: InitProducerIdRequest) -> InitProducerId:
    known = None if _knows_none(request) else identity_of(request.producer_id, request.producer_epoch)
    return InitProducerId(
        timeout_ms=request.transaction_timeout_ms,
        expected=known,
        enable_2pc=request.enable_2pc,
        keep_prepared=request.keep_prepared_txn,
    )
