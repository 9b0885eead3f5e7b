"""`tallystick console` with a cluster and a store that are not there yet, come, and go again."""

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.support.collecting import QUICK_PACES

from tallystick.console.collect.config import CollectorConfig
from tallystick.console.web.serve import ConsoleThread
from tallystick.dualwrite import SqlStore
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


@contextmanager
def run_console(*words: str) -> Iterator[tuple[Callable[[str], Any], Callable[[str], list[str]]]]:
    """Run the command; yields what asks for a page's JSON form, and for the stream's first lines.

    Of a cluster that is away it writes that alone; it must end of itself, with 0.
    """
    command = [sys.executable, "-m", "tallystick.cli.main", "console", "--listen", "127.0.0.1:0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            address = line.rpartition(" ")[2].strip().rstrip("/")
            assert line.startswith("The console is at http://127.0.0.1:"), line + process.stderr.read()

            def ask(path: str) -> Any:
                with urllib.request.urlopen(f"{address}{path}?format=json", timeout=60) as answer:
                    return json.loads(answer.read())

            def follow(last_id: str) -> list[str]:
                headers = {"Accept": "text/event-stream", "Last-Event-ID": last_id}
                asked = urllib.request.Request(f"{address}/events", headers=headers)
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    return [answer.readline().decode().strip() for _ in range(2)]

            yield ask, follow
        finally:
            process.send_signal(signal.SIGINT)
            written = process.stderr.read().splitlines()
    assert process.returncode == 0, written
    assert [line for line in written if "Connect call failed" not in line] == []


def find_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.mark.gate(0)
def test_a_cluster_and_a_store_that_come_after_the_console(tmp_path: Path) -> None:
    """It answers before anything can be read, says what is missing, and finds both by itself."""
    port = find_port()
    store = f"sqlite:///{tmp_path}/later/shop.db"
    with run_console("--bootstrap-server", f"127.0.0.1:{port}", "--store", store) as (ask, follow):
        first = ask("/")
        assert first["health"] == "unknown"
        assert first["info"]["bootstrap_servers"] == f"127.0.0.1:{port}"

        def look(health: str, *reasons: str) -> Any:
            page = ask("/")
            assert page["health"] == health, page
            text = " ".join(outage["reason"] for outage in page["info"]["outages"])
            assert all(reason in text for reason in reasons), page
            return page

        page = eventually(lambda: look("unknown", "Connect call failed", store), 120)
        assert page["info"]["age_ms"] is None
        (tmp_path / "later").mkdir()
        engine = create_engine(store)
        SqlStore(engine).create()
        engine.dispose()
        with EmbeddedBroker(listeners=f"PLAINTEXT://127.0.0.1:{port}") as broker:
            eventually(lambda: look("ok"), 120)
            broker.kill()

            def look_away() -> Any:
                page = look("unknown")
                assert page["info"]["outages"][0]["text"].startswith(f"No answer from 127.0.0.1:{port} for ")
                return page

            assert eventually(look_away, 120)["info"]["age_ms"] > 0
            for path in ("/transactions", "/topics"):
                eventually(lambda at=path: ask(at)["info"]["outages"], 120)
            broker.start()
            eventually(lambda: look("ok"), 120)
            events = ask("/events")
            told = [each["kind"] for each in reversed(events["events"]) if each["subject"] == "the cluster"]
            assert told == ["away", "back"] * (len(told) // 2)
            assert len(told) >= 4  # a machine that is busy may make it look away more often
            last_number = events["last_number"]
            assert follow(str(last_number - 1))[:2] == [f"id: {last_number}", "event: event"]
            assert follow("1")[1] == "event: resync"


def test_an_address_in_use_is_said(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "tallystick.cli.main", "console", "--listen", address]
        answer = subprocess.run(
            [*command, "--bootstrap-server", "127.0.0.1:1"], capture_output=True, text=True, check=False
        )
    assert answer.returncode != 0
    assert f"--listen {address}: Address already in use" in answer.stderr


def test_a_console_beside_a_program_shows_its_notes_and_ends_with_open_pages() -> None:
    """As `tallystick demo` has it: in a thread, beside a broker that is killed and started again."""
    with EmbeddedBroker() as broker:
        config = CollectorConfig.check({"bootstrap.servers": broker.bootstrap_servers}, paces=QUICK_PACES)
        with ConsoleThread(config) as console:
            asked = urllib.request.Request(
                f"{console.address}events", headers={"Accept": "text/event-stream"}
            )
            with urllib.request.urlopen(asked, timeout=60) as stream:
                console.note("demo", "KILLED the broker")
                broker.kill()
                broker.start()
                lines = iter(lambda: stream.readline().decode().strip(), None)
                told = next(line for line in lines if line.startswith("data: {"))
                assert json.loads(told.removeprefix("data: "))["text"] == "KILLED the broker"
                with urllib.request.urlopen(f"{console.address}?format=json", timeout=60) as answer:
                    assert "KILLED the broker" in [each["text"] for each in json.load(answer)["events"]]
                console.close()
                assert all(not line.startswith("event: error") for line in stream.read().decode().split("\n"))
        console.note("demo", "nothing happens")
        console.close()
        assert "console" not in [thread.name for thread in threading.enumerate()]
