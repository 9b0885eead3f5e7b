"""Heartbeat (12): stay a member of a classic group, and learn of a rebalance."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, message, wire


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """The member's proof of liveness in a generation.

    Source: Kafka HeartbeatRequest; v3 KIP-345.
    """

    group_id: Annotated[str, wire(STRING, "0+")]
    generation_id: Annotated[int, wire(INT32, "0+")]
    member_id: Annotated[str, wire(STRING, "0+")]
    group_instance_id: Annotated[str | None, wire(STRING, "3+", nullable="3+")] = None


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS tells the member to rejoin.

    Source: Kafka HeartbeatResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
