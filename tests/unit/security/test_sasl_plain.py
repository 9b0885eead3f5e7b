"""PLAIN (RFC 4616): message = [authzid] UTF8NUL authcid UTF8NUL passwd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.secret import Secret
from tallystick.security.sasl.mechanism import SaslAuthenticationFailed, SaslPeerRefused
from tallystick.security.sasl.plain import PlainClient, PlainServer

USERS = {"tim": Secret("tanstaaftanstaaf"), "empty": Secret("")}


def test_the_message_of_rfc_4616() -> None:
    """RFC 4616, section 4, first example."""
    client, server = PlainClient("tim", Secret("tanstaaftanstaaf")), PlainServer(USERS.get)
    message = client.respond(None)
    assert message == b"\0tim\0tanstaaftanstaaf"
    assert client.complete
    assert server.respond(message) == b""
    assert (server.complete, server.principal, server.session_expires_ms) == (True, "tim", None)
    assert client.respond(b"") == b""


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"\0tim", "expected 3 tokens, got 2"),
        (b"\0tim\0tanstaaftanstaaf\0", "expected 3 tokens, got 4"),
        (b"\0\0tanstaaftanstaaf", "username not specified"),
        (b"\0tim\0", "password not specified"),
        (b"\0empty\0", "password not specified"),
        (b"\0empty\0x", "Invalid username or password"),
        (b"\0tim\0wrong", "Invalid username or password"),
        (b"\0tom\0tanstaaftanstaaf", "Invalid username or password"),
        (b"Ursel\0tim\0tanstaaftanstaaf", "authorization id that is different from username"),
        (b"\0tim\0\xff", "not UTF-8"),
    ],
)
def test_messages_that_are_refused(message: bytes, text: str) -> None:
    """The texts of Kafka's PlainSaslServer."""
    server = PlainServer(USERS.get)
    with pytest.raises(SaslAuthenticationFailed, match=text) as caught:
        server.respond(message)
    assert not server.complete
    assert "tanstaaf" not in str(caught.value)


def test_the_authorization_id_may_repeat_the_name() -> None:
    server = PlainServer(USERS.get)
    server.respond(b"tim\0tim\0tanstaaftanstaaf")
    assert server.principal == "tim"
    with pytest.raises(SaslAuthenticationFailed, match="second one"):
        server.respond(b"\0tim\0tanstaaftanstaaf")


def test_a_challenge_is_not_answered() -> None:
    client = PlainClient("tim", Secret("x"))
    client.respond(None)
    with pytest.raises(SaslPeerRefused):
        client.respond(b"more")


@given(st.binary(max_size=200))
def test_a_server_only_ever_refuses(message: bytes) -> None:
    server = PlainServer({}.get)
    with pytest.raises(SaslAuthenticationFailed):
        server.respond(message)
    assert server.principal is None
