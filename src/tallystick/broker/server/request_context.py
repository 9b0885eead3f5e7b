"""Context of a request: everything a handler knows besides the body."""

from typing import Final

from msgspec import field

from tallystick.broker.authorizer.known_rights import KnownRights
from tallystick.kernel.value import Value
from tallystick.security.principals import ANONYMOUS, Principal

DEFAULT_LISTENER: Final = "PLAINTEXT"


class RequestContext(Value):
    """Data of the request's header and its connection.

    client_id      the client's own claim, from the header: good for logs and quotas, never for a decision
    client_host    the textual IP address at the other end, which ACLs compare with their host
    client_port    the port at the other end; for people who look for a client
    listener       name of the listener that the connection came in by
    principal      who is logged in on the connection, as it was when the request arrived
    known_rights   the connection's, since its last login
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
    listener: str = DEFAULT_LISTENER
    principal: Principal = ANONYMOUS
    client_port: int = 0
    known_rights: KnownRights = field(default_factory=dict)
