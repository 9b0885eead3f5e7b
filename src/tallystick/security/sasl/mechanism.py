"""Interface of a SASL mechanism: the client side and the server side of one login.

A login is a conversation of tokens, whose carriage is KIP-152's business and not seen here. The client speaks
first. Each side takes the peer's last token and returns its own, until both are complete; neither is used
twice, so a re-authentication (KIP-368) makes new ones.
"""

from typing import Protocol

from tallystick.kernel.errors import TallystickError


class SaslAuthenticationFailed(TallystickError):
    """The server refuses this login. The text goes to the peer, so it holds no secret and no hint at one.

    Attributes: log_text, which is for the server's log alone, and may say more than the peer learns.
    """

    def __init__(self, text: str, log_text: str | None = None) -> None:
        super().__init__(text, log_text)
        self.log_text = text if log_text is None else log_text

    def __str__(self) -> str:
        return str(self.args[0])


class KeyNeeded(TallystickError):
    """The server needs a key that is not at hand, before it can answer a token.

    Nothing has changed: once the key was looked for, the same token is given again, and is answered then.
    """


class SaslPeerRefused(TallystickError):
    """The client ends the login: the server's token breaks the mechanism's rules, or did not prove itself."""


class SaslClient(Protocol):
    """The client side of one login."""

    @property
    def mechanism(self) -> str:
        """IANA name of the mechanism, as SaslHandshake spells it."""

    @property
    def complete(self) -> bool:
        """Whether the client has said everything, and has verified what the mechanism lets it verify."""

    def respond(self, challenge: bytes | None) -> bytes:
        """Return the next token; `challenge` is None for the first. Raises: SaslPeerRefused."""


class SaslServer(Protocol):
    """The server side of one login."""

    @property
    def complete(self) -> bool:
        """Whether the login succeeded. The token returned last still goes to the client."""

    @property
    def principal(self) -> str | None:
        """Name of the user when complete; ACLs write it as `User:<name>`."""

    @property
    def session_expires_ms(self) -> int | None:
        """When what was shown expires, in milliseconds since 1970; None if it does not."""

    def respond(self, token: bytes) -> bytes:
        """Return the answer to a token.

        Raises: SaslAuthenticationFailed, and the login is over then; KeyNeeded, once for a token.
        """


def describe_bad_credentials(mechanism: str) -> str:
    """Return Kafka's text for any credential that is not right, whichever part of it is wrong."""
    return (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}"
    )
