"""Validation of a token's claims (RFC 7519, KIP-768), apart from its signature.

Issuer and audience are checked only if they are configured, as in Kafka's BrokerJwtValidator; a listener
without them accepts every token of the key set, which is right for an identity provider with one purpose
only.
"""

from collections.abc import Mapping

from tallystick.kernel.value import Value
from tallystick.security.sasl.oauthbearer import TokenRefused, ValidatedToken


class ClaimRules(Value, kw_only=True):
    """Kafka's `sasl.oauthbearer.*` settings about claims."""

    expected_issuer: str | None = None
    expected_audience: tuple[str, ...] = ()
    clock_skew_ms: int = 30_000
    scope_claim_name: str = "scope"
    sub_claim_name: str = "sub"


def check_claims(claims: Mapping[str, object], rules: ClaimRules, now_ms: int) -> ValidatedToken:
    """Return what a token with a good signature says.

    Raises: TokenRefused, naming the claim and how far it is off.
    """
    expires_at_ms = _read_time(claims, "exp")
    issued_at_ms = _read_time(claims, "iat")
    skew = rules.clock_skew_ms
    # RFC 7519, section 4.1.4: "on or after which the JWT MUST NOT be accepted for processing".
    if now_ms >= expires_at_ms + skew:
        raise TokenRefused(
            f"expired: exp is {now_ms - expires_at_ms} ms ago, with a clock skew of {skew} ms allowed"
        )
    for name, at_ms in (("iat", issued_at_ms), ("nbf", _read_time(claims, "nbf", 0))):
        if at_ms > now_ms + skew:
            raise TokenRefused(
                f"not valid yet: {name} is {at_ms - now_ms} ms ahead, with a clock skew of {skew} ms "
                "allowed: compare the clocks"
            )
    if expires_at_ms < issued_at_ms:
        raise TokenRefused("exp is before iat")
    if rules.expected_issuer is not None and claims.get("iss") != rules.expected_issuer:
        raise TokenRefused("iss is not sasl.oauthbearer.expected.issuer")
    if rules.expected_audience and not set(rules.expected_audience) & _read_texts(claims, "aud"):
        raise TokenRefused("aud has none of sasl.oauthbearer.expected.audience")
    subject = claims.get(rules.sub_claim_name)
    if not isinstance(subject, str) or not subject.strip():
        raise TokenRefused(f"{rules.sub_claim_name} is missing or not a text")
    # JSON can write half of a surrogate pair, which no answer and no log line can.
    if not _is_encodable(subject):
        raise TokenRefused(f"{rules.sub_claim_name} is not Unicode")
    scope = claims.get(rules.scope_claim_name, "")
    scopes = scope.split() if isinstance(scope, str) else _read_texts(claims, rules.scope_claim_name)
    return ValidatedToken(subject=subject.strip(), expires_at_ms=expires_at_ms, scopes=frozenset(scopes))


def _read_time(claims: Mapping[str, object], name: str, default_ms: int | None = None) -> int:
    """Return a NumericDate in milliseconds."""
    value = claims.get(name)
    if value is None and default_ms is not None:
        return default_ms
    # A bool is an int in Python, and infinity a JSON number for its parser.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**43:
        raise TokenRefused(f"{name} is missing or not a time")
    return int(value * 1000)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_texts(claims: Mapping[str, object], name: str) -> set[str]:
    value = claims.get(name)
    values = value if isinstance(value, list) else [value]
    return {each for each in values if isinstance(each, str)}
