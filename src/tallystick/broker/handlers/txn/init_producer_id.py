"""InitProducerId: allocates a producer id, or takes over a transactional id, perhaps in doubt (KIP-939)."""

from collections.abc import Awaitable
from functools import partial
from typing import Final

from tallystick.broker.authorizer.authorizer import (
    CLUSTER_RESOURCE,
    Operation,
    ResourceType,
    transactional_id_resource,
)
from tallystick.broker.handlers.authorization import may_write_as
from tallystick.broker.handlers.ports import ProducerIdsPort
from tallystick.broker.handlers.txn.txn_wire import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NOT_AUTHORIZED,
    execute_and_respond,
    get_error_code,
    make_producer,
)
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import InitProducerId, InitProducerIdResult, TxnAnswer
from tallystick.broker.txn.machine.producer_epochs import start_producer_id
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NOT_AUTHORIZED: Final = Reject(
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    "not authorized: an idempotent producer needs WRITE on a topic, or IDEMPOTENT_WRITE on the cluster",
)
_INCOMPLETE_PRODUCER: Final = Reject(
    ErrorCode.INVALID_REQUEST,
    "the request has a producer id without its epoch, or an epoch without its producer id",
)


def handle(
    broker: ProducerIdsPort, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Check the rights, then the producer id and epoch, then ask the coordinator: Kafka's order of errors."""
    refusal = _check_request(broker, request, context)
    if refusal is not None:
        return _build_response(context, refusal)
    if request.transactional_id is None:
        return _init_idempotent(broker, context)
    respond = partial(_build_response, context)
    return execute_and_respond(broker, request.transactional_id, _make_command(request), context, respond)


async def _init_idempotent(broker: ProducerIdsPort, context: RequestContext) -> InitProducerIdResponse:
    """Allocate a new producer id; as in Kafka, also if an idempotent producer sends its old one (KIP-360)."""
    return _build_response(
        context, InitProducerIdResult(client=start_producer_id(await broker.generate_producer_id()))
    )


def _build_response(context: RequestContext, answer: TxnAnswer) -> InitProducerIdResponse:
    if not isinstance(answer, InitProducerIdResult):
        return InitProducerIdResponse(
            error_code=get_error_code(context, answer),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    client, ongoing = answer.client, answer.ongoing_identity
    return InitProducerIdResponse(
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
        ongoing_txn_producer_id=NO_PRODUCER_ID if ongoing is None else ongoing.producer_id,
        ongoing_txn_producer_epoch=NO_PRODUCER_EPOCH if ongoing is None else ongoing.epoch,
    )


def _check_request(
    broker: ProducerIdsPort, request: InitProducerIdRequest, context: RequestContext
) -> Reject | None:
    """Check what needs no coordinator.

    Keeping a prepared transaction needs WRITE alone, because it does not promise that the transaction waits.
    """
    may, name = broker.authorizer, request.transactional_id
    # KIP-679: WRITE on any topic is enough for idempotence. KIP-939: two-phase commit needs its own
    # operation, because it can hold readers back for ever.
    if name is None:
        is_allowed = may.allows(
            context, Operation.IDEMPOTENT_WRITE, CLUSTER_RESOURCE, log_denied=False
        ) or may.allows_any(context, Operation.WRITE, ResourceType.TOPIC)
    else:
        is_allowed = may_write_as(broker, context, name) and (
            not request.enable_2pc
            or may.allows(context, Operation.TWO_PHASE_COMMIT, transactional_id_resource(name))
        )
    if not is_allowed:
        return _NOT_AUTHORIZED if name is None else NOT_AUTHORIZED
    # KIP-360: a client that bumps its own epoch names both numbers, any other neither of them.
    is_pair = request.producer_id >= 0 and request.producer_epoch >= 0
    return None if is_pair or _has_no_producer(request) else _INCOMPLETE_PRODUCER


def _has_no_producer(request: InitProducerIdRequest) -> bool:
    return (request.producer_id, request.producer_epoch) == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def _make_command(request: InitProducerIdRequest) -> InitProducerId:
    expected_identity = (
        None if _has_no_producer(request) else make_producer(request.producer_id, request.producer_epoch)
    )
    return InitProducerId(
        timeout_ms=request.transaction_timeout_ms,
        expected_identity=expected_identity,
        enable_2pc=request.enable_2pc,
        keep_prepared=request.keep_prepared_txn,
    )
