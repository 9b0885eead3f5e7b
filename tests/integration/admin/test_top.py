"""`tallystick top` with a broker: under a pilot, in a terminal of its own, and once as a text."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.dual_world import new_name
from tests.support.raw_producer import make_topic
from tests.support.terminal import Screen
from tests.support.top_cluster import SECONDS_MAX, InTerminal, die_after, see, use_cluster

from tallystick import Producer
from tallystick.cli.main import main
from tallystick.console.model.health import Limits
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True) as running:
        yield running


def test_a_transaction_in_doubt_appears_with_its_verdict_and_goes(broker: EmbeddedBroker, url: str) -> None:
    name = new_name()
    make_topic(broker, name)
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}

    async def steps(screen: Screen) -> None:
        await see(screen, "No transaction is open.")
        with Producer({**config, "transaction.two.phase.commit.enable": True}) as producer:
            await asyncio.to_thread(producer.init_transactions)
            producer.begin_transaction()
            producer.send(name, b"v")
            state = await asyncio.to_thread(producer.prepare_transaction)
            await see(screen, "1 transaction in doubt that nothing here can decide.")
            await screen.press("2")
            await see(screen, "orphan")
            await screen.press("enter")
            await see(screen, f"Token {state}")
            await see(screen, "No database or decision log that is read here knows its id")
            await see(screen, f"{name}-0")
            assert screen.app.route.key == name
            await asyncio.to_thread(producer.complete_transaction, state)
        await see(screen, "No transaction of this id is open")
        await screen.press("1")
        await see(screen, "No transaction is open.")

    use_cluster(broker, steps, url, limits=Limits(limit_ms=0))


def test_once_says_what_to_run_and_exits_with_what_it_comes_to(
    broker: EmbeddedBroker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "top",
        "--once",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--store",
        url,
        "--grace-s",
        "0",
    ]
    assert main(words) == 0
    assert "ok: No transaction is open." in capsys.readouterr().out
    name = die_after("commit database", url, broker)
    assert main(words) == 3
    printed = capsys.readouterr().out
    assert f"recover: {name} (Ongoing, by {url}" in printed
    (command,) = [
        line for line in printed.splitlines() if line.startswith("  tallystick transactions resolve")
    ]
    assert main([*shlex.split(command)[1:], "--yes"]) == 0
    capsys.readouterr()
    assert main(words) == 0
    missing = f"{url}.not-there"
    assert main([*words, "--store", missing]) == 4
    printed = capsys.readouterr().out
    assert f"{missing} has not been read for " in printed


@pytest.mark.gate(0)
def test_once_needs_no_terminal_and_no_extra(broker: EmbeddedBroker) -> None:
    code = (
        "import sys; sys.modules['textual'] = None; from tallystick.cli.main import main; sys.exit(main({}))"
    )
    words = ["top", "--once", "--bootstrap-server", broker.bootstrap_servers]
    done = subprocess.run(
        [sys.executable, "-c", code.format(words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.gate(0)
def test_once_says_when_no_broker_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("default.api.timeout.ms=500\nrequest.timeout.ms=500\n")
    words = ["top", "--once", "--bootstrap-server", "127.0.0.1:1", "--command-config", str(settings)]
    assert main(words) == 4
    printed = capsys.readouterr().out
    assert "not read" in printed
    assert "No answer from 127.0.0.1:1 for " in printed
    assert "unknown: Not everything has been read yet." in printed
    assert printed.count("cluster: ") == 1


@pytest.mark.gate(0)
@pytest.mark.parametrize("end", ["q", "SIGTERM"])
def test_a_terminal_is_left_as_it_was(broker: EmbeddedBroker, end: str) -> None:
    words = ("top", "--bootstrap-server", broker.bootstrap_servers)
    with closing(InTerminal("-m", "tallystick.cli.main", *words)) as terminal:
        terminal.read_until(b"No transaction is open.")
        if end == "q":
            os.write(terminal.ours, b"q")
        else:
            terminal.process.send_signal(signal.SIGTERM)
        terminal.read_rest()
        assert terminal.process.wait(SECONDS_MAX) == 0
        for enter, leave in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h")):
            assert terminal.written.rindex(leave) > terminal.written.rindex(enter)
        assert b"\x1b[?1000h" not in terminal.written  # the mouse is the terminal's own
        assert b"Traceback" not in terminal.written


FAILING = """
import sys
from tallystick.cli.main import main
from tallystick.console.collect.collector import Collector

async def fail(self):
    raise KeyError("a mistake")

Collector._count_ids = fail
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.gate(0)
def test_a_collector_that_fails_ends_the_terminal_and_says_why() -> None:
    words = ("top", "--bootstrap-server", "127.0.0.1:1")
    with closing(InTerminal("-c", FAILING, *words)) as terminal:
        terminal.read_rest()
        assert terminal.process.wait(SECONDS_MAX) == 1
        rest = terminal.written.rpartition(b"\x1b[?1049l")[2]
        assert b"tallystick: the collector has failed: nothing is read any more" in rest
        assert b"a mistake" in rest
