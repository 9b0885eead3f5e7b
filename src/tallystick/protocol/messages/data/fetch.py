"""Fetch (1): read record batches, waiting for them if requested.

Versions: 4 isolation level (KIP-98); 5 log start offset; 7 incremental sessions (KIP-227); 9 leader epochs
(KIP-320); 11 rack (KIP-392); 12 flexible, diverging epochs; 13 topic ids (KIP-516); 15 replica state
(KIP-903); 16 node endpoints (KIP-951); 17 replica directory (KIP-853); 18 high watermark (KIP-1166).
"""

import uuid
from typing import Annotated

from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import (
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    array,
    message,
    struct,
    wire,
)


@struct
class ReplicaState:
    replica_id: Annotated[int, wire(INT32, "15+")] = -1
    replica_epoch: Annotated[int, wire(INT64, "15+")] = -1


@struct
class FetchPartition:
    partition: Annotated[int, wire(INT32, "0+")]
    current_leader_epoch: Annotated[int, wire(INT32, "9+", ignorable=True)] = -1
    fetch_offset: Annotated[int, wire(INT64, "0+")]
    last_fetched_epoch: Annotated[int, wire(INT32, "12+")] = -1
    log_start_offset: Annotated[int, wire(INT64, "5+", ignorable=True)] = -1
    partition_max_bytes: Annotated[int, wire(INT32, "0+")]
    replica_directory_id: Annotated[uuid.UUID, wire(UUID, "17+", tag=0, ignorable=True)] = NIL
    high_watermark: Annotated[int, wire(INT64, "18+", tag=1, ignorable=True)] = INT64_MAX


@struct
class FetchTopic:
    topic: Annotated[str, wire(STRING, "0-12", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "13+", ignorable=True)] = NIL
    partitions: Annotated[tuple[FetchPartition, ...], wire(array(FetchPartition), "0+")] = ()


@struct
class ForgottenTopic:
    topic: Annotated[str, wire(STRING, "7-12", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "13+", ignorable=True)] = NIL
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "7+")] = ()


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest:
    """In a fetch session, `topics` has the changes since the session's last request.

    Sessions are in `broker.partitions.fetch_sessions`.
    """

    cluster_id: Annotated[str | None, wire(STRING, "12+", nullable="12+", tag=0, ignorable=True)] = None
    replica_id: Annotated[int, wire(INT32, "0-14")] = -1
    replica_state: Annotated[ReplicaState, wire(ReplicaState, "15+", tag=1)] = ReplicaState()
    max_wait_ms: Annotated[int, wire(INT32, "0+")]
    min_bytes: Annotated[int, wire(INT32, "0+")]
    max_bytes: Annotated[int, wire(INT32, "3+", ignorable=True)] = INT32_MAX
    isolation_level: Annotated[int, wire(INT8, "4+", ignorable=True)] = 0
    session_id: Annotated[int, wire(INT32, "7+", ignorable=True)] = 0
    session_epoch: Annotated[int, wire(INT32, "7+", ignorable=True)] = -1
    topics: Annotated[tuple[FetchTopic, ...], wire(array(FetchTopic), "0+")] = ()
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], wire(array(ForgottenTopic), "7+")] = ()
    rack_id: Annotated[str, wire(STRING, "11+", ignorable=True)] = ""


@struct
class EpochEndOffset:
    epoch: Annotated[int, wire(INT32, "12+")] = -1
    end_offset: Annotated[int, wire(INT64, "12+")] = -1


@struct
class LeaderIdAndEpoch:
    leader_id: Annotated[int, wire(INT32, "12+")] = -1
    leader_epoch: Annotated[int, wire(INT32, "12+")] = -1


@struct
class SnapshotId:
    end_offset: Annotated[int, wire(INT64, "0+")] = -1
    epoch: Annotated[int, wire(INT32, "0+")] = -1


@struct
class AbortedTransaction:
    producer_id: Annotated[int, wire(INT64, "4+")] = 0
    first_offset: Annotated[int, wire(INT64, "4+")] = 0


@struct
class PartitionData:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    high_watermark: Annotated[int, wire(INT64, "0+")]
    last_stable_offset: Annotated[int, wire(INT64, "4+", ignorable=True)] = -1
    log_start_offset: Annotated[int, wire(INT64, "5+", ignorable=True)] = -1
    diverging_epoch: Annotated[EpochEndOffset, wire(EpochEndOffset, "12+", tag=0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, wire(LeaderIdAndEpoch, "12+", tag=1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, wire(SnapshotId, "12+", tag=2)] = SnapshotId()
    aborted_transactions: Annotated[
        tuple[AbortedTransaction, ...] | None,
        wire(array(AbortedTransaction), "4+", nullable="4+", ignorable=True),
    ] = ()
    preferred_read_replica: Annotated[int, wire(INT32, "11+")] = -1
    records: Annotated[bytes | memoryview | None, wire(RECORDS, "0+", nullable="0+")] = None


@struct
class FetchableTopicResponse:
    topic: Annotated[str, wire(STRING, "0-12", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "13+", ignorable=True)] = NIL
    partitions: Annotated[tuple[PartitionData, ...], wire(array(PartitionData), "0+")] = ()


@struct
class NodeEndpoint:
    node_id: Annotated[int, wire(INT32, "16+")] = 0
    host: Annotated[str, wire(STRING, "16+")] = ""
    port: Annotated[int, wire(INT32, "16+")] = 0
    rack: Annotated[str | None, wire(STRING, "16+", nullable="16+")] = None


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    """Record batches by partition. `aborted_transactions` is null for read_uncommitted."""

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "7+", ignorable=True)] = 0
    session_id: Annotated[int, wire(INT32, "7+")] = 0
    responses: Annotated[tuple[FetchableTopicResponse, ...], wire(array(FetchableTopicResponse), "0+")] = ()
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], wire(array(NodeEndpoint), "16+", tag=0)] = ()
