"""The login of a connection: what is taken when, and what a stranger is told."""

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.listeners import Listener, list_plain_users
from tallystick.broker.server.handshakes import HandshakeTable
from tallystick.broker.server.login import Login, LoginAnswer, LoginRefused, LoginState
from tallystick.broker.server.login_gate import LoginGate
from tallystick.broker.server.login_rules import LoginRules, make_login_rules
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.protocol import decode_prefix, encode_parts
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.security.sasl.plain import PlainServer

USERS = {"alice": Secret("wonder"), "bob": Secret("builder")}
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonder" user_bob="builder";'
)


def login(max_reauth_ms: int = 0) -> Login:
    return Login({"PLAIN": lambda: PlainServer(USERS.get)}, max_reauth_ms)


def frame(key: ApiKey, version: int, body: bytes = b"") -> memoryview:
    spec = API_SPECS[key]
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=7, client_id="client"
    )
    head = b"".join(encode_parts(header, spec.get_request_header_version(version)))
    return memoryview(head + body)


VERSIONS = frame(ApiKey.API_VERSIONS, 0)
METADATA = frame(ApiKey.METADATA, 9)


def handshake(mechanism: str = "PLAIN", version: int = 1) -> memoryview:
    body = b"".join(encode_parts(SaslHandshakeRequest(mechanism=mechanism), version))
    return frame(ApiKey.SASL_HANDSHAKE, version, body)


def token(text: str = "\0alice\0wonder", version: int = 2) -> memoryview:
    body = b"".join(encode_parts(SaslAuthenticateRequest(auth_bytes=text.encode()), version))
    return frame(ApiKey.SASL_AUTHENTICATE, version, body)


def read_handshake(answer: LoginAnswer | None) -> SaslHandshakeResponse:
    assert answer is not None
    assert struct.unpack_from(">ii", answer.frame) == (len(answer.frame) - 4, 7)
    return decode_prefix(SaslHandshakeResponse, memoryview(answer.frame)[8:], 1)[0]


def read_token(answer: LoginAnswer | None, version: int = 2) -> SaslAuthenticateResponse:
    assert answer is not None
    return decode_prefix(
        SaslAuthenticateResponse, memoryview(answer.frame)[9 if version == 2 else 8 :], version
    )[0]


def logged_in(max_reauth_ms: int = 0, now_ms: int = 0) -> Login:
    made = login(max_reauth_ms)
    made.take(handshake(), now_ms)
    assert read_token(made.take(token(), now_ms)).error_code == ErrorCode.NONE
    assert made.state is LoginState.COMPLETE
    return made


def test_a_login_from_its_first_request_to_its_last() -> None:
    made = login()
    assert made.take(VERSIONS, 0) is None
    assert not made.is_open
    assert read_handshake(made.take(handshake(), 0)) == SaslHandshakeResponse(mechanisms=("PLAIN",))
    answer = read_token(made.take(token(), 0))
    assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 0)
    assert (made.principal, made.is_open) == ("alice", True)
    assert made.take(METADATA, 10**12) is None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_sasl_authenticate(version: int) -> None:
    made = login(60_000)
    made.take(handshake(), 0)
    answer = read_token(made.take(token(version=version), 0), version)
    assert answer.session_lifetime_ms == (60_000 if version else 0)


@pytest.mark.parametrize("before", [(), (VERSIONS,), (handshake(),)])
def test_a_stranger_gets_no_answer(before: tuple[memoryview, ...]) -> None:
    """KIP-152: before a login only ApiVersions, SaslHandshake and SaslAuthenticate."""
    made = login()
    for each in before:
        made.take(each, 0)
    with pytest.raises(LoginRefused, match=r"API key 3 before the login"):
        made.take(METADATA, 0)


def test_api_versions_is_taken_once_but_for_a_version_that_is_not_served() -> None:
    """KIP-511: a newer client asks again with a version it was told."""
    made = login()
    assert made.take(memoryview(struct.pack(">hhi", ApiKey.API_VERSIONS, 99, 1)), 0) is None
    assert made.take(VERSIONS, 0) is None
    with pytest.raises(LoginRefused):
        made.take(VERSIONS, 0)


@pytest.mark.parametrize(
    "bad", [b"", b"\0\x12", struct.pack(">hhi", 17, 99, 1), struct.pack(">hhi", 36, 2, 1)]
)
def test_frames_that_cannot_be_read(bad: bytes) -> None:
    with pytest.raises(LoginRefused):
        login().take(memoryview(bad), 0)


def test_a_token_before_the_handshake() -> None:
    with pytest.raises(LoginRefused, match=r"SaslAuthenticate before SaslHandshake"):
        login().take(token(), 0)


def test_tokens_without_header_are_not_served() -> None:
    with pytest.raises(LoginRefused, match=r"SaslHandshake version 0"):
        login().take(handshake(version=0), 0)


def test_an_unknown_mechanism_is_told_the_known_ones_and_closed() -> None:
    answer = login().take(handshake("GSSAPI"), 0)
    assert read_handshake(answer) == SaslHandshakeResponse(
        error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=("PLAIN",)
    )
    assert answer is not None
    assert answer.failure == "mechanism 'GSSAPI', and PLAIN are enabled"


@pytest.mark.parametrize("wrong", ["\0alice\0builder", "\0eve\0wonder"])
def test_a_wrong_password_and_an_unknown_user_look_alike(wrong: str) -> None:
    made = login()
    made.take(handshake(), 0)
    answer = made.take(token(wrong), 0)
    assert read_token(answer) == SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
        error_message="Authentication failed: Invalid username or password",
        auth_bytes=b"",
    )
    assert answer is not None
    assert answer.failure
    assert (made.state, made.is_open) == (LoginState.FAILED, False)
    for again in (token(), METADATA):
        with pytest.raises(LoginRefused):
            made.take(again, 0)


def test_a_second_handshake_in_one_login() -> None:
    made = login()
    made.take(handshake(), 0)
    answer = made.take(handshake(), 0)
    assert read_handshake(answer).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert answer is not None
    assert answer.failure


def test_a_session_without_end_is_not_renewed() -> None:
    """The answer is 34, and the connection stays."""
    made = logged_in()
    for request, read in ((handshake(), read_handshake), (token(), read_token)):
        answer = made.take(request, 10_000)
        assert read(answer).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert answer is not None
        assert answer.failure is None
    # As Kafka does, it lists no mechanisms: there is no login to choose one for.
    assert read_handshake(made.take(handshake(), 10_000)).mechanisms == ()
    assert made.is_open


@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [VERSIONS, METADATA, handshake(), handshake("SCRAM-SHA-256"), handshake(version=0)]
            ),
            st.sampled_from(
                [token("\0alice\0wonde"), token("alice\0wonder"), token("\0\0wonder"), token("")]
            ),
            st.binary(max_size=40).map(lambda data: memoryview(data)),
            st.tuples(st.sampled_from([17, 18, 36]), st.integers(-1, 4), st.binary(max_size=20)).map(
                lambda parts: memoryview(struct.pack(">hhih", parts[0], parts[1], 1, -1) + parts[2])
            ),
        ),
        max_size=8,
    )
)
def test_nothing_but_the_password_opens_the_gate(frames: list[memoryview]) -> None:
    """Until then only ApiVersions is let through to the broker, and that once for a served version."""
    made, versions = login(), 0
    for each in frames:
        try:
            answer = made.take(each, 0)
        except LoginRefused:
            break
        if answer is None:
            assert struct.unpack_from(">h", each) == (ApiKey.API_VERSIONS,)
            (version,) = struct.unpack_from(">h", each, 2)
            versions += 0 <= version <= API_SPECS[ApiKey.API_VERSIONS].max_version
        elif answer.failure is not None:
            break
        assert not made.is_open
    assert versions <= 1
    assert made.principal is None


# ------------------------------------------------------------------ KIP-368


def test_a_session_is_renewed_under_the_same_name() -> None:
    made = logged_in(60_000)
    assert read_handshake(made.take(handshake(), 50_000)).error_code == ErrorCode.NONE
    assert made.is_open
    answer = read_token(made.take(token(), 50_000))
    assert answer.session_lifetime_ms == 60_000
    assert made.take(METADATA, 109_999) is None


def test_a_session_that_expired_is_closed() -> None:
    made = logged_in(60_000)
    assert made.take(METADATA, 59_999) is None
    with pytest.raises(LoginRefused, match=r"its session expired"):
        made.take(METADATA, 60_000)
    assert read_handshake(made.take(handshake(), 60_000)).error_code == ErrorCode.NONE


def test_a_session_is_renewed_once_a_second_at_most() -> None:
    """KafkaChannel.maybeBeginServerReauthentication counts from the beginning of the last renewal.

    The login is none: a client may renew its session at once. A clock that was set back stops nobody.
    """
    made = logged_in(60_000)
    assert _renew(made, began_ms=0, ended_ms=900) is ErrorCode.NONE
    for now_ms in (900, 999):
        assert _renew(made, began_ms=now_ms, ended_ms=now_ms) is ErrorCode.ILLEGAL_SASL_STATE
        assert made.is_open
    assert _renew(made, began_ms=1_000, ended_ms=1_000) is ErrorCode.NONE
    assert _renew(made, began_ms=1_999, ended_ms=1_999) is ErrorCode.ILLEGAL_SASL_STATE
    assert _renew(made, began_ms=500, ended_ms=500) is ErrorCode.NONE


def _renew(made: Login, *, began_ms: int, ended_ms: int) -> ErrorCode:
    """Renew a session if the broker lets it, and return its answer to the handshake."""
    code = ErrorCode(read_handshake(made.take(handshake(), began_ms)).error_code)
    if code is ErrorCode.NONE:
        assert read_token(made.take(token(), ended_ms)).error_code == ErrorCode.NONE
    return code


def test_a_session_does_not_change_its_name() -> None:
    """Kafka: "Cannot change principals during re-authentication"."""
    made = logged_in(60_000)
    made.take(handshake(), 2_000)
    answer = made.take(token("\0bob\0builder"), 2_000)
    assert "Cannot change principals during re-authentication" in str(read_token(answer).error_message)
    assert answer is not None
    assert answer.failure
    assert (made.principal, made.is_open) == ("alice", False)


def test_other_requests_wait_for_the_end_of_a_renewal() -> None:
    made = logged_in(60_000)
    made.take(handshake(), 2_000)
    with pytest.raises(LoginRefused):
        made.take(METADATA, 2_000)


# ------------------------------------------------------------------ settings


def listener(**more: str) -> Listener:
    given = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        **{name.replace("__", "."): text for name, text in more.items()},
    }
    config = BrokerConfig.parse(given)
    assert "wonder" not in repr(config)
    (made,) = config.make_listeners()
    assert "wonder" not in repr(made)
    return made


def test_users_of_plain_come_from_the_jaas_config() -> None:
    assert list_plain_users(Secret(JAAS)) == USERS
    rules = make_login_rules(listener())
    assert rules is not None
    assert list(rules.mechanisms) == ["PLAIN"]
    assert (rules.bytes_max, rules.failure_delay_s, rules.max_reauth_ms) == (524_288, 0.1, 0)
    (plain,) = BrokerConfig.parse({}).make_listeners()
    assert make_login_rules(plain) is None


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"sasl__enabled__mechanisms": ""}, "name the mechanisms"),
        ({"sasl__enabled__mechanisms": "GSSAPI"}, "GSSAPI is not supported"),
        ({"listener__name__sasl_plaintext__plain__sasl__jaas__config": "x"}, "login module"),
        (
            {
                "listener__name__sasl_plaintext__plain__sasl__jaas__config": (
                    'PlainLoginModule required username="a" password="geheim";'
                )
            },
            "no user can log in",
        ),
        ({"listener__name__sasl_plaintext__sasl__jaas__config": JAAS}, "name the mechanism"),
    ],
)
def test_a_listener_that_no_one_could_log_in_at_is_refused(more: dict[str, str], problem: str) -> None:
    with pytest.raises(BadConfig) as caught:
        listener(**more)
    assert problem in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_the_log_quotes_a_bounded_part_of_a_mechanism() -> None:
    answer = login().take(handshake("\0" * 30_000), 0)
    assert answer is not None
    assert answer.failure is not None
    assert len(answer.failure) < 1_000


def test_the_bound_of_a_strangers_request_may_be_smaller_than_the_receive_buffer() -> None:
    """sasl.server.max.receive.size begins at 1,024 bytes; a buffer of its own is made above 16 KiB only."""

    async def run() -> None:
        mechanisms = {"PLAIN": lambda: PlainServer(USERS.get)}
        rules = LoginRules(mechanisms, 0, 1_024, 10.0, 0.0, lambda: 0, HandshakeTable(1))
        gate = LoginGate(rules, asyncio.get_running_loop(), LogThrottle(lambda: 0.0), lambda why: None, "h")
        gate.take(handshake(), "peer")
        with pytest.raises(LoginRefused, match=r"sasl\.server\.max\.receive\.size"):
            gate.take(token("x" * 1_024), "peer")
        gate.take(token(), "peer")
        assert gate.take(memoryview(bytes(METADATA) + bytes(2_000)), "peer") is None
        gate.stop()

    asyncio.run(run())
