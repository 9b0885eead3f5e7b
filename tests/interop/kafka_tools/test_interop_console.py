"""`tallystick produce` and `consume` with Kafka's console tools: each side reads what the other sent."""

import io
import json
from typing import Any

import pytest

from tallystick.cli.main import main

PROPERTIES = ("parse.key=true", "parse.headers=true", "null.marker=~", "key.separator=|")
PRINTED_FIELDS = tuple(f"print.{name}=true" for name in ("key", "headers", "partition", "offset"))
KAFKA_LINES = "x:1,y:~\tk|v\nx:2\t~|v|w\nx:\tk|~\n~\tk|plain\n"
RECORDS = [
    {"headers": [["x", "1"], ["y", None]], "key": "k", "value": "v"},
    {"headers": [["x", "2"]], "key": None, "value": "v|w"},
    {"headers": [["x", ""]], "key": "k", "value": None},
    {"headers": [], "key": "k", "value": "plain"},
]


def options(name: str, values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in (name, value)]


def test_kafkas_tools_and_ours_read_what_the_other_wrote(
    cluster: Any, java: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)
    theirs, ours = cluster.topic(stem="console"), cluster.topic(stem="console")
    splitting = options("--reader-property", PROPERTIES)
    java.tool("kafka-console-producer", *at, "--topic", theirs, *splitting, stdin=KAFKA_LINES)
    json_lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json_lines.encode())))
    assert main(["produce", *at, ours, "--format", "json"]) == 0
    printed = []
    for topic in (theirs, ours):
        reading = (*at, "--topic", topic, "--from-beginning", "--max-messages", "4")
        printed.append(
            java.tool("kafka-console-consumer", *reading, *options("--formatter-property", PRINTED_FIELDS))
        )
        capfd.readouterr()
        assert main(["consume", *reading, "--output", "json"]) == 0
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert [{name: each[name] for name in ("headers", "key", "value")} for each in found] == RECORDS
    assert printed[0] == printed[1]
