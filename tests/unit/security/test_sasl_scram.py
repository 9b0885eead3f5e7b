"""SCRAM: the RFC's own exchange, what each side must verify, and a second implementation as an oracle."""

import base64
import hashlib
import hmac

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scram_users import create_credential, find_in

from tallystick.kernel.secret import Secret
from tallystick.security.sasl import scram
from tallystick.security.sasl.mechanism import SaslAuthenticationFailed, SaslPeerRefused
from tallystick.security.sasl.scram import (
    SCRAM_MECHANISMS,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramCredential,
    ScramMechanism,
)
from tallystick.security.sasl.scram_client import SaltedPasswords, ScramClient
from tallystick.security.sasl.scram_server import ScramServer

# RFC 7677, section 3: user "user", password "pencil".
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

PENCIL = create_credential(SCRAM_SHA_256, "pencil", salt=SALT)
USERS = {"user": PENCIL}
MECHANISMS = pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS.values(), ids=lambda m: m.name)


def new_client(password: str = "pencil", username: str = "user") -> ScramClient:
    return ScramClient(SCRAM_SHA_256, username, Secret(password), nonce=CLIENT_NONCE)


def new_server(users: dict[str, ScramCredential] = USERS) -> ScramServer:
    return ScramServer(SCRAM_SHA_256, find_in(users, SCRAM_SHA_256), nonce=SERVER_NONCE)


def log_in(client: ScramClient, server: ScramServer) -> None:
    challenge: bytes | None = None
    while not (client.complete and server.complete):
        token = client.respond(challenge)
        if client.complete:
            return
        challenge = server.respond(token)


# ----------------------------------------------------------------------------- the RFC's exchange


def test_the_exchange_of_rfc_7677() -> None:
    client, server = new_client(), new_server()
    assert client.respond(None) == CLIENT_FIRST
    assert server.respond(CLIENT_FIRST) == SERVER_FIRST
    assert client.respond(SERVER_FIRST) == CLIENT_FINAL
    assert not server.complete
    assert server.respond(CLIENT_FINAL) == SERVER_FINAL
    assert (server.complete, server.principal, server.session_expires_ms) == (True, "user", None)
    assert not client.complete
    assert client.respond(SERVER_FINAL) == b""
    assert client.complete


@MECHANISMS
@settings(max_examples=20, deadline=None)
@given(
    username=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1),
    password=st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
)
@pytest.mark.slow
def test_any_name_and_password_log_in(mechanism: ScramMechanism, username: str, password: str) -> None:
    """RFC 5802, section 5.1: "," and "=" in names are sent as "=2C" and "=3D". Kafka applies no SASLprep."""
    server = ScramServer(mechanism, find_in({username: create_credential(mechanism, password)}, mechanism))
    log_in(ScramClient(mechanism, username, Secret(password)), server)
    assert server.principal == username


# ------------------------------------------------------------------------------------- the oracle


@MECHANISMS
def test_scramp_logs_in_here(mechanism: ScramMechanism) -> None:
    server = ScramServer(mechanism, find_in({"user": create_credential(mechanism, "pencil")}, mechanism))
    oracle = scramp.ScramClient([mechanism.name], "user", "pencil")
    oracle.set_server_first(server.respond(oracle.get_client_first().encode()).decode())
    oracle.set_server_final(server.respond(oracle.get_client_final().encode()).decode())
    assert server.complete


@MECHANISMS
def test_our_client_logs_in_at_scramp(mechanism: ScramMechanism) -> None:
    oracle_mechanism = scramp.ScramMechanism(mechanism.name)
    info = oracle_mechanism.make_auth_info("pencil", iteration_count=5000)
    server = oracle_mechanism.make_server(lambda name: info)
    client = ScramClient(mechanism, "user", Secret("pencil"))
    server.set_client_first(client.respond(None).decode())
    server.set_client_final(client.respond(server.get_server_first().encode()).decode())
    client.respond(server.get_server_final().encode())
    assert client.complete
    salt, stored_key, server_key, iterations = info
    assert create_credential(mechanism, "pencil", iterations, salt) == ScramCredential(
        salt, stored_key, server_key, iterations
    )


@MECHANISMS
def test_credentials_from_a_salted_password(mechanism: ScramMechanism) -> None:
    """KIP-554: API 51 carries the salted password; the broker keeps what it needs to verify a login."""
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, b"pencil", SALT, 4096)
    stored = hashlib.new(
        mechanism.hash_name, hmac.digest(salted, b"Client Key", mechanism.hash_name)
    ).digest()
    credential = scram.derive_credential(mechanism, salted, SALT, 4096)
    assert credential == create_credential(mechanism, "pencil", salt=SALT)
    assert (credential.stored_key, credential.iterations) == (stored, 4096)


# ------------------------------------------------------------------------- what the server verifies


def test_a_wrong_password_and_an_unknown_user_look_alike() -> None:
    """The first answer has a salt in both cases, the same one each time; the last text is Kafka's."""
    firsts, texts = [], []
    for name, password in (("user", "wrong"), ("nobody", "x"), ("nobody", "y")):
        client, server = new_client(password, name), new_server()
        first = server.respond(client.respond(None))
        firsts.append(first)
        with pytest.raises(SaslAuthenticationFailed) as caught:
            server.respond(client.respond(first))
        texts.append(str(caught.value))
        assert (server.complete, server.principal) == (False, None)
    assert len(set(texts)) == 1
    assert texts[0].endswith("due to invalid credentials with SASL mechanism SCRAM-SHA-256")
    assert firsts[1] == firsts[2]
    salts = [base64.b64decode(first.split(b"s=")[1].split(b",")[0]) for first in firsts]
    assert salts[0] != salts[1]


def test_an_unknown_user_stays_out_even_with_the_invented_key() -> None:
    server = new_server({})
    server.respond(b"n,,n=ghost,r=abc")
    for proof in (bytes(32), b"\xff" * 32):
        with pytest.raises(SaslAuthenticationFailed):
            server.respond(b"c=biws,r=abc" + SERVER_NONCE.encode() + b",p=" + base64.b64encode(proof))


@pytest.mark.parametrize(
    "nonce",
    [CLIENT_NONCE, SERVER_NONCE, CLIENT_NONCE + SERVER_NONCE + "x", CLIENT_NONCE + SERVER_NONCE[:-1] + "1"],
)
def test_the_final_nonce_is_compared(nonce: str) -> None:
    """RFC 5802, section 5.1: "The server MUST verify that the nonce sent by the client in the second
    message is the same as the one sent by the server in its first message." Kafka left it out
    (CVE-2024-56128).

    The proof is right for the message sent, so that the nonce alone is wrong.
    """
    server = new_server()
    server.respond(CLIENT_FIRST)
    unsigned = f"c=biws,r={nonce}"
    with pytest.raises(SaslAuthenticationFailed):
        server.respond(f"{unsigned},p={prove(CLIENT_FIRST[3:].decode(), unsigned)}".encode())


@pytest.mark.parametrize("binding", ["eSws", "biwsYQ==", "bixhPXVzZXIs", ""])
def test_the_channel_binding_is_the_gs2_header_again(binding: str) -> None:
    """RFC 5802, section 5.1, `c=`: the GS2 header and channel binding data, so neither can be exchanged."""
    server = new_server()
    server.respond(CLIENT_FIRST)
    unsigned = f"c={binding},r={CLIENT_NONCE}{SERVER_NONCE}"
    with pytest.raises(SaslAuthenticationFailed):
        server.respond(f"{unsigned},p={prove(CLIENT_FIRST[3:].decode(), unsigned)}".encode())


def test_the_authorization_id_is_the_users_own_name_or_nothing() -> None:
    server = new_server()
    server.respond(b"n,a=user,n=user,r=" + CLIENT_NONCE.encode())
    unsigned = f"c={base64.b64encode(b'n,a=user,').decode()},r={CLIENT_NONCE}{SERVER_NONCE}"
    server.respond(f"{unsigned},p={prove(f'n=user,r={CLIENT_NONCE}', unsigned)}".encode())
    assert server.complete
    with pytest.raises(SaslAuthenticationFailed, match="authorization id that is different from username"):
        new_server().respond(b"n,a=admin,n=user,r=" + CLIENT_NONCE.encode())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=user,n=admin,r=abc",
        b"n,,n=user,r=abc,r=def",
        b"n,,n=user,r=abc,n=admin",
        b"n,,n=user,r=abc,m=ext",
        b"n,,n=user,r=abc,xx=1,xx=2",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user\0,r=abc",
        b"n,,n=user,r=abc\n",
        b"n,,n=user,r=" + b"a" * 9000,
        b"n,,n=user,r=abc,tokenauth=true",
    ],
    ids=repr,
)
def test_first_messages_that_are_refused(message: bytes) -> None:
    """Attributes missing, doubled, out of order, reserved; no delegation tokens, no channel binding."""
    server = new_server()
    with pytest.raises(SaslAuthenticationFailed) as caught:
        server.respond(message)
    assert "user" not in str(caught.value).replace("username", "")
    with pytest.raises(SaslAuthenticationFailed, match="already finished"):
        server.respond(CLIENT_FIRST)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.replace(b",p=", b",m=x,p="),
        lambda m: m + b",p=AAAA",
        lambda m: m.replace(b"c=biws,", b""),
        lambda m: m.replace(b"c=biws,", b"c=biws,c=biws,"),
        lambda m: m[: m.index(b",p=")],
        lambda m: m[: m.index(b",p=")] + b",p=",
        lambda m: m[: m.index(b",p=")] + b",p=AAAA",
        lambda m: m[: m.index(b",p=")] + b",p=***=",
        lambda m: b"",
        lambda m: m[m.index(b"r=") :],
    ],
)
def test_last_messages_that_are_refused(change: "object") -> None:
    server = new_server()
    server.respond(CLIENT_FIRST)
    with pytest.raises(SaslAuthenticationFailed):
        server.respond(change(CLIENT_FINAL))  # type: ignore[operator]
    with pytest.raises(SaslAuthenticationFailed, match="already finished"):
        server.respond(CLIENT_FINAL)
    assert not server.complete


def test_a_completed_server_takes_no_more() -> None:
    server = new_server()
    log_in(new_client(), server)
    with pytest.raises(SaslAuthenticationFailed, match="already finished"):
        server.respond(CLIENT_FINAL)


def test_a_weak_stored_credential_is_not_used() -> None:
    weak = create_credential(SCRAM_SHA_256, "pencil", iterations=1000)
    with pytest.raises(SaslAuthenticationFailed, match="less than the minimum 4096"):
        new_server({"user": weak}).respond(CLIENT_FIRST)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), st.just(CLIENT_FIRST), st.just(CLIENT_FINAL)), max_size=4))
@pytest.mark.slow
def test_a_server_only_ever_refuses_what_it_is_sent(messages: list[bytes]) -> None:
    server = new_server({})
    for message in messages:
        try:
            server.respond(message)
        except SaslAuthenticationFailed:
            pass
        assert not server.complete


ATTRIBUTES = st.sampled_from(
    ["n=user", "r=abc", f"r={CLIENT_NONCE}{SERVER_NONCE}", "c=biws", "p=AAAA", "m=x", "a=user", "n", "",
     "i=2147483648", "s=AAAA", "tokenauth=true", "v=AAAA", "e=x", "n=" + "u" * 5000]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(ATTRIBUTES, max_size=7).map(lambda parts: ",".join(parts).encode()), max_size=3))
@pytest.mark.slow
def test_attributes_doubled_and_out_of_order_are_refused(messages: list[bytes]) -> None:
    server = new_server()
    for message in messages:
        try:
            server.respond(message)
        except SaslAuthenticationFailed:
            pass
    assert not server.complete


# ------------------------------------------------------------------------- what the client verifies


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (b"r=other,s=AAAA,i=4096", "nonce"),
        (f"r={CLIENT_NONCE},s=AAAA,i=4096".encode(), "nonce"),
        (f"r={CLIENT_NONCE}x,s=AAAA,i=4095".encode(), "asks for 4095 iterations, 4096 to 1000000"),
        (f"r={CLIENT_NONCE}x,s=AAAA,i=1000001".encode(), "asks for 1000001 iterations"),
        (f"r={CLIENT_NONCE}x,s=AAAA,i=2147483648".encode(), "asks for 2147483648 iterations"),
        (f"r={CLIENT_NONCE}x,s=AAAA,i={'9' * 400}".encode(), "attributes of RFC 5802"),
        (f"r={CLIENT_NONCE}x,s=AAAA,i=-4096".encode(), "attributes of RFC 5802"),
        (f"m=x,r={CLIENT_NONCE}x,s=AAAA,i=4096".encode(), "attributes of RFC 5802"),
        (f"r={CLIENT_NONCE}x,s=AAAA,i=4096,i=5000".encode(), "twice"),
        (f"r={CLIENT_NONCE}x,i=4096,s=AAAA".encode(), "attributes of RFC 5802"),
        (b"e=unknown-user", "attributes of RFC 5802"),
        (b"\xff", "not UTF-8"),
        (b"", "attributes of RFC 5802"),
    ],
)
def test_answers_that_the_client_refuses(first: bytes, text: str) -> None:
    """RFC 5802, section 5.1: "The client MUST verify that the initial part of the nonce used in subsequent
    messages is the same as the nonce it initially specified." A server may ask for 4096 iterations up to a
    limit.
    """
    client = new_client()
    client.respond(None)
    with pytest.raises(SaslPeerRefused, match=text):
        client.respond(first)
    assert not client.complete


@pytest.mark.parametrize(
    ("final", "text"),
    [
        (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G8=", "does not know this user's password"),
        (b"v=", "does not know this user's password"),
        (b"e=invalid-proof", "invalid-proof"),
        (b"", "attributes of RFC 5802"),
        (SERVER_FINAL + b",v=AAAA", "twice"),
    ],
)
def test_the_server_must_prove_itself(final: bytes, text: str) -> None:
    """RFC 5802, section 3: "If the two are different, the client MUST consider the authentication exchange
    to be unsuccessful, and it might have to drop the connection."
    """
    client = new_client()
    client.respond(None)
    client.respond(SERVER_FIRST)
    with pytest.raises(SaslPeerRefused, match=text):
        client.respond(final)
    assert not client.complete


def test_a_client_that_is_complete_takes_no_more() -> None:
    client = new_client()
    log_in(client, new_server())
    with pytest.raises(SaslPeerRefused):
        client.respond(SERVER_FINAL)


def test_the_salted_password_is_computed_once_for_each_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    real = scram.compute_salted_password

    def count(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        computed.append((mechanism.name, salt, iterations))
        return real(mechanism, password, salt, iterations)

    monkeypatch.setattr("tallystick.security.sasl.scram_client.compute_salted_password", count)
    cache = SaltedPasswords()
    for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512, SCRAM_SHA_256):
        server = ScramServer(
            mechanism, find_in({"user": create_credential(mechanism, "pencil", salt=SALT)}, mechanism)
        )
        log_in(ScramClient(mechanism, "user", Secret("pencil"), cache), server)
        assert server.complete
    assert computed == [("SCRAM-SHA-256", SALT, 4096), ("SCRAM-SHA-512", SALT, 4096)]
    for number in range(100):
        cache.compute(SCRAM_SHA_256, Secret(f"p{number}"), SALT, 1)
    assert len(cache._cached) <= 16


def test_keys_are_not_printed() -> None:
    assert repr(PENCIL) == "ScramCredential([hidden], iterations=4096)"
    assert len({scram.generate_nonce() for _ in range(100)}) == 100


def prove(client_first_bare: str, unsigned: str) -> str:
    """Return the proof that fits these messages, whatever they say."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    auth_message = f"{client_first_bare},{SERVER_FIRST.decode()},{unsigned}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), auth_message, "sha256")
    return base64.b64encode(scram.xor_bytes(client_key, signature)).decode()
