"""/metrics over a real socket: what is answered, and to whom nothing is owed."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.monitoring import list_families

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.metrics.http import CONNECTIONS_MAX, REQUEST_BYTES_MAX, MetricsServer
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.broker.serve import Service
from tallystick.cli.commands import broker
from tallystick.kernel.settings import BadConfig
from tallystick.metrics.families import broker as families_of_broker
from tallystick.metrics.model import MetricReading, make_gauge

pytestmark = pytest.mark.server

PATIENCE_S = 0.2


A, B, LABELLED = make_gauge("a", "A."), make_gauge("b", "B."), make_gauge("c", "C.", ("n",))
PAGE = (
    b"# HELP tallystick_a A.\n# TYPE tallystick_a gauge\ntallystick_a 1.0\n"
    b"# HELP tallystick_b B.\n# TYPE tallystick_b gauge\ntallystick_b 2.0\n"
)


class World:
    """A server whose metrics a test may choose."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.readings: list[MetricReading | None] = [(A, [((), 1)]), None, (B, [((), 2)])]
        self.made = 0
        self.port = 0
        self.fails = False
        config = BrokerConfig.parse({"metrics.listener": "127.0.0.1:0", **settings})
        listen = config.make_metrics_listener()
        assert listen is not None
        self.server = MetricsServer(listen, self.read, PATIENCE_S)

    def read(self) -> Iterator[MetricReading | None]:
        self.made += 1
        yield from self.readings
        if self.fails:
            raise RuntimeError("a gauge is broken")

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.002)

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer; the connection must then be closed."""
        async with self.connected() as (reader, writer):
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert status.startswith("HTTP/1.1 ")
        assert int(headers["Content-Length"]) == len(body)
        assert headers["Connection"] == "close"
        return int(status.split()[1]), headers, body


def scene(
    play: Callable[[World], Coroutine[Any, Any, None]], settings: Mapping[str, str] = MappingProxyType({})
) -> None:
    async def run() -> None:
        world = World(settings)
        world.port = (await world.server.start()).port
        try:
            async with asyncio.timeout(30):
                await play(world)
        finally:
            await world.server.stop()

    asyncio.run(run())


def test_a_scrape() -> None:
    async def play(world: World) -> None:
        status, headers, body = await world.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, body) == (200, PAGE)
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert (await world.ask(b"GET /metrics?name=a HTTP/1.0\r\n\r\n"))[0] == 200

    scene(play)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /metrics/ HTTP/1.1", 404),
        (b"POST /other HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"HEAD /metrics HTTP/1.1", 405),
        (b"GET /metrics", 400),
        (b"GET /metrics HTTP/2", 400),
        (b"\x00\x00\x00\x10\xff\xff", 400),
    ],
)
def test_anything_else_is_refused_and_costs_no_scrape(request_line: bytes, status: int) -> None:
    async def play(world: World) -> None:
        answered, headers, _ = await world.ask(request_line + b"\r\n\r\n")
        assert answered == status
        assert (headers.get("Allow") == "GET") is (status == 405)
        assert world.made == 0

    scene(play)


def test_a_request_is_bounded_in_size_and_in_time() -> None:
    async def play(world: World) -> None:
        head = b"GET /metrics HTTP/1.1\r\n"
        assert (await world.ask(head + b"x" * 2 * REQUEST_BYTES_MAX))[0] == 431
        assert (await world.ask(head))[0] == 408
        async with world.connected() as (reader, writer):
            writer.write_eof()
            assert await reader.read() == b""
        assert world.made == 0

    scene(play)


def test_who_does_not_read_is_cut_off() -> None:
    async def play(world: World) -> None:
        # More than the kernel holds for both ends.
        world.readings = [(LABELLED, [((str(n) + "x" * 2**20,), n) for n in range(32)])]
        async with world.connected() as (reader, writer):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            await world.until(lambda: world.made and not world.server._connection_tasks)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await reader.read()) < 2**25

    scene(play)


def test_connections_are_counted() -> None:
    async def play(world: World) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS_MAX):
                await stack.enter_async_context(world.connected())
            await world.until(lambda: len(world.server._connection_tasks) == CONNECTIONS_MAX)
            reader, writer = await stack.enter_async_context(world.connected())
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert world.made == 0

    scene(play)


def test_scrapes_are_made_one_at_a_time_and_let_others_run() -> None:
    async def play(world: World) -> None:
        world.readings = [None] * 48 + [(A, [((), 1)]), (B, [((), 2)])]
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        request = b"GET /metrics HTTP/1.1\r\n\r\n"
        answers = await asyncio.gather(*(world.ask(request) for _ in range(3)))
        other.cancel()
        assert [body for _, _, body in answers] == [PAGE] * 3
        assert turns >= 150

    scene(play)


def test_a_broken_gauge_is_an_answer_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def play(world: World) -> None:
        world.fails = True
        with caplog.at_level(logging.ERROR):
            assert (await world.ask(b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 500
        assert "a gauge is broken" in caplog.text

    scene(play)


@pytest.mark.parametrize("text", ["9090", "host", "host:x", "::1:9090", "host:70000"])
def test_a_listener_that_is_none_stops_the_start(text: str) -> None:
    with pytest.raises(BadConfig, match=r"metrics\.listener"):
        BrokerConfig.parse({"metrics.listener": text})
    listen = BrokerConfig.parse({"metrics.listener": "[::1]:9090"}).make_metrics_listener()
    assert listen is not None
    assert listen.listener.endpoint == Endpoint("::1", 9090)
    assert BrokerConfig.parse({"metrics.listener": ""}).make_metrics_listener() is None


def test_without_the_library_a_broker_with_the_listener_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "prometheus_client.exposition", raising=False)
    data = ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    assert broker.main([*data, "-o", "metrics.listener=127.0.0.1:0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tallystick broker: metrics.listener: prometheus_client")
    assert "[metrics]'" in error
    assert not list((tmp_path / "data").iterdir())


def test_a_broker_serves_every_gauge_of_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        given = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "metrics.listener": "127.0.0.1:0",
            "log.reserve.bytes": "0",
        }
        service = Service(BrokerConfig.parse(given))
        await service.start()
        try:
            await service.broker.topic_controller.create(TopicSpec("t", 3))
            address = service.metrics_address
            assert address is not None
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = (await reader.read()).decode().partition("\r\n\r\n")[2]
            writer.close()
            await writer.wait_closed()
        finally:
            await service.stop()
        shown = {family.name for family in text_string_to_metric_families(text)}
        assert shown == {family.name.removesuffix("_total") for family in list_families(families_of_broker)}
        assert "kafka_server_replicamanager_partitioncount 3.0\n" in text
        assert 'kafka_cluster_partition_laststableoffsetlag{partition="2",topic="t"} 0.0\n' in text

    asyncio.run(run())
