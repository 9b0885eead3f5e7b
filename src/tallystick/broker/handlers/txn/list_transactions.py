"""ListTransactions: lists transactions by state, producer id, duration and pattern of ids (KIP-664).

Patterns are matched by RE2, as in Kafka (KIP-1152). Python's `re` backtracks: `(a+)+b` takes minutes over
thirty characters. RE2 takes time linear in the id; what one pattern may cost is bounded here.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import cache
from typing import Final

from tallystick import _lazy
from tallystick.broker.authorizer.authorizer import Operation, transactional_id_resource
from tallystick.broker.handlers.deduplicate import deduplicate
from tallystick.broker.handlers.ports import TransactionsPort
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.model import TxnEntry, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject, TallystickError
from tallystick.kernel.ids import TimestampMs, TransactionalId
from tallystick.kernel.limits import KIB
from tallystick.protocol.messages.txn.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

_log = logging.getLogger("tallystick.broker.transactions")

NO_START: Final = -1
# About a millisecond of work, after which other requests get their turn.
ENTRIES_PER_SLICE: Final = 512

# Characters in a pattern.
PATTERN_LENGTH_MAX: Final = 4_096
# Memory of one compiled pattern: RE2 refuses a program of more than about 4,000 instructions. The library
# caches the last 128 patterns.
PATTERN_MEMORY_MAX: Final = 256 * KIB
# Upper bound of RE2's steps (instructions times characters) to match one id: about a fifth of a second.
STEPS_PER_ID_MAX: Final = 10_000_000
# The same for one slice: about 20 ms at worst. A pattern without many states takes one step a character.
STEPS_PER_SLICE: Final = 1_000_000

_STATES: Final = {state.label: state for state in TxnState}

TxnPredicate = Callable[[TxnEntry], bool]


async def handle(
    broker: TransactionsPort, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """List the matching transactions; as in Kafka, omit silently those the client may not describe."""
    entries = broker.transactions.list_entries()
    if isinstance(entries, Reject):
        return ListTransactionsResponse(error_code=entries.code)
    unknown = deduplicate(name for name in request.state_filters if name not in _STATES)
    states = []
    try:
        pattern = IdPattern(text) if (text := request.transactional_id_pattern) else None
        selects = _make_filter(request, broker.clock.now_ms())
        steps = 0
        for number, entry in enumerate(entries, 1):
            if number % ENTRIES_PER_SLICE == 0 or steps > STEPS_PER_SLICE:
                await asyncio.sleep(0)
                steps = 0
            if not selects(entry):
                continue
            if pattern is not None:
                steps += pattern.count_steps(entry.transactional_id)
                if not pattern.matches(entry.transactional_id):
                    continue
            if broker.authorizer.allows(
                context,
                Operation.DESCRIBE,
                transactional_id_resource(entry.transactional_id),
                log_denied=False,
            ):
                states.append(_list_entry(entry))
    except BadPattern:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=tuple(states))


class BadPattern(TallystickError):
    """RE2 does not compile the pattern, or matching it costs too much."""


class IdPattern:
    """A pattern in RE2's dialect that whole transactional ids match (KIP-1152)."""

    def __init__(self, text: str) -> None:
        """Compile a pattern. Raises: BadPattern, also where RE2 is not installed."""
        if len(text) > PATTERN_LENGTH_MAX:
            raise BadPattern(
                f"the pattern has {len(text)} characters; at most {PATTERN_LENGTH_MAX} are allowed"
            )
        try:
            re2 = _lazy.load("re2")
        except _lazy.MissingLibrary as exc:
            _log_missing_library(str(exc))
            raise BadPattern(str(exc)) from exc
        options = re2.Options()
        options.max_mem = PATTERN_MEMORY_MAX
        # Without groups to find, RE2 needs its automaton only.
        options.never_capture = True
        options.log_errors = False  # it would write to stderr
        try:
            self._pattern = re2.compile(text, options)
        except re2.error as exc:
            raise BadPattern(f"RE2 does not compile {text!r}: {exc}") from exc
        self._program_size: int = self._pattern.programsize

    def count_steps(self, transactional_id: TransactionalId) -> int:
        """Return an upper bound of RE2's steps, reached when its automaton exceeds its memory."""
        return self._program_size * len(transactional_id)

    def matches(self, transactional_id: TransactionalId) -> bool:
        """Return whether the whole id matches. Raises: BadPattern, too costly for an id of this length."""
        if self.count_steps(transactional_id) > STEPS_PER_ID_MAX:
            raise BadPattern(f"the pattern is too large for an id of {len(transactional_id)} characters")
        return self._pattern.fullmatch(transactional_id) is not None


@cache
def _log_missing_library(reason: str) -> None:
    """Log once: the response has an error code and no text."""
    _log.warning("ListTransactions: patterns of transactional ids are refused: %s", reason)


def _make_filter(request: ListTransactionsRequest, now_ms: TimestampMs) -> TxnPredicate:
    """Combine the filters of the request, apart from its pattern."""
    states = {_STATES.get(name) for name in request.state_filters}
    producer_ids = set(request.producer_id_filters)
    longer_than_ms = request.duration_filter

    def selects(entry: TxnEntry) -> bool:
        started_ms = entry.phase.started_ms
        return (
            (not states or entry.state in states)
            and (not producer_ids or entry.described_identity.producer_id in producer_ids)
            # KIP-994: as in Kafka, an id that never had a transaction passes every duration filter.
            and (
                longer_than_ms < 0
                or now_ms - (NO_START if started_ms is None else started_ms) > longer_than_ms
            )
        )

    return selects


def _list_entry(entry: TxnEntry) -> TransactionState:
    return TransactionState(
        transactional_id=entry.transactional_id,
        producer_id=entry.described_identity.producer_id,
        transaction_state=entry.state.label,
    )
