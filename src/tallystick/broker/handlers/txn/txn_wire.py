"""Conversions for the transaction APIs: error codes for older clients, identities and the WRITE check."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from tallystick.broker.handlers.ports import TransactionsPort
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import TxnAnswer, TxnCommand
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TransactionalId
from tallystick.protocol.apis import ApiKey

R = TypeVar("R")

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1

# By API and code: the first version that knows the code, and the code that older versions get instead.
# Source: KIP-588 (PRODUCER_FENCED), KIP-890 (TRANSACTION_ABORTABLE); KafkaApis.handle*.
_OLDER_CODES: Final[Mapping[int, Mapping[ErrorCode, tuple[int, ErrorCode]]]] = MappingProxyType(
    {
        ApiKey.INIT_PRODUCER_ID: {
            ErrorCode.PRODUCER_FENCED: (4, ErrorCode.INVALID_PRODUCER_EPOCH),
            ErrorCode.TRANSACTION_ABORTABLE: (5, ErrorCode.INVALID_TXN_STATE),
        },
        ApiKey.ADD_PARTITIONS_TO_TXN: {
            ErrorCode.PRODUCER_FENCED: (2, ErrorCode.INVALID_PRODUCER_EPOCH),
            ErrorCode.TRANSACTION_ABORTABLE: (5, ErrorCode.INVALID_TXN_STATE),
        },
        ApiKey.ADD_OFFSETS_TO_TXN: {
            ErrorCode.PRODUCER_FENCED: (2, ErrorCode.INVALID_PRODUCER_EPOCH),
            ErrorCode.TRANSACTION_ABORTABLE: (4, ErrorCode.INVALID_TXN_STATE),
        },
        ApiKey.END_TXN: {
            ErrorCode.PRODUCER_FENCED: (2, ErrorCode.INVALID_PRODUCER_EPOCH),
            ErrorCode.TRANSACTION_ABORTABLE: (4, ErrorCode.INVALID_TXN_STATE),
        },
    }
)

NOT_AUTHORIZED: Final = Reject(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
)
EMPTY_TRANSACTIONAL_ID: Final = Reject(ErrorCode.INVALID_REQUEST, "the transactional id must not be empty")


def downgrade_code(context: RequestContext, code: ErrorCode) -> ErrorCode:
    """Return the code, or its substitute if the request's version does not know it."""
    known_from, instead = _OLDER_CODES[context.api_key].get(code, (0, code))
    return code if context.api_version >= known_from else instead


def get_error_code(context: RequestContext, answer: TxnAnswer) -> ErrorCode:
    """Return the error code of an answer, in terms of the request's version."""
    return downgrade_code(context, answer.code) if isinstance(answer, Reject) else ErrorCode.NONE


def make_producer(producer_id: int, producer_epoch: int) -> ProducerIdAndEpoch:
    """Build the producer id and epoch of a request; with a -1 no producer has them, so they are refused."""
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(producer_epoch))


async def execute(
    broker: TransactionsPort, name: str, command: TxnCommand, context: RequestContext
) -> TxnAnswer:
    """Run a command in the coordinator, for the transactional id of a request."""
    if not name:
        return EMPTY_TRANSACTIONAL_ID
    return await broker.transactions.execute(TransactionalId(name), command, context)


def execute_and_respond(
    broker: TransactionsPort,
    name: str,
    command: TxnCommand,
    context: RequestContext,
    respond: Callable[[TxnAnswer], R],
) -> R | Awaitable[R]:
    """Run a command as `execute` does and convert its answer.

    At once, without a task, unless the coordinator has to wait.
    """
    if not name:
        return respond(EMPTY_TRANSACTIONAL_ID)
    answer = broker.transactions.submit(TransactionalId(name), command, context)
    return respond(answer.result()) if answer.done() else _respond_later(answer, respond)


async def _respond_later(answer: Awaitable[TxnAnswer], respond: Callable[[TxnAnswer], R]) -> R:
    return respond(await answer)
