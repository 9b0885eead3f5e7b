"""`tallystick console --allow-actions` as a process: its address, its audit log, its end."""

import json
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.certificates import format_certificate, format_key, make_key_pair
from tests.support.console_operator import read_form

from tallystick import Producer
from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.cli.main import main
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server]

NAME = "orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True, config={"flush.policy": "os"}) as running:
        with Admin({"bootstrap.servers": running.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(name=NAME, partitions=1)])
        yield running


@dataclass
class Running:
    """A console: its address, and after its end what it has written since it was announced."""

    address: str
    process: subprocess.Popen[str]
    log: str = ""


@contextmanager
def run_console(broker: EmbeddedBroker, *options: str) -> Iterator[Running]:
    """Run a console until the block ends; then press Ctrl-C."""
    program = Path(sys.executable).with_name("tallystick")
    words = ["console", "--bootstrap-server", broker.bootstrap_servers, "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen([program, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            announced = re.search(r"The console is at (\S+)/", line)
            assert announced is not None, line
            running = Running(announced[1], process)
            yield running
        finally:
            process.send_signal(signal.SIGINT)
            _, text = process.communicate(timeout=60)
    running.log = text
    assert process.returncode == 0, text


def test_an_action_over_http_by_a_console_that_was_told_to(broker: EmbeddedBroker, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    with Producer({**servers, "transactional.id": NAME}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(NAME, b"v")
        producer.flush()
        with (
            run_console(broker, "--allow-actions", "--audit-log", str(audit)) as console,
            httpx.Client(base_url=console.address, timeout=60) as client,
        ):
            form = read_form(client.get(f"/actions/force-terminate/{NAME}").text)
            headers = {"origin": console.address, "sec-fetch-site": "same-origin"}
            fields = {**form.fields, "confirmation": NAME}
            foreign = {"origin": "https://evil.example"}
            assert client.post(form.action, data=fields, headers=foreign).status_code == 403
            answer = client.post(form.action, data=fields, headers=headers)
            assert answer.status_code == 200, read_form(answer.text).text
        with Admin(servers) as admin:
            assert admin.describe_transactions([NAME]).one(NAME).state == "CompleteAbort"
    lines = audit.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["intent", "result"]
    assert all(line in console.log for line in lines)


def test_a_console_that_was_not_told_to_has_no_such_address(broker: EmbeddedBroker) -> None:
    with (
        run_console(broker) as console,
        httpx.Client(base_url=console.address, timeout=60) as client,
    ):
        assert client.get(f"/actions/force-terminate/{NAME}").status_code == 404
        assert client.post(f"/run/force-terminate/{NAME}").status_code == 404


@pytest.mark.slow
def test_sighup_takes_a_new_certificate_keeps_the_old_for_a_bad_one_and_kills_nothing(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    pem = tmp_path / "console.pem"

    def write_certificate() -> bytes:
        key, certificate = make_key_pair()
        pem.write_text(format_key(key) + format_certificate(certificate))
        return certificate.public_bytes(Encoding.DER)

    def show_certificate(address: str) -> bytes:
        host, _, port = address.removeprefix("https://").rpartition(":")
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))

    first = write_certificate()
    with run_console(broker, "--certificate", str(pem)) as console:
        assert show_certificate(console.address) == first
        second = write_certificate()
        console.process.send_signal(signal.SIGHUP)
        eventually(lambda: show_certificate(console.address) == second)
        pem.write_text("no certificate")
        console.process.send_signal(signal.SIGHUP)
        assert console.process.stderr is not None
        line = console.process.stderr.readline()
        assert line.startswith(f"SIGHUP: the certificate before stays in use: {pem}: ")
        assert show_certificate(console.address) == second


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--audit-log", "audit.jsonl"), "--audit-log: needs --allow-actions"),
        (("--allow-actions", "--audit-log", "none/audit.jsonl"), "--audit-log: "),
        (("--allow-actions", "--listen", "0.0.0.0:0"), "--token-file"),
    ],
)
def test_what_does_not_go_together_is_said_at_the_start(
    options: tuple[str, ...],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["console", "--bootstrap-server", "127.0.0.1:1", *options]) == 2
    assert problem in capsys.readouterr().err
