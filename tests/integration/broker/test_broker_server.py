"""Connections on real sockets: order, limits, and peers that misbehave. A toy answers."""

import asyncio
import gc
import logging
import socket
import struct
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.server.request_memory import INITIAL_BUFFER_BYTES
from tallystick.broker.server.server import (
    CloseConnection,
    Peer,
    ResponseBuffers,
    Server,
)
from tallystick.kernel.ids import INT32_MAX

pytestmark = pytest.mark.server

# The toy's requests: first byte says what to do, the rest is echoed.
NOW, LATER, LATER_ALONE, EXCLUSIVE, CLOSE, FAIL, LARGE, SILENT, NESTED = b"NLAECFGST"
SMALL_ONLY, SMALL_BYTES = ord("M"), 50_000
LARGE_BYTES = 8 * 1024 * 1024


class Toy:
    """Answers by the first byte; what is LATER waits until `release` is called, last come first served."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.waiting: list[tuple[bytes, asyncio.Future[ResponseBuffers]]] = []

    def is_pipelined(self, frame: memoryview) -> bool:
        return frame[0] in (NOW, LATER, SILENT)

    def get_frame_bytes_max(self, api_key: int) -> int:
        return SMALL_BYTES if api_key >> 8 == SMALL_ONLY else 1 << 30

    def is_cancellable(self, frame: memoryview) -> bool:
        return frame[0] in (LATER_ALONE, NESTED)

    def dispatch(self, frame: memoryview, peer: Peer) -> ResponseBuffers | Awaitable[ResponseBuffers]:
        body = bytes(frame)
        self.started.append(body)
        match body[0]:
            case 78:
                return framed(body)
            case 76 | 65 | 69:
                future: asyncio.Future[ResponseBuffers] = asyncio.get_running_loop().create_future()
                self.waiting.append((body, future))
                return future
            case 71:
                return framed(b"x" * LARGE_BYTES)
            case 83:
                return None
            case 84:
                return wait_for(wait_for(asyncio.Event().wait()))
            case 67:
                raise CloseConnection("the toy says so")
            case _:
                raise CloseConnection("not a toy's request")

    def release(self) -> None:
        waiting, self.waiting = self.waiting, []
        for body, future in reversed(waiting):
            if not future.done():
                future.set_result(framed(body))


async def wait_for(what: Awaitable[Any]) -> Any:
    return await what


def framed(body: bytes) -> list[bytes | bytearray | memoryview]:
    return [struct.pack(">i", len(body)), body]


def request(kind: int, rest: bytes = b"") -> bytes:
    return struct.pack(">i", 1 + len(rest)) + bytes([kind]) + rest


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def end(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


class World:
    def __init__(self, toy: Toy, server: Server, port: int) -> None:
        self.toy, self.server, self.port = toy, server, port
        self.lost: list[int] = []
        server.loss_listeners.append(self.lost.append)

    async def client(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.002)


def scene(
    play: Callable[[World], Coroutine[Any, Any, None]],
    settings: Mapping[str, str] | None = None,
    connections_max: int = INT32_MAX,
) -> None:
    """Run `play` with a server that is stopped afterwards."""

    async def run() -> None:
        config = BrokerConfig.parse({"listeners": "PLAINTEXT://127.0.0.1:0", **(settings or {})})
        toy = Toy()
        server = Server(config, toy, lambda: connections_max, patience_s=0.05)
        _, port = await server.start()
        try:
            async with asyncio.timeout(60):
                await play(World(toy, server, port))
        finally:
            await server.stop(0.0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def test_answers_leave_in_the_order_of_the_requests() -> None:
    """[SRV-1]"""

    async def play(world: World) -> None:
        client = await world.client()
        for index in range(20):
            client.send(request(LATER if index % 3 else NOW, b"%d" % index))
        await world.until(lambda: len(world.toy.started) == 20)
        world.toy.release()
        assert [await client.answer() for _ in range(20)] == [
            (b"L" if index % 3 else b"N") + b"%d" % index for index in range(20)
        ]
        await client.end()

    scene(play)


def test_only_pipelined_requests_are_started_behind_unanswered_ones() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        client.send(request(LATER, b"1") + request(LATER_ALONE, b"2") + request(NOW, b"3"))
        await world.until(lambda: world.toy.waiting)
        assert world.toy.started == [b"L1"]
        world.toy.release()
        assert await client.answer() == b"L1"
        await world.until(lambda: world.toy.waiting)
        assert world.toy.started == [b"L1", b"A2"]
        world.toy.release()
        assert [await client.answer(), await client.answer()] == [b"A2", b"N3"]
        await client.end()

    scene(play)


def test_a_request_without_an_answer_leaves_no_gap() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        client.send(request(LATER, b"1") + request(SILENT) + request(NOW, b"2"))
        await world.until(lambda: len(world.toy.started) == 3)
        world.toy.release()
        assert [await client.answer(), await client.answer()] == [b"L1", b"N2"]
        await client.end()

    scene(play)


@pytest.mark.parametrize("size", [1, 16 * 1024 - 5, 16 * 1024 - 4, 16 * 1024, 100_000, 5_000_000])
def test_frames_of_every_size_come_through_whole(size: int) -> None:
    async def play(world: World) -> None:
        client = await world.client()
        body = bytes(range(256)) * (size // 256 + 1)
        client.send(request(NOW, body[:size]) + request(NOW, b"after"))
        assert await client.answer() == b"N" + body[:size]
        assert await client.answer() == b"Nafter"
        await client.end()

    scene(play)


def test_a_frame_may_come_byte_by_byte() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        for byte in request(NOW, b"slow") + request(NOW, b"er"):
            client.send(bytes([byte]))
            await client.writer.drain()
            await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0)
        assert [await client.answer(), await client.answer()] == [b"Nslow", b"Ner"]
        await client.end()

    scene(play)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack(">i", 2**31 - 1), "a request has 2147483647 bytes"),
        (struct.pack(">i", -1), "a request has -1 bytes"),
        (struct.pack(">i", 0), "a request has 0 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "a request has 1195725856 bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "a request has 369295618 bytes"),
        (request(CLOSE), "the toy says so"),
    ],
)
def test_bad_frames_close_the_connection_and_name_the_peer(
    data: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(world: World) -> None:
        bystander = await world.client()
        client = await world.client()
        port = client.writer.get_extra_info("sockname")[1]
        client.send(data)
        assert await client.closed()
        (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert line.startswith(f"127.0.0.1:{port}#")
        assert says in line
        bystander.send(request(NOW, b"still here"))
        assert await bystander.answer() == b"Nstill here"
        await bystander.end()
        await client.end()

    with caplog.at_level(logging.WARNING):
        scene(play)


def test_what_was_asked_before_a_bad_frame_is_still_answered() -> None:
    """[SRV-1] Kafka reads a bad request only after the answers before it have left."""

    async def play(world: World) -> None:
        client = await world.client()
        client.send(request(NOW, b"1") + request(LATER, b"2") + request(CLOSE) + request(NOW, b"never"))
        await world.until(lambda: world.toy.waiting)
        assert await client.answer() == b"N1"
        world.toy.release()
        assert await client.answer() == b"L2"
        assert await client.closed()
        assert b"Nnever" not in world.toy.started
        await client.end()

    scene(play)


def test_who_broke_the_protocol_and_takes_no_answer_is_cut() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        client.send(request(LARGE) + request(CLOSE))
        await world.until(lambda: world.server.unsent.total > 0)
        await world.until(lambda: len(world.server._connections) == 0)
        assert world.server.unsent.total == 0
        await client.end()

    scene(play, {"connections.max.idle.ms": "200"})


def test_a_client_that_stops_reading_is_not_served_further() -> None:
    """[SRV-2] What it asked for is not even begun, and the others do not notice."""

    async def play(world: World) -> None:
        deaf, client = await world.client(), await world.client()
        for _ in range(100):
            deaf.send(request(LARGE))
        await world.until(lambda: world.server.unsent.total > 0)
        client.send(request(NOW, b"1"))
        assert await client.answer() == b"N1"
        begun = len([body for body in world.toy.started if body[0] == LARGE])
        assert begun <= 2
        assert world.server.unsent.total <= 2 * (LARGE_BYTES + 4)
        for _ in range(3):
            assert len(await deaf.answer()) == LARGE_BYTES
        await client.end()
        await deaf.end()

    scene(play)


@pytest.mark.parametrize("part", [b"", b"\x00\x00", request(NOW, b"whole")[:-1]])
def test_who_completes_no_request_is_closed(part: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def play(world: World) -> None:
        client = await world.client()
        client.send(part)
        assert await client.closed()
        assert "connections.max.idle.ms" in caplog.text
        await client.end()

    with caplog.at_level(logging.WARNING):
        scene(play, {"connections.max.idle.ms": "100"})


def test_a_waiting_request_is_not_idle() -> None:
    async def play(world: World) -> None:
        idler, waiter = await world.client(), await world.client()
        waiter.send(request(LATER_ALONE))
        await world.until(lambda: world.toy.waiting)
        assert await idler.closed()
        world.toy.release()
        assert await waiter.answer() == b"A"
        await idler.end()
        await waiter.end()

    scene(play, {"connections.max.idle.ms": "200"})


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("max.connections", "2"),
        ("max.connections.per.ip", "2"),
        ("max.connections.per.ip.overrides", "localhost:2"),
        ("listener.name.plaintext.max.connections", "2"),
    ],
)
def test_one_connection_too_many_is_refused_and_room_is_given_back(limit: str, text: str) -> None:
    async def play(world: World) -> None:
        first, second, third = [await world.client() for _ in range(3)]
        assert await third.closed()
        first.send(request(NOW, b"1"))
        assert await first.answer() == b"N1"
        await second.end()
        await world.until(lambda: len(world.server._connections) == 1)
        fourth = await world.client()
        fourth.send(request(NOW, b"4"))
        assert await fourth.answer() == b"N4"
        for client in (first, third, fourth):
            await client.end()

    scene(play, {limit: text})


def test_connections_beyond_what_descriptors_allow_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever max.connections says: the broker must be able to open its own files."""

    async def play(world: World) -> None:
        first, second, third = [await world.client() for _ in range(3)]
        assert await third.closed()
        assert "leaves 2 connections" in caplog.text
        for client in (first, second, third):
            await client.end()

    with caplog.at_level(logging.WARNING):
        scene(play, connections_max=2)


def test_a_thousand_connections_are_served() -> None:
    async def play(world: World) -> None:
        clients = await asyncio.gather(*(world.client() for _ in range(1000)))
        for index, client in enumerate(clients):
            client.send(request(NOW, b"%d" % index))
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert answers == [b"N%d" % index for index in range(1000)]
        await asyncio.gather(*(client.end() for client in clients))
        await world.until(lambda: len(world.server._connections) == 0)

    scene(play)


def test_requests_larger_than_all_memory_for_them_take_turns() -> None:
    async def play(world: World) -> None:
        clients = [await world.client() for _ in range(8)]
        body = b"x" * (900 * 1024)
        for client in clients:
            client.send(request(NOW, body))
        for client in clients:
            assert len(await client.answer()) == len(body) + 1
            await client.end()

    scene(play, {"queued.max.request.bytes": "1048576", "socket.request.max.bytes": "1048576"})


def promise(size: int) -> bytes:
    """The beginning of a large request, of which nothing more comes."""
    return struct.pack(">i", size) + b"NN"


def test_promises_take_no_memory() -> None:
    async def play(world: World) -> None:
        liars = [await world.client() for _ in range(100)]
        for liar in liars:
            liar.send(promise(100_000_000))
        await world.until(lambda: world.server.memory.used_bytes >= len(liars))
        assert world.server.memory.used_bytes <= len(liars) * INITIAL_BUFFER_BYTES
        honest = await world.client()
        honest.send(request(NOW, b"x" * 1_000_000))
        assert len(await honest.answer()) == 1_000_001
        for client in (*liars, honest):
            await client.end()
        await world.until(lambda: world.server.memory.used_bytes == 0)

    scene(play)


def test_while_memory_is_short_who_does_not_send_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """The largest promise first; who goes on sending is served."""

    async def play(world: World) -> None:
        liars = [await world.client() for _ in range(40)]
        for liar in liars:
            liar.send(promise(1_000_000))
        await world.until(lambda: world.server.memory.is_short)
        honest = await world.client()
        honest.send(request(NOW, b"x" * 900_000))
        assert len(await honest.answer()) == 900_001
        assert "memory for requests is short" in caplog.text
        for client in (*liars, honest):
            await client.end()
        await world.until(lambda: world.server.memory.used_bytes == 0)

    with caplog.at_level(logging.WARNING):
        scene(play, {"queued.max.request.bytes": "1048576", "socket.request.max.bytes": "1048576"})


def test_a_request_larger_than_its_api_can_mean_is_not_received(caplog: pytest.LogCaptureFixture) -> None:
    async def play(world: World) -> None:
        client = await world.client()
        client.send(struct.pack(">i", SMALL_BYTES + 1) + b"M" * 20_000)
        assert await client.closed()
        assert world.server.memory.used_bytes == 0
        assert f"may have at most {SMALL_BYTES}" in caplog.text
        await client.end()

    with caplog.at_level(logging.WARNING):
        scene(play)


def test_what_a_lost_connection_waited_for_is_dropped_if_it_may_be() -> None:
    async def play(world: World) -> None:
        client, other = await world.client(), await world.client()
        client.send(request(LATER_ALONE))
        other.send(request(LATER))
        await world.until(lambda: len(world.toy.waiting) == 2)
        await client.end()
        await other.end()
        await world.until(lambda: len(world.lost) == 2)
        by_kind = dict(world.toy.waiting)
        assert by_kind[b"A"].cancelled()
        assert not by_kind[b"L"].done()
        # A client that comes and leaves is one connection for as long as it has work done.
        await world.until(lambda: len(world.server._connections) == 1)
        world.toy.release()
        await world.until(lambda: len(world.server._connections) == 0)

    scene(play)


def test_what_is_dropped_before_it_could_begin_is_no_coroutine_that_was_never_awaited() -> None:
    """A write that fails closes the connection after the next request has been taken."""

    async def play(world: World) -> None:
        client = await world.client()
        client.send(request(LATER) + request(NESTED))
        await world.until(lambda: world.toy.waiting)
        (connection,) = world.server._connections.values()
        world.toy.release()
        connection._transport.abort()
        await world.until(lambda: not world.server._connections)
        assert world.toy.started == [b"L", b"T"]
        await client.end()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", RuntimeWarning)
        scene(play)
        gc.collect()
    assert [str(each.message) for each in seen] == []


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_what_a_client_sent_before_it_closed_is_carried_out(reset: bool) -> None:
    """As Kafka's Selector does: a LeaveGroup behind a heartbeat that is being answered is not lost."""

    async def play(world: World) -> None:
        client = await world.client()
        behind = request(LATER_ALONE, b"2") + request(EXCLUSIVE, b"3") + request(NOW, b"4")
        client.send(request(EXCLUSIVE, b"1") + behind + request(NOW, b"cut")[:-1])
        await world.until(lambda: world.toy.waiting)
        if reset:
            client.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            client.writer.transport.abort()
        else:
            await client.end()
        await world.until(lambda: world.lost)
        assert world.toy.started == [b"E1"]
        world.toy.release()
        await world.until(lambda: world.toy.started == [b"E1", b"E3"])
        world.toy.release()
        await world.until(lambda: world.toy.started == [b"E1", b"E3", b"N4"])

    scene(play)


def test_stopping_answers_what_was_asked_and_takes_nothing_new() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        client.send(request(LATER, b"1"))
        await world.until(lambda: world.toy.waiting)
        stopping = asyncio.ensure_future(world.server.stop(10))
        await world.until(lambda: not world.server.is_listening)
        with pytest.raises(OSError):
            await world.client()
        world.toy.release()
        await stopping
        assert await client.answer() == b"L1"
        assert await client.closed()
        await client.end()

    scene(play)


@pytest.mark.parametrize("ends_in_time", [True, False])
def test_a_stop_waits_for_the_change_of_a_client_that_is_gone_and_then_cancels_it(ends_in_time: bool) -> None:
    async def play(world: World) -> None:
        client = await world.client()
        client.send(request(EXCLUSIVE, b"change") + request(EXCLUSIVE, b"behind"))
        await world.until(lambda: world.toy.waiting)
        await client.end()
        await world.until(lambda: world.lost)
        ((_, change),) = world.toy.waiting
        stopping = asyncio.ensure_future(world.server.stop(20 if ends_in_time else 0))
        if ends_in_time:
            await world.until(lambda: change.done() or not stopping.done())
            assert not stopping.done()
            world.toy.release()
            await world.until(lambda: world.toy.waiting)
            world.toy.release()
        await stopping
        assert change.cancelled() is not ends_in_time
        assert len(world.toy.started) == (2 if ends_in_time else 1)

    scene(play)
