"""`tallystick doctor` on a running broker: what it tells, and that it disturbs no application."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from tools.servers.broker_process import find_free_port

from tallystick.cli.main import main
from tallystick.client.blocking.producer import Producer
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
SUBJECTS = ("--transactional-id", "pay-1", "--topic", "orders", "--group", "g")


@dataclass
class Secured:
    """A broker with a listener for alice, and one for an administrator."""

    folder: Path
    plain: str
    secure: str

    def write_config(self, **changes: str) -> str:
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "secret",
            "ssl.ca.location": str(self.folder / "ca.pem"),
        } | {name.replace("_", "."): value for name, value in changes.items()}
        path = self.folder / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return str(path)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("doctor")
    authority = trustme.CA()
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
    (folder / "stranger.pem").write_bytes(trustme.CA().cert_pem.bytes())
    (folder / "key.pem").write_bytes(authority.issue_cert("localhost").private_key_and_cert_chain_pem.bytes())
    plain, secure = find_free_port(), find_free_port()
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://localhost:{secure}",
        "ssl.keystore.location": str(folder / "key.pem"),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(folder / "data", config=config):
        made = Secured(folder, f"127.0.0.1:{plain}", f"localhost:{secure}")
        assert main(["topics", "create", "--topic", "orders", "--bootstrap-server", made.plain]) == 0
        yield made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    capsys.readouterr()
    code = main(["doctor", *words, "--output", "json"])
    return code, {row["check"]: row for row in json.loads(capsys.readouterr().out)}


def test_every_missing_right_is_found_and_granted_by_its_command(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--bootstrap-server", secured.secure, "--command-config", secured.write_config(), *SUBJECTS)
    code, rows = run(capsys, *words)
    assert code == 1
    assert rows["TLS"]["detail"].startswith("TLSv1.3, localhost, ")
    assert rows["login"]["detail"] == "PLAIN as User:alice"
    missing = [row for row in rows.values() if row["status"] == "fail"]
    assert {row["check"] for row in missing} == {
        "Write on transactional id pay-1",
        "Describe on transactional id pay-1",
        "Write on topic orders",
        "Read on topic orders",
        "Read on group g",
        "Alter on the cluster",
    }
    unknown = rows["transaction.two.phase.commit.enable"]
    assert unknown["status"] == "unknown"
    for command in dict.fromkeys(row["action"] for row in (*missing, unknown)):
        assert main(shlex.split(command.replace(secured.secure, secured.plain))[1:]) == 0
    code, rows = run(capsys, *words)
    assert {row["check"]: row["status"] for row in rows.values() if row["status"] != "ok"} == {}
    assert code == 0
    assert rows["mode"]["detail"] == "2pc"


def test_an_open_transaction_goes_on(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    """The doctor must neither fence the application nor end its transaction."""
    settings = {"bootstrap.servers": secured.plain, "transactional.id": "pay-1"}
    with Producer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"1").result(30)
        code, rows = run(capsys, "--bootstrap-server", secured.plain, *SUBJECTS)
        assert code == 0, rows
        producer.send("orders", b"2").result(30)
        producer.commit_transaction()


def test_an_unknown_id_stays_unknown(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--bootstrap-server", secured.plain, "--transactional-id", "new")[0] == 0
    assert main(["transactions", "list", "--bootstrap-server", secured.plain, "--output", "json"]) == 0
    assert "new" not in [row["TransactionalId"] for row in json.loads(capsys.readouterr().out)]


def test_the_production_checklist_is_gone_through_on_a_live_cluster(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    file = secured.write_config()
    Path(file).chmod(0o644)
    words = ("--bootstrap-server", secured.secure, "--command-config", file, "--production")
    code, rows = run(capsys, *words)
    assert code == 1
    statuses = {check.partition(" ")[0]: row["status"] for check, row in rows.items()}
    assert statuses["C5"] == "ok"
    assert [statuses[each] for each in ("C8", "D1", "S2", "O3")] == ["fail", "look", "look", "look"]


@pytest.mark.parametrize(
    ("change", "text", "advice"),
    [
        ({"sasl_password": "wrong"}, "Invalid username or password", "sasl.password"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "PLAIN", "sasl.mechanism"),
        ({"ssl_ca_location": "stranger.pem"}, "certificate", "certificates"),
    ],
)
def test_a_refused_connection_is_a_row_by_name(
    secured: Secured, capsys: pytest.CaptureFixture[str], change: dict[str, str], text: str, advice: str
) -> None:
    if "ssl_ca_location" in change:
        change = {"ssl_ca_location": str(secured.folder / "stranger.pem")}
    config = secured.write_config(**change)
    code, rows = run(capsys, "--bootstrap-server", secured.secure, "--command-config", config)
    assert code == 1
    assert list(rows) == [secured.secure]
    assert text in rows[secured.secure]["detail"]
    assert advice in rows[secured.secure]["action"]


def test_a_refused_login_is_said_once(secured: Secured) -> None:
    words = ["topics", "list", "--bootstrap-server", secured.secure]
    config = secured.write_config(sasl_password="wrong")
    done = subprocess.run(
        [sys.executable, "-m", "tallystick.cli.main", *words, "--command-config", config],
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"tallystick: {secured.secure}: login with PLAIN: ")


def test_a_dead_broker_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = run(capsys, "--bootstrap-server", f"127.0.0.1:{find_free_port()}")
    assert code == 1
    assert "Connect call failed" in next(iter(rows.values()))["detail"]


def test_the_table_has_the_commands_whole(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    config = secured.write_config()
    words = ("--topic", "absent", "--role", "writer", "--command-config", config)
    assert main(["doctor", "--bootstrap-server", secured.secure, *words]) == 1
    command = f"tallystick acls create --bootstrap-server {secured.secure} --allow-principal User:alice"
    assert f"  {command} --topic absent --operation Write\n" in capsys.readouterr().out


def test_wrong_settings_are_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "bad.properties"
    config.write_text("tallystick.modes=none\n")
    assert main(["doctor", "--bootstrap-server", "b:1", "--command-config", str(config)]) == 2
