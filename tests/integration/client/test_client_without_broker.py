"""What a client says of addresses where no broker is: early where it may help, at once where nothing can."""

import asyncio
import logging
import socket

import pytest

from tallystick.client.errors import BadAnswer, TimedOut
from tallystick.client.net import broker_connection
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import MetadataImage
from tallystick.client.settings.config import AdminConfig

HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
TLS_ALERT = bytes.fromhex("15030300020246")

pytestmark = pytest.mark.server


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


async def ask(servers: str, limit_ms: int = 60_000) -> MetadataImage:
    cluster = Cluster(AdminConfig.parse({"bootstrap.servers": servers, "reconnect.backoff.ms": 1}).client)
    try:
        deadline = cluster.start_deadline("default.api.timeout.ms", limit_ms)
        return await cluster.run_with_retries("Metadata", "", cluster.refresh, deadline)
    finally:
        await cluster.close()


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_address_that_refuses_is_reported_once(
    closed_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_connection, "_REPORT_AFTER_MS", 0)
    with pytest.raises(TimedOut):
        asyncio.run(ask(f"127.0.0.1:{closed_port}", limit_ms=1_000))
    (text,) = list_warnings(caplog)
    assert text.startswith(f"127.0.0.1:{closed_port}: ")
    assert "trying again" in text


def test_a_broker_that_is_back_within_a_second_is_not_reported(
    closed_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_connection, "_REPORT_AFTER_MS", 60_000)
    with pytest.raises(TimedOut):
        asyncio.run(ask(f"127.0.0.1:{closed_port}", limit_ms=1_000))
    assert list_warnings(caplog) == []


def test_a_server_that_says_nothing_is_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_connection, "_REPORT_SILENCE_AFTER_MS", 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimedOut):
            asyncio.run(ask(address, limit_ms=1_000))
    (text,) = list_warnings(caplog)
    assert text.startswith(f"{address} still has to ")
    assert "waiting until the call's limit is over" in text


class Stranger:
    """A server of another protocol, which says the same to everybody."""

    def __init__(self, greeting: bytes) -> None:
        self.greeting, self.greeted_count = greeting, 0

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.greeted_count += 1
        await reader.read(1)
        writer.write(self.greeting)
        await writer.drain()
        writer.close()

    async def is_asked(self, *others: str, limit_ms: int = 60_000) -> None:
        async with await asyncio.start_server(self.greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await ask(",".join((f"127.0.0.1:{port}", *others)), limit_ms)


@pytest.mark.parametrize(
    ("greeting", "name"), [(HTTP, "that is an HTTP server"), (TLS_ALERT, "that listener speaks TLS")]
)
def test_what_speaks_another_protocol_is_not_asked_again(greeting: bytes, name: str) -> None:
    stranger = Stranger(greeting)
    with pytest.raises(BadAnswer, match=name):
        asyncio.run(stranger.is_asked())
    assert stranger.greeted_count == 1


def test_one_address_of_another_protocol_is_no_reason_to_give_up_the_others(closed_port: int) -> None:
    stranger = Stranger(HTTP)
    with pytest.raises(TimedOut):
        asyncio.run(stranger.is_asked(f"127.0.0.1:{closed_port}", limit_ms=1_000))
    assert stranger.greeted_count
