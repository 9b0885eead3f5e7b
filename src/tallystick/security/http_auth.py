"""HTTP authentication by a bearer token or a password: what a request must bring, and the challenge without.

Pure; `http_credentials` reads the secrets from files. Both schemes may be in force together: a request
that satisfies one of them is let in. Secrets are compared in constant time (`Secret`).

Source: RFC 9110, 11; RFC 6750, 2.1 (Bearer); RFC 7617 (Basic).
"""

import re
from base64 import b64decode
from binascii import Error
from typing import Final

from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value

# RFC 6750, 2.1: b64token = 1*( ALPHA / DIGIT / "-" / "." / "_" / "~" / "+" / "/" ) *"="
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class HttpCredentials(Value, kw_only=True):
    """Credentials that a request must have. Without token and password, every request is accepted.

    user   of `password`; without a colon, which ends it on the wire
    """

    token: Secret | None = None
    user: str = ""
    password: Secret | None = None

    @property
    def are_required(self) -> bool:
        """Whether a request must bring any."""
        return self.token is not None or self.password is not None

    def accept(self, authorization: str | None) -> bool:
        """Return whether a request with this Authorization header is let in."""
        if not self.are_required:
            return True
        scheme, _, value = (authorization or "").strip().partition(" ")
        # RFC 9110, 11.1: "It uses a case-insensitive token to identify the authentication scheme".
        match scheme.lower():
            case "bearer" if self.token is not None:
                return Secret(value.strip()) == self.token
            case "basic" if self.password is not None:
                return _decode_basic(value.strip()) == Secret(f"{self.user}:{self.password.reveal()}")
        return False

    def list_challenges(self, realm: str) -> tuple[str, ...]:
        """Return the values of WWW-Authenticate.

        RFC 9110, 15.5.2: "The server generating a 401 response MUST send a WWW-Authenticate header field
        containing at least one challenge applicable to the target resource."
        """
        challenges = []
        if self.token is not None:
            challenges.append(f'Bearer realm="{realm}"')
        if self.password is not None:
            challenges.append(f'Basic realm="{realm}", charset="UTF-8"')
        return tuple(challenges)


def is_token(text: str) -> bool:
    """Return whether a text can be sent as a bearer token."""
    return _TOKEN.fullmatch(text) is not None


def _decode_basic(value: str) -> Secret | None:
    try:
        return Secret(b64decode(value, validate=True).decode())
    except (Error, ValueError):
        return None
