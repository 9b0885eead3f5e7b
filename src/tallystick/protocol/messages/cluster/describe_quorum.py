"""DescribeQuorum (55): the KRaft quorum and its replicas' log end offsets."""

import uuid
from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, INT64, STRING, UINT16, UUID, array, message, struct, wire

CLUSTER_METADATA = "__cluster_metadata"


@struct
class DescribeQuorumRequestPartition:
    partition_index: Annotated[int, wire(INT32, "0+")] = 0


@struct
class DescribeQuorumRequestTopic:
    topic_name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[DescribeQuorumRequestPartition, ...], wire(array(DescribeQuorumRequestPartition), "0+")
    ] = ()


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """Clients ask for partition 0 of `__cluster_metadata`, the only one with a quorum.

    Source: KIP-595, times KIP-836 (v1), directories and addresses KIP-853 (v2); Kafka DescribeQuorumRequest.
    """

    topics: Annotated[
        tuple[DescribeQuorumRequestTopic, ...], wire(array(DescribeQuorumRequestTopic), "0+")
    ] = ()


@struct
class ReplicaState:
    replica_id: Annotated[int, wire(INT32, "0+")]
    replica_directory_id: Annotated[uuid.UUID, wire(UUID, "2+")] = uuid.UUID(int=0)
    log_end_offset: Annotated[int, wire(INT64, "0+")]
    last_fetch_timestamp: Annotated[int, wire(INT64, "1+", ignorable=True)] = -1
    last_caught_up_timestamp: Annotated[int, wire(INT64, "1+", ignorable=True)] = -1


@struct
class DescribeQuorumPartition:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "2+", nullable="2+", ignorable=True)] = None
    leader_id: Annotated[int, wire(INT32, "0+")]
    leader_epoch: Annotated[int, wire(INT32, "0+")]
    high_watermark: Annotated[int, wire(INT64, "0+")]
    current_voters: Annotated[tuple[ReplicaState, ...], wire(array(ReplicaState), "0+")] = ()
    observers: Annotated[tuple[ReplicaState, ...], wire(array(ReplicaState), "0+")] = ()


@struct
class DescribeQuorumTopic:
    topic_name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[
        tuple[DescribeQuorumPartition, ...], wire(array(DescribeQuorumPartition), "0+")
    ] = ()


@struct
class DescribeQuorumListener:
    name: Annotated[str, wire(STRING, "2+")]
    host: Annotated[str, wire(STRING, "2+")]
    port: Annotated[int, wire(UINT16, "2+")]


@struct
class DescribeQuorumNode:
    node_id: Annotated[int, wire(INT32, "2+")]
    listeners: Annotated[tuple[DescribeQuorumListener, ...], wire(array(DescribeQuorumListener), "2+")] = ()


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """Leader, voters and observers, with their log end offsets.

    Source: Kafka DescribeQuorumResponse.
    """

    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "2+", nullable="2+", ignorable=True)] = None
    topics: Annotated[tuple[DescribeQuorumTopic, ...], wire(array(DescribeQuorumTopic), "0+")] = ()
    nodes: Annotated[
        tuple[DescribeQuorumNode, ...], wire(array(DescribeQuorumNode), "2+", ignorable=True)
    ] = ()
