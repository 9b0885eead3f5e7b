"""WriteTxnMarkers (27): the coordinator's markers for the partitions of a transaction.

Versions: 1 flexible; 2 adds the transaction version (KIP-1228). Kafka 4 refuses version 0.

Tags from 10000 on are private: KIP-664's guard for markers of administrators, which no released Kafka has;
Kafka ignores it. docs/formats/private-tags.md.
"""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, INT64, STRING, array, message, struct, wire


@struct
class WritableTxnMarkerTopic:
    name: Annotated[str, wire(STRING, "0+")]
    partition_indexes: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()
    # One per entry of `partition_indexes`, or none: first offset of the transaction that the marker may end.
    txn_start_offsets: Annotated[tuple[int, ...], wire(array(INT64), "1+", tag=10000)] = ()


@struct
class WritableTxnMarker:
    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    transaction_result: Annotated[bool, wire(BOOL, "0+")]
    topics: Annotated[tuple[WritableTxnMarkerTopic, ...], wire(array(WritableTxnMarkerTopic), "0+")] = ()
    coordinator_epoch: Annotated[int, wire(INT32, "0+")]
    transaction_version: Annotated[int, wire(INT8, "2+", ignorable=True)] = 0


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """One control batch per marker and partition."""

    markers: Annotated[tuple[WritableTxnMarker, ...], wire(array(WritableTxnMarker), "0+")] = ()


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0


@struct
class WritableTxnMarkerTopicResult:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[WritableTxnMarkerPartitionResult, ...], wire(array(WritableTxnMarkerPartitionResult), "0+")
    ] = ()


@struct
class WritableTxnMarkerResult:
    producer_id: Annotated[int, wire(INT64, "0+")]
    topics: Annotated[
        tuple[WritableTxnMarkerTopicResult, ...], wire(array(WritableTxnMarkerTopicResult), "0+")
    ] = ()


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """A result per marker and partition."""

    markers: Annotated[tuple[WritableTxnMarkerResult, ...], wire(array(WritableTxnMarkerResult), "0+")] = ()
