"""Server side of OAUTHBEARER: is this token genuine?

The signature is verified with the identity provider's keys (JWKS, RFC 7517), of which the token's header
chooses one by `kid`. What else the header says is not trusted: its `alg` must be in a list of public-key
algorithms and fit the key, so neither `none` nor an HMAC under the public key passes (CVE-2026-33557, RFC
8725 section 3.1).

A token that names a key which is not at hand is neither accepted nor refused: `KeyNeeded` says so, and the
keys may be fetched meanwhile.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Final, cast

from tallystick import _lazy
from tallystick.security.sasl.jwt_claims import ClaimRules, check_claims
from tallystick.security.sasl.key_set import Jwk
from tallystick.security.sasl.mechanism import KeyNeeded
from tallystick.security.sasl.oauthbearer import TokenRefused, ValidatedToken

PUBLIC_KEY_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
RSA_BITS_MIN: Final = 2_048
_RSA_ALGORITHMS: Final = ("RS", "PS")
_KEY_ID_LENGTH_MAX: Final = 1_000


def build_jwt_validator(
    find_key: Callable[[str], Jwk | None],
    rules: ClaimRules,
    now_ms: Callable[[], int],
    algorithms: frozenset[str] = PUBLIC_KEY_ALGORITHMS,
) -> Callable[[str], ValidatedToken]:
    """Return the token validator of a listener, which raises TokenRefused or KeyNeeded.

    Args:
        find_key: returns the key of a `kid`, and None for one that is not at hand.

    Raises: MissingLibrary without the extra `security`.
    """
    jwt = _lazy.load("jwt")
    if not algorithms <= PUBLIC_KEY_ALGORITHMS:
        raise ValueError(f"only algorithms of public keys: {', '.join(sorted(PUBLIC_KEY_ALGORITHMS))}")

    def validate(token: str) -> ValidatedToken:
        now = now_ms()
        header, claims = _split_token(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in algorithms:
            raise TokenRefused(f"alg is not one of {', '.join(sorted(algorithms))}")
        # RFC 7515, section 4.1.11: critical headers that are not understood make the signature invalid.
        if "crit" in header:
            raise TokenRefused("crit names extensions that are not supported")
        if not isinstance(key_id, str) or len(key_id) > _KEY_ID_LENGTH_MAX:
            raise TokenRefused("kid is missing: the key set cannot be searched")
        key = find_key(key_id)
        if key is None:
            # What the claims alone forbid is not worth a fetch: an expired token names a key long gone.
            check_claims(claims, rules, now)
            raise KeyNeeded("kid is not in the key set")
        if key.get("alg", algorithm) != algorithm:
            raise TokenRefused("alg is not that of the key")
        try:
            public = jwt.PyJWK(key, algorithm)
            if algorithm.startswith(_RSA_ALGORITHMS):
                _check_modulus(public.key.key_size)
            content = jwt.PyJWS().decode(token, public, algorithms=[algorithm])
        except jwt.PyJWTError as exc:
            raise TokenRefused(f"the signature is not valid: {type(exc).__name__}") from None
        return check_claims(_parse_object(content), rules, now)

    return validate


def _check_modulus(bits: int) -> None:
    """Refuse an RSA key that could be factored.

    RFC 7518, section 3.3: "A key of size 2048 bits or larger MUST be used with these algorithms."
    """
    if bits < RSA_BITS_MIN:
        raise TokenRefused(f"the RSA key has {bits} bits, and {RSA_BITS_MIN} are the least")


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
