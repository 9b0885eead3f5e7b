"""What wrong calls are answered: each call of cli/wrong_calls.txt with its last words and its exit code.

To see what the commands say now, run `make scripts-rewrite` (TALLYSTICK_REWRITE_SCRIPTS=1) and read the diff.
The lines of usage above an error are left out.
"""

import io
import os
import re
import shlex
from pathlib import Path

import pytest

from tallystick.cli.main import main

SCRIPT = Path(__file__).parent / "cli" / "wrong_calls.txt"
PROMPT = "$ tallystick"


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a call and return what a person reads last."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as exc:  # of argparse
        code = int(exc.code or 0)
    printed = capsys.readouterr()
    assert printed.out == "", words
    assert "Traceback" not in printed.err
    assert not re.search(r"Input should|Value error|<(?:list|int|str|path)\b|\bNone\b|\bFalse\b", printed.err)
    said = printed.err.rpartition("Error: ")[2] if "Error: " in printed.err else printed.err
    lines = [line for line in said.splitlines() if not re.match(r"usage:|  +[-\[]", line)]
    return "\n".join((*lines, f"exit {int(code)}"))


@pytest.mark.slow
def test_wrong_calls(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`100 wrong calls with their answers ...: no traceback`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TALLYSTICK_CONFIG_HOME", "profiles")
    monkeypatch.delenv("TALLYSTICK_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    text = SCRIPT.read_text("utf-8")
    head, calls = text.partition("\n\n")[0], [each for each in text.splitlines() if each.startswith(PROMPT)]
    parts = [head, *(f"{call}\n{answer(shlex.split(call)[2:], capsys)}" for call in calls)]
    now = "\n\n".join(parts) + "\n"
    if os.environ.get("TALLYSTICK_REWRITE_SCRIPTS"):
        SCRIPT.write_text(now, "utf-8")
    else:
        assert now == text
    assert len(calls) >= 100
