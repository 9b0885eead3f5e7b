"""EndTxn (26): commit or abort a transaction.

Versions: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE; 5 every end bumps the producer epoch, and
the response has the new producer id and epoch (KIP-890 "Bump Epoch on Each Transaction").
"""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT16, INT32, INT64, STRING, message, wire


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    """The decision, signed with the producer id and epoch that may decide.

    After a kept transaction these are not the ones that wrote its records (KIP-939).
    """

    transactional_id: Annotated[str, wire(STRING, "0+")]
    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    committed: Annotated[bool, wire(BOOL, "0+")]


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """The result; from version 5 on with the producer id and epoch for the next transaction."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    producer_id: Annotated[int, wire(INT64, "5+", ignorable=True)] = -1
    producer_epoch: Annotated[int, wire(INT16, "5+", ignorable=True)] = -1
