"""Answers over TLS that are not read: counted, bounded, and awaited by a stop, as without TLS [SRV-2]."""

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import format_certificate, format_key, make_key_pair

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.server.server import Peer, ResponseBuffers, Server

pytestmark = pytest.mark.server

ANSWER_BYTES = 16 * 1024 * 1024
ASK = struct.pack(">i", 1) + b"?"
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


class Toy:
    """Answers each request with much."""

    def __init__(self) -> None:
        self.answers = 0

    def is_pipelined(self, frame: memoryview) -> bool:
        return False

    def is_cancellable(self, frame: memoryview) -> bool:
        return True

    def get_frame_bytes_max(self, api_key: int) -> int:
        return 1 << 20

    def dispatch(self, frame: memoryview, peer: Peer) -> ResponseBuffers | Awaitable[ResponseBuffers]:
        self.answers += 1
        return [struct.pack(">i", ANSWER_BYTES), bytes(ANSWER_BYTES)]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.002)


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection(*server.ports[0].address, ssl=context)


def run(
    play: Callable[[Toy, Server], Awaitable[Any]],
    folder: Path,
    loop: str,
    **settings: str,
) -> None:
    key, certificate = make_key_pair()
    (folder / "keys.pem").write_text(format_key(key) + format_certificate(certificate))
    (folder / "keys.pem").chmod(0o600)
    config = BrokerConfig.parse(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(folder / "keys.pem"),
            **{name.replace("_", "."): text for name, text in settings.items()},
        }
    )

    async def serve() -> None:
        toy = Toy()
        server = Server(config, toy, lambda: 100, patience_s=0.2)
        await server.start()
        try:
            async with asyncio.timeout(60):
                await play(toy, server)
        finally:
            await server.stop(0.0)

    with asyncio.Runner(loop_factory=pytest.importorskip(loop).new_event_loop) as runner:
        runner.run(serve())


@LOOPS
def test_answers_that_wait_behind_the_cipher_count_and_their_connections_are_closed(
    loop: str, tmp_path: Path
) -> None:
    async def play(toy: Toy, server: Server) -> None:
        clients = [await connect(server) for _ in range(4)]
        try:
            for _, writer in clients:
                writer.write(ASK)
            await until(lambda: toy.answers == len(clients))
            assert server.unsent.total == len(clients) * (4 + ANSWER_BYTES)
            await until(lambda: server.unsent.total <= 2 * ANSWER_BYTES)
            assert len(server._connections) == 1
        finally:
            for _, writer in clients:
                writer.transport.abort()

    run(play, tmp_path, loop, queued_max_response_bytes=str(2 * ANSWER_BYTES))


@LOOPS
def test_a_stop_waits_for_a_reader_that_has_begun_its_answer(loop: str, tmp_path: Path) -> None:
    async def play(toy: Toy, server: Server) -> None:
        reader, writer = await connect(server)
        writer.write(ASK)
        await reader.readexactly(4)
        stopping = asyncio.ensure_future(server.stop(30.0))
        await until(lambda: not server.is_listening)
        await asyncio.wait([stopping], timeout=0.1)
        assert not stopping.done()
        await reader.readexactly(ANSWER_BYTES)
        assert await reader.read(1) == b""
        writer.close()
        await stopping

    run(play, tmp_path, loop)
