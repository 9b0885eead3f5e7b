"""OAUTHBEARER at a listener: what its settings must say, and the tokens that it refuses, one test each."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.support.identity_provider import AUDIENCE, ISSUER, IdentityProvider

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.server.login import Login, LoginAnswer, LoginState
from tallystick.broker.server.login_rules import make_login_rules
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.protocol import decode_prefix, encode_parts
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from tallystick.security.sasl.mechanism import KeyNeeded
from tallystick.security.sasl.oauthbearer import OauthBearerClient

INVALID = b'{"status":"invalid_token"}'
PREFIX = "listener.name.sasl_ssl.oauthbearer."
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


@pytest.fixture
def provider() -> IdentityProvider:
    made = IdentityProvider()
    made.add_key("rsa", rsa.generate_private_key(public_exponent=65537, key_size=2048))
    return made


def settings_with_file(folder: Path, provider: IdentityProvider) -> dict[str, str]:
    (folder / "jwks.json").write_bytes(provider.format_jwks())
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{folder}/jwks.json",
        "sasl.oauthbearer.allowed.files": f"{folder}/jwks.json",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": f"spare,{AUDIENCE}",
    }


def new_login(settings: Mapping[str, str]) -> Login:
    """Return a login at a listener whose keys were fetched."""
    (listener,) = BrokerConfig.parse(settings).make_listeners()
    rules = make_login_rules(listener)
    assert rules is not None
    keys = rules.signing_keys
    assert keys is not None

    async def fetch() -> None:
        await keys.start()
        keys.stop()

    asyncio.run(fetch())
    login = rules.make_login()
    login.take(frame(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1), now_ms())
    return login


def frame(key: ApiKey, request: object, version: int) -> memoryview:
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=7, client_id="client"
    )
    spec = API_SPECS[key]
    parts = [
        *encode_parts(header, spec.get_request_header_version(version)),
        *encode_parts(request, version),
    ]
    return memoryview(b"".join(parts))


def present(token: str) -> memoryview:
    message = OauthBearerClient(Secret(token)).respond(None)
    return frame(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=message), 1)


def read(answer: LoginAnswer | None) -> SaslAuthenticateResponse:
    assert answer is not None
    return decode_prefix(SaslAuthenticateResponse, memoryview(answer.frame)[8:], 1)[0]


def now_ms() -> int:
    return int(time.time() * 1000)


def assert_refused(login: Login, token: str, why: str) -> None:
    """RFC 7628, section 3.2.2: an error in JSON, and the refusal behind the client's answer to it."""
    try:
        challenge = read(login.take(present(token), now_ms()))
    except KeyNeeded:
        challenge = read(login.take(present(token), now_ms()))
    assert (challenge.error_code, challenge.error_message, bytes(challenge.auth_bytes)) == (
        ErrorCode.NONE,
        None,
        INVALID,
    )
    answer = login.take(
        frame(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b"\x01"), 1), now_ms()
    )
    refusal = read(answer)
    assert (refusal.error_code, refusal.error_message) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        INVALID.decode(),
    )
    assert answer is not None
    assert why in str(answer.failure)
    assert token not in str(answer.failure)
    assert (login.state, login.principal) == (LoginState.FAILED, None)


def test_a_token_of_the_provider_gives_its_subject(tmp_path: Path, provider: IdentityProvider) -> None:
    for kid in ("first", "rsa"):
        login = new_login(settings_with_file(tmp_path, provider))
        answer = read(login.take(present(provider.sign(kid)), now_ms()))
        assert (answer.error_code, login.principal) == (ErrorCode.NONE, "alice")
        # The session ends with the token, of 600 s.
        assert 590_000 < answer.session_lifetime_ms <= 600_000


@pytest.mark.parametrize(
    ("max_reauth_ms", "life_s", "expected"),
    [(0, 600, 600_000), (100_000, 600, 100_000), (100_000, 50, 50_000)],
)
def test_a_session_ends_with_the_token_or_before(
    tmp_path: Path, provider: IdentityProvider, max_reauth_ms: int, life_s: int, expected: int
) -> None:
    """KIP-368: "the lesser of the two" of connections.max.reauth.ms and the life of the credential."""
    settings = settings_with_file(tmp_path, provider)
    login = new_login({**settings, "connections.max.reauth.ms": str(max_reauth_ms)})
    answer = read(login.take(present(provider.sign(life_s=life_s)), now_ms()))
    assert expected - 5_000 < answer.session_lifetime_ms <= expected


def test_a_mechanism_may_have_a_limit_of_its_own(tmp_path: Path, provider: IdentityProvider) -> None:
    settings = settings_with_file(tmp_path, provider) | {"connections.max.reauth.ms": "100000"}
    name = "listener.name.sasl_plaintext.oauthbearer.connections.max.reauth.ms"
    answer = new_login({**settings, name: "7000"}).take(present(provider.sign()), now_ms())
    assert read(answer).session_lifetime_ms == 7000
    with pytest.raises(BadConfig, match=r"connections\.max\.reauth\.ms: '-1' is not"):
        BrokerConfig.parse({**settings, name: "-1"})


def test_a_renewal_needs_the_same_subject(tmp_path: Path, provider: IdentityProvider) -> None:
    again = frame(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
    for sub, code in (("alice", ErrorCode.NONE), ("eve", ErrorCode.SASL_AUTHENTICATION_FAILED)):
        login = new_login(settings_with_file(tmp_path, provider))
        login.take(present(provider.sign()), now_ms())
        later = now_ms() + 2_000
        login.take(again, later)
        assert read(login.take(present(provider.sign(sub=sub)), later)).error_code == code


def refuse_without_signature(provider: IdentityProvider) -> str:
    return provider.forge({"alg": "none", "kid": "first"})


def refuse_public_key_as_secret(provider: IdentityProvider) -> str:
    return provider.forge({"alg": "HS256", "kid": "rsa"}, provider.export_public_key("rsa"))


def refuse_stranger(provider: IdentityProvider) -> str:
    stranger = IdentityProvider()
    stranger.add_key("rsa", ec.generate_private_key(ec.SECP256R1()))
    return stranger.sign("first")


def refuse_unknown_key(provider: IdentityProvider) -> str:
    provider.add_key("unpublished", published=False)
    return provider.sign("unpublished")


def now_s() -> int:
    """Read at each use: a run may come to a test long after it imported this module."""
    return int(time.time())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (refuse_without_signature, "alg is not one of"),
        (refuse_public_key_as_secret, "alg is not one of"),
        (refuse_stranger, "the signature is not valid"),
        (refuse_unknown_key, "kid is not in the key set"),
        (lambda provider: provider.sign(iss="https://evil"), "iss is not"),
        (lambda provider: provider.sign(iss=None), "iss is not"),
        (lambda provider: provider.sign(aud="web"), "aud has none"),
        (lambda provider: provider.sign(life_s=-31, iat=now_s() - 600), "expired: exp is "),
        (lambda provider: provider.sign(nbf=now_s() + 600), "not valid yet: nbf is "),
        (lambda provider: provider.sign(iat=now_s() + 300), "not valid yet: iat is "),
        (lambda provider: provider.sign(sub=None), "sub is missing"),
        (lambda provider: "abc", "three parts"),
    ],
    ids=[
        *("none", "public-key-as-secret", "signature", "unknown-key", "issuer", "no-issuer", "audience"),
        *("expired", "not-yet", "issued-later", "no-subject", "no-token"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_tokens_that_are_refused(tmp_path: Path, provider: IdentityProvider, make: object, why: str) -> None:
    """CVE-2026-33557: a broker took any token. The client learns no more than the status."""
    login = new_login(settings_with_file(tmp_path, provider))
    assert_refused(login, make(provider), why)  # type: ignore[operator]


def test_a_token_within_the_skew_is_taken(tmp_path: Path, provider: IdentityProvider) -> None:
    token = provider.sign(life_s=-20, iat=now_s() - 600, nbf=now_s() + 1)
    login = new_login(settings_with_file(tmp_path, provider))
    assert read(login.take(present(token), now_ms())).session_lifetime_ms == 1
    strict = {**settings_with_file(tmp_path, provider), "sasl.oauthbearer.clock.skew.seconds": "5"}
    assert_refused(new_login(strict), token, "expired")


def test_an_unknown_key_changes_nothing_until_it_was_looked_for(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    login = new_login(settings_with_file(tmp_path, provider))
    token = refuse_unknown_key(provider)
    with pytest.raises(KeyNeeded):
        login.take(present(token), now_ms())
    assert (login.state, login.is_open) == (LoginState.AUTHENTICATE, False)
    assert_refused(login, token, "kid is not in the key set")


def test_names_of_claims_can_be_set_for_one_listener(tmp_path: Path, provider: IdentityProvider) -> None:
    settings = settings_with_file(tmp_path, provider)
    name = "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.sub.claim.name"
    login = new_login({**settings, "sasl.oauthbearer.sub.claim.name": "other", name: "client_id"})
    login.take(present(provider.sign(client_id="job")), now_ms())
    assert login.principal == "job"


# ----------------------------------------------------------------------------------------- settings

TLS = {
    "listeners": "SASL_SSL://127.0.0.1:9092",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "https://idp/keys",
}


def test_a_listener_of_kafkas_is_a_listener_here() -> None:
    config = BrokerConfig.parse(
        {
            **TLS,
            f"{PREFIX}sasl.jaas.config": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;"
            ),
            f"{PREFIX}sasl.server.callback.handler.class": HANDLER,
            "listener.name.sasl_ssl.sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.issuer": "other",
            "sasl.oauthbearer.expected.audience": "a,b",
        }
    )
    (made,) = config.make_listeners()
    rules = made.oauth.claim_rules
    assert (rules.expected_issuer, rules.expected_audience, rules.clock_skew_ms) == (
        ISSUER,
        ("a", "b"),
        30_000,
    )


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": ""}, "takes no token that it has no key to check"),
        ({f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "http://idp/keys"}, "must be https://HOST/PATH"),
        ({f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "https://u:p@idp/keys"}, "without a user in it"),
        ({f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "ftp://idp/keys"}, "must be https://HOST/PATH"),
        (
            {f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "file:///etc/keys"},
            "/etc/keys is not in sasl.oauthbearer.allowed.files",
        ),
        ({f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": "file://host/keys"}, "must be https://HOST/PATH"),
        ({"sasl.oauthbearer.sub.claim.name": ""}, "sub.claim.name: must not be empty"),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, "'-1' is not int, 0 to 3600"),
        ({f"{PREFIX}sasl.oauthbearer.expected.isuer": "x"}, "did you mean sasl.oauthbearer.expected.issuer"),
        ({f"{PREFIX}sasl.server.callback.handler.class": "com.example.X"}, "no Java classes are loaded"),
        (
            {
                f"{PREFIX}sasl.jaas.config": (
                    'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="geheim";'
                )
            },
            "PlainLoginModule is not the login module of OAUTHBEARER",
        ),
        (
            {
                f"{PREFIX}sasl.jaas.config": (
                    'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="geheim";'
                )
            },
            "tokens without a signature are not taken",
        ),
    ],
)
def test_settings_that_could_check_no_token_are_problems(more: dict[str, str], problem: str) -> None:
    with pytest.raises(BadConfig) as caught:
        BrokerConfig.parse({**TLS, **more})
    assert problem in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_file_without_keys_ends_the_start(tmp_path: Path, provider: IdentityProvider) -> None:
    settings = settings_with_file(tmp_path, provider)
    settings["sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"] = "10"
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": []}))
    with pytest.raises(BadConfig, match="no token could be checked: the JWKS document has no public key"):
        new_login(settings)
    (tmp_path / "jwks.json").unlink()
    with pytest.raises(BadConfig, match="No such file"):
        new_login(settings)
