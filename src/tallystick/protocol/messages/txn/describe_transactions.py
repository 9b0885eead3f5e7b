"""DescribeTransactions (65): the coordinator's state of transactional ids (KIP-664).

Tags from 10000 on are private. They distinguish a decision of the client from one that was made for it, which
Kafka's fields cannot: docs/formats/private-tags.md.
"""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, INT64, STRING, array, message, struct, wire


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Transactional ids to look up."""

    transactional_ids: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    include_history: Annotated[bool, wire(BOOL, "0+", tag=10000)] = False


@struct
class TopicData:
    topic: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class SupersededPair:
    """The previous producer id and epoch of the producer that now has the current ones."""

    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]


@struct
class ForcedOutcome:
    """A transaction that was aborted, but not by its client; `topic` null: the whole transaction."""

    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    cause: Annotated[int, wire(INT8, "0+")]  # 1 terminated, 2 timed out, 3 a marker in one partition
    timestamp_ms: Annotated[int, wire(INT64, "0+")]
    topic: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    partition_id: Annotated[int, wire(INT32, "0+")] = -1


@struct
class HistoryTransition:
    """Something that has happened to the id; the client is null where no request led to it, or is hidden."""

    kind: Annotated[int, wire(INT8, "0+")]  # protocol.transaction_history.TransitionKind
    timestamp_ms: Annotated[int, wire(INT64, "0+")]
    state: Annotated[int, wire(INT8, "0+")]  # after it; 6: the id was removed
    producer_id: Annotated[int, wire(INT64, "0+")]  # -1 with state 6
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    partition_count: Annotated[int, wire(INT32, "0+")]
    client_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    address: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None  # host:port


@struct
class TransactionState:
    """The state of one transactional id; with an error, only the id is meaningful."""

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
    # Null: not requested, or the broker keeps none; empty: it has forgotten all of it.
    history: Annotated[
        tuple[HistoryTransition, ...] | None,
        wire(array(HistoryTransition), "0+", nullable="0+", tag=10002),
    ] = None


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """The producer id and epoch shown are those that wrote, not those that may decide (KIP-939)."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    transaction_states: Annotated[tuple[TransactionState, ...], wire(array(TransactionState), "0+")] = ()
