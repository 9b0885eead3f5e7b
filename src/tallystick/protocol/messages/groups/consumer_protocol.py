"""The embedded consumer protocol of classic groups: subscriptions and assignments.

These travel as opaque bytes in JoinGroup and SyncGroup, after an int16 version that is not in the schemas. A
reader decodes a newer version as the newest it knows and ignores the remaining bytes, because fields are
only ever added at the end.

Source: Kafka ConsumerProtocolSubscription/Assignment; v1 KIP-429, v2 KIP-792, v3 KIP-881.
"""

from typing import Annotated

from tallystick.protocol.wire import BYTES, INT32, STRING, array, message, struct, wire


@struct
class TopicPartition:
    topic: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@message(versions="0-3")
class ConsumerProtocolSubscription:
    """A member's subscribed topics and, for cooperative rebalances, its owned partitions."""

    topics: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    user_data: Annotated[bytes | None, wire(BYTES, "0+", nullable="0+")] = None
    owned_partitions: Annotated[
        tuple[TopicPartition, ...], wire(array(TopicPartition), "1+", ignorable=True)
    ] = ()
    # The generation in which it owned them; -1 unknown.
    generation_id: Annotated[int, wire(INT32, "2+", ignorable=True)] = -1
    rack_id: Annotated[str | None, wire(STRING, "3+", nullable="3+", ignorable=True)] = None


@message(versions="0-3")
class ConsumerProtocolAssignment:
    """The partitions assigned to one member; the versions differ in the subscription only."""

    assigned_partitions: Annotated[tuple[TopicPartition, ...], wire(array(TopicPartition), "0+")] = ()
    user_data: Annotated[bytes | None, wire(BYTES, "0+", nullable="0+")] = None
