"""Listeners with TLS: real sockets, half handshakes, reloaded files, and librdkafka as a client."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.embedded import EmbeddedBroker
from tallystick.broker.server.listening import TlsPort
from tallystick.broker.server.server import Peer, ResponseBuffers, Server
from tallystick.client.errors import Unreachable
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import AdminConfig
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.settings import BadConfig
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.server
EC = trustme.KeyType.ECDSA


class Echo:
    """Answers every frame with the name of its sender and of the listener."""

    def is_pipelined(self, frame: memoryview) -> bool:
        return False

    def is_cancellable(self, frame: memoryview) -> bool:
        return True

    def get_frame_bytes_max(self, api_key: int) -> int:
        return 1 << 20

    def dispatch(self, frame: memoryview, peer: Peer) -> ResponseBuffers | Awaitable[ResponseBuffers]:
        text = f"{peer.listener} {peer.principal}".encode()
        return [struct.pack(">i", len(text)), text]


class World:
    def __init__(self, server: Server, authority: trustme.CA) -> None:
        self.server, self.authority = server, authority

    @property
    def port(self) -> int:
        return self.server.addresses["SSL"][1]

    def client(self, *names: str, **more: Any) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(context)
        if names or more:
            self.authority.issue_cert(*names, key_type=EC, **more).configure_cert(context)
        return context

    async def ask(self, context: ssl.SSLContext | None, listener: str = "SSL") -> str:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.server.addresses[listener][1],
            ssl=context,
            server_hostname="localhost" if context else None,
        )
        try:
            writer.write(struct.pack(">i", 4) + b"ping")
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return (await reader.readexactly(size)).decode()
        finally:
            writer.transport.abort()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.002)

    @property
    def tls_port(self) -> TlsPort:
        (port,) = (port for port in self.server.ports if isinstance(port, TlsPort))
        return port


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=EC)


def write_key(path: Path, authority: trustme.CA, *names: str, **more: Any) -> str:
    leaf = authority.issue_cert(*(names or ("localhost",)), key_type=EC, **more)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
    fresh.replace(path)
    return str(path)


def scene(
    play: Callable[[World], Coroutine[Any, Any, None]],
    authority: trustme.CA,
    tmp_path: Path,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run `play` with a server that listens with TLS and without."""
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": write_key(tmp_path / "key.pem", authority),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        **(settings or {}),
    }

    async def run() -> None:
        server = Server(BrokerConfig.parse(given), Echo(), lambda: INT32_MAX)
        await server.start()
        try:
            async with asyncio.timeout(60):
                await play(World(server, authority))
        finally:
            await server.stop(0.0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def test_both_listeners_answer_and_know_the_sender(authority: trustme.CA, tmp_path: Path) -> None:
    async def play(world: World) -> None:
        assert await world.ask(None, "PLAINTEXT") == "PLAINTEXT User:ANONYMOUS"
        assert await world.ask(world.client()) == "SSL User:ANONYMOUS"
        named = world.client("a@example.org", common_name="alice", organization_name="Ops, Inc.")
        assert (await world.ask(named)).startswith("SSL User:CN=alice,")
        assert r"O=Ops\, Inc." in await world.ask(named)

    scene(play, authority, tmp_path, {"listener.name.ssl.ssl.client.auth": "requested"})


def test_rules_name_the_sender_or_refuse_him(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(world: World) -> None:
        assert await world.ask(world.client("x", common_name="Alice")) == "SSL User:alice"
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await world.ask(world.client("x", common_name="42"))
        await world.until(lambda: "no rule of ssl.principal.mapping.rules applies" in caplog.text)

    rules = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": r"RULE:CN=([A-Za-z]+),.*/$1/L"}
    scene(play, authority, tmp_path, rules)


def test_a_client_without_the_certificate_it_needs(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(world: World) -> None:
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await world.ask(world.client())
        await world.until(lambda: "sent no certificate, and ssl.client.auth is required" in caplog.text)

    scene(play, authority, tmp_path, {"ssl.client.auth": "required"})


def test_the_wrong_protocol_is_named_in_the_log(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(world: World) -> None:
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await world.ask(world.client(), "PLAINTEXT")
        await world.until(lambda: "the client speaks TLS, listener PLAINTEXT does not" in caplog.text)
        _, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(b"\0\0\0\x1a\0\x12\0\3\0\0\0\1\0\7rdkafka")
        await world.until(lambda: "the peer does not speak TLS on this port" in caplog.text)
        writer.close()

    scene(play, authority, tmp_path)


@pytest.mark.parametrize(
    ("listener", "line"),
    [
        ("PLAINTEXT", "the client speaks HTTP, listener PLAINTEXT does not"),
        ("SSL", "the peer speaks HTTP without TLS on this port"),
    ],
)
def test_a_browser_is_named_in_the_log(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture, listener: str, line: str
) -> None:
    async def play(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.addresses[listener][1])
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await world.until(lambda: line in caplog.text)
        writer.close()

    scene(play, authority, tmp_path)


def test_our_client_is_told_that_a_port_has_tls_or_has_none(authority: trustme.CA, tmp_path: Path) -> None:
    """The port itself cannot say so: what a client sees is the end of the connection."""

    async def play(world: World) -> None:
        trusting = {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "ca.pem")}
        for listener, config, text in (
            ("SSL", {}, "is that a port with TLS? Then security.protocol is SSL or SASL_SSL"),
            ("PLAINTEXT", trusting, "is that a port without TLS? Then security.protocol is PLAINTEXT"),
        ):
            address = f"localhost:{world.server.addresses[listener][1]}"
            cluster = Cluster(AdminConfig.parse({"bootstrap.servers": address, **config}).client)
            with pytest.raises(Unreachable) as caught:
                await cluster.send_to_any(MetadataRequest(topics=()), MetadataResponse)
            assert text in str(caught.value)
            await cluster.close()

    scene(play, authority, tmp_path)


def test_half_handshakes_keep_no_one_out(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(world: World) -> None:
        idle = []
        for _ in range(40):
            idle.append(await asyncio.open_connection("127.0.0.1", world.port))
            if len(idle) % 10 == 0:
                assert (await world.ask(world.client())).startswith("SSL")
        await world.until(lambda: len(world.tls_port._handshakes) <= 8)
        await world.until(lambda: "which is ssl.handshakes.max" in caplog.text)
        for _, writer in idle:
            writer.transport.abort()

    scene(play, authority, tmp_path, {"ssl.handshakes.max": "8"})


def test_a_handshake_ends_in_time(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        assert await reader.read() == b""
        await world.until(lambda: "within ssl.handshake.timeout.ms, 50" in caplog.text)
        writer.close()

    scene(play, authority, tmp_path, {"ssl.handshake.timeout.ms": "50"})


def test_a_changed_file_is_used_and_a_bad_one_is_not(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that exist go on; the names of the certificate must stay."""

    async def served(world: World) -> str:
        def fetch() -> str:
            with (
                socket.create_connection(("127.0.0.1", world.port)) as raw,
                world.client().wrap_socket(raw, server_hostname="localhost") as tls,
            ):
                certificate = tls.getpeercert()
                assert certificate
                return str(certificate["serialNumber"])

        return await asyncio.to_thread(fetch)

    async def play(world: World) -> None:
        path, context = tmp_path / "key.pem", world.tls_port.context
        first = await served(world)
        write_key(path, authority)
        await world.until(lambda: context.reload_count == 1)
        second = await served(world)
        assert second != first
        path.write_text("not a key")
        await world.until(lambda: context.failure)
        assert await served(world) == second
        assert "those before are: ssl.keystore.location" in caplog.text
        write_key(path, authority, "elsewhere")
        await world.until(lambda: "lacks 1 alternative names" in (context.failure or ""))
        assert await served(world) == second
        write_key(path, authority, "localhost", "more")
        await world.until(lambda: context.reload_count == 2)
        assert context.failure is None
        assert await served(world) not in (first, second)

    with caplog.at_level(logging.INFO):
        scene(play, authority, tmp_path, {"ssl.reload.interval.ms": "5", "ssl.allow.dn.changes": "true"})


def test_a_trust_store_that_is_changed_lets_others_in(authority: trustme.CA, tmp_path: Path) -> None:
    """A new context with its own verify_mode and authorities, not the live one changed."""
    other = trustme.CA(key_type=EC)

    async def play(world: World) -> None:
        stranger = world.client()
        other.issue_cert("x", key_type=EC).configure_cert(stranger)
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await world.ask(stranger)
        (tmp_path / "ca.pem").write_bytes(other.cert_pem.bytes())
        await world.until(lambda: world.tls_port.context.reload_count == 1)
        assert (await world.ask(stranger)).startswith("SSL")
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await world.ask(world.client("x"))

    scene(play, authority, tmp_path, {"ssl.reload.interval.ms": "5", "ssl.client.auth": "required"})


def test_bad_keys_of_all_listeners_are_told_before_any_socket_is_bound(tmp_path: Path) -> None:
    given = {
        "listeners": "A://127.0.0.1:0,B://127.0.0.1:0",
        "listener.security.protocol.map": "A:SSL,B:SSL",
        "listener.name.a.ssl.keystore.location": str(tmp_path / "none"),
    }

    async def run() -> None:
        with pytest.raises(BadConfig) as caught:
            Server(BrokerConfig.parse(given), Echo(), lambda: INT32_MAX)
        assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["listener A", "listener B"]

    asyncio.run(run())


def test_librdkafka_is_told_the_address_of_its_own_listener(authority: trustme.CA, tmp_path: Path) -> None:
    """And produces and consumes over TLS, a certificate of its own included."""
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    own = authority.issue_cert("client", key_type=EC, common_name="alice")
    (tmp_path / "own.pem").write_bytes(own.private_key_and_cert_chain_pem.bytes())
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "advertised.listeners": "SSL://localhost:0",
        "ssl.keystore.location": write_key(tmp_path / "key.pem", authority),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
    }
    with EmbeddedBroker(tmp_path / "data", config=config) as broker:
        plain = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=20)
        assert str(plain.brokers[1]).startswith(broker.bootstrap_servers)
        address = broker._config_texts["listeners"].split(",")[1].removeprefix("SSL://127.0.0.1:")
        tls: dict[str, Any] = {
            "bootstrap.servers": f"localhost:{address}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.location": str(tmp_path / "own.pem"),
            "ssl.key.location": str(tmp_path / "own.pem"),
        }
        (shown,) = AdminClient(tls).list_topics(timeout=20).brokers.values()
        assert f"{shown.host}:{shown.port}" == f"localhost:{address}"
        producer = Producer(tls | {"enable.idempotence": True})
        payload = os.urandom(200_000)
        for part in (b"a", payload):
            producer.produce("t", part)
        assert producer.flush(30) == 0
        consumer = Consumer(tls | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        read = [message.value() for _ in range(2) if (message := consumer.poll(30)) is not None]
        consumer.close()
        assert read == [b"a", payload]
