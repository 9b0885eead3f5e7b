"""The console beside the demo: what it is told, and when it ends."""

import threading
from typing import Any

import pytest

from tallystick import console as consoles
from tallystick._lazy import MissingLibrary
from tallystick.cli import demo_console
from tallystick.cli.demo_console import DemoConsole


class Console:
    """What stands in for a console: it notes what it is told."""

    def __init__(self, config: Any, **settings: Any) -> None:
        self.config, self.calls = config, ["made"]
        self.address = "http://127.0.0.1:1/"
        consoles_made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def note(self, subject: str, text: str) -> None:
        self.calls.append(f"{subject}: {text}")

    def close(self) -> None:
        self.calls.append("close")


consoles_made: list[Console] = []


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Console]:
    consoles_made.clear()
    monkeypatch.setattr(consoles, "ConsoleThread", Console, raising=False)
    return consoles_made


def test_what_is_said_is_among_the_consoles_events_once_there_is_one(made: list[Console]) -> None:
    lines: list[str] = []
    demo = DemoConsole(lines.append, lambda result: lines.append("result"), stay=False)
    demo.say("before")
    demo.begin("localhost:1", "postgresql://postgres@127.0.0.1:2/postgres")
    demo.say("KILLED the broker")
    demo.end(object())  # type: ignore[arg-type]
    demo.close()
    (console,) = made
    assert console.calls == ["made", "start", "demo: KILLED the broker", "close"]
    assert lines == ["before", "watch it in a browser: http://127.0.0.1:1/", "KILLED the broker", "result"]
    (store,) = console.config.stores
    assert store.name == "postgresql+psycopg://postgres@127.0.0.1:2/postgres"


def test_it_stays_until_ctrl_c(made: list[Console], monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    waits: list[list[str]] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append([*made[0].calls])
            raise KeyboardInterrupt

    monkeypatch.setattr(demo_console.threading, "Event", Event)
    demo = DemoConsole(lines.append, lambda result: lines.append("result"), stay=True)
    demo.begin("localhost:1", "postgresql://postgres@127.0.0.1:2/postgres")
    demo.end(object())  # type: ignore[arg-type]
    assert waits == [["made", "start"]]
    assert made[0].calls[-1] == "close"
    assert lines[1] == "result"
    assert "Ctrl-C ends them" in lines[2]


def test_without_the_extra_the_demo_goes_on_unless_the_console_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MissingLibrary("uvicorn", "console")

    monkeypatch.setattr(consoles, "ConsoleThread", fail, raising=False)
    lines: list[str] = []
    demo = DemoConsole(lines.append, lambda result: lines.append("result"), stay=False)
    demo.begin("localhost:1", "postgresql://postgres@127.0.0.1:2/postgres")
    demo.say("KILLED the broker")
    demo.end(object())  # type: ignore[arg-type]
    assert "[console]'" in lines[0]
    assert lines[1:] == ["KILLED the broker", "result"]
    demo = DemoConsole(lines.append, lambda result: None, stay=True)
    with pytest.raises(MissingLibrary):
        demo.begin("localhost:1", "postgresql://postgres@127.0.0.1:2/postgres")
