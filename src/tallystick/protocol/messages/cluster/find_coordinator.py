"""FindCoordinator (10): find the coordinator of a group or a transactional id."""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, STRING, array, message, struct, wire


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """One key (0-3) or several (4+, KIP-699) to find the coordinator of.

    5 lets a client understand TRANSACTION_ABORTABLE (KIP-890), 6 adds share groups (KIP-932).

    Source: Kafka FindCoordinatorRequest.
    """

    key: Annotated[str, wire(STRING, "0-3")] = ""
    key_type: Annotated[int, wire(INT8, "1+")] = 0  # 0 group, 1 transaction, 2 share group
    coordinator_keys: Annotated[tuple[str, ...], wire(array(STRING), "4+")] = ()


@struct
class Coordinator:
    key: Annotated[str, wire(STRING, "4+")]
    node_id: Annotated[int, wire(INT32, "4+")]  # -1 with an error
    host: Annotated[str, wire(STRING, "4+")]
    port: Annotated[int, wire(INT32, "4+")]
    error_code: Annotated[int, wire(INT16, "4+")] = 0
    error_message: Annotated[str | None, wire(STRING, "4+", nullable="4+")] = None


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinator of one key (0-3), or one entry per key (4+).

    Source: Kafka FindCoordinatorResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    error_code: Annotated[int, wire(INT16, "0-3")] = 0
    error_message: Annotated[str | None, wire(STRING, "1-3", nullable="1-3", ignorable=True)] = None
    node_id: Annotated[int, wire(INT32, "0-3")] = 0  # -1 with an error
    host: Annotated[str, wire(STRING, "0-3")] = ""
    port: Annotated[int, wire(INT32, "0-3")] = 0
    coordinators: Annotated[tuple[Coordinator, ...], wire(array(Coordinator), "4+")] = ()
