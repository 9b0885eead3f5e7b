"""What consumers tell each other through a classic group: subscriptions and assignments.

These travel as opaque bytes in JoinGroup and SyncGroup, an int16 version in front that is not in the
schemas. A reader that meets a newer version than it knows reads it as the newest it knows and leaves
the rest unread: fields are only ever added at the end.

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
    """What a member wants to read and, for cooperative rebalances, what it reads now."""

    topics: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
    user_data: Annotated[bytes | None, wire(BYTES, "0+", nullable="0+")] = None
    owned_partitions: Annotated[
        tuple[TopicPartition, ...], wire(array(TopicPartition), "1+", ignorable=True)
    ] = ()
    # In which generation it owned them: -1 unknown.
    generation_id: Annotated[int, wire(INT32, "2+", ignorable=True)] = -1
    rack_id: Annotated[str | None, wire(STRING, "3+", nullable="3+", ignorable=True)] = None


@message(versions="0-3")
class ConsumerProtocolAssignment:
    """What one member shall read; the versions differ in the subscription only."""

    assigned_partitions: Annotated[tuple[TopicPartition, ...], wire(array(TopicPartition), "0+")] = ()
    user_data: Annotated[bytes | None, wire(BYTES, "0+", nullable="0+")] = None
