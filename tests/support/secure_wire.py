"""Connections that speak our own messages to any broker over SSL and SASL_SSL."""

import ssl
from typing import Any

from tests.support.raw_wire import RawConnection

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.apis import API_SPECS
from tallystick.protocol.messages.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

TIMEOUT_S = 60


class TlsConnection(RawConnection):
    """A connection inside TLS."""

    def __init__(self, bootstrap: str, context: ssl.SSLContext) -> None:
        super().__init__(bootstrap)
        self._socket.settimeout(TIMEOUT_S)
        self._socket = context.wrap_socket(self._socket, server_hostname=bootstrap.rpartition(":")[0])


class SecureConnection(TlsConnection):
    """A connection inside TLS that is logged in with PLAIN."""

    def __init__(self, bootstrap: str, context: ssl.SSLContext, user: str, password: str) -> None:
        super().__init__(bootstrap, context)
        token = f"\0{user}\0{password}".encode()
        for request, version in (
            (SaslHandshakeRequest(mechanism="PLAIN"), 1),
            (SaslAuthenticateRequest(auth_bytes=token), 2),
        ):
            answer = self.ask_any(request, version)
            assert answer.error_code == ErrorCode.NONE, answer

    def ask_any(self, request: object, version: int) -> Any:
        """Send a request, and return its answer, whatever its class."""
        spec = next(spec for spec in API_SPECS.values() if spec.request is type(request))
        return self.ask(request, spec.response, version)
