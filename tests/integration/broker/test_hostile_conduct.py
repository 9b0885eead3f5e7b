"""Many clients leave at once, never read, or fill fetch sessions: what is counted of them is bounded [SRV-4].

The conducts of `make hostile` in small, on real sockets. Counted and not timed.
"""

import asyncio
import dataclasses
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, on_a_loop
from tools.hostile import Shape, make_attack, make_frame, make_produce, make_session_of_nothing

from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.dispatch import RequestDispatcher
from tallystick.broker.server.server import Server
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import MIB
from tallystick.protocol.apis import ApiKey

pytestmark = pytest.mark.server

CLIENTS = 12


class World:
    def __init__(self, memory: MemoryBroker, server: Server, port: int) -> None:
        self.memory, self.server, self.port = memory, server, port

    async def connect(self) -> socket.socket:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", self.port))
        return peer

    async def send(self, frame: bytes) -> socket.socket:
        peer = await self.connect()
        await asyncio.get_running_loop().sock_sendall(peer, frame)
        return peer

    async def receive(self, peer: socket.socket) -> int:
        """Read one answer and return its size."""
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = await loop.sock_recv(peer, 1 << 20)
            assert more, "the connection was closed"
            data += more
        return len(data)

    async def serve_another(self) -> None:
        peer = await self.send(make_produce())
        assert await self.receive(peer) > 0
        peer.close()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.002)


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    async with memory_broker(max_partitions="1000", **settings) as memory:
        broker = memory.broker
        await memory.make_topic("worked", 1)
        config = dataclasses.replace(broker.config, listeners="PLAINTEXT://127.0.0.1:0")
        server = Server(
            config,
            RequestDispatcher(broker, HANDLERS),
            lambda: INT32_MAX,
            memory=broker.request_memory,
            patience_s=0.05,
        )
        broker.unsent_bytes = lambda: server.unsent.total
        server.loss_listeners.append(broker.fetch_sessions.drop_connection)
        _, port = await server.start()
        try:
            yield World(memory, server, port)
        finally:
            await server.stop(0.0)


def make_large(api: ApiKey, entries: int) -> bytes:
    made = make_attack(HANDLERS[api].spec, Shape(deep=True, distinct=True), entries)
    return make_frame(made.spec, made.version, made.body, 7)


@pytest.mark.gate(1)
@pytest.mark.parametrize("api", [ApiKey.OFFSET_FETCH, ApiKey.DELETE_TOPICS, ApiKey.CONSUMER_GROUP_DESCRIBE])
@on_a_loop
async def test_of_clients_that_leave_at_once_nothing_stays(api: ApiKey) -> None:
    async with world() as hostile:
        made = make_attack(HANDLERS[api].spec, Shape(deep=False, distinct=True), 12_000)
        frame = make_frame(made.spec, made.version, made.body, 7)
        for _ in range(CLIENTS):
            (await hostile.send(frame)).close()
        await hostile.serve_another()
        account = hostile.memory.broker.request_memory
        await hostile.until(lambda: len(hostile.server._connections) == account.used_bytes == 0)
        assert not account.has_large_of("127.0.0.1")
        assert hostile.server.unsent.total == 0


@pytest.mark.gate(0)
@on_a_loop
async def test_answers_that_are_not_read_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    bound = MIB
    async with world(queued_max_response_bytes=str(bound)) as hostile:
        frame = make_large(ApiKey.DESCRIBE_QUORUM, 150_000)  # far more than the kernel takes
        probe = await hostile.send(frame)
        answer = await hostile.receive(probe)
        probe.close()
        assert answer > bound
        with caplog.at_level(logging.WARNING):
            peers = [await hostile.send(frame) for _ in range(4)]
            most = 0

            def sample() -> bool:
                nonlocal most
                most = max(most, hostile.server.unsent.total)
                return caplog.text.count("memory for answers is short") == len(peers)

            await hostile.until(sample)
        # One answer is begun while there is room, and there is room up to the bound.
        assert most <= bound + answer
        await hostile.serve_another()
        for peer in peers:
            peer.close()
        account = hostile.memory.broker.request_memory
        await hostile.until(lambda: len(hostile.server._connections) == account.used_bytes == 0)


@on_a_loop
async def test_sessions_of_partitions_that_do_not_exist_are_none() -> None:
    async with world() as hostile:
        _, frame = make_session_of_nothing(1_000)
        peers = [await hostile.send(frame) for _ in range(CLIENTS)]
        for peer in peers:
            assert await hostile.receive(peer) > 0
        assert len(hostile.memory.broker.fetch_sessions) == 0
        for peer in peers:
            peer.close()
