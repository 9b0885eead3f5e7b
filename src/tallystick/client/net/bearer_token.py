"""A bearer token and when it expires."""

import base64
import json

from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value


class BearerToken(Value):
    """A token and when it expires, in milliseconds since 1970; None if that is not known."""

    text: Secret
    expires_at_ms: int | None


def read_expiry_ms(token: str) -> int | None:
    """Return a JWT's `exp` in milliseconds, unverified; None for a token of another kind."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        expires = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))["exp"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 <= expires < 2**43:
        return None
    return int(expires * 1000)
