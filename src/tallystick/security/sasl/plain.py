"""PLAIN (RFC 4616): one message with the name and the password in clear, so only ever under TLS.

    message = [authzid] UTF8NUL authcid UTF8NUL passwd

Kafka's liberties (PlainSaslServer): an authorization id, if there is one, must be the user's own name.
"""

from collections.abc import Callable
from hmac import compare_digest
from typing import Final

from tallystick.kernel.secret import Secret
from tallystick.security.sasl.mechanism import (
    SaslAuthenticationFailed,
    SaslPeerRefused,
)

PLAIN: Final = "PLAIN"
_FAILED: Final = "Authentication failed: "


class PlainClient:
    """The client side: sends its message immediately."""

    mechanism: Final = PLAIN

    def __init__(self, username: str, password: Secret) -> None:
        self._username, self._password = username, password
        self.complete = False

    def respond(self, challenge: bytes | None) -> bytes:
        """Return the message; Kafka's server answers it with an empty token."""
        if self.complete:
            if challenge:
                raise SaslPeerRefused("the server answered PLAIN's only message with a challenge")
            return b""
        self.complete = True
        return f"\0{self._username}\0{self._password.reveal()}".encode()


class PlainServer:
    """The server side."""

    session_expires_ms: Final = None

    def __init__(self, find_password: Callable[[str], Secret | None]) -> None:
        """Create a server that has heard nothing.

        Args:
            find_password: returns the password of a user, None for an unknown one.
        """
        self._find_password = find_password
        self.principal: str | None = None

    @property
    def complete(self) -> bool:
        return self.principal is not None

    def respond(self, token: bytes) -> bytes:
        """Check the message, which is the only one."""
        if self.complete:
            raise SaslAuthenticationFailed(f"{_FAILED}PLAIN has one message, and a second one arrived")
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslAuthenticationFailed(f"{_FAILED}the message is not UTF-8") from None
        if len(parts) != 3:
            raise SaslAuthenticationFailed(
                f"{_FAILED}Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            )
        authorization_id, username, password = parts
        if not username:
            raise SaslAuthenticationFailed(f"{_FAILED}username not specified")
        if not password:
            raise SaslAuthenticationFailed(f"{_FAILED}password not specified")
        expected = self._find_password(username)
        # An unknown user costs the same comparison; an empty configured password lets no one in.
        stored = expected.reveal() if expected else ""
        equal = compare_digest(stored.encode(), password.encode())
        if not equal or not stored:
            raise SaslAuthenticationFailed(f"{_FAILED}Invalid username or password")
        if authorization_id not in ("", username):
            raise SaslAuthenticationFailed(
                f"{_FAILED}Client requested an authorization id that is different from username"
            )
        self.principal = username
        return b""
