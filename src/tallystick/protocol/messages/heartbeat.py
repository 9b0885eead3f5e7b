"""Heartbeat (12): stay a member of a classic group, and hear of a rebalance."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, message, wire


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """Show that a member of a generation is alive.

    Source: Kafka HeartbeatRequest; v3 KIP-345.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    generation_id: Annotated[int, wire(INT32, "0+")]
    member_id: Annotated[str, wire(STRING, "0+")]
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")] = None


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS asks the member to join again.

    Source: Kafka HeartbeatResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
