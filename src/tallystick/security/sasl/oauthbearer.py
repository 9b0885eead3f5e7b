"""OAUTHBEARER (RFC 7628): one message with a bearer token.

    client  n,[a=<authorization id>],^Aauth=Bearer <token>^A[<key>=<value>^A...]^A
    server  nothing; or {"status":"invalid_token",...}, which the client answers with ^A before it is refused

What makes a token valid is not decided here: a server is given a function for it (`jwt_validator`), and a
client is given the token.
"""

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value
from tallystick.security.sasl.mechanism import (
    KeyNeeded,
    SaslAuthenticationFailed,
    SaslPeerRefused,
)
from tallystick.security.sasl.scram import escape_name, unescape_name

OAUTHBEARER: Final = "OAUTHBEARER"
MESSAGE_BYTES_MAX: Final = 64 * 1024
"""Largest message of a client; tokens with many groups in them reach some ten kilobytes."""
NO_EXTENSIONS: Final[Mapping[str, str]] = MappingProxyType({})

# RFC 7628, section 3.1: key = 1*(ALPHA), value = *(VCHAR / SP / HTAB / CR / LF).
_KEY: Final = "[A-Za-z]+"
_PAIR: Final = re.compile(f"({_KEY})=([\\x21-\\x7e \\t\\r\\n]*)")
_GS2_HEADER: Final = re.compile("n,(?:a=(?P<authzid>(?:[^\\0,=\\x01]|=2C|=3D)+))?,")
# RFC 6750, section 2.1: b64token.
_BEARER: Final = re.compile("[Bb][Ee][Aa][Rr][Ee][Rr] (?P<token>[A-Za-z0-9._~+/-]+=*)")
_SEPARATOR: Final = "\x01"


class ValidatedToken(Value, kw_only=True):
    """Claims of a token whose signature was verified.

    expires_at_ms   milliseconds since 1970
    """

    subject: str
    expires_at_ms: int
    scopes: frozenset[str] = frozenset()


class TokenRefused(TallystickError):
    """A token is not accepted. The text says why and quotes nothing of the token."""

    def __init__(self, why: str, status: str = "invalid_token") -> None:
        super().__init__(why, status)
        self.why, self.status = why, status

    def __str__(self) -> str:
        return self.why


def find_bad_extensions(extensions: Mapping[str, str]) -> list[str]:
    """Return the names of extensions that RFC 7628 does not allow; `auth` carries the token."""
    return [
        key for key, value in extensions.items() if key == "auth" or _PAIR.fullmatch(f"{key}={value}") is None
    ]


class OauthBearerClient:
    """The client side of one login with one token."""

    mechanism: Final = OAUTHBEARER

    def __init__(self, token: Secret, extensions: Mapping[str, str] = NO_EXTENSIONS, user: str = "") -> None:
        """Create a client that has said nothing.

        Args:
            extensions: further pairs for the server, such as Confluent Cloud's `logicalCluster`.
            user: the authorization id; empty if the token names it.
        """
        self._token, self._extensions, self._user = token, extensions, user
        self.complete = False
        self._refusal = ""

    def respond(self, challenge: bytes | None) -> bytes:
        """Return the message; after a refusal, the byte that the server waits for.

        RFC 7628, section 3.2.3: the client "MUST send either an additional client response consisting of a
        single %x01 (control A) character to the server in order to allow the server to finish the exchange
        or a SASL cancellation token".
        """
        if self.complete and challenge:
            self.complete, self._refusal = False, challenge.decode(errors="replace")[:500]
            return _SEPARATOR.encode()
        if self._refusal:
            raise SaslPeerRefused(f"the server does not accept the token: {self._refusal}")
        if self.complete:
            return b""
        self.complete = True
        user = f"a={escape_name(self._user)}" if self._user else ""
        pairs = {"auth": f"Bearer {self._token.reveal()}", **self._extensions}
        joined = "".join(f"{key}={value}{_SEPARATOR}" for key, value in pairs.items())
        return f"n,{user},{_SEPARATOR}{joined}{_SEPARATOR}".encode()


class OauthBearerServer:
    """The server side."""

    def __init__(self, validate: Callable[[str], ValidatedToken]) -> None:
        """Create a server that has heard nothing.

        Args:
            validate: returns what a token says, or raises TokenRefused, or KeyNeeded.
        """
        self._validate = validate
        self._refusal: SaslAuthenticationFailed | None = None
        self._is_spent = self._has_waited = False
        self.principal: str | None = None
        self.session_expires_ms: int | None = None
        self.extensions: Mapping[str, str] = NO_EXTENSIONS

    @property
    def complete(self) -> bool:
        return self.principal is not None

    def respond(self, token: bytes) -> bytes:
        """Return nothing for a valid token; the error as JSON for another, and refuse what follows that."""
        if self._refusal is not None:
            raise self._refusal
        if self._is_spent:
            raise SaslAuthenticationFailed("Authentication failed: OAUTHBEARER has one message")
        self._is_spent = True
        authorization_id, bearer, extensions = parse_client_message(token)
        try:
            valid = self._validate_or_wait(bearer)
        except TokenRefused as exc:
            # The peer learns the status alone: which claim is wrong, and by how much, helps one who guesses.
            status = f'{{"status":{json.dumps(exc.status)}}}'
            self._refusal = SaslAuthenticationFailed(status, f"the token is refused: {exc.why}")
            return status.encode()
        if authorization_id not in ("", valid.subject):
            raise SaslAuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from "
                "the token's principal name"
            )
        self.extensions = MappingProxyType(extensions)
        self.session_expires_ms = valid.expires_at_ms
        self.principal = valid.subject
        return b""

    def _validate_or_wait(self, bearer: str) -> ValidatedToken:
        """Validate a token, which may wait for its key once. Raises: TokenRefused, KeyNeeded."""
        try:
            return self._validate(bearer)
        except KeyNeeded as exc:
            if self._has_waited:
                raise TokenRefused(str(exc)) from None
            self._has_waited, self._is_spent = True, False
            raise


def parse_client_message(message: bytes) -> tuple[str, str, dict[str, str]]:
    """Return authorization id, token and extensions. Raises: SaslAuthenticationFailed, quoting nothing."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise _refuse_message(f"{len(message)} bytes, {MESSAGE_BYTES_MAX} are allowed")
    try:
        header, *parts = message.decode().split(_SEPARATOR)
    except UnicodeDecodeError:
        raise _refuse_message("not UTF-8") from None
    gs2 = _GS2_HEADER.fullmatch(header)
    if gs2 is None:
        raise _refuse_message("no GS2 header n,[a=...],")
    # client-resp = gs2-header kvsep *kvpair kvsep, and each pair ends with kvsep: two empty parts at the end.
    if len(parts) < 2 or parts[-1] or parts[-2]:
        raise _refuse_message("it does not end with two control-A")
    pairs: dict[str, str] = {}
    for part in parts[:-2]:
        match = _PAIR.fullmatch(part)
        if match is None or match[1] in pairs:
            raise _refuse_message("an attribute is malformed or there twice")
        pairs[match[1]] = match[2]
    bearer = _BEARER.fullmatch(pairs.pop("auth", ""))
    if bearer is None:
        raise _refuse_message("no auth=Bearer token")
    return unescape_name(gs2["authzid"] or ""), bearer["token"], pairs


def _refuse_message(why: str) -> SaslAuthenticationFailed:
    return SaslAuthenticationFailed(f"Authentication failed: Invalid OAUTHBEARER client first message: {why}")
