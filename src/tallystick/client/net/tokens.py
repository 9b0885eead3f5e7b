"""Tokens for OAUTHBEARER: kept until they are due, then asked for again.

A token is replaced after 80 % of its life (`sasl.login.refresh.*`), by the login that comes next: sessions
end with their token, and connections log in again after 85 % of a session. While a token is valid, a
failure to replace it is only a warning.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, cast

from tallystick.client.errors import AuthenticationFailed, ClientError, Unreachable
from tallystick.client.net.backoff import uniform
from tallystick.client.net.token_endpoint import BearerToken, fetch_token, read_expiry_ms
from tallystick.client.settings.security_config import TokenCallback
from tallystick.kernel.check import require
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.secret import Secret
from tallystick.security.sasl.settings import SaslSettings

_log = logging.getLogger("tallystick.client")

_SECONDS_BELOW: Final = 100_000_000_000
"""A time below this is in seconds since 1970: in milliseconds it would be in 1973, in seconds it is the
year 5138."""


class TokenSource:
    """Tokens of one client, from a function of the user or from a token endpoint. On one loop."""

    def __init__(
        self, settings: SaslSettings, callback: TokenCallback | None, clock: Clock | None = None
    ) -> None:
        """Create a source without a token.

        Args:
            callback: returns tokens; without one, the settings' token endpoint does.
        """
        self._settings, self._callback = settings, callback
        self._clock = clock or SystemClock()
        self._token: BearerToken | None = None
        self._refresh_at_ms = 0.0
        self._lock = asyncio.Lock()

    async def get(self) -> Secret:
        """Return a valid token; connections that need one at the same time share it.

        Raises: AuthenticationFailed, if there is none to be had.
        """
        async with self._lock:
            now_ms = self._clock.now_ms()
            token = self._token
            if token is not None and now_ms < self._refresh_at_ms:
                return token.text
            try:
                new_token = await self._fetch()
            except ClientError as exc:
                if not self._is_valid(token):
                    raise
                _log.warning("the token is not replaced, the old one is still used: %s", exc.what())
                return require(token, "a valid token is there").text
            now_ms = self._clock.now_ms()
            if new_token.expires_at_ms is not None and new_token.expires_at_ms <= now_ms:
                raise AuthenticationFailed(
                    "oauth_cb",
                    f"the token expired {now_ms - new_token.expires_at_ms} ms ago: compare the clocks",
                )
            self._token = new_token
            self._refresh_at_ms = compute_refresh_ms(
                now_ms, new_token.expires_at_ms, self._settings, uniform()
            )
            return new_token.text

    def _is_valid(self, token: BearerToken | None) -> bool:
        return (
            token is not None
            and token.expires_at_ms is not None
            and token.expires_at_ms > self._clock.now_ms()
        )

    async def _fetch(self) -> BearerToken:
        if self._callback is not None:
            return await _call_token_callback(self._callback)
        credentials = require(self._settings.login.credentials, "tokens are called for or fetched")
        return await fetch_token(credentials, self._settings, self._clock)


def compute_refresh_ms(
    now_ms: int, expires_at_ms: int | None, settings: SaslSettings, chance: float
) -> float:
    """Return when a token obtained now is due for replacement.

    Source: Kafka ExpiringCredentialRefreshingLogin. That is after the window's share of its life, a buffer
        before its end and not within the least period; the share alone decides for a life too short for both.

    Args:
        chance: random, 0 to 1.
    """
    if expires_at_ms is None:
        return now_ms  # by the next login
    life_ms = expires_at_ms - now_ms
    factor = settings.sasl_login_refresh_window_factor + settings.sasl_login_refresh_window_jitter * chance
    proposal_ms = now_ms + life_ms * min(factor, 1.0)
    buffer_ms = settings.sasl_login_refresh_buffer_seconds * 1000
    least_ms = settings.sasl_login_refresh_min_period_seconds * 1000
    if life_ms < buffer_ms + least_ms:
        return proposal_ms
    return max(min(proposal_ms, expires_at_ms - buffer_ms), now_ms + least_ms)


async def _call_token_callback(callback: TokenCallback) -> BearerToken:
    """Call a user's function in a thread: it may sign, or ask a server. Raises: Unreachable."""
    # confluent-kafka passes sasl.oauthbearer.config, which is empty here.
    arguments = ("",) if _needs_argument(callback) else ()
    try:
        answer = await asyncio.to_thread(callback, *arguments)
        if inspect.isawaitable(answer):
            answer = await cast(Awaitable[object], answer)
    except Exception as exc:
        # What a user's function raises may quote a secret: only its kind is shown. It may succeed next time.
        raise Unreachable("oauth_cb", f"the function raised {type(exc).__name__}") from exc
    return parse_callback_answer(answer)


def parse_callback_answer(answer: object) -> BearerToken:
    """Return the token in a function's answer: `(token, expiry)`, longer, or the token alone.

    Raises: AuthenticationFailed, quoting nothing of it.
    """
    text, expires = answer, None
    if isinstance(answer, tuple | list) and len(answer) >= 2:  # principal and extensions may follow
        text, expires = answer[0], answer[1]
    if isinstance(text, Secret):
        text = text.reveal()
    if not isinstance(text, str) or not text:
        raise AuthenticationFailed("oauth_cb", "the function returned no token, (token, expiry) is needed")
    if expires is None:
        return BearerToken(Secret(text), read_expiry_ms(text))
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 <= expires < 2**63:
        raise AuthenticationFailed("oauth_cb", "the function returned an expiry that is not a time")
    return BearerToken(Secret(text), int(expires * 1000 if expires < _SECONDS_BELOW else expires))


def _needs_argument(callback: Callable[..., object]) -> bool:
    try:
        inspect.signature(callback).bind()
    except TypeError:
        return True
    except ValueError:  # written in C
        return False
    return False
