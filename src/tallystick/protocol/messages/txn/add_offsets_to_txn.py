"""AddOffsetsToTxn (25): add a group whose offsets a transaction is about to commit.

Versions: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE (KIP-890).
"""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, INT64, STRING, message, wire


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Adds the group's partition of `__consumer_offsets` to the transaction."""

    transactional_id: Annotated[str, wire(STRING, "0+")]
    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    group_id: Annotated[str, wire(STRING, "0+")]


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """Only an error code."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
