"""Tokens from a token endpoint for a client's id and secret (RFC 6749, section 4.4).

By https only, and a redirect to another host is an error (CVE-2025-27817): the secret goes to the host that
was configured, and to no other. The request is made with the standard library, in a thread; its parts for
HTTP are loaded when they are needed.
"""

import asyncio
import base64
import json
import ssl
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from tallystick import _lazy
from tallystick.client.errors import AuthenticationFailed, Unreachable
from tallystick.client.net.backoff import compute_backoff_ms, uniform
from tallystick.kernel.clock import Clock
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value
from tallystick.security.https_opener import build_https_opener
from tallystick.security.sasl.settings import ClientCredentials, SaslSettings
from tallystick.security.tls.failures import explain_handshake_failure

_ANSWER_BYTES_MAX: Final = 1024 * 1024
_ATTEMPTS_MAX: Final = 3
_TIMEOUT_MS: Final = 10_000
# Kafka's HttpJwtRetriever gives up at these: the next attempt would get the same answer.
_FINAL_STATUSES: Final = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415}
)


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


class _TokenEndpointBusy(Exception):
    """The endpoint may answer later."""


async def fetch_token(credentials: ClientCredentials, settings: SaslSettings, clock: Clock) -> BearerToken:
    """Return a new token.

    Raises: AuthenticationFailed; Unreachable if the endpoint stays busy or away for some attempts.
    """
    failures = 0
    while True:
        asked_at_ms = clock.now_ms()
        try:
            answer = await asyncio.to_thread(request_token, credentials, settings)
        except _TokenEndpointBusy as exc:
            failures += 1
            if failures == _ATTEMPTS_MAX:
                raise Unreachable(credentials.token_endpoint_url, str(exc)) from None
            wait_ms = compute_backoff_ms(
                failures - 1,
                settings.sasl_login_retry_backoff_ms,
                settings.sasl_login_retry_backoff_max_ms,
                uniform(),
            )
            await asyncio.sleep(wait_ms / 1000)
        else:
            return parse_token_answer(answer, credentials.token_endpoint_url, asked_at_ms)


def request_token(credentials: ClientCredentials, settings: SaslSettings) -> bytes:
    """Ask the endpoint once; blocks. Raises: AuthenticationFailed, _TokenEndpointBusy."""
    url = credentials.token_endpoint_url
    request = build_token_request(credentials)
    timeout_ms = max(
        settings.sasl_login_connect_timeout_ms or _TIMEOUT_MS,
        settings.sasl_login_read_timeout_ms or _TIMEOUT_MS,
    )
    try:
        context = ssl.create_default_context(cafile=credentials.ca_location)
    except OSError as exc:
        raise AuthenticationFailed(url, f"https.ca.location: {exc}") from None
    http_client, errors = _lazy.load("http.client"), _lazy.load("urllib.error")
    try:
        with build_https_opener(context).open(request, timeout=timeout_ms / 1000) as response:
            answer: bytes = response.read(_ANSWER_BYTES_MAX + 1)
    except errors.HTTPError as exc:
        with exc:
            why = f"the token endpoint answered {exc.code}{_describe_oauth_error(exc.read(10_000))}"
        if exc.code in _FINAL_STATUSES or 300 <= exc.code < 400:
            raise AuthenticationFailed(url, why) from None
        raise _TokenEndpointBusy(why) from None
    except (OSError, http_client.HTTPException) as exc:
        reason = exc.reason if isinstance(exc, errors.URLError) else exc
        if isinstance(reason, ssl.SSLError):
            raise AuthenticationFailed(url, explain_handshake_failure(reason)) from None
        raise _TokenEndpointBusy(f"the token endpoint does not answer: {reason}") from None
    if len(answer) > _ANSWER_BYTES_MAX:
        raise AuthenticationFailed(url, f"the answer has more than {_ANSWER_BYTES_MAX} bytes")
    return answer


def build_token_request(credentials: ClientCredentials) -> Any:
    """Return the request. RFC 6749, section 4.4.2; the client's id and secret as in section 2.3.1."""
    url = credentials.token_endpoint_url
    if urlsplit(url).scheme != "https":
        raise AuthenticationFailed(url, "a token endpoint is asked by https only")
    user, secret = credentials.client_id, credentials.client_secret.reveal()
    if credentials.is_urlencoded:
        user, secret = quote_plus(user), quote_plus(secret)
    form = {"grant_type": "client_credentials"}
    if credentials.scope:
        form["scope"] = credentials.scope
    return _lazy.load("urllib.request").Request(
        url,
        urlencode(form).encode(),
        {
            "Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode(),
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        method="POST",
    )


def parse_token_answer(answer: bytes, url: str, asked_at_ms: int) -> BearerToken:
    """Return the token; it expires when `expires_in` says, else as it says of itself.

    Raises: AuthenticationFailed, quoting nothing of the answer.
    """
    try:
        content = json.loads(answer)
        text, expires_in = content["access_token"], content.get("expires_in")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise AuthenticationFailed(url, "the answer has no access_token") from None
    if not isinstance(text, str) or not text:
        raise AuthenticationFailed(url, "the answer has no access_token")
    if isinstance(expires_in, int | float) and not isinstance(expires_in, bool) and 0 < expires_in < 2**40:
        return BearerToken(Secret(text), asked_at_ms + int(expires_in * 1000))
    return BearerToken(Secret(text), read_expiry_ms(text))


def _describe_oauth_error(answer: bytes) -> str:
    """Return `error` of RFC 6749, section 5.2, which is a word of a list; its description may be anything."""
    try:
        error = json.loads(answer)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return f": {error}" if isinstance(error, str) and len(error) < 100 and error.isprintable() else ""
