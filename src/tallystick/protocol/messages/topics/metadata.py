"""Metadata (3): brokers, the controller, topics and the leaders of their partitions.

Versions: 4 whether to create topics; 5 offline replicas; 7 leader epochs; 8 authorized operations
(KIP-430); 9 flexible; 10 topic ids (KIP-516); 12 requests by topic id; 13 an error for the whole response
(REBOOTSTRAP_REQUIRED, KIP-1102).
"""

import uuid
from typing import Annotated, Final

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import BOOL, INT16, INT32, STRING, UUID, array, message, struct, wire

OPERATIONS_NOT_ASKED: Final = -(2**31)


@struct
class MetadataRequestTopic:
    topic_id: Annotated[uuid.UUID, wire(UUID, "10+", ignorable=True)] = NIL
    name: Annotated[str | None, wire(STRING, "0+", nullable="10+")] = ""


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    """Null `topics` asks for all topics, from version 1 on; in version 0 an empty list does."""

    topics: Annotated[
        tuple[MetadataRequestTopic, ...] | None, wire(array(MetadataRequestTopic), "0+", nullable="1+")
    ] = ()
    allow_auto_topic_creation: Annotated[bool, wire(BOOL, "4+")] = True
    include_cluster_authorized_operations: Annotated[bool, wire(BOOL, "8-10")] = False
    include_topic_authorized_operations: Annotated[bool, wire(BOOL, "8+")] = False


@struct
class MetadataResponseBroker:
    node_id: Annotated[int, wire(INT32, "0+")]
    host: Annotated[str, wire(STRING, "0+")]
    port: Annotated[int, wire(INT32, "0+")]
    rack: Annotated[str | None, wire(STRING, "1+", nullable="1+", ignorable=True)] = None


@struct
class MetadataResponsePartition:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    partition_index: Annotated[int, wire(INT32, "0+")]
    leader_id: Annotated[int, wire(INT32, "0+")]
    leader_epoch: Annotated[int, wire(INT32, "7+", ignorable=True)] = -1
    replica_nodes: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()
    isr_nodes: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()
    offline_replicas: Annotated[tuple[int, ...], wire(array(INT32), "5+", ignorable=True)] = ()


@struct
class MetadataResponseTopic:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    name: Annotated[str | None, wire(STRING, "0+", nullable="12+")] = ""
    topic_id: Annotated[uuid.UUID, wire(UUID, "10+", ignorable=True)] = NIL
    is_internal: Annotated[bool, wire(BOOL, "1+", ignorable=True)] = False
    partitions: Annotated[
        tuple[MetadataResponsePartition, ...], wire(array(MetadataResponsePartition), "0+")
    ] = ()
    topic_authorized_operations: Annotated[int, wire(INT32, "8+")] = OPERATIONS_NOT_ASKED


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """Authorized operations of -2147483648 mean that they were not requested."""

    throttle_time_ms: Annotated[int, wire(INT32, "3+", ignorable=True)] = 0
    brokers: Annotated[tuple[MetadataResponseBroker, ...], wire(array(MetadataResponseBroker), "0+")] = ()
    cluster_id: Annotated[str | None, wire(STRING, "2+", nullable="2+", ignorable=True)] = None
    controller_id: Annotated[int, wire(INT32, "1+", ignorable=True)] = -1
    topics: Annotated[tuple[MetadataResponseTopic, ...], wire(array(MetadataResponseTopic), "0+")] = ()
    cluster_authorized_operations: Annotated[int, wire(INT32, "8-10")] = OPERATIONS_NOT_ASKED
    error_code: Annotated[int, wire(INT16, "13+", ignorable=True)] = 0
