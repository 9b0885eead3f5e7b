"""`tallystick top --allow-actions`: the drill, and what an action survives."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.terminal import Screen
from tests.support.top_cluster import SECONDS_MAX, InTerminal, die_after, see, use_cluster

from tallystick.console.model.health import Limits
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True) as running:
        yield running


def read_audit(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.gate(0)
@pytest.mark.parametrize(
    ("step", "effect", "verdict"),
    [("commit database", "It is committed", "committed"), ("prepare", "It is aborted", "aborted")],
    ids=["after the decision", "before the decision"],
)
def test_a_dead_writer_is_resolved_by_keys_and_health_turns_green(
    broker: EmbeddedBroker, url: str, tmp_path: Path, step: str, effect: str, verdict: str
) -> None:
    name, audit = die_after(step, url, broker), tmp_path / "audit.jsonl"

    async def steps(screen: Screen) -> None:
        await see(screen, "1 transaction to recover.")
        assert screen.lines[0].startswith("tallystick recover")
        await screen.press("2", "slash", *name, "enter", "enter")
        assert screen.app.route.key == name
        await screen.press("a")
        await screen.wait_until(lambda: effect in screen.text)
        await screen.press("end", "enter", *name, "enter")
        await screen.wait_until(lambda: "done  " in screen.text)
        await screen.press("escape")
        await see(screen, "No transaction of this id is open")
        assert screen.lines[0].startswith("tallystick ok")
        await see(screen, f"{verdict} Prepare")
        await screen.press("1")
        await see(screen, "ok No transaction is open.")

    use_cluster(broker, steps, url, limits=Limits(grace_ms=0, limit_ms=0), audit_log=audit)
    intent, result = read_audit(audit)
    assert (intent["event"], result["event"], result["outcome"]) == ("intent", "result", "done")
    assert (intent["user"], intent["subject"]) == ("ada at a terminal", name)


SLOW = """
import sys
from tallystick.cli.main import main
from tallystick.console.actions.service import ActionService

GATE = sys.argv.pop(1)
act = ActionService.__init__.__kwdefaults__["act"]

def wait_and_act(*arguments):
    open(GATE).read()  # until the other end of the pipe is closed
    return act(*arguments)

ActionService.__init__.__kwdefaults__["act"] = wait_and_act
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.gate(0)
@pytest.mark.parametrize("end", ["quit", "SIGTERM", "the terminal is gone"])
def test_an_action_that_is_under_way_ends_and_its_result_is_kept(
    broker: EmbeddedBroker, url: str, tmp_path: Path, end: str
) -> None:
    name, audit, gate = die_after("commit database", url, broker), tmp_path / "audit.jsonl", tmp_path / "gate"
    os.mkfifo(gate)
    words = ("--bootstrap-server", broker.bootstrap_servers, "--store", url, "--grace-s", "0")
    actions = ("--allow-actions", "--audit-log", str(audit))
    with closing(InTerminal("-c", SLOW, str(gate), "top", *words, *actions)) as terminal:
        terminal.read_until(b"1 transaction to recover.")
        terminal.write(b"a")
        terminal.read_until(b"This is a dry run")
        terminal.write(b"\x1b[F\r")
        terminal.read_until(b"and press Enter to do it")
        terminal.write(name.encode() + b"\r")
        with gate.open("w"):  # the action reads from it by now, and waits
            if end == "quit":
                terminal.write(b"q")
                terminal.read_until(b"An action is under way.")
                terminal.write(b"q")
                terminal.read_until(b"waiting for its result")
            elif end == "SIGTERM":
                terminal.process.send_signal(signal.SIGTERM)
                terminal.read_until(b"waiting for its result")
            else:
                terminal.hang_up()
                terminal.process.send_signal(signal.SIGHUP)
            assert [line["event"] for line in read_audit(audit)] == ["intent"]
        if end != "the terminal is gone":
            terminal.read_rest()
            rest = terminal.written.rpartition(b"\x1b[?1049l")[2]
            assert f"Resolve {name}: done: ".encode() in rest
            assert rest.count(b'"event": ') == 2
        assert terminal.process.wait(SECONDS_MAX) == 0
        assert b"Traceback" not in terminal.written
    (intent, result) = eventually(lambda: read_audit(audit))
    assert result["outcome"] == "done"
    assert intent["user"].endswith(" at a terminal")
