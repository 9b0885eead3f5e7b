"""SCRAM on the broker: users are made through its API and `tallystick users`, log in, and are deleted."""

import io
import json
import ssl
from collections.abc import Iterator

import pytest
import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.support.raw_wire import RawConnection
from tests.support.secure_wire import TlsConnection
from tools.servers.broker_process import find_free_port

from tallystick import Admin
from tallystick.admin import ScramCredentialInfo, UserScramCredentialDeletion, UserScramCredentialUpsertion
from tallystick.cli.main import main
from tallystick.client.errors import AuthenticationFailed, BrokerRefused
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.secret import Secret
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.security.sasl.scram import SCRAM_MECHANISMS
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

MECHANISMS = tuple(SCRAM_MECHANISMS)
PASSWORD = 'pa,ss=wörd;"'
CLEAR, SECURE = find_free_port(), find_free_port()


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    key = tmp_path_factory.mktemp("key") / "broker.pem"
    ca.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(key))
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLEAR://127.0.0.1:{CLEAR},SECURE://127.0.0.1:{SECURE}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_PLAINTEXT,SECURE:SASL_SSL",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(key),
    }
    with EmbeddedBroker(config=settings) as running:
        yield running


def log_in(user: str, password: str, mechanism: str, tls: trustme.CA | None = None) -> str | None:
    """Return the id of the cluster, as one who logged in is told it."""
    config = {
        "bootstrap.servers": f"127.0.0.1:{SECURE if tls else CLEAR}",
        "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    if tls is not None:
        config["ssl.truststore.certificates"] = tls.cert_pem.bytes().decode()
    with Admin(config) as client:
        return client.describe_cluster().cluster_id


def upsert(user: str, mechanism: str, password: str = PASSWORD) -> UserScramCredentialUpsertion:
    return UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), Secret(password))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_logs_in_until_it_is_deleted(admin: Admin, ca: trustme.CA, mechanism: str) -> None:
    """The password counts as it is now, at each login; no restart is needed."""
    user = f"alice-{mechanism}"
    admin.alter_user_scram_credentials([upsert(user, mechanism)]).all()
    for tls in (None, ca):
        assert log_in(user, PASSWORD, mechanism, tls) == admin.describe_cluster().cluster_id
    with pytest.raises(AuthenticationFailed):
        log_in(user, "another", mechanism)
    admin.alter_user_scram_credentials([upsert(user, mechanism, "another")]).all()
    assert log_in(user, "another", mechanism)
    admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, mechanism)]).all()
    with pytest.raises(AuthenticationFailed):
        log_in(user, "another", mechanism)


@pytest.mark.gate(1)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(admin: Admin, mechanism: str) -> None:
    admin.alter_user_scram_credentials([upsert("rd", mechanism)]).all()
    config = {
        "bootstrap.servers": f"127.0.0.1:{CLEAR}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "rd",
        "log_level": 0,
    }
    AdminClient({**config, "sasl.password": PASSWORD}).list_topics(timeout=20)
    with pytest.raises(KafkaException):
        AdminClient({**config, "sasl.password": "wrong"}).list_topics(timeout=2)


def test_a_user_survives_a_restart(broker: EmbeddedBroker, admin: Admin) -> None:
    admin.alter_user_scram_credentials([upsert("kept", MECHANISMS[0])]).all()
    broker.restart()
    assert log_in("kept", PASSWORD, MECHANISMS[0])


def begin_login(user: str, mechanism: str, tls: trustme.CA | None = None) -> str:
    """Return the salt and the iterations of the first answer."""
    if tls is None:
        made = RawConnection(f"127.0.0.1:{CLEAR}")
    else:
        context = ssl.create_default_context()
        tls.configure_trust(context)
        made = TlsConnection(f"localhost:{SECURE}", context)
    with made as connection:
        shaken = connection.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)
        assert shaken.error_code == ErrorCode.NONE
        asked = SaslAuthenticateRequest(auth_bytes=f"n,,n={user},r=abc".encode())
        answer = connection.ask(asked, SaslAuthenticateResponse, 2)
    assert answer.error_code == ErrorCode.NONE
    return bytes(answer.auth_bytes).decode().partition(",")[2]


def test_an_unknown_user_is_answered_as_a_known_one_everywhere_and_after_a_restart(
    broker: EmbeddedBroker, admin: Admin, ca: trustme.CA
) -> None:
    for mechanism in MECHANISMS:
        info = ScramCredentialInfo(mechanism, 12_000)
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("rare", info, Secret(PASSWORD))]
        ).all()
    names = ("rare", *(f"ghost{number}" for number in range(60)))
    answers = {name: begin_login(name, MECHANISMS[0]) for name in names}
    assert len(set(answers.values())) == len(names)
    assert sum(each.endswith("i=12000") for each in answers.values()) > 1
    broker.restart()
    for name in ("rare", "ghost0", "ghost1"):
        assert begin_login(name, MECHANISMS[0]) == answers[name]
        assert begin_login(name, MECHANISMS[0], ca) == answers[name]
        assert begin_login(name, MECHANISMS[1]) != answers[name]


def test_users_are_described_without_their_keys(admin: Admin) -> None:
    for mechanism in MECHANISMS:
        admin.alter_user_scram_credentials([upsert("shown", mechanism)]).all()
    answers = admin.describe_user_scram_credentials(["shown", "nobody"])
    assert answers.found["shown"] == tuple(ScramCredentialInfo(each, 4096) for each in MECHANISMS)
    failure = answers.failures["nobody"]
    assert isinstance(failure, BrokerRefused)
    assert failure.code == ErrorCode.RESOURCE_NOT_FOUND
    assert "shown" in admin.describe_user_scram_credentials().found


def test_the_command_creates_lists_and_deletes(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["users", *words, "--bootstrap-server", broker.bootstrap_servers, "--output", "json"])
        return code, capsys.readouterr().out

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    both = [word for each in MECHANISMS for word in ("--mechanism", each)]
    code, out = run("create", "--user", "cli", *both, "--iterations", "5000")
    assert code == 0, out
    rows = [{"User": "cli", "Mechanism": each, "Iterations": "5000"} for each in MECHANISMS]
    assert json.loads(run("list", "--user", "cli")[1]) == rows
    assert all(log_in("cli", PASSWORD, each) for each in MECHANISMS)
    assert run("create", "--add-scram", f"{MECHANISMS[0]}=[name=cli,password=a,b=c]")[0] == 0
    assert log_in("cli", "a,b=c", MECHANISMS[0])
    assert run("delete", "--user", "cli", "--mechanism", MECHANISMS[0], "--yes")[0] == 0
    assert [row["Mechanism"] for row in json.loads(run("list", "--user", "cli")[1])] == [MECHANISMS[1]]
    assert run("delete", "--user", "cli", "--yes")[0] == 0
    assert run("list", "--user", "cli")[0] == 1
