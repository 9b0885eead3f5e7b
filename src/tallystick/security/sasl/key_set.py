"""The identity provider's keys (JWKS, RFC 7517), and when they are to be fetched again.

Pure: told the time and what was fetched, a key set fetches nothing. Keys are fetched when they are old; when
a token names one that is not there, but no sooner than `UNKNOWN_KEY_INTERVAL_MS` after the fetch before, so
that tokens with invented names, which cost nothing, cannot make a broker hammer the provider; and after a
failure, with a backoff. Until a fetch succeeds, the keys fetched last stay in use.

Source: KIP-768; Kafka RefreshingHttpsJwks.
"""

import json
from collections.abc import Mapping
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

UNKNOWN_KEY_INTERVAL_MS: Final = 5_000
_DOUBLINGS_MAX: Final = 30
# RFC 7517, section 4; RFC 7518, sections 6.2.1 and 6.3.1; RFC 8037, section 2.
_PUBLIC_MEMBERS: Final = ("kid", "kty", "use", "alg", "crv", "x", "y", "n", "e")
_MEMBER_LENGTH_MAX: Final = 4_096

Jwk = Mapping[str, object]


class BadKeySet(TallystickError):
    """A JWKS document is unreadable, or has no key to verify signatures with."""


class KeySetFailure(TallystickError):
    """The key set could not be fetched."""


class FetchIntervals(Value, kw_only=True):
    """Kafka's `sasl.oauthbearer.jwks.endpoint.*` settings about time."""

    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000


def parse_key_set(document: bytes) -> dict[str, Jwk]:
    """Return the public signature keys of a JWKS document by `kid`. Raises: BadKeySet.

    A key is read again for each token, on the loop. So private members are dropped, since the library would
    compute for seconds whether they fit, and a key with a member of thousands of characters is left out.
    """
    try:
        content = json.loads(document)
        entries = content["keys"]
        keys: dict[str, Jwk] = {
            key["kid"]: {name: key[name] for name in _PUBLIC_MEMBERS if name in key}
            for key in entries
            if isinstance(key.get("kid"), str) and key.get("kty") != "oct" and key.get("use", "sig") == "sig"
        }
        keys = {kid: key for kid, key in keys.items() if not any(map(_is_huge, key.values()))}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise BadKeySet(f"not a JWKS document: {type(exc).__name__}") from None
    if not keys:
        raise BadKeySet("the JWKS document has no public key with a kid for signatures")
    return keys


def _is_huge(member: object) -> bool:
    return isinstance(member, str) and len(member) > _MEMBER_LENGTH_MAX


class KeySet:
    """The keys in use. Times are of one clock, which need not be that of a calendar."""

    def __init__(self, intervals: FetchIntervals) -> None:
        """Create a set that is to be fetched immediately."""
        self._intervals = intervals
        self._keys: Mapping[str, Jwk] = {}
        self._tried_at_ms: int | None = None
        self._failures = 0

    def find(self, key_id: str) -> Jwk | None:
        """Return a key, or None for one that was not fetched."""
        return self._keys.get(key_id)

    def replace(self, keys: Mapping[str, Jwk], now_ms: int) -> None:
        """Replace all keys by fetched ones: a provider withdraws a key this way."""
        self._keys, self._tried_at_ms, self._failures = keys, now_ms, 0

    def record_failure(self, now_ms: int) -> None:
        """Keep the keys in use, and try again after a backoff."""
        self._tried_at_ms = now_ms
        self._failures += 1

    def compute_due_ms(self, is_key_wanted: bool) -> int:
        """Return when the keys are to be fetched.

        Args:
            is_key_wanted: whether a token names a key that is not there.
        """
        if self._tried_at_ms is None:
            return 0
        intervals = self._intervals
        if self._failures:
            doublings = min(self._failures - 1, _DOUBLINGS_MAX)
            wait_ms = min(intervals.retry_backoff_ms << doublings, intervals.retry_backoff_max_ms)
        elif is_key_wanted:
            wait_ms = min(UNKNOWN_KEY_INTERVAL_MS, intervals.refresh_ms)
        else:
            wait_ms = intervals.refresh_ms
        return self._tried_at_ms + wait_ms
