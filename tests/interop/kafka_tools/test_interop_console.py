"""`tallystick produce` and `consume` beside Kafka's console tools: the same lines in, the same lines out."""

import io
from typing import Any

import pytest

from tallystick.cli.main import main

PROPERTIES = ("parse.key=true", "parse.headers=true", "null.marker=~", "key.separator=|")
SHOWN = tuple(f"print.{name}=true" for name in ("key", "headers", "partition", "offset", "timestamp"))
LINES = "x:1,y:~\tk|v\nx:2\t~|v|w\nx:\tk|~\n~\tk|plain\n"


def options(name: str, values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in (name, value)]


def test_lines_are_split_and_printed_as_by_kafkas_tools(
    cluster: Any, java: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Kafka's producer wrote and what ours wrote, each printed by Kafka's consumer and by ours."""
    at = ("--bootstrap-server", cluster.bootstrap)
    theirs, ours = cluster.topic(stem="console"), cluster.topic(stem="console")
    java.tool(
        "kafka-console-producer",
        *at,
        "--topic",
        theirs,
        *options("--reader-property", PROPERTIES),
        stdin=LINES,
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
    assert main(["produce", *at, ours, *options("--property", PROPERTIES)]) == 0
    printed = []
    for topic in (theirs, ours):
        reading = (*at, "--topic", topic, "--from-beginning", "--max-messages", "4")
        kafkas = java.tool("kafka-console-consumer", *reading, *options("--formatter-property", SHOWN))
        capfd.readouterr()
        assert main(["consume", *reading, *options("--property", SHOWN)]) == 0
        assert capfd.readouterr().out == kafkas
        printed.append([line.split("\t", 1)[1] for line in kafkas.splitlines()])
    assert printed[0] == printed[1]
