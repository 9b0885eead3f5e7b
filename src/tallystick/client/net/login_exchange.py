"""The login of one connection: which requests carry a mechanism's tokens, and what their answers mean. Pure.

    SaslHandshake       names the mechanism; a refusal lists those that the broker has
    SaslAuthenticate    carries one token each way, as often as the mechanism needs (KIP-152)

The same exchange repeats a login on a connection that is in use (KIP-368): the last answer says how long
the session lasts, and the client logs in again before that.
"""

from typing import Final

from tallystick.client.errors import AuthenticationFailed
from tallystick.kernel.codes import ErrorCode, get_error_name
from tallystick.kernel.errors import shorten
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.security.sasl.mechanism import SaslClient, SaslPeerRefused

HANDSHAKE_VERSION: Final = 1
"""With version 0 the tokens follow as bare frames, which only brokers before Kafka 1.0 need."""
_ROUNDS_MAX: Final = 10
REAUTHENTICATION_WINDOW: Final = (0.85, 0.95)
"""Share of a session after which a client logs in again, chosen at random (KIP-368): clients that started
together drift apart."""

LoginRequest = SaslHandshakeRequest | SaslAuthenticateRequest


class LoginExchange:
    """One login: `start`, then `handle_response` for each answer until `session_lifetime_ms` is known."""

    def __init__(self, client: SaslClient, address: str) -> None:
        """Create an exchange that has sent nothing."""
        self._client, self._address = client, address
        self._round_count = 0
        self.session_lifetime_ms: int | None = None
        """Lifetime of the login, 0 for that of the connection; None until it is complete."""

    def start(self) -> SaslHandshakeRequest:
        """Return the first request."""
        return SaslHandshakeRequest(mechanism=self._client.mechanism)

    def handle_response(self, response: object) -> LoginRequest | None:
        """Return the next request; None when the login is complete. Raises: AuthenticationFailed."""
        if isinstance(response, SaslHandshakeResponse):
            self._check_handshake(response)
            return self._send_token(None)
        assert isinstance(response, SaslAuthenticateResponse)
        if response.error_code != ErrorCode.NONE:
            raise self._refuse(response.error_message or get_error_name(response.error_code))
        request = self._send_token(response.auth_bytes)
        if self._client.complete:
            self.session_lifetime_ms = max(response.session_lifetime_ms, 0)
            return None
        return request

    def _send_token(self, challenge: bytes | None) -> SaslAuthenticateRequest:
        self._round_count += 1
        if self._round_count > _ROUNDS_MAX:
            raise self._refuse(f"the broker does not end the login after {_ROUNDS_MAX} rounds")
        try:
            return SaslAuthenticateRequest(auth_bytes=self._client.respond(challenge))
        except SaslPeerRefused as exc:
            raise self._refuse(str(exc)) from None

    def _check_handshake(self, response: SaslHandshakeResponse) -> None:
        code = response.error_code
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            mechanisms = shorten(", ".join(response.mechanisms)) or "none"
            raise AuthenticationFailed(
                self._address,
                f"sasl.mechanism={self._client.mechanism} is not enabled there; the broker has: {mechanisms}",
            )
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(
                self._address,
                "that listener asks for no login: security.protocol should be PLAINTEXT or SSL",
            )
        if code != ErrorCode.NONE:
            raise self._refuse(get_error_name(code))

    def _refuse(self, why: str) -> AuthenticationFailed:
        return AuthenticationFailed(self._address, f"login with {self._client.mechanism}: {shorten(why)}")


def choose_reauthentication_ms(session_lifetime_ms: int, chance: float) -> float:
    """Return how long after a login the next one is due.

    Args:
        chance: random, 0 to 1.
    """
    low, high = REAUTHENTICATION_WINDOW
    return session_lifetime_ms * (low + (high - low) * chance)
