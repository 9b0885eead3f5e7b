"""OAUTHBEARER (RFC 7628): the message, a refusal in two steps, and the validator's rules one by one."""

import base64
import json
import warnings
from collections.abc import Callable, Mapping

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.secret import Secret
from tallystick.security.sasl.jwt_claims import ClaimRules, check_claims
from tallystick.security.sasl.jwt_validator import build_jwt_validator
from tallystick.security.sasl.key_set import (
    UNKNOWN_KEY_INTERVAL_MS,
    BadKeySet,
    FetchIntervals,
    KeySet,
    parse_key_set,
)
from tallystick.security.sasl.mechanism import KeyNeeded, SaslAuthenticationFailed, SaslPeerRefused
from tallystick.security.sasl.oauthbearer import (
    OauthBearerClient,
    OauthBearerServer,
    TokenRefused,
    ValidatedToken,
    find_bad_extensions,
    parse_client_message,
)

TOKEN = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
# RFC 7628, section 4.1.
RFC_MESSAGE = (
    f"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01auth=Bearer {TOKEN}\x01\x01".encode()
)
NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000


def accept(token: str) -> ValidatedToken:
    assert token == TOKEN
    return ValidatedToken(subject="user@example.com", expires_at_ms=NOW_MS)


def refuse(token: str) -> ValidatedToken:
    raise TokenRefused("expired")


def test_the_message_of_rfc_7628() -> None:
    extensions = {"host": "server.example.com", "port": "143"}
    server = OauthBearerServer(accept)
    assert server.respond(RFC_MESSAGE) == b""
    assert (server.complete, server.principal) == (True, "user@example.com")
    assert (server.session_expires_ms, server.extensions) == (NOW_MS, extensions)
    client = OauthBearerClient(Secret(TOKEN), extensions, "user@example.com")
    assert parse_client_message(client.respond(None)) == parse_client_message(RFC_MESSAGE)
    assert client.complete
    assert OauthBearerClient(Secret(TOKEN)).respond(None) == f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode()


def test_a_refused_token_takes_one_more_round() -> None:
    """RFC 7628, section 3.2.3: after the error the client sends "a single %x01 (control A) character"."""
    client, server = OauthBearerClient(Secret(TOKEN)), OauthBearerServer(refuse)
    challenge = server.respond(client.respond(None))
    assert json.loads(challenge) == {"status": "invalid_token"}
    assert not server.complete
    answer = client.respond(challenge)
    assert answer == b"\x01"
    assert not client.complete
    with pytest.raises(SaslAuthenticationFailed) as caught:
        server.respond(answer)
    # The peer learns the status, and the log why.
    assert (str(caught.value), caught.value.log_text) == (
        '{"status":"invalid_token"}',
        "the token is refused: expired",
    )
    with pytest.raises(SaslPeerRefused, match="does not accept the token"):
        client.respond(b"")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer abc\x01\x01",
        b"n,,\x01a1=x\x01auth=Bearer abc\x01\x01",
        b"n,,\x01x\x01auth=Bearer abc\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"p=tls,,\x01auth=Bearer abc\x01\x01",
        b"n,user,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 70_000 + b"\x01\x01",
    ],
    ids=lambda m: repr(m[:40]),
)
def test_messages_that_are_refused(message: bytes) -> None:
    server = OauthBearerServer(lambda token: pytest.fail("validated"))
    with pytest.raises(SaslAuthenticationFailed) as caught:
        server.respond(message)
    assert "abc" not in str(caught.value)
    with pytest.raises(SaslAuthenticationFailed):
        server.respond(RFC_MESSAGE)


@given(st.lists(st.binary(max_size=60) | st.just(b"n,,\x01auth=Bearer abc\x01\x01"), max_size=3))
def test_a_server_only_ever_refuses(messages: list[bytes]) -> None:
    server = OauthBearerServer(refuse)
    for message in messages:
        try:
            server.respond(message)
        except SaslAuthenticationFailed:
            pass
        assert not server.complete


def test_the_authorization_id_is_the_tokens_subject() -> None:
    message = RFC_MESSAGE.replace(b"a=user@example.com", b"a=admin")
    with pytest.raises(SaslAuthenticationFailed, match="different from the token's principal"):
        OauthBearerServer(accept).respond(message)


def test_extensions_that_would_be_misread_are_named() -> None:
    bad = {"auth": "x", "a1": "x", "ok": "1", "a": "x\x01auth=Bearer y", "": "x"}
    assert find_bad_extensions(bad) == ["auth", "a1", "a", ""]


# ----------------------------------------------------------------------------------------- claims

CLAIMS: Mapping[str, object] = {"sub": "alice", "exp": NOW_S + 600, "iat": NOW_S, "scope": "read write"}
RULES = ClaimRules(expected_issuer="https://idp", expected_audience=("kafka", "spare"))


def test_claims_that_are_right() -> None:
    valid = check_claims({**CLAIMS, "iss": "https://idp", "aud": ["web", "kafka"]}, RULES, NOW_MS)
    assert valid == ValidatedToken(
        subject="alice", expires_at_ms=NOW_MS + 600_000, scopes=frozenset(("read", "write"))
    )
    # Kafka checks issuer and audience "only when configured": a token may have them all the same.
    assert check_claims({**CLAIMS, "aud": "other", "iss": "x"}, ClaimRules(), NOW_MS) == valid


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"exp": None}, "exp is missing"),
        ({"exp": True}, "exp is missing"),
        ({"exp": "1"}, "exp is missing"),
        ({"exp": float("inf")}, "exp is missing"),
        ({"exp": float("nan")}, "exp is missing"),
        ({"exp": 10**400}, "exp is missing"),
        ({"exp": NOW_S - 30, "iat": NOW_S - 99}, "expired: exp is 30000 ms ago"),
        ({"iat": None}, "iat is missing"),
        ({"iat": NOW_S + 31}, "iat is 31000 ms ahead, with a clock skew of 30000 ms allowed"),
        ({"nbf": NOW_S + 31}, "nbf is 31000 ms ahead"),
        ({"exp": NOW_S, "iat": NOW_S + 1}, "exp is before iat"),
        ({"iss": "https://evil"}, "iss is not"),
        ({"iss": None}, "iss is not"),
        ({"aud": "other"}, "aud has none"),
        ({"aud": None}, "aud has none"),
        ({"aud": [["kafka"]]}, "aud has none"),
        ({"sub": None}, "sub is missing"),
        ({"sub": " "}, "sub is missing"),
        ({"sub": 5}, "sub is missing"),
        ({"sub": "\ud800"}, "sub is not Unicode"),
    ],
)  # fmt: skip
def test_claims_that_are_refused(change: Mapping[str, object], text: str) -> None:
    good = {**CLAIMS, "iss": "https://idp", "aud": "kafka"}
    with pytest.raises(TokenRefused, match=text):
        check_claims({**good, **change}, RULES, NOW_MS)


def test_the_names_of_subject_and_scope_can_be_set() -> None:
    rules = ClaimRules(sub_claim_name="client", scope_claim_name="scp")
    valid = check_claims({**CLAIMS, "client": "job", "scp": ["a", "b"]}, rules, NOW_MS)
    assert (valid.subject, valid.scopes) == ("job", {"a", "b"})


# -------------------------------------------------------------------------------------- signature

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def build_jwks() -> bytes:
    keys = [
        {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY.public_key())), "kid": "r", "use": "sig"},
        {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY.public_key())), "kid": "e", "alg": "ES256"},
        {
            **json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_KEY.public_key())),
            "kid": "enc",
            "use": "enc",
        },
        {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"k" * 64).decode()},
    ]
    return json.dumps({"keys": keys}).encode()


JWKS = build_jwks()


def new_validator(rules: ClaimRules = RULES) -> Callable[[str], ValidatedToken]:
    return build_jwt_validator(parse_key_set(JWKS).get, rules, lambda: NOW_MS)


def sign(key: object, algorithm: str, kid: str | None, **claims: object) -> str:
    headers = {} if kid is None else {"kid": kid}
    content = {**CLAIMS, "iss": "https://idp", "aud": "kafka", **claims}
    return jwt.encode(content, key, algorithm=algorithm, headers=headers)  # type: ignore[arg-type]


def build_unsigned(header: Mapping[str, object], signature: bytes = b"") -> str:
    content = {**CLAIMS, "iss": "https://idp", "aud": "kafka"}
    parts = [json.dumps(header).encode(), json.dumps(content).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(RSA_KEY, "RS256", "r"), (RSA_KEY, "RS512", "r"), (RSA_KEY, "PS256", "r"), (EC_KEY, "ES256", "e")],
)
def test_tokens_of_the_key_set_are_accepted(key: object, algorithm: str, kid: str) -> None:
    assert new_validator()(sign(key, algorithm, kid)).subject == "alice"


def build_hmac_token() -> str:
    """Return a token signed with the public key as an HMAC key: a verifier that trusts `alg` accepts it."""
    header = {"alg": "HS256", "kid": "r"}
    unsigned = build_unsigned(header).rstrip(".")
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    made = signature.sign(unsigned.encode(), PUBLIC_PEM)
    return f"{unsigned}.{base64.urlsafe_b64encode(made).decode().rstrip('=')}"


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (build_unsigned({"alg": "none", "kid": "r"}), "alg is not one of"),
        (build_unsigned({"alg": "None", "kid": "r"}), "alg is not one of"),
        (build_unsigned({"kid": "r"}), "alg is not one of"),
        (build_unsigned({"alg": ["RS256"], "kid": "r"}), "alg is not one of"),
        (build_hmac_token(), "alg is not one of"),
        (sign("k" * 64, "HS256", "shared"), "alg is not one of"),
        (sign(RSA_KEY, "RS256", None), "kid is missing"),
        (sign(RSA_KEY, "RS256", "unknown", exp=NOW_S - 31, iat=NOW_S - 99), "expired"),
        (sign(RSA_KEY, "RS256", "unknown", iss="https://evil"), "iss is not"),
        (sign(OTHER_KEY, "RS256", "r"), "signature is not valid"),
        (sign(RSA_KEY, "RS256", "e"), "alg is not that of the key"),
        (sign(EC_KEY, "ES256", "r"), "signature is not valid"),
        (build_unsigned({"alg": "RS256", "kid": "r"}, b"x"), "signature is not valid"),
        (build_unsigned({"alg": "RS256", "kid": "r"}), "signature is not valid"),
        (build_unsigned({"alg": "RS256", "kid": "r", "crit": ["b64"], "b64": False}), "crit"),
        (build_unsigned({"alg": "RS256", "kid": "r"})[::-1], "not JSON|not base64"),
        (sign(RSA_KEY, "RS256", "r", exp=NOW_S - 31, iat=NOW_S - 99), "expired"),
        (sign(RSA_KEY, "RS256", "r", iss="https://evil"), "iss is not"),
        (sign(RSA_KEY, "RS256", "r", aud="other"), "aud has none"),
        ("abc", "three parts"),
        ("a.b.c", "not base64|not JSON"),
        ("[].[].x", "not base64|not JSON"),
        ("a.b.c.d.e", "three parts"),
        (base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".e30.x", "not JSON"),
    ],
)
def test_tokens_that_are_refused(token: str, text: str) -> None:
    """CVE-2026-33557: a verifier took any token. The header chooses neither the key's kind nor whether it
    counts."""
    with pytest.raises(TokenRefused, match=text) as caught:
        new_validator()(token)
    assert "alice" not in str(caught.value)


@pytest.mark.parametrize("kid", ["unknown", "enc", "shared"])
def test_a_token_with_an_unknown_key_waits_for_it_once(kid: str) -> None:
    """The keys may have been replaced since they were fetched; a key of another kind is none."""
    asked: list[str] = []

    def find(key_id: str) -> None:
        asked.append(key_id)
        assert key_id not in parse_key_set(JWKS)

    server = OauthBearerServer(build_jwt_validator(find, RULES, lambda: NOW_MS))
    message = OauthBearerClient(Secret(sign(OTHER_KEY, "RS256", kid))).respond(None)
    with pytest.raises(KeyNeeded):
        server.respond(message)
    assert server.respond(message) == b'{"status":"invalid_token"}'
    assert asked == [kid, kid]
    with pytest.raises(SaslAuthenticationFailed) as caught:
        server.respond(b"\x01")
    assert caught.value.log_text == "the token is refused: kid is not in the key set"


def test_a_token_whose_key_came_meanwhile_is_accepted() -> None:
    keys = KeySet(FetchIntervals())
    server = OauthBearerServer(build_jwt_validator(keys.find, RULES, lambda: NOW_MS))
    message = OauthBearerClient(Secret(sign(RSA_KEY, "RS256", "r"))).respond(None)
    with pytest.raises(KeyNeeded):
        server.respond(message)
    assert not server.complete
    keys.replace(parse_key_set(JWKS), 0)
    assert server.respond(message) == b""
    assert (server.complete, server.principal) == (True, "alice")


@pytest.mark.parametrize("algorithm", ["RS256", "PS256"])
def test_a_key_that_can_be_factored_signs_nothing(algorithm: str) -> None:
    """RFC 7518, section 3.3: "A key of size 2048 bits or larger MUST be used with these algorithms."."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    validate = build_jwt_validator({"weak": jwk}.get, RULES, lambda: NOW_MS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library that signs
        token = sign(key, algorithm, "weak")
    with pytest.raises(TokenRefused, match="the RSA key has 1024 bits, and 2048 are the least"):
        validate(token)


def test_only_algorithms_of_public_keys_can_be_allowed() -> None:
    for algorithm in ("none", "HS256"):
        with pytest.raises(ValueError, match="only algorithms of public keys"):
            build_jwt_validator(lambda kid: None, RULES, lambda: NOW_MS, frozenset(("RS256", algorithm)))


# ---------------------------------------------------------------------------------------- key set


def test_keys_are_fetched_when_old_and_sooner_for_an_unknown_one() -> None:
    """Tokens with invented names cost nothing, so they cannot make a broker fetch as often as they come."""
    keys = KeySet(FetchIntervals(refresh_ms=100_000))
    assert keys.compute_due_ms(is_key_wanted=False) == 0
    keys.replace(parse_key_set(JWKS), 1_000)
    assert keys.compute_due_ms(is_key_wanted=False) == 101_000
    assert keys.compute_due_ms(is_key_wanted=True) == 1_000 + UNKNOWN_KEY_INTERVAL_MS
    assert (keys.find("r") is None, keys.find("new")) == (False, None)


def test_keys_stay_in_use_while_the_provider_is_away() -> None:
    keys = KeySet(FetchIntervals(retry_backoff_ms=100, retry_backoff_max_ms=1_000))
    keys.replace(parse_key_set(JWKS), 0)
    for wait_ms in (100, 200, 400, 800, *([1_000] * 100)):
        keys.record_failure(50)
        assert keys.compute_due_ms(is_key_wanted=False) == 50 + wait_ms
        assert keys.compute_due_ms(is_key_wanted=True) == 50 + wait_ms
    assert keys.find("r") is not None
    keys.replace({}, 60)
    assert keys.find("r") is None  # withdrawn
    assert keys.compute_due_ms(is_key_wanted=False) == 60 + 3_600_000


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": [1]}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "RSA"}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_document_without_keys_is_an_error(document: bytes) -> None:
    with pytest.raises(BadKeySet):
        parse_key_set(document)


def test_only_public_signature_keys_are_kept() -> None:
    assert set(parse_key_set(JWKS)) == {"r", "e"}


def test_private_members_of_a_published_key_are_dropped() -> None:
    """To check that they fit takes seconds with a large exponent, at each token, and everyone waits."""
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY))
    keys = parse_key_set(json.dumps({"keys": [{**private, "kid": "r", "k": "AQAB"}]}).encode())
    assert keys["r"].keys() == {"kid", "kty", "n", "e"}
    validate = build_jwt_validator(keys.get, RULES, lambda: NOW_MS)
    assert validate(sign(RSA_KEY, "RS256", "r")).subject == "alice"


@pytest.mark.parametrize("member", ["n", "e", "x", "y", "crv", "alg", "kid"])
def test_a_key_with_a_huge_member_is_none(member: str) -> None:
    """OpenSSL's largest modulus has 16,384 bits, which are 2,731 characters."""
    for length, is_kept in ((4_096, True), (4_097, False)):
        key = {"kty": "RSA", "kid": "r", member: "A" * length}
        document = json.dumps({"keys": [key, {"kty": "EC", "kid": "e"}]}).encode()
        assert len(parse_key_set(document)) == 1 + is_kept
