"""InitProducerId (22): claim a transactional id, fence older producers, learn of a transaction in doubt.

Versions: 2 flexible; 3 the producer sends its producer id and epoch (KIP-360); 4 PRODUCER_FENCED; 5
TRANSACTION_ABORTABLE (KIP-890); 6 keep a prepared transaction (KIP-939), which Kafka 4.3 declares but marks
as unstable.
"""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT16, INT32, INT64, STRING, message, wire


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest:
    """A null `transactional_id` asks for a producer id only.

    Source: KIP-360, KIP-939 "RPC Changes". Dropping `keep_prepared_txn` silently would turn "keep" into
    "abort": encoding it for an older version raises UnsupportedField.
    """

    transactional_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")]
    transaction_timeout_ms: Annotated[int, wire(INT32, "0+")]
    producer_id: Annotated[int, wire(INT64, "3+")] = -1
    producer_epoch: Annotated[int, wire(INT16, "3+")] = -1
    enable_2pc: Annotated[bool, wire(BOOL, "6+")] = False
    keep_prepared_txn: Annotated[bool, wire(BOOL, "6+")] = False


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    """The producer id and epoch to use; with `keep_prepared_txn` also those of the transaction in doubt."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    producer_id: Annotated[int, wire(INT64, "0+")] = -1
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    ongoing_txn_producer_id: Annotated[int, wire(INT64, "6+")] = -1
    ongoing_txn_producer_epoch: Annotated[int, wire(INT16, "6+")] = -1
