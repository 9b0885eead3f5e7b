"""DeleteRecords (21): delete the records before an offset."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, INT64, STRING, array, message, struct, wire


@struct
class DeleteRecordsPartition:
    partition_index: Annotated[int, wire(INT32, "0+")]
    offset: Annotated[int, wire(INT64, "0+")]  # the first offset kept; -1 for the high watermark


@struct
class DeleteRecordsTopic:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[DeleteRecordsPartition, ...], wire(array(DeleteRecordsPartition), "0+")] = ()


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """The new log start offset of each partition.

    Source: KIP-107; Kafka DeleteRecordsRequest.
    """

    topics: Annotated[tuple[DeleteRecordsTopic, ...], wire(array(DeleteRecordsTopic), "0+")] = ()
    timeout_ms: Annotated[int, wire(INT32, "0+")]


@struct
class DeleteRecordsPartitionResult:
    partition_index: Annotated[int, wire(INT32, "0+")]
    low_watermark: Annotated[int, wire(INT64, "0+")]  # -1 with an error
    error_code: Annotated[int, wire(INT16, "0+")] = 0


@struct
class DeleteRecordsTopicResult:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[DeleteRecordsPartitionResult, ...], wire(array(DeleteRecordsPartitionResult), "0+")
    ] = ()


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """The resulting log start offset (low watermark) of each partition.

    Source: Kafka DeleteRecordsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    topics: Annotated[tuple[DeleteRecordsTopicResult, ...], wire(array(DeleteRecordsTopicResult), "0+")] = ()
