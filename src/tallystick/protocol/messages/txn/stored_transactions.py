"""Records of `__transaction_state`: the state of transactional ids.

In the log an int16 version precedes key and value; it is not in these schemas. A null value means that the
transactional id has expired.

Tags from 10000 on are private: Apache Kafka ignores them, and drops them when it rewrites the record.

Source: Kafka TransactionLogKey/Value; tags 0 to 2 KIP-890, tag 3 KIP-939; docs/formats/transaction-state.md.
"""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, INT64, STRING, array, message, struct, wire


@message(versions="0")
class TransactionLogKey:
    """The transactional id of a state."""

    transactional_id: Annotated[str, wire(STRING, "0")]


@struct
class PartitionsSchema:
    topic: Annotated[str, wire(STRING, "0+")]
    partition_ids: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class SupersededPair:
    """The producer id and epoch whose retried request gets the current ones in response; -1/-1 for none."""

    producer_id: Annotated[int, wire(INT64, "1+")]
    producer_epoch: Annotated[int, wire(INT16, "1+")]


@struct
class ForcedOutcomeSchema:
    """A transaction that was ended without its client; `topic` null: the whole transaction."""

    producer_id: Annotated[int, wire(INT64, "1+")]
    producer_epoch: Annotated[int, wire(INT16, "1+")]
    cause: Annotated[int, wire(INT8, "1+")]  # 1 terminated, 2 timed out, 3 a marker in one partition
    timestamp_ms: Annotated[int, wire(INT64, "1+")]
    topic: Annotated[str | None, wire(STRING, "1+", nullable="1+")] = None
    partition_id: Annotated[int, wire(INT32, "1+")] = -1


@struct
class MarkerOffset:
    partition_id: Annotated[int, wire(INT32, "1+")]
    offset: Annotated[int, wire(INT64, "1+")]


@struct
class MarkerOffsets:
    """The offsets of the markers of a completed transaction."""

    topic: Annotated[str, wire(STRING, "1+")]
    partitions: Annotated[tuple[MarkerOffset, ...], wire(array(MarkerOffset), "1+")] = ()


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    """The state after a transition; version 1 if `transaction.version` is 1 or above (KIP-890).

    A value with tagged fields cannot be written in version 0: a transactional id that is changing its
    producer id would be read back as one that keeps it.
    """

    producer_id: Annotated[int, wire(INT64, "0+")]
    previous_producer_id: Annotated[int, wire(INT64, "1+", tag=0)] = -1
    next_producer_id: Annotated[int, wire(INT64, "1+", tag=1)] = -1
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    next_producer_epoch: Annotated[int, wire(INT16, "1+", tag=3)] = -1
    transaction_timeout_ms: Annotated[int, wire(INT32, "0+")]
    # 0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit, 5 CompleteAbort.
    transaction_status: Annotated[int, wire(INT8, "0+")]
    # Null in Empty; empty in the complete states.
    transaction_partitions: Annotated[
        tuple[PartitionsSchema, ...] | None, wire(array(PartitionsSchema), "0+", nullable="0+")
    ]
    transaction_last_update_timestamp_ms: Annotated[int, wire(INT64, "0+")]
    transaction_start_timestamp_ms: Annotated[int, wire(INT64, "0+")]  # -1 for none
    client_transaction_version: Annotated[int, wire(INT16, "1+", tag=2)] = 0
    # Absent: as Kafka's fields imply.
    superseded: Annotated[SupersededPair | None, wire(SupersededPair, "1+", nullable="1+", tag=10000)] = None
    forced_outcomes: Annotated[
        tuple[ForcedOutcomeSchema, ...], wire(array(ForcedOutcomeSchema), "1+", tag=10001)
    ] = ()
    # Of future transactions, if the open one has another; -1: the same.
    next_transaction_timeout_ms: Annotated[int, wire(INT32, "1+", tag=10002)] = -1
    marker_offsets: Annotated[tuple[MarkerOffsets, ...], wire(array(MarkerOffsets), "1+", tag=10003)] = ()
