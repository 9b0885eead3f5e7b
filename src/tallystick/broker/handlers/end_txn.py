"""EndTxn: commits or aborts a transaction, as the client decided."""

from collections.abc import Awaitable
from functools import partial

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.txn_wire import NOT_ALLOWED, answered, code_of, identity_of, may_write
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import Answer, Ended, EndTxn
from tallystick.broker.txn.machine.model import EPOCH_BUMP_VERSION, Outcome
from tallystick.kernel.ids import Identity
from tallystick.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

# KIP-890: the first version whose clients take a new producer id and epoch from the response.
BUMPING_FROM = 5


def handle(
    broker: Broker, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    respond = partial(_response, context, identity_of(request.producer_id, request.producer_epoch))
    if not may_write(broker, context, request.transactional_id):
        return respond(NOT_ALLOWED)
    return answered(broker, request.transactional_id, _command(request, context), respond)


def _command(request: EndTxnRequest, context: RequestContext) -> EndTxn:
    return EndTxn(
        identity=identity_of(request.producer_id, request.producer_epoch),
        outcome=Outcome.COMMIT if request.committed else Outcome.ABORT,
        transaction_version=EPOCH_BUMP_VERSION if context.api_version >= BUMPING_FROM else 0,
    )


def _response(context: RequestContext, asked_by: Identity, answer: Answer) -> EndTxnResponse:
    if not isinstance(answer, Ended) or answer.client == asked_by:
        # A client that receives a producer id and epoch restarts its sequence numbers, so unchanged ones are
        # left out.
        return EndTxnResponse(error_code=code_of(context, answer))
    return EndTxnResponse(producer_id=answer.client.producer_id, producer_epoch=answer.client.epoch)
