"""The example of the guide runs as a user would run it, and its trace has the shape that the guide shows."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs/how-to/tracing.md"
TREE = re.compile(r"<!-- tree: begin .*?-->\n```text\n(.*?)```\n<!-- tree: end -->", re.DOTALL)


def decode_all(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that a console exporter has printed one after the other."""
    decoder, spans, at = json.JSONDecoder(), [], 0
    while at < len(text):
        span, at = decoder.raw_decode(text, at)
        spans.append(span)
        at += len(text[at:]) - len(text[at:].lstrip())
    return spans


@pytest.mark.gate(0)
def test_the_trace_of_the_example_is_the_one_in_the_guide(tmp_path: Path) -> None:
    match = TREE.search(GUIDE.read_text())
    assert match is not None
    rows = [(line.strip(), len(line) - len(line.lstrip())) for line in match[1].splitlines()]
    with EmbeddedBroker() as broker:
        command = [
            sys.executable,
            str(ROOT / "examples/traced_payments.py"),
            broker.bootstrap_servers,
            f"sqlite:///{tmp_path / 'payments.db'}",
        ]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    spans = {span["context"]["span_id"]: span for span in decode_all(run.stdout)}

    def path_of(span: dict[str, Any]) -> tuple[str, ...]:
        parent = spans.get(span["parent_id"])
        return (*(() if parent is None else path_of(parent)), span["name"])

    paths = {path_of(span) for span in spans.values()}
    expected: set[tuple[str, ...]] = set()
    stack: list[str] = []
    for text, margin in rows:
        name, _, note = re.sub(r"\s{2,}", "\t", text).partition("\t")
        stack = [*stack[: margin // 2], name]
        expected.add(tuple(stack))
        if note:
            attribute, _, value = note.partition("=")
            (span,) = [span for span in spans.values() if path_of(span) == tuple(stack)]
            assert span["attributes"][attribute] == value
    assert {path for path in paths if path[0] == "POST /payments"} == expected
    assert {path[0] for path in paths} == {"POST /payments", "recover", "poll payments"}
