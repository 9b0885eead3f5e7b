"""SaslHandshake and SaslAuthenticate where no login is under way: ILLEGAL_SASL_STATE, as in Kafka.

A listener with SASL answers them itself (`broker/server/login.py`). They stand in the table of handlers
because ApiVersions is the same on every listener, and librdkafka logs in only where it finds them.
"""

from tallystick.broker.handlers.ports import HasAuthorizer
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def handle_handshake(
    broker: HasAuthorizer, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Answer SaslHandshake on a listener without logins."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def handle_token(
    broker: HasAuthorizer, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """Answer SaslAuthenticate on a listener without logins."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message=f"listener {context.listener} has no login",
        auth_bytes=b"",
    )
