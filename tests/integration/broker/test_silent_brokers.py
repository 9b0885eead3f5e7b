"""Commands against brokers that accept connections and fall silent: they end, and name the place."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.scripted_broker import Answer, ScriptedBroker, Seen

from tallystick.cli.commands import doctor as doctor_command
from tallystick.cli.main import main
from tallystick.protocol.apis import ApiKey

pytestmark = pytest.mark.server

# Long enough for a busy machine to answer the steps before the silent one.
LIMIT_MS = 1_500


def run(*words: str, answers: tuple[ApiKey, ...] = ()) -> int:
    """Run a command against a broker that answers nothing but some APIs; return the exit code."""

    def answer(key: ApiKey) -> Callable[[Seen], Answer]:
        return lambda _: None

    async def play() -> int:
        scripts = {key: answer(key) for key in ApiKey if key not in answers}
        async with ScriptedBroker(scripts=scripts) as broker:
            return await asyncio.to_thread(main, [*words, "--bootstrap-server", broker.address])

    return asyncio.run(play())


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in doctor_command.CONNECTION_LIMITS:
        monkeypatch.setitem(doctor_command.CONNECTION_LIMITS, name, LIMIT_MS)


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    "words",
    [("topics", "list"), ("transactions", "list"), ("acls", "list")],
    ids=" ".join,
)
@pytest.mark.parametrize("is_silent_at", ["ApiVersions", "Metadata"])
def test_a_command_ends_at_its_limit_and_names_who_was_silent_and_where(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], is_silent_at: str
) -> None:
    answers = () if is_silent_at == "ApiVersions" else (ApiKey.API_VERSIONS,)
    assert run(*words, "--timeout-ms", str(LIMIT_MS), answers=answers) == 1
    text = capsys.readouterr().err
    assert f"default.api.timeout.ms = {LIMIT_MS} ms" in text
    assert "127.0.0.1:" in text
    asked = {"Metadata": ("Metadata", "FindCoordinator", "DescribeAcls")}.get(is_silent_at, (is_silent_at,))
    assert any(api in text.split("the last attempt:")[1] for api in asked)
    assert "nothing happened" in text


def test_a_tls_handshake_that_is_not_answered_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "tls.properties"
    config.write_text("security.protocol=SSL\n")
    assert run("topics", "list", "--timeout-ms", str(LIMIT_MS), "--command-config", str(config)) == 1
    assert "finish the TLS handshake" in capsys.readouterr().err


@pytest.mark.gate(1)
@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(
    ("settings", "answers", "text"),
    [
        ("", (), "took longer to answer ApiVersions than request.timeout.ms"),
        ("security.protocol=SSL\n", (), "took longer to finish the TLS handshake than socket.connection"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=b\n",
            (ApiKey.API_VERSIONS,),
            "SaslHandshake",
        ),
    ],
    ids=["ApiVersions", "TLS", "login"],
)
def test_the_doctor_names_the_step_of_a_connection(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    settings: str,
    answers: tuple[ApiKey, ...],
    text: str,
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(settings)
    assert run("doctor", "--output", "json", "--command-config", str(config), answers=answers) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["status"] == "fail"
    assert text in row["detail"]


@pytest.mark.gate(0)
@pytest.mark.usefixtures("short_limits")
def test_the_doctor_asks_for_no_right_when_silence_is_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("doctor", "--role", "tools", "--topic", "t", "--transactional-id", "x", "--output", "json")
    assert run(*words, answers=(ApiKey.API_VERSIONS, ApiKey.METADATA)) == 4
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert "DescribeCluster" in rows["Alter on the cluster"]["detail"]
    assert not [row["action"] for row in rows.values() if "acls create" in row["action"]]


@pytest.mark.gate(0)
@pytest.mark.parametrize("words", [("doctor",), ("topics", "list")], ids=" ".join)
def test_ctrl_c_ends_the_wait_without_a_traceback(words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-m", "tallystick.cli.main", *words, "--bootstrap-server", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A job in the background ignores SIGINT, and so do its children: this test may be run in one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as command:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                command.send_signal(signal.SIGINT)
                try:
                    _, errors = command.communicate(timeout=60)
                finally:
                    command.kill()
    assert command.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--transactional-id", ""), "--transactional-id: must not be empty"),
        (("--group", ""), "--group: must not be empty"),
        (("--topic", "a b"), "--topic: 'a b' is not a topic name"),
        (("--topic", "t" * 250), "is not a topic name"),
    ],
)
def test_a_name_that_nothing_can_have_is_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], words: tuple[str, str], text: str
) -> None:
    assert main(["doctor", "--bootstrap-server", "127.0.0.1:1", *words]) == 2
    assert text in capsys.readouterr().err
