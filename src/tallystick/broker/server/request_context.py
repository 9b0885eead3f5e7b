"""Context of a request: everything a handler knows besides the body."""

from tallystick.kernel.value import Value


class RequestContext(Value):
    """Data of the request's header and its connection; `client_id` is the client's own claim."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
