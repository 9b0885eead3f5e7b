"""ListTransactions (66): list the transactions of one coordinator, filtered (KIP-664).

Versions: 1 by duration (KIP-994); 2 by a pattern of transactional ids (KIP-1152).
"""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, INT64, STRING, array, message, struct, wire


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """Filters; an empty list matches all."""

    state_filters: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    producer_id_filters: Annotated[tuple[int, ...], wire(array(INT64), "0+")] = ()
    duration_filter: Annotated[int, wire(INT64, "1+")] = -1
    transactional_id_pattern: Annotated[str | None, wire(STRING, "2+", nullable="2+")] = None


@struct
class TransactionState:
    transactional_id: Annotated[str, wire(STRING, "0+")]
    producer_id: Annotated[int, wire(INT64, "0+")]
    transaction_state: Annotated[str, wire(STRING, "0+")]


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """`unknown_state_filters` lists the requested states that do not exist."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    unknown_state_filters: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    transaction_states: Annotated[tuple[TransactionState, ...], wire(array(TransactionState), "0+")] = ()
