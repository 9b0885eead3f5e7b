"""ListOffsets (2): find the offset for a timestamp, or for a negative number with a special meaning.

Versions: 1 one offset per partition; 2 isolation level; 4 leader epochs (KIP-320); 6 flexible; 7 the largest
timestamp (-3, KIP-734); 8 earliest local (-4, KIP-405); 9 last tiered (-5); 10 timeout; 11 earliest pending
upload (-6).
"""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, INT64, STRING, array, message, struct, wire


@struct
class ListOffsetsPartition:
    partition_index: Annotated[int, wire(INT32, "0+")]
    current_leader_epoch: Annotated[int, wire(INT32, "4+", ignorable=True)] = -1
    timestamp: Annotated[int, wire(INT64, "0+")]


@struct
class ListOffsetsTopic:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[ListOffsetsPartition, ...], wire(array(ListOffsetsPartition), "0+")] = ()


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest:
    """-1 latest, -2 earliest, -3 largest timestamp, -4 earliest local, -5 last tiered, -6 pending upload."""

    replica_id: Annotated[int, wire(INT32, "0+")]
    isolation_level: Annotated[int, wire(INT8, "2+")] = 0
    topics: Annotated[tuple[ListOffsetsTopic, ...], wire(array(ListOffsetsTopic), "0+")] = ()
    timeout_ms: Annotated[int, wire(INT32, "10+", ignorable=True)] = 0


@struct
class ListOffsetsPartitionResponse:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    timestamp: Annotated[int, wire(INT64, "1+")] = -1
    offset: Annotated[int, wire(INT64, "1+")] = -1
    leader_epoch: Annotated[int, wire(INT32, "4+")] = -1


@struct
class ListOffsetsTopicResponse:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[ListOffsetsPartitionResponse, ...], wire(array(ListOffsetsPartitionResponse), "0+")
    ] = ()


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """Offset and timestamp found, both -1 if there is none."""

    throttle_time_ms: Annotated[int, wire(INT32, "2+", ignorable=True)] = 0
    topics: Annotated[tuple[ListOffsetsTopicResponse, ...], wire(array(ListOffsetsTopicResponse), "0+")] = ()
