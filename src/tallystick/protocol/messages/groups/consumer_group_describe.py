"""ConsumerGroupDescribe (69): state and members of groups of the consumer protocol."""

import uuid
from typing import Annotated

from tallystick.protocol.messages.topics.metadata import OPERATIONS_NOT_ASKED
from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, STRING, UUID, array, message, struct, wire


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """Describe groups of the consumer protocol by id.

    Source: KIP-848; Kafka ConsumerGroupDescribeRequest.
    """

    group_ids: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    include_authorized_operations: Annotated[bool, wire(BOOL, "0+")]


@struct
class TopicPartitions:
    topic_id: Annotated[uuid.UUID, wire(UUID, "0+")]
    topic_name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class Assignment:
    topic_partitions: Annotated[tuple[TopicPartitions, ...], wire(array(TopicPartitions), "0+")] = ()


@struct
class Member:
    member_id: Annotated[str, wire(STRING, "0+")]
    instance_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    rack_id: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    member_epoch: Annotated[int, wire(INT32, "0+")]
    client_id: Annotated[str, wire(STRING, "0+")]
    client_host: Annotated[str, wire(STRING, "0+")]
    subscribed_topic_names: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    subscribed_topic_regex: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    assignment: Annotated[Assignment, wire(Assignment, "0+")]
    target_assignment: Annotated[Assignment, wire(Assignment, "0+")]
    member_type: Annotated[int, wire(INT8, "1+", ignorable=True)] = -1  # -1 unknown, 0 classic, 1 consumer


@struct
class DescribedGroup:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    group_id: Annotated[str, wire(STRING, "0+")]
    group_state: Annotated[str, wire(STRING, "0+")]
    group_epoch: Annotated[int, wire(INT32, "0+")]
    assignment_epoch: Annotated[int, wire(INT32, "0+")]
    assignor_name: Annotated[str, wire(STRING, "0+")]
    members: Annotated[tuple[Member, ...], wire(array(Member), "0+")] = ()
    authorized_operations: Annotated[int, wire(INT32, "0+")] = OPERATIONS_NOT_ASKED


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """One entry per group; 1 adds the protocol of each member (KIP-1099).

    Source: Kafka ConsumerGroupDescribeResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    groups: Annotated[tuple[DescribedGroup, ...], wire(array(DescribedGroup), "0+")] = ()
