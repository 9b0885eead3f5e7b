"""Headers of requests and responses."""

from typing import Annotated

from tallystick.protocol.wire import INT16, INT32, STRING, message, wire


@message(api_key=None, versions="1-2", flexible="2+")
class RequestHeader:
    """Version 2 has tagged fields. `client_id` keeps its int16 length even there (KIP-482)."""

    request_api_key: Annotated[int, wire(INT16, "0+")]
    request_api_version: Annotated[int, wire(INT16, "0+")]
    correlation_id: Annotated[int, wire(INT32, "0+")]
    client_id: Annotated[str | None, wire(STRING, "1+", nullable="1+", compact=False)] = None


@message(api_key=None, versions="0-1", flexible="1+")
class ResponseHeader:
    """Version 1 has tagged fields."""

    correlation_id: Annotated[int, wire(INT32, "0+")]
