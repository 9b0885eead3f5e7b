"""The health check of containers: a broker that answers, and everything that does not."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import format_certificate, format_key, make_key_pair

from tallystick.broker import ping
from tallystick.broker.config.endpoint import Endpoint
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ping", *words])
    return ping.main()


@pytest.mark.parametrize(("protocol", "options"), [("PLAINTEXT", ()), ("SSL", ("--tls",))])
def test_a_broker_answers_with_and_without_tls(
    protocol: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key, certificate = make_key_pair()
    (tmp_path / "keys.pem").write_text(format_key(key) + format_certificate(certificate))
    (tmp_path / "keys.pem").chmod(0o600)
    config = {
        "listeners": f"{protocol}://127.0.0.1:0",
        "ssl.keystore.location": str(tmp_path / "keys.pem"),
    }
    with EmbeddedBroker(in_process=True, config=config) as broker:
        assert run_main(monkeypatch, broker.bootstrap_servers, *options) == 0


def test_a_process_that_is_stuck_does_not_although_its_port_is_open(listening: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        ping.ping(Endpoint(*listening.getsockname()), has_tls=False, timeout_s=0.05)


def test_a_port_without_a_broker_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listening: socket.socket
) -> None:
    address = str(Endpoint(*listening.getsockname()))
    listening.close()
    assert run_main(monkeypatch, address) == 1
    assert capsys.readouterr().err == f"{address}: no broker answers: [Errno 111] Connection refused\n"
