"""Server side of OAUTHBEARER: is this token genuine?

The signature is verified with the identity provider's keys (JWKS, RFC 7517), of which the token's header
chooses one by `kid`. What else the header says is not trusted: its `alg` must be in a list of public-key
algorithms and fit the key, so neither `none` nor an HMAC under the public key passes (CVE-2026-33557, RFC
8725 section 3.1).

Kafka's validator without a signature is for tests: `build_unsecured_validator`, which a listener reaches by
an explicit word only.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Final, cast

from tallystick import _lazy
from tallystick.kernel.errors import TallystickError
from tallystick.security.sasl.jwt_claims import ClaimRules, check_claims
from tallystick.security.sasl.oauthbearer import TokenRefused, ValidatedToken

PUBLIC_KEY_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
RETRY_UNKNOWN_KEY_MS: Final = 10_000
"""Least time between two fetches of the key set for a `kid` that it lacks: tokens with invented ones are
free."""
_KEY_ID_LENGTH_MAX: Final = 1_000

Jwk = Mapping[str, object]


class BadKeySet(TallystickError):
    """A JWKS document is unreadable, or has no key to verify signatures with."""


class KeySetFailure(TallystickError):
    """The key set could not be fetched."""


def parse_key_set(document: bytes) -> dict[str, Jwk]:
    """Return the public signature keys of a JWKS document by `kid`. Raises: BadKeySet."""
    try:
        content = json.loads(document)
        listed = content["keys"]
        keys = {
            key["kid"]: key
            for key in listed
            if isinstance(key.get("kid"), str) and key.get("kty") != "oct" and key.get("use", "sig") == "sig"
        }
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise BadKeySet(f"not a JWKS document: {type(exc).__name__}") from None
    if not keys:
        raise BadKeySet("the JWKS document has no public key with a kid for signatures")
    return keys


class KeySet:
    """The identity provider's keys: fetched when old, or when a token names one that is not there."""

    def __init__(
        self, fetch: Callable[[], bytes], refresh_ms: int = 3_600_000, retry_ms: int = RETRY_UNKNOWN_KEY_MS
    ) -> None:
        """Create a set without keys.

        Args:
            fetch: returns the JWKS document; it blocks, so a listener calls `find` in a thread.
            refresh_ms: age at which the keys are fetched again (sasl.oauthbearer.jwks.endpoint.refresh.ms).
        """
        self._fetch, self._refresh_ms, self._retry_ms = fetch, refresh_ms, retry_ms
        self._keys: dict[str, Jwk] = {}
        self._fetched_at_ms: int | None = None
        self._tried_at_ms: int | None = None

    def refresh(self, now_ms: int) -> None:
        """Fetch the keys now; a listener does so before it starts. Raises: BadKeySet, KeySetFailure."""
        self._tried_at_ms = now_ms
        self._keys = parse_key_set(self._fetch())
        self._fetched_at_ms = now_ms

    def find(self, key_id: str, now_ms: int) -> Jwk | None:
        """Return a key. If the provider cannot be reached, the keys fetched last stay in use."""
        is_old = self._fetched_at_ms is None or now_ms - self._fetched_at_ms >= self._refresh_ms
        may_fetch = self._tried_at_ms is None or now_ms - self._tried_at_ms >= self._retry_ms
        if may_fetch and (is_old or key_id not in self._keys):
            try:
                self.refresh(now_ms)
            except (BadKeySet, KeySetFailure):
                if not self._keys:
                    raise
        return self._keys.get(key_id)


def build_jwt_validator(
    keys: KeySet,
    rules: ClaimRules,
    now_ms: Callable[[], int],
    algorithms: frozenset[str] = PUBLIC_KEY_ALGORITHMS,
) -> Callable[[str], ValidatedToken]:
    """Return the token validator of a listener. Raises: MissingLibrary without the extra `security`."""
    jwt = _lazy.load("jwt")
    if not algorithms <= PUBLIC_KEY_ALGORITHMS:
        raise ValueError(f"only algorithms of public keys: {', '.join(sorted(PUBLIC_KEY_ALGORITHMS))}")

    def validate(token: str) -> ValidatedToken:
        now = now_ms()
        header, _ = _split_token(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in algorithms:
            raise TokenRefused(f"alg is not one of {', '.join(sorted(algorithms))}")
        # RFC 7515, section 4.1.11: critical headers that are not understood make the signature invalid.
        if "crit" in header:
            raise TokenRefused("crit names extensions that are not supported")
        if not isinstance(key_id, str) or len(key_id) > _KEY_ID_LENGTH_MAX:
            raise TokenRefused("kid is missing: the key set cannot be searched")
        try:
            key = keys.find(key_id, now)
        except (BadKeySet, KeySetFailure) as exc:
            raise TokenRefused(f"the key set is not available: {exc}") from None
        if key is None:
            raise TokenRefused("kid is not in the key set")
        if key.get("alg", algorithm) != algorithm:
            raise TokenRefused("alg is not that of the key")
        try:
            content = jwt.PyJWS().decode(token, jwt.PyJWK(key, algorithm), algorithms=[algorithm])
        except jwt.PyJWTError as exc:
            raise TokenRefused(f"the signature is not valid: {type(exc).__name__}") from None
        return check_claims(_parse_object(content), rules, now)

    return validate


def build_unsecured_validator(
    rules: ClaimRules, now_ms: Callable[[], int]
) -> Callable[[str], ValidatedToken]:
    """Return a validator of unsecured JWS (`alg` none): it believes every token. For tests only."""

    def validate(token: str) -> ValidatedToken:
        header, claims = _split_token(token)
        if header.get("alg") != "none" or not token.endswith("."):
            raise TokenRefused("not an unsecured JWS, and this listener takes nothing else")
        return check_claims(claims, rules, now_ms())

    return validate


def _split_token(token: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return header and claims of a token in compact form, unverified."""
    parts = token.split(".")
    if len(parts) != 3:
        raise TokenRefused("not a JWS in compact form, which has three parts")
    try:
        header, claims = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts[:2])
    except (binascii.Error, ValueError):
        raise TokenRefused("not base64") from None
    return _parse_object(header), _parse_object(claims)


def _parse_object(text: bytes) -> Mapping[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise TokenRefused("not JSON") from None
    if not isinstance(content, dict):
        raise TokenRefused("not a JSON object")
    return cast(Mapping[str, object], content)
