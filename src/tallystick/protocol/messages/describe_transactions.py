"""DescribeTransactions: what the coordinator knows of transactional ids (KIP-664).

Tags from 10000 on are private and tell a decision of the client from one that was made for it, which Kafka's
fields cannot: docs/formats/private-tags.md.
"""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, INT64, STRING, array, message, struct, wire


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Transactional ids to look up."""

    transactional_ids: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()


@struct
class TopicData:
    topic: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class SupersededPair:
    """What the owner of the present pair was called before."""

    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]


@struct
class ForcedOutcome:
    """A transaction that was aborted, and not by its client; `topic` null: as a whole."""

    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    cause: Annotated[int, wire(INT8, "0+")]  # 1 terminated, 2 timed out, 3 a marker in one partition
    timestamp_ms: Annotated[int, wire(INT64, "0+")]
    topic: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    partition_id: Annotated[int, wire(INT32, "0+")] = -1


@struct
class TransactionState:
    """One id; with an error all but the id is to be ignored."""

    error_code: Annotated[int, wire(INT16, "0+")] = 0
    transactional_id: Annotated[str, wire(STRING, "0+")]
    transaction_state: Annotated[str, wire(STRING, "0+")]
    transaction_timeout_ms: Annotated[int, wire(INT32, "0+")]
    transaction_start_time_ms: Annotated[int, wire(INT64, "0+")]
    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    topics: Annotated[tuple[TopicData, ...], wire(array(TopicData), "0+")] = ()
    superseded: Annotated[SupersededPair | None, wire(SupersededPair, "0+", nullable="0+", tag=10000)] = None
    forced_outcomes: Annotated[tuple[ForcedOutcome, ...], wire(array(ForcedOutcome), "0+", tag=10001)] = ()


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """The pair shown is the one that wrote, not the one that may speak (KIP-939)."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    transaction_states: Annotated[tuple[TransactionState, ...], wire(array(TransactionState), "0+")] = ()
