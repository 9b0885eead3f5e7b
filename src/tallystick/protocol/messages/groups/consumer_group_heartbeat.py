"""ConsumerGroupHeartbeat (68): join, stay in and leave a group of the consumer protocol."""

import uuid
from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, UUID, array, message, struct, wire


@struct
class TopicPartitions:
    topic_id: Annotated[uuid.UUID, wire(UUID, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """The state of a member; null (or -1) means unchanged since its last heartbeat.

    1 adds the regular expression (KIP-848), and the member generates its own id (KIP-1082).

    Source: KIP-848; Kafka ConsumerGroupHeartbeatRequest.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    member_id: Annotated[str, wire(STRING, "0+")]
    # 0 joins, -1 leaves, -2 leaves temporarily as a static member.
    member_epoch: Annotated[int, wire(INT32, "0+")]
    instance_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    rack_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    rebalance_timeout_ms: Annotated[int, wire(INT32, "0+")] = -1
    subscribed_topic_names: Annotated[tuple[str, ...] | None, wire(array(STRING), "0+", nullable="0+")] = None
    subscribed_topic_regex: Annotated[str | None, wire(STRING, "1+", nullable="1+")] = None
    server_assignor: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    topic_partitions: Annotated[
        tuple[TopicPartitions, ...] | None, wire(array(TopicPartitions), "0+", nullable="0+")
    ] = None


@struct
class Assignment:
    topic_partitions: Annotated[tuple[TopicPartitions, ...], wire(array(TopicPartitions), "0+")] = ()


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch and, if it changed, its assignment.

    Source: Kafka ConsumerGroupHeartbeatResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    member_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    member_epoch: Annotated[int, wire(INT32, "0+")]
    heartbeat_interval_ms: Annotated[int, wire(INT32, "0+")]
    assignment: Annotated[Assignment | None, wire(Assignment, "0+", nullable="0+")] = None
