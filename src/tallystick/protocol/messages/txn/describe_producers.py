"""DescribeProducers (61): producer state of partitions, as their leader knows it (KIP-664)."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, INT64, STRING, array, message, struct, wire


@struct
class TopicRequest:
    name: Annotated[str, wire(STRING, "0+")]
    partition_indexes: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    """Partitions to describe."""

    topics: Annotated[tuple[TopicRequest, ...], wire(array(TopicRequest), "0+")] = ()


@struct
class ProducerState:
    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT32, "0+")]
    last_sequence: Annotated[int, wire(INT32, "0+")] = -1
    last_timestamp: Annotated[int, wire(INT64, "0+")] = -1
    coordinator_epoch: Annotated[int, wire(INT32, "0+")]
    current_txn_start_offset: Annotated[int, wire(INT64, "0+")] = -1


@struct
class PartitionResponse:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    active_producers: Annotated[tuple[ProducerState, ...], wire(array(ProducerState), "0+")] = ()


@struct
class TopicResponse:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[PartitionResponse, ...], wire(array(PartitionResponse), "0+")] = ()


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    """The active producers of each partition; only here the producer epoch is an int32."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    topics: Annotated[tuple[TopicResponse, ...], wire(array(TopicResponse), "0+")] = ()
