"""Listeners with SASL: what a stranger's socket gets, and librdkafka logging in."""

import asyncio
import gc
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.embedded import EmbeddedBroker
from tallystick.broker.server.server import Peer, ResponseBuffers, Server, ServerConnection
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import replace

pytestmark = pytest.mark.server

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="won der;=";'
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
}


class Names:
    """Answers every frame with the name of its sender."""

    def __init__(self) -> None:
        self.asked = 0
        self.server: Server | None = None

    def is_pipelined(self, frame: memoryview) -> bool:
        return False

    def is_cancellable(self, frame: memoryview) -> bool:
        return True

    def get_frame_bytes_max(self, api_key: int) -> int:
        return 1 << 20

    def dispatch(self, frame: memoryview, peer: Peer) -> ResponseBuffers | Awaitable[ResponseBuffers]:
        self.asked += 1
        text = str(peer.principal).encode()
        return [struct.pack(">i", len(text)), text]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, key: int, version: int, body: bytes = b"") -> None:
        frame = struct.pack(">hhih", key, version, 7, -1) + body
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    def send_handshake(self, mechanism: bytes = b"PLAIN") -> None:
        self.send(17, 1, struct.pack(">h", len(mechanism)) + mechanism)

    def send_token(self, token: bytes) -> None:
        self.send(36, 1, struct.pack(">i", len(token)) + token)

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


Play = Callable[[Callable[[], Awaitable[Client]], Names], Coroutine[Any, Any, None]]


def scene(
    play: Play,
    settings: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    base: Mapping[str, str] = SETTINGS,
) -> None:
    async def run() -> None:
        names = Names()
        server = Server(BrokerConfig.parse({**base, **(settings or {})}), names, lambda: INT32_MAX)
        _, port = await server.start()
        names.server = server
        clients: list[Client] = []

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context)))
            return clients[-1]

        try:
            async with asyncio.timeout(60):
                await play(connect, names)
        finally:
            for client in clients:
                client.writer.transport.abort()
            await server.stop(0.0)

    asyncio.run(run())


def test_a_login_gives_the_connection_its_name() -> None:
    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        client = await connect()
        client.send(18, 0)
        assert await client.answer() == b"User:ANONYMOUS"
        client.send_handshake()
        assert await client.answer() == struct.pack(">ihih", 7, 0, 1, 5) + b"PLAIN"
        client.send_token(b"\0alice\0won der;=")
        assert await client.answer() == struct.pack(">ihhiq", 7, 0, -1, 0, 0)
        client.send(3, 1)
        assert await client.answer() == b"User:alice"

    scene(play)


@pytest.mark.parametrize("key", [0, 1, 3, 22, 36, 50])
def test_a_stranger_is_closed_without_an_answer(key: int) -> None:
    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        client = await connect()
        client.send(key, 1)
        assert await client.is_closed()
        assert names.asked == 0

    scene(play)


def test_a_strangers_large_request_is_not_received(caplog: pytest.LogCaptureFixture) -> None:
    """CVE-2022-34917: a client that has not logged in makes the broker allocate nothing."""

    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        client = await connect()
        client.writer.write(struct.pack(">ihhi", 600_000, 36, 1, 7) + bytes(20_000))
        assert await client.is_closed()
        assert "sasl.server.max.receive.size is 524288" in caplog.text

    scene(play)


def test_a_failed_login_is_answered_late_and_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        client = await connect()
        client.send_handshake()
        await client.answer()
        sent_s = time.monotonic()
        client.send_token(b"\0alice\0geheim")
        client.send(3, 1)
        answer = await client.answer()
        assert time.monotonic() - sent_s >= 0.15
        assert struct.unpack_from(">ih", answer) == (7, 58)
        assert b"Invalid username or password" in answer
        assert await client.is_closed()
        assert names.asked == 0
        assert "login failed: Authentication failed: Invalid username or password" in caplog.text
        assert "geheim" not in caplog.text

    scene(play, {"connection.failed.authentication.delay.ms": "150"})


def test_logins_are_counted_as_kafka_counts_them() -> None:
    """A request in place of a login is a failure, too; a renewal has totals of its own (KIP-368)."""

    async def log_in(client: Client, token: bytes = b"\0alice\0won der;=", version: int = 1) -> None:
        client.send_handshake()
        await client.answer()
        client.send(36, version, struct.pack(">i", len(token)) + token)
        await client.answer()

    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        assert names.server is not None
        (counts,), (port,) = names.server.authentications.values(), names.server.ports
        assert port.logins is not None
        now_ms = 0
        port.logins = replace(port.logins, now_ms=lambda: now_ms)
        await log_in(await connect(), version=0)
        assert (counts.successful, counts.no_reauth) == (1, 1)
        client = await connect()
        await log_in(client)
        assert (counts.successful, counts.no_reauth, counts.failed) == (2, 1, 0)
        await log_in(await connect(), b"\0alice\0wrong")
        stranger = await connect()
        stranger.send(3, 1)
        assert await stranger.is_closed()
        assert counts.failed == 2
        now_ms = 5_000
        await log_in(client)
        assert (counts.successful, counts.successful_renewals) == (2, 1)
        idle = await connect()
        await log_in(idle)
        now_ms = 10_000
        await log_in(client, b"\0alice\0wrong")
        assert (counts.failed, counts.failed_renewals) == (2, 1)
        now_ms = 30_000
        idle.send(3, 1)
        assert await idle.is_closed()
        assert counts.expired == 1

    scene(play, {"connections.max.reauth.ms": "20000", "connection.failed.authentication.delay.ms": "0"})


def test_an_unknown_mechanism_is_told_which_there_are() -> None:
    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        client = await connect()
        client.send_handshake(b"GSSAPI")
        assert await client.answer() == struct.pack(">ihih", 7, 33, 1, 5) + b"PLAIN"
        assert await client.is_closed()

    scene(play)


def test_a_client_that_does_not_log_in_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        client = await connect()
        client.send_handshake()
        await client.answer()
        assert await client.is_closed()
        assert "did not log in within sasl.handshake.timeout.ms" in caplog.text

    scene(play, {"sasl.handshake.timeout.ms": "50"})


def test_logins_that_are_not_completed_keep_no_one_out(caplog: pytest.LogCaptureFixture) -> None:
    """[LGN-4] One more than sasl.logins.max ends the oldest of its address; a flood is one line a second."""

    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        idle = [await connect() for _ in range(12)]
        assert await idle[0].is_closed()
        client = await connect()
        client.send_handshake()
        await client.answer()
        client.send_token(b"\0alice\0won der;=")
        await client.answer()
        # A client that has logged in counts no longer.
        idle += [await connect() for _ in range(8)]
        client.send(3, 9)
        assert await client.answer() == b"User:alice"
        assert caplog.text.count("which is sasl.logins.max") == 1

    scene(play, {"sasl.logins.max": "4"})


@pytest.mark.gate(1)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_closed_connection_is_freed_at_once(tls: bool, tmp_path: Path) -> None:
    """[LGN-4] Left to the garbage collector, thousands would keep their buffers, over TLS 256 KiB each."""
    context: ssl.SSLContext | None = None
    base = dict(SETTINGS)
    if tls:
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        leaf = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
        (tmp_path / "key.pem").write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        context = ssl.create_default_context()
        authority.configure_trust(context)
        base = {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
            "ssl.keystore.location": str(tmp_path / "key.pem"),
        }

    def count() -> int:
        return sum(isinstance(each, ServerConnection) for each in gc.get_objects())

    async def until(expected: int) -> None:
        async with asyncio.timeout(30):
            while count() != expected:  # noqa: ASYNC110 (a freed object tells no one)
                await asyncio.sleep(0)

    async def play(connect: Callable[[], Awaitable[Client]], names: Names) -> None:
        gc.collect()
        gc.disable()
        try:
            idle = [await connect() for _ in range(8)]
            client = await connect()
            client.send_handshake()
            await client.answer()
            client.send_token(b"\0alice\0won der;=")
            await client.answer()
            assert [await each.is_closed() for each in idle] == [True] * 8
            await until(1)
            client.writer.transport.abort()
            await until(0)
        finally:
            gc.enable()

    scene(play, {"sasl.logins.max": "1"}, context, base)


@pytest.mark.gate(0)
def test_librdkafka_logs_in_with_and_without_tls(tmp_path: Path) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    leaf = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    (tmp_path / "key.pem").write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
    config = SETTINGS | {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "advertised.listeners": "SASL_SSL://localhost:0",
        "ssl.keystore.location": str(tmp_path / "key.pem"),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        # The session is renewed while this test goes on.
        "connections.max.reauth.ms": "2000",
    }
    with EmbeddedBroker(tmp_path / "data", config=config) as broker:
        ports = [part.rpartition(":")[2] for part in broker._config_texts["listeners"].split(",")]
        user = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "won der;="}
        plain: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{ports[0]}",
            "security.protocol": "SASL_PLAINTEXT",
        } | user
        tls: dict[str, Any] = {
            "bootstrap.servers": f"localhost:{ports[1]}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
        } | user
        producer = Producer(tls | {"transactional.id": "t"})
        producer.init_transactions(30)
        for number in range(5):
            producer.begin_transaction()
            producer.produce("t", b"%d" % number)
            producer.flush(30)
            # A renewal comes at 85 to 95 % of the two seconds.
            AdminClient(plain).list_topics(timeout=20)
            producer.poll(0.7)
            producer.commit_transaction(30)
        consumer = Consumer(plain | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        read = [message.value() for _ in range(5) if (message := consumer.poll(30)) is not None]
        consumer.close()
        assert read == [b"%d" % number for number in range(5)]
        errors: list[KafkaError] = []
        stranger = AdminClient(plain | {"sasl.password": "wrong", "error_cb": errors.append})
        with pytest.raises(Exception, match=r"_TRANSPORT|_ALL_BROKERS_DOWN|_AUTHENTICATION|_TIMED_OUT"):
            stranger.list_topics(timeout=3)
        stranger.poll(1)
        assert "Invalid username or password" in " ".join(map(str, errors))
