"""The login of a connection, without one: requests and answers as values."""

import pytest
from tests.support.scram_users import create_credential, find_in

from tallystick.client.errors import AuthenticationFailed
from tallystick.client.net.login_exchange import LoginExchange, choose_reauthentication_ms
from tallystick.kernel.secret import Secret
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.security.sasl.oauthbearer import OauthBearerClient
from tallystick.security.sasl.plain import PlainClient
from tallystick.security.sasl.scram import SCRAM_SHA_512
from tallystick.security.sasl.scram_client import ScramClient
from tallystick.security.sasl.scram_server import ScramServer

ADDRESS = "broker:9093"
READY = SaslHandshakeResponse(mechanisms=("PLAIN",))


def answer(auth_bytes: bytes = b"", **more: object) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=auth_bytes, **more)  # type: ignore[arg-type]


def test_a_login_with_one_token() -> None:
    exchange = LoginExchange(PlainClient("u", Secret("p")), ADDRESS)
    assert exchange.start() == SaslHandshakeRequest(mechanism="PLAIN")
    assert exchange.handle_response(READY) == SaslAuthenticateRequest(auth_bytes=b"\0u\0p")
    assert exchange.session_lifetime_ms is None
    assert exchange.handle_response(answer(session_lifetime_ms=60_000)) is None
    assert exchange.session_lifetime_ms == 60_000


def test_a_login_with_two() -> None:
    server = ScramServer(SCRAM_SHA_512, find_in({"u": create_credential(SCRAM_SHA_512, "p")}, SCRAM_SHA_512))
    exchange = LoginExchange(ScramClient(SCRAM_SHA_512, "u", Secret("p")), ADDRESS)
    request = exchange.handle_response(READY)
    for _ in range(2):
        assert isinstance(request, SaslAuthenticateRequest)
        request = exchange.handle_response(answer(server.respond(request.auth_bytes)))
    assert request is None
    assert (exchange.session_lifetime_ms, server.principal) == (0, "u")


def test_a_broker_that_does_not_prove_itself_is_refused() -> None:
    """An answer without the server's signature is no success, whatever its code says."""
    exchange = LoginExchange(ScramClient(SCRAM_SHA_512, "u", Secret("p")), ADDRESS)
    exchange.handle_response(READY)
    with pytest.raises(AuthenticationFailed, match="attributes of RFC 5802"):
        exchange.handle_response(answer())
    assert exchange.session_lifetime_ms is None


def test_a_refused_token_gets_the_brokers_words() -> None:
    exchange = LoginExchange(OauthBearerClient(Secret("t")), ADDRESS)
    exchange.handle_response(READY)
    again = exchange.handle_response(answer(b'{"status":"invalid_token"}'))
    assert again == SaslAuthenticateRequest(auth_bytes=b"\x01")
    refusal = answer(error_code=58, error_message='{"status":"invalid_token"}')
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        exchange.handle_response(refusal)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (
            SaslHandshakeResponse(error_code=33, mechanisms=("A", "B")),
            "not enabled there; the broker has: A, B",
        ),
        (SaslHandshakeResponse(error_code=33), "the broker has: none"),
        (SaslHandshakeResponse(error_code=34), "asks for no login"),
        (SaslHandshakeResponse(error_code=-1), "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_handshakes_that_fail(response: SaslHandshakeResponse, text: str) -> None:
    exchange = LoginExchange(PlainClient("u", Secret("hunter2")), ADDRESS)
    with pytest.raises(AuthenticationFailed, match=text) as caught:
        exchange.handle_response(response)
    assert ADDRESS in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_error_without_a_text_shows_its_name() -> None:
    exchange = LoginExchange(PlainClient("u", Secret("hunter2")), ADDRESS)
    exchange.handle_response(READY)
    with pytest.raises(AuthenticationFailed, match="SASL_AUTHENTICATION_FAILED"):
        exchange.handle_response(answer(error_code=58))


def test_a_login_that_does_not_end_is_given_up() -> None:
    class Endless:
        mechanism = "X"
        complete = False

        def respond(self, challenge: bytes | None) -> bytes:
            return b"more"

    exchange = LoginExchange(Endless(), ADDRESS)
    exchange.handle_response(READY)
    for _ in range(9):
        exchange.handle_response(answer(b"x"))
    with pytest.raises(AuthenticationFailed, match="after 10 rounds"):
        exchange.handle_response(answer(b"x"))


def test_the_next_login_is_due_at_85_to_95_percent() -> None:
    """As in Kafka's SaslClientAuthenticator (KIP-368)."""
    assert choose_reauthentication_ms(1_000, 0.0) == 850
    assert choose_reauthentication_ms(1_000, 1.0) == pytest.approx(950)


def test_an_error_quotes_a_bounded_part_of_what_the_broker_says() -> None:
    """A text of a broker may have 32 KB, and it may list mechanisms without end: errors are logged."""
    for response in (
        SaslHandshakeResponse(error_code=33, mechanisms=("x" * 32_000,) * 9),
        SaslAuthenticateResponse(error_code=58, error_message="x" * 32_000, auth_bytes=b""),
    ):
        exchange = LoginExchange(PlainClient("alice", Secret("wonder")), "broker:9092")
        exchange.start()
        with pytest.raises(AuthenticationFailed, match="left out") as caught:
            exchange.handle_response(response)
        assert len(str(caught.value)) < 3_000
