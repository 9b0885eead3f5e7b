"""Records of `__transaction_state`: what is known of a transactional id.

In the log an int16 version stands in front of key and value; it is not in these schemas. A null value
says that the id has expired.

Tags from 10000 on are private: Apache Kafka skips them, and leaves them out when it writes the record again.

Source: Kafka TransactionLogKey/Value; tags 0 to 2 KIP-890, tag 3 KIP-939; docs/formats/transaction-state.md.
"""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, INT64, STRING, array, message, struct, wire


@message(versions="0")
class TransactionLogKey:
    """Whose state it is."""

    transactional_id: Annotated[str, wire(STRING, "0")]


@struct
class PartitionsSchema:
    topic: Annotated[str, wire(STRING, "0+")]
    partition_ids: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class SupersededPair:
    """Whose repeated request is answered with the present pair; -1/-1: nobody's."""

    producer_id: Annotated[int, wire(INT64, "1+")]
    producer_epoch: Annotated[int, wire(INT16, "1+")]


@struct
class ForcedOutcomeSchema:
    """A transaction that was ended without its client; `topic` null: as a whole."""

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
    """Where the markers of a completed transaction are."""

    topic: Annotated[str, wire(STRING, "1+")]
    partitions: Annotated[tuple[MarkerOffset, ...], wire(array(MarkerOffset), "1+")] = ()


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    """The state after a transition; version 1 where `transaction.version` is 1 or above (KIP-890).

    A value that version 0 has no tag for cannot be written there: an id on its way to another producer
    id would come back from the log as one that stays.
    """

    producer_id: Annotated[int, wire(INT64, "0+")]
    previous_producer_id: Annotated[int, wire(INT64, "1+", tag=0)] = -1
    next_producer_id: Annotated[int, wire(INT64, "1+", tag=1)] = -1
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    next_producer_epoch: Annotated[int, wire(INT16, "1+", tag=3)] = -1
    transaction_timeout_ms: Annotated[int, wire(INT32, "0+")]
    # 0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit, 5 CompleteAbort.
    transaction_status: Annotated[int, wire(INT8, "0+")]
    # Null in Empty; in the complete states there, and empty.
    transaction_partitions: Annotated[
        tuple[PartitionsSchema, ...] | None, wire(array(PartitionsSchema), "0+", nullable="0+")
    ]
    transaction_last_update_timestamp_ms: Annotated[int, wire(INT64, "0+")]
    transaction_start_timestamp_ms: Annotated[int, wire(INT64, "0+")]  # -1 for none
    client_transaction_version: Annotated[int, wire(INT16, "1+", tag=2)] = 0
    # Absent: what Kafka's fields imply.
    superseded: Annotated[SupersededPair | None, wire(SupersededPair, "1+", nullable="1+", tag=10000)] = None
    forced_outcomes: Annotated[
        tuple[ForcedOutcomeSchema, ...], wire(array(ForcedOutcomeSchema), "1+", tag=10001)
    ] = ()
    # Of the transactions to come, where the open one has another; -1: the same.
    next_transaction_timeout_ms: Annotated[int, wire(INT32, "1+", tag=10002)] = -1
    marker_offsets: Annotated[tuple[MarkerOffsets, ...], wire(array(MarkerOffsets), "1+", tag=10003)] = ()
