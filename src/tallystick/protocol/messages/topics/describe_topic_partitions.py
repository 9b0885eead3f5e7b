"""DescribeTopicPartitions (75): topics and partitions, paginated."""

import uuid
from typing import Annotated

from tallystick.protocol.messages.topics.metadata import OPERATIONS_NOT_ASKED
from tallystick.protocol.wire import BOOL, INT16, INT32, STRING, UUID, array, message, struct, wire


@struct
class TopicRequest:
    name: Annotated[str, wire(STRING, "0+")]


@struct
class Cursor:
    topic_name: Annotated[str, wire(STRING, "0+")]
    partition_index: Annotated[int, wire(INT32, "0+")]


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Topics (none: all), a cursor to start from, and a limit of partitions per response.

    Source: KIP-966; Kafka DescribeTopicPartitionsRequest.
    """

    topics: Annotated[tuple[TopicRequest, ...], wire(array(TopicRequest), "0+")] = ()
    response_partition_limit: Annotated[int, wire(INT32, "0+")] = 2000
    # Null: from the beginning; otherwise the first partition to return.
    cursor: Annotated[Cursor | None, wire(Cursor, "0+", nullable="0+")] = None


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    partition_index: Annotated[int, wire(INT32, "0+")]
    leader_id: Annotated[int, wire(INT32, "0+")]
    leader_epoch: Annotated[int, wire(INT32, "0+")] = -1
    replica_nodes: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()
    isr_nodes: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()
    eligible_leader_replicas: Annotated[tuple[int, ...] | None, wire(array(INT32), "0+", nullable="0+")] = (
        None
    )
    last_known_elr: Annotated[tuple[int, ...] | None, wire(array(INT32), "0+", nullable="0+")] = None
    offline_replicas: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    name: Annotated[str | None, wire(STRING, "0+", nullable="0+")]
    topic_id: Annotated[uuid.UUID, wire(UUID, "0+")]
    is_internal: Annotated[bool, wire(BOOL, "0+")] = False
    partitions: Annotated[
        tuple[DescribeTopicPartitionsResponsePartition, ...],
        wire(array(DescribeTopicPartitionsResponsePartition), "0+"),
    ] = ()
    topic_authorized_operations: Annotated[int, wire(INT32, "0+")] = OPERATIONS_NOT_ASKED


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """One page, topics ordered by name; `next_cursor` is set if another page follows.

    Source: Kafka DescribeTopicPartitionsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    topics: Annotated[
        tuple[DescribeTopicPartitionsResponseTopic, ...],
        wire(array(DescribeTopicPartitionsResponseTopic), "0+"),
    ] = ()
    next_cursor: Annotated[Cursor | None, wire(Cursor, "0+", nullable="0+")] = None
