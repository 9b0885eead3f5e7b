"""TxnOffsetCommit (28): commit consumer offsets as part of a transaction.

Versions: 3 flexible, and member id and generation of the consumer (KIP-447); 4 TRANSACTION_ABORTABLE; 5 the
request itself adds the group to the transaction (KIP-890); 6 topic ids (KIP-1319, first in Kafka 4.4).
"""

import uuid
from typing import Annotated

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import INT16, INT32, INT64, STRING, UUID, array, message, struct, wire


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: Annotated[int, wire(INT32, "0+")]
    committed_offset: Annotated[int, wire(INT64, "0+")]
    committed_leader_epoch: Annotated[int, wire(INT32, "2+", ignorable=True)] = -1
    committed_metadata: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = ""


@struct
class TxnOffsetCommitRequestTopic:
    name: Annotated[str, wire(STRING, "0-5", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "6+", ignorable=True)] = NIL
    partitions: Annotated[
        tuple[TxnOffsetCommitRequestPartition, ...], wire(array(TxnOffsetCommitRequestPartition), "0+")
    ] = ()


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    """Topics by name up to version 5, by id from version 6 on."""

    transactional_id: Annotated[str, wire(STRING, "0+")]
    group_id: Annotated[str, wire(STRING, "0+")]
    producer_id: Annotated[int, wire(INT64, "0+")]
    producer_epoch: Annotated[int, wire(INT16, "0+")]
    generation_id_or_member_epoch: Annotated[int, wire(INT32, "3+")] = -1
    member_id: Annotated[str, wire(STRING, "3+")] = ""
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")] = None
    topics: Annotated[
        tuple[TxnOffsetCommitRequestTopic, ...], wire(array(TxnOffsetCommitRequestTopic), "0+")
    ] = ()


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0


@struct
class TxnOffsetCommitResponseTopic:
    name: Annotated[str, wire(STRING, "0-5", ignorable=True)] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "6+", ignorable=True)] = NIL
    partitions: Annotated[
        tuple[TxnOffsetCommitResponsePartition, ...], wire(array(TxnOffsetCommitResponsePartition), "0+")
    ] = ()


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    """A result per partition."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    topics: Annotated[
        tuple[TxnOffsetCommitResponseTopic, ...], wire(array(TxnOffsetCommitResponseTopic), "0+")
    ] = ()
