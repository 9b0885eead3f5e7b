"""Produce (0): append record batches to partitions.

Versions: 9 flexible; 10 names the current leader (KIP-951); 11 adds TRANSACTION_ABORTABLE; 12 means that the
write itself adds the partition to the transaction (KIP-890); 13 topic ids instead of names (KIP-516).
Kafka 4 refuses versions 0 to 2, which carried record formats 0 and 1 (KIP-896).
"""

import uuid
from typing import Annotated

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import INT16, INT32, INT64, RECORDS, STRING, UUID, array, message, struct, wire


@struct
class PartitionProduceData:
    index: Annotated[int, wire(INT32, "0+")]
    records: Annotated[bytes | memoryview | None, wire(RECORDS, "0+", nullable="0+")] = None


@struct
class TopicProduceData:
    name: Annotated[str, wire(STRING, "0-12", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "13+", ignorable=True)] = NIL
    partition_data: Annotated[tuple[PartitionProduceData, ...], wire(array(PartitionProduceData), "0+")] = ()


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceRequest:
    """One record batch per partition. Decoded `records` are a view of the request."""

    transactional_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")] = None
    acks: Annotated[int, wire(INT16, "0+")]
    timeout_ms: Annotated[int, wire(INT32, "0+")]
    topic_data: Annotated[tuple[TopicProduceData, ...], wire(array(TopicProduceData), "0+")] = ()


@struct
class BatchIndexAndErrorMessage:
    batch_index: Annotated[int, wire(INT32, "8+")] = 0
    batch_index_error_message: Annotated[str | None, wire(STRING, "8+", nullable="8+")] = None


@struct
class LeaderIdAndEpoch:
    leader_id: Annotated[int, wire(INT32, "10+")] = -1
    leader_epoch: Annotated[int, wire(INT32, "10+")] = -1


@struct
class PartitionProduceResponse:
    index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    base_offset: Annotated[int, wire(INT64, "0+")]
    log_append_time_ms: Annotated[int, wire(INT64, "2+", ignorable=True)] = -1
    log_start_offset: Annotated[int, wire(INT64, "5+", ignorable=True)] = -1
    record_errors: Annotated[
        tuple[BatchIndexAndErrorMessage, ...], wire(array(BatchIndexAndErrorMessage), "8+", ignorable=True)
    ] = ()
    error_message: Annotated[str | None, wire(STRING, "8+", nullable="8+", ignorable=True)] = None
    current_leader: Annotated[LeaderIdAndEpoch, wire(LeaderIdAndEpoch, "10+", tag=0)] = LeaderIdAndEpoch()


@struct
class TopicProduceResponse:
    name: Annotated[str, wire(STRING, "0-12", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "13+", ignorable=True)] = NIL
    partition_responses: Annotated[
        tuple[PartitionProduceResponse, ...], wire(array(PartitionProduceResponse), "0+")
    ] = ()


@struct
class NodeEndpoint:
    node_id: Annotated[int, wire(INT32, "10+")] = 0
    host: Annotated[str, wire(STRING, "10+")] = ""
    port: Annotated[int, wire(INT32, "10+")] = 0
    rack: Annotated[str | None, wire(STRING, "10+", nullable="10+")] = None


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    """Offsets of the appended batches. `throttle_time_ms` comes after the partitions, not before them."""

    responses: Annotated[tuple[TopicProduceResponse, ...], wire(array(TopicProduceResponse), "0+")] = ()
    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], wire(array(NodeEndpoint), "10+", tag=0)] = ()
