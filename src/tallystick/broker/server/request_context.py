"""What a handler knows about the request besides its body."""

from tallystick.kernel.value import frozen


@frozen
class RequestContext:
    """From the request's header and its connection; `client_id` is the client's own claim."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
