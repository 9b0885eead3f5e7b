"""DescribeTransactions: what the coordinator knows of transactional ids (KIP-664)."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, INT64, STRING, array, message, struct, wire


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Transactional ids to look up."""

    transactional_ids: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()


@struct
class TopicData:
    topic: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class TransactionState:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    transactional_id: Annotated[str, wire(STRING, "0+")]
    transaction_state: Annotated[str, wire(STRING, "0+")]
    transaction_timeout_ms: Annotated[int, wire(INT32, "0+")]
    transaction_start_time_ms: Annotated[int, wire(INT64, "0+")]
    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    topics: Annotated[tuple[TopicData, ...], wire(array(TopicData), "0+")] = ()


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """The pair shown is the one that wrote, not the one that may speak (KIP-939)."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    transaction_states: Annotated[tuple[TransactionState, ...], wire(array(TransactionState), "0+")] = ()
