"""ListTransactions: lists transactions by state, producer id, duration and pattern of ids (KIP-664)."""

import asyncio
from collections.abc import Callable
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.deduplicate import deduplicate
from tallystick.broker.server.acl import Operation, transactional_id_resource
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.model import TxnEntry, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TimestampMs
from tallystick.kernel.regex import Pattern
from tallystick.kernel.regex_syntax import BadPattern
from tallystick.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

NO_START: Final = -1
# About a millisecond of work, after which other requests get their turn.
ENTRIES_PER_SLICE: Final = 512

_STATES: Final = {state.label: state for state in TxnState}

TxnPredicate = Callable[[TxnEntry], bool]


async def handle(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """List the matching transactions; as in Kafka, omit silently those the client may not describe."""
    entries = broker.transactions.list_entries()
    if isinstance(entries, Reject):
        return ListTransactionsResponse(error_code=entries.code)
    unknown = deduplicate(name for name in request.state_filters if name not in _STATES)
    found = []
    try:
        wanted = _make_filter(request, broker.clock.now_ms())
        for number, entry in enumerate(entries, 1):
            if number % ENTRIES_PER_SLICE == 0:
                await asyncio.sleep(0)
            if wanted(entry) and broker.authorizer.allows(
                context, Operation.DESCRIBE, transactional_id_resource(entry.transactional_id)
            ):
                found.append(_list_entry(entry))
    except BadPattern:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=tuple(found))


def _make_filter(request: ListTransactionsRequest, now_ms: TimestampMs) -> TxnPredicate:
    """Combine the filters of the request.

    Raises: BadPattern; the returned filter raises it, too.
    """
    states = {_STATES.get(name) for name in request.state_filters}
    producer_ids = set(request.producer_id_filters)
    longer_than_ms = request.duration_filter
    pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None

    def wanted(entry: TxnEntry) -> bool:
        started_ms = entry.phase.started_ms
        return (
            (not states or entry.state in states)
            and (not producer_ids or entry.described_identity.producer_id in producer_ids)
            # KIP-994: as in Kafka, an id that never had a transaction passes every duration filter.
            and (
                longer_than_ms < 0
                or now_ms - (NO_START if started_ms is None else started_ms) > longer_than_ms
            )
            and (pattern is None or pattern.matches(entry.transactional_id))
        )

    return wanted


def _list_entry(entry: TxnEntry) -> TransactionState:
    return TransactionState(
        transactional_id=entry.transactional_id,
        producer_id=entry.described_identity.producer_id,
        transaction_state=entry.state.label,
    )
