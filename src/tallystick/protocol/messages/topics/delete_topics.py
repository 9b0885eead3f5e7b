"""DeleteTopics (20): remove topics by name or by id."""

import uuid
from typing import Annotated

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import INT16, INT32, STRING, UUID, array, message, struct, wire


@struct
class DeleteTopicState:
    name: Annotated[str | None, wire(STRING, "6+", nullable="6+")] = None  # null: use the id
    topic_id: Annotated[uuid.UUID, wire(UUID, "6+")]


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """Topics to delete, by name (1-5), or by name or id (6+, KIP-516).

    Source: Kafka DeleteTopicsRequest.
    """

    topics: Annotated[tuple[DeleteTopicState, ...], wire(array(DeleteTopicState), "6+")] = ()
    topic_names: Annotated[tuple[str, ...], wire(array(STRING), "1-5", ignorable=True)] = ()
    timeout_ms: Annotated[int, wire(INT32, "1+")]


@struct
class DeletableTopicResult:
    name: Annotated[str | None, wire(STRING, "1+", nullable="6+")]
    topic_id: Annotated[uuid.UUID, wire(UUID, "6+", ignorable=True)] = NIL
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    error_message: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """One entry per topic; `name` may be null for an unknown id.

    Source: Kafka DeleteTopicsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+")] = 0
    responses: Annotated[tuple[DeletableTopicResult, ...], wire(array(DeletableTopicResult), "1+")] = ()
