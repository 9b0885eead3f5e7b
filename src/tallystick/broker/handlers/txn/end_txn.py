"""EndTxn: commits or aborts a transaction, as the client decided."""

from collections.abc import Awaitable
from functools import partial

from tallystick.broker.handlers.authorization import may_write_as
from tallystick.broker.handlers.ports import TransactionsPort
from tallystick.broker.handlers.txn.txn_wire import (
    NOT_AUTHORIZED,
    execute_and_respond,
    get_error_code,
    make_producer,
)
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import EndTxn, EndTxnResult, TxnAnswer
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse

# KIP-890: the first version whose clients take a new producer id and epoch from the response.
EPOCH_BUMP_SINCE = 5


def handle(
    broker: TransactionsPort, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    respond = partial(_build_response, context, make_producer(request.producer_id, request.producer_epoch))
    if not may_write_as(broker, context, request.transactional_id):
        return respond(NOT_AUTHORIZED)
    return execute_and_respond(
        broker, request.transactional_id, _make_command(request, context), context, respond
    )


def _make_command(request: EndTxnRequest, context: RequestContext) -> EndTxn:
    return EndTxn(
        identity=make_producer(request.producer_id, request.producer_epoch),
        outcome=TransactionResult.COMMIT if request.committed else TransactionResult.ABORT,
        # KIP-890: the version of the request, not of the cluster, tells which rules this client follows.
        transaction_version=EPOCH_BUMP_VERSION if context.api_version >= EPOCH_BUMP_SINCE else 0,
    )


def _build_response(
    context: RequestContext, asked_by: ProducerIdAndEpoch, answer: TxnAnswer
) -> EndTxnResponse:
    if not isinstance(answer, EndTxnResult) or answer.client == asked_by:
        # KIP-890: a client that receives a producer id and epoch restarts its sequence numbers, so unchanged
        # ones are left out.
        return EndTxnResponse(error_code=get_error_code(context, answer))
    return EndTxnResponse(producer_id=answer.client.producer_id, producer_epoch=answer.client.epoch)
