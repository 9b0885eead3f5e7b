"""TLS and logins of the client against a peer that does what a test says, the wrong things included."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.certificates import format_certificate, format_key, make_key_pair
from tests.support.login_listener import LoginListener
from tests.support.scram_users import create_credential, find_in
from tests.support.scripted_broker import HangUp, ScriptedBroker, Seen

from tallystick.client.blocking.thread import _new_loop as new_engine_loop
from tallystick.client.errors import AuthenticationFailed, ConnectionLost, TlsFailed, Unreachable
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import AdminConfig
from tallystick.kernel.errors import Effect
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.security.sasl import SaslHandshakeResponse
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataResponse
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.security.sasl import scram_client
from tallystick.security.sasl.oauthbearer import OauthBearerServer, TokenRefused, ValidatedToken
from tallystick.security.sasl.plain import PlainServer
from tallystick.security.sasl.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramMechanism,
    compute_salted_password,
)
from tallystick.security.sasl.scram_server import ScramServer
from tallystick.testing import eventually

pytestmark = pytest.mark.server

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
PASSWORD = "correct horse"
PLAIN = {"PLAIN": lambda: PlainServer({"alice": Secret(PASSWORD)}.get)}
SCRAM = {
    mechanism.name: lambda mechanism=mechanism: ScramServer(
        mechanism, find_in({"alice": create_credential(mechanism, PASSWORD)}, mechanism)
    )
    for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)
}
ALICE = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": PASSWORD}


@dataclass
class Pki:
    """One authority, a broker's certificate, a client's, and an authority of strangers."""

    ca: trustme.CA
    broker: trustme.LeafCert
    client: trustme.LeafCert
    stranger: trustme.CA
    folder: Path

    def server_context(self, leaf: trustme.LeafCert | None = None, *, mutual: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (leaf or self.broker).configure_cert(context)
        if mutual:
            self.ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def trusting(self, ca: trustme.CA | None = None) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": (ca or self.ca).cert_pem.bytes().decode(),
        }

    @property
    def client_key(self) -> dict[str, str]:
        path = self.folder / "client.pem"
        self.client.private_key_and_cert_chain_pem.write_to_path(str(path))
        return {"ssl.keystore.location": str(path)}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    ca = trustme.CA()
    client = ca.issue_cert("client@example.com", common_name="client")
    folder = tmp_path_factory.mktemp("pki")
    return Pki(ca, ca.issue_cert("localhost", "127.0.0.1"), client, trustme.CA(), folder)


def new_cluster(broker: ScriptedBroker, **given: object) -> Cluster:
    quick = {"retry.backoff.ms": 5, "reconnect.backoff.ms": 5, "request.timeout.ms": 5_000}
    return Cluster(AdminConfig.parse({"bootstrap.servers": broker.address, **quick, **given}).client)


async def ask(cluster: Cluster, limit_ms: int = 5_000) -> MetadataResponse:
    async def attempt() -> MetadataResponse:
        return await cluster.send_to_any(MetadataRequest(topics=()), MetadataResponse)

    return await cluster.run_with_retries(
        "Metadata", "", attempt, cluster.start_deadline("max.block.ms", limit_ms)
    )


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


# -------------------------------------------------------------------------------------------- TLS


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_broker_with_a_certificate_is_asked(pki: Pki, host: str) -> None:
    async def main() -> None:
        async with ScriptedBroker(ssl=pki.server_context(), host=host) as broker:
            cluster = new_cluster(broker, **pki.trusting())
            assert (await ask(cluster)).cluster_id == "scripted"
            await cluster.close()

    run(main)


def test_a_client_shows_its_certificate(pki: Pki) -> None:
    async def main() -> None:
        async with ScriptedBroker(ssl=pki.server_context(mutual=True)) as broker:
            cluster = new_cluster(broker, **pki.trusting(), **pki.client_key)
            await ask(cluster)
            await cluster.close()

    run(main)


def test_a_missing_certificate_is_named(pki: Pki) -> None:
    """In TLS 1.3 the client's side of the handshake is complete when the broker refuses it.

    The server is one of threads: asyncio's does not send the alert.
    """
    context = pki.server_context(mutual=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with contextlib.suppress(ssl.SSLError), connection:
                        context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()

        async def main() -> None:
            port = listening.getsockname()[1]
            cluster = new_cluster(ScriptedBroker(port=port), **pki.trusting())
            with pytest.raises(TlsFailed, match=r"asks for a certificate: ssl\.keystore\.location"):
                await ask(cluster)
            await cluster.close()

        run(main)
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def make_leaf(pki: Pki, tmp_path: Path, what: str) -> ssl.SSLContext:
    """A server's context whose certificate has a defect, trusted by its own authority: itself."""
    now = timedelta()
    valid = (timedelta(days=-2), timedelta(days=-1)) if what == "expired" else (now, timedelta(days=1))
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024) if what == "weak" else None
    made, certificate = make_key_pair(key, valid=valid, hosts=("127.0.0.1", "localhost"))
    path = tmp_path / "broker.pem"
    path.write_text(format_key(made) + format_certificate(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.load_cert_chain(path)
    (tmp_path / "ca.pem").write_text(format_certificate(certificate))
    return context


@pytest.mark.parametrize(("what", "text"), [("expired", "it has expired"), ("weak", "too short")])
def test_a_bad_certificate_is_named(pki: Pki, tmp_path: Path, what: str, text: str) -> None:
    async def main() -> None:
        context = make_leaf(pki, tmp_path, what)
        async with ScriptedBroker(ssl=context, host="localhost") as broker:
            given = {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "ca.pem")}
            cluster = new_cluster(broker, **given)
            with pytest.raises(TlsFailed, match=text) as caught:
                await ask(cluster)
            assert broker.address in str(caught.value)
            assert caught.value.effect is Effect.NONE
            assert broker.connections == 0
            await cluster.close()

    run(main)


def test_another_authority_and_another_host_are_named_and_not_retried(pki: Pki) -> None:
    async def main() -> None:
        elsewhere = pki.ca.issue_cert("broker.example.com")
        async with ScriptedBroker(ssl=pki.server_context(elsewhere), host="localhost") as broker:
            for trusted, text in (
                (pki.stranger, "its authority is not in ssl.truststore.location"),
                (pki.ca, "it names another host"),
            ):
                cluster = new_cluster(broker, **pki.trusting(trusted))
                with pytest.raises(TlsFailed, match=text):
                    await ask(cluster)
                assert cluster.metrics()["connection-creation-total"] == 0
                await cluster.close()
            unchecked = new_cluster(broker, **pki.trusting(), **{"ssl.endpoint.identification.algorithm": ""})
            await ask(unchecked)
            await unchecked.close()

    run(main)


def test_tls_to_a_port_without_it_and_the_reverse(pki: Pki) -> None:
    async def main() -> None:
        async with ScriptedBroker() as plain, ScriptedBroker(ssl=pki.server_context()) as secure:
            cluster = new_cluster(plain, **pki.trusting())
            plain.greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
            with pytest.raises(TlsFailed, match="does not speak TLS") as caught:
                await ask(cluster)
            await cluster.close()
            plain.greeting = None
            # A Kafka broker takes the greeting for a request of 350 MB, and closes the connection.
            hanging = new_cluster(plain, **pki.trusting())
            closing = asyncio.get_running_loop().call_later(0.2, plain.hang_up)
            with pytest.raises(Unreachable, match="is that a port without TLS"):
                await hanging.send_to_any(MetadataRequest(topics=()), MetadataResponse)
            closing.cancel()
            await hanging.close()
            naked = new_cluster(secure)
            with pytest.raises((Unreachable, AuthenticationFailed)) as caught2:
                await naked.send_to_any(MetadataRequest(topics=()), MetadataResponse)
            assert "security.protocol" in str(caught2.value)
            assert "speaks TLS" in str(caught2.value) or "is that a port with TLS" in str(caught2.value)
            await naked.close()
            assert caught.value.address == plain.address

    run(main)


def test_files_that_are_of_no_use_fail_at_once(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "ca.pem")}
    with pytest.raises(BadConfig, match=r"ca\.pem"):
        Cluster(AdminConfig.parse({"bootstrap.servers": "b:1", **given}).client)


# ----------------------------------------------------------------------------------------- logins


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_comes_before_the_first_request(
    pki: Pki, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        listener = LoginListener({**PLAIN, **SCRAM})
        async with ScriptedBroker(ssl=pki.server_context()) as broker:
            listener.install(broker)
            given = {**ALICE, **pki.trusting(), "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
            cluster = new_cluster(broker, **given)
            await asyncio.gather(*(ask(cluster) for _ in range(5)))
            assert (listener.principals, listener.too_early) == (["alice"], [])
            keys = [seen.key for seen in broker.seen]
            assert keys[:2] == [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE]
            await cluster.close()

    run(main)
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_ends_the_call_at_once(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        listener = LoginListener({**PLAIN, **SCRAM})
        async with ScriptedBroker() as first, ScriptedBroker(node_id=2) as second:
            for broker in (first, second):
                listener.install(broker)
            given = {**ALICE, "sasl.mechanism": mechanism, "sasl.password": "wrong donkey"}
            both = f"{first.address},{second.address}"
            cluster = new_cluster(first, **{**given, "bootstrap.servers": both})
            with pytest.raises(
                AuthenticationFailed, match=f"login with {mechanism}: Authentication failed"
            ) as caught:
                await ask(cluster, limit_ms=60_000)
            assert first.connections + second.connections == 1, "no second attempt locks the account"
            assert (listener.principals, listener.too_early) == ([], [])
            assert caught.value.effect is Effect.NONE
            assert "donkey" not in str(caught.value) + repr(caught.value) + caplog.text
            await cluster.close()

    run(main)


def test_an_unknown_mechanism_shows_the_brokers_list() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            LoginListener(SCRAM).install(broker)
            cluster = new_cluster(broker, **ALICE, **{"sasl.mechanism": "PLAIN"})
            with pytest.raises(AuthenticationFailed, match="the broker has: SCRAM-SHA-256, SCRAM-SHA-512"):
                await ask(cluster)
            await cluster.close()

    run(main)


def test_a_listener_without_logins_is_named() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            broker.scripts[ApiKey.SASL_HANDSHAKE] = lambda seen: SaslHandshakeResponse(error_code=34)
            cluster = new_cluster(broker, **ALICE, **{"sasl.mechanism": "PLAIN"})
            with pytest.raises(AuthenticationFailed, match="asks for no login"):
                await ask(cluster)
            broker.scripts[ApiKey.API_VERSIONS] = lambda seen: broker.versions(SaslHandshake=(0, 0))
            old = new_cluster(broker, **ALICE, **{"sasl.mechanism": "PLAIN"})
            with pytest.raises(AuthenticationFailed, match="SaslHandshake version 1"):
                await ask(old)
            await cluster.close()
            await old.close()

    run(main)


def test_a_broker_that_hangs_up_in_the_login_is_tried_again() -> None:
    async def main() -> None:
        listener = LoginListener(PLAIN)
        async with ScriptedBroker() as broker:
            listener.install(broker)
            good = broker.scripts[ApiKey.SASL_AUTHENTICATE]

            def hang_up_once(seen: Seen) -> object:
                if seen.connection == 1:
                    raise HangUp
                return good(seen)

            broker.scripts[ApiKey.SASL_AUTHENTICATE] = hang_up_once
            cluster = new_cluster(broker, **ALICE, **{"sasl.mechanism": "PLAIN"})
            await ask(cluster)
            assert (broker.connections, listener.principals) == (2, ["alice"])
            await cluster.close()

    run(main)


@pytest.mark.parametrize("has_tls", [False, True], ids=["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_engine_loop], ids=["asyncio", "engine"])
def test_a_connection_that_ends_while_the_proof_is_computed_is_replaced(
    pki: Pki, monkeypatch: pytest.MonkeyPatch, new_loop: LoopFactory, has_tls: bool
) -> None:
    """The login goes on in another thread meanwhile, and finds its connection gone."""
    proving, may_go_on = threading.Event(), threading.Event()

    def compute_late(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        proving.set()
        assert may_go_on.wait(30)
        return compute_salted_password(mechanism, password, salt, iterations)

    monkeypatch.setattr(scram_client, "compute_salted_password", compute_late)

    async def main() -> None:
        listener = LoginListener(SCRAM)
        context, host = (pki.server_context(), "localhost") if has_tls else (None, "127.0.0.1")
        async with ScriptedBroker(ssl=context, host=host) as broker:
            listener.install(broker)
            tls = {**pki.trusting(), "security.protocol": "SASL_SSL"} if has_tls else {}
            cluster = new_cluster(broker, **{**ALICE, **tls, "sasl.mechanism": "SCRAM-SHA-256"})
            asking = asyncio.create_task(ask(cluster))
            await asyncio.to_thread(eventually, proving.is_set)
            broker.hang_up()
            await asyncio.to_thread(eventually, lambda: cluster.metrics()["connection-count"] == 0)
            may_go_on.set()
            assert (await asking).cluster_id == "scripted"
            assert (broker.connections, listener.principals) == (2, ["alice"])
            await cluster.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main(), 60))


def test_whatever_ends_an_attempt_to_connect_fails_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("a defect")

    async def main() -> None:
        async with ScriptedBroker() as broker:
            LoginListener(SCRAM).install(broker)
            cluster = new_cluster(broker, **ALICE, **{"sasl.mechanism": "SCRAM-SHA-256"})
            with monkeypatch.context() as defect:
                defect.setattr(scram_client, "compute_salted_password", fail)
                with pytest.raises(Unreachable, match="RuntimeError: a defect"):
                    await cluster.send_to_any(MetadataRequest(topics=()), MetadataResponse)
            await ask(cluster)
            await cluster.close()

    run(main)
    assert "the attempt to connect" in caplog.text


# ------------------------------------------------------------------------------- tokens, KIP-368


def validate(token: str) -> ValidatedToken:
    if not token.startswith("good"):
        raise TokenRefused("expired")
    return ValidatedToken(subject="job", expires_at_ms=2**50)


OAUTH = {"OAUTHBEARER": lambda: OauthBearerServer(validate)}


def test_tokens_come_from_a_function() -> None:
    async def main() -> None:
        listener = LoginListener(OAUTH)
        async with ScriptedBroker() as broker:
            listener.install(broker)
            given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
            cluster = new_cluster(broker, **given, oauth_cb=lambda config: ("good-1", 4_000_000_000))
            await ask(cluster)
            assert listener.principals == ["job"]
            await cluster.close()
            refused = new_cluster(broker, **given, oauth_cb=lambda: ("bad-1", 4_000_000_000))
            with pytest.raises(AuthenticationFailed, match="invalid_token") as caught:
                await ask(refused)
            assert "bad-1" not in str(caught.value)
            await refused.close()

    run(main)


def test_a_session_that_ends_is_renewed_between_two_requests() -> None:
    """KIP-368: in-flight requests are answered first, new ones wait, and a transaction that is open goes
    on."""

    async def main() -> None:
        listener = LoginListener(SCRAM, session_lifetime_ms=300)
        release = asyncio.Event()
        order: list[str] = []

        async def answer_late(seen: Seen) -> object:
            order.append("end")
            await release.wait()
            order.append("answered")
            return EndTxnResponse(producer_id=1, producer_epoch=1)

        async with ScriptedBroker() as broker:
            listener.install(broker)
            handshake = broker.scripts[ApiKey.SASL_HANDSHAKE]

            def note_handshake(seen: Seen) -> object:
                order.append("handshake")
                return handshake(seen)

            broker.scripts[ApiKey.SASL_HANDSHAKE] = note_handshake
            broker.scripts[ApiKey.END_TXN] = answer_late
            cluster = new_cluster(broker, **ALICE, **{"sasl.mechanism": "SCRAM-SHA-256"})
            await cluster.refresh()
            end = EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True)
            ending = asyncio.create_task(cluster.send(1, end, EndTxnResponse, version=4))
            connection = cluster.connections.get_connection(1)._connection
            assert connection is not None
            # The session's time comes while the request is in flight.
            await asyncio.to_thread(eventually, lambda: connection._is_login_due)
            assert order == ["handshake", "end"]
            later = asyncio.create_task(ask(cluster))
            await asyncio.to_thread(eventually, lambda: connection.pending_count == 2)
            listener.session_lifetime_ms = 0
            release.set()
            await asyncio.gather(ending, later)
            assert order == ["handshake", "end", "answered", "handshake"]
            assert broker.seen[-1].key is ApiKey.METADATA
            assert (broker.connections, listener.principals) == (1, ["alice", "alice"])
            await cluster.close()

    run(main)


def test_an_idle_connection_logs_in_again_and_a_refusal_ends_it() -> None:
    async def main() -> None:
        tokens = iter(("good-1", "good-2", "bad-3", "bad-4"))
        listener = LoginListener(OAUTH, session_lifetime_ms=100)
        async with ScriptedBroker() as broker:
            listener.install(broker)
            given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
            cluster = new_cluster(broker, **given, oauth_cb=lambda: next(tokens))
            await ask(cluster)
            await asyncio.to_thread(eventually, lambda: cluster.metrics()["connection-count"] == 0)
            assert listener.principals == ["job", "job"]
            with pytest.raises(AuthenticationFailed, match="invalid_token"):
                await ask(cluster)
            await cluster.close()

    run(main)


def test_a_connection_that_ends_before_an_answer_hints_at_security() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            LoginListener(PLAIN).install(broker)
            cluster = new_cluster(broker)
            with pytest.raises(ConnectionLost, match="a listener that asks for a login does so"):
                await cluster.send_to_any(MetadataRequest(topics=()), MetadataResponse)
            await cluster.close()

    run(main)
