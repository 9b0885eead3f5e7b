"""SIGHUP "re-reads what can be re-read, never kills"; what systemd is told; a log of objects."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from tests.support.certificates import format_certificate, format_key, make_key_pair

from tallystick import Admin, errors
from tallystick.admin.configs import ConfigResource, ResourceType

pytestmark = [pytest.mark.server, pytest.mark.slow]

END = "SIGHUP: settings changed"
KEPT = "SIGHUP: the settings before stay in force"


def write_keys(path: Path, *, name: str = "broker") -> int:
    """Write a new key with its certificate; return the certificate's serial number."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    key, certificate = make_key_pair(subject=subject)
    path.write_text(format_key(key) + format_certificate(certificate))
    path.chmod(0o600)
    return certificate.serial_number


def fetch_serial(port: int) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


class Running:
    """A broker process with a settings file, its log in JSON, and a socket for what systemd is told."""

    def __init__(self, folder: Path, told: socket.socket, settings: Mapping[str, str]) -> None:
        self.folder, self._told = folder, told
        self.settings = {
            "log.dirs": str(folder / "data"),
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "ssl.keystore.location": str(folder / "keys.pem"),
            "ssl.reload.interval.ms": "86400000",
            "logging.format": "json",
            **settings,
        }
        self.write()
        environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
        command = [
            sys.executable,
            "-m",
            "tallystick.cli.main",
            "broker",
            "--config",
            str(folder / "broker.conf"),
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    def write(self, **settings: str) -> None:
        """Write the settings file, with further settings; `_` in their names is a dot."""
        given = self.settings | {name.replace("_", "."): text for name, text in settings.items()}
        (self.folder / "broker.conf").write_text("".join(f"{name}={text}\n" for name, text in given.items()))

    def read_until(self, *texts: str) -> list[dict[str, str]]:
        """Return the log up to a message that begins with one of the texts."""
        assert self.process.stderr is not None
        lines: list[dict[str, str]] = []
        for line in self.process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["message"].startswith(texts):
                return lines
        raise AssertionError(f"the log ended: {lines}")

    def hang_up(self) -> list[dict[str, str]]:
        """Send SIGHUP; return what was logged of it."""
        self.process.send_signal(signal.SIGHUP)
        return self.read_until(END, KEPT)

    def take_notice(self) -> list[str]:
        return self._told.recv(4096).decode().splitlines()


@contextmanager
def running(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Running]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(folder / "notify"))
        told.settimeout(30)
        broker = Running(folder, told, settings or {})
        try:
            yield broker
        finally:
            broker.process.kill()
            broker.process.communicate()


def find_ports(started: Mapping[str, str]) -> dict[str, int]:
    _, _, listed = started["message"].partition("listening on ")
    addresses = listed.partition(", data in")[0].split(", ")
    return {each.partition("://")[0]: int(each.rpartition(":")[2]) for each in addresses}


def list_messages(lines: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(line["level"], line["message"]) for line in lines]


def test_sighup_takes_new_keys_and_settings_keeps_the_old_for_bad_ones_and_never_kills(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys.pem"
    first = write_keys(keys)
    with running(tmp_path) as broker:
        ports = find_ports(broker.read_until("tallystick ")[-1])
        assert broker.take_notice()[0] == "READY=1"
        assert fetch_serial(ports["SSL"]) == first

        second = write_keys(keys)
        broker.write(log_retention_ms="7200000", logging_level="debug", num_network_threads="5", node_id="7")
        logged = list_messages(broker.hang_up())
        assert ("WARNING", "SIGHUP: changed, and in force after a restart: node.id") in logged
        assert logged[-1] == ("INFO", f"{END}: log.retention.ms, logging.level")
        assert fetch_serial(ports["SSL"]) == second
        with Admin({"bootstrap.servers": f"127.0.0.1:{ports['PLAINTEXT']}"}) as admin:
            broker_1 = ConfigResource(ResourceType.BROKER, "1")
            answers = admin.describe_configs([broker_1], ["log.retention.ms"])
            assert answers.one(broker_1)["log.retention.ms"].value == "7200000"
        notices = [broker.take_notice() for _ in range(2)]
        assert notices[0][0] == "RELOADING=1"
        assert notices[0][1].startswith("MONOTONIC_USEC=")
        assert notices[1] == ["READY=1"]

        write_keys(keys, name="another")
        broker.write(log_retention_ms="soon", log_retentoin_ms="1")
        logged = list_messages(broker.hang_up())
        bad_keys = next(text for level, text in logged if level == "ERROR")
        assert bad_keys.startswith("listener SSL: its changed keys are not used, those before are: ")
        level, text = logged[-1]
        assert level == "ERROR"
        assert "log.retention.ms: 'soon' is not long" in text
        assert "log.retentoin.ms" in text
        assert fetch_serial(ports["SSL"]) == second

        broker.write()
        assert broker.hang_up()[-1]["message"] == f"{END}: log.retention.ms, logging.level"
        broker.process.send_signal(signal.SIGTERM)
        broker.read_until("stopped")
        assert broker.process.wait(30) == 0


def test_sighup_compares_the_file_itself_and_refuses_one_that_no_start_would_take(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.pem")
    with running(tmp_path) as broker:
        broker.read_until("tallystick ")
        broker.write(logging_format="text")
        waiting = ("WARNING", "SIGHUP: changed, and in force after a restart: logging.format")
        assert waiting in list_messages(broker.hang_up())
        broker.write(log_dirs="")
        assert list_messages(broker.hang_up())[-1] == (
            "ERROR",
            f"{KEPT}: log.dirs: give --data-dir DIRECTORY",
        )


def test_sighup_takes_users_of_plain(tmp_path: Path) -> None:
    def format_users(**passwords: str) -> dict[str, str]:
        users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {"listener.name.plaintext.plain.sasl.jaas.config": f"{module} required {users};"}

    def log_in(user: str, password: str) -> None:
        login = {"sasl.username": user, "sasl.password": password}
        with Admin({**client, **login}) as admin:
            admin.list_topics()

    write_keys(tmp_path / "keys.pem")
    sasl = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,SSL:SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "connection.failed.authentication.delay.ms": "0",
    }
    (tmp_path / "broker.conf").touch(0o600)
    with running(tmp_path, sasl | format_users(ada="first")) as broker:
        ports = find_ports(broker.read_until("tallystick ")[-1])
        client = {
            "bootstrap.servers": f"127.0.0.1:{ports['PLAINTEXT']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
        }
        log_in("ada", "first")
        broker.settings |= format_users(ada="second", bob="third")
        broker.write()
        broker.hang_up()
        for user, password in (("ada", "second"), ("bob", "third")):
            log_in(user, password)
        with pytest.raises(errors.AuthenticationFailed):
            log_in("ada", "first")


def test_a_broker_without_a_settings_file_is_not_killed_either(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.pem")
    with running(tmp_path) as broker:
        broker.read_until("tallystick ")
        (tmp_path / "broker.conf").unlink()
        level, text = list_messages(broker.hang_up())[-1]
        assert (level, "broker.conf" in text) == ("ERROR", True)
        assert broker.process.poll() is None


def test_a_refused_start_is_an_object_too_and_systemd_is_not_told_of_one(tmp_path: Path) -> None:
    with running(tmp_path) as broker:  # without keys
        (line,) = broker.read_until("listener SSL: ")
        assert (line["level"], line["logger"]) == ("CRITICAL", "tallystick.broker")
        assert line["time"].endswith("Z")
        assert broker.process.wait(30) == 2
        broker._told.settimeout(0)
        with pytest.raises(BlockingIOError):
            broker.take_notice()
