"""`tallystick top` before anything is connected: settings, the extra, and the terminal that it needs."""

import re
import subprocess
import sys

import pytest

from tallystick.cli.main import main

WITHOUT_TEXTUAL = """
import sys
from tallystick.cli.main import main

class NotInstalled:
    def find_spec(self, name, *_):
        if name == "textual":
            raise ModuleNotFoundError("No module named 'textual'", name="textual")

sys.meta_path.insert(0, NotInstalled())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
def test_without_the_extra_it_says_how_to_install_it() -> None:
    done = run(f"{WITHOUT_TEXTUAL}sys.exit(main(['top', '--bootstrap-server', '127.0.0.1:1']))")
    assert done.returncode == 2
    assert re.fullmatch(r"tallystick: textual is not installed: pip install '\S+\[top\]'\n", done.stderr)


@pytest.mark.slow
def test_without_the_extra_there_is_help() -> None:
    assert run(f"{WITHOUT_TEXTUAL}sys.exit(main(['top', '--help']))").returncode == 0


def test_without_a_terminal_it_names_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--bootstrap-server", "127.0.0.1:1"]) == 2
    assert "use --once" in capsys.readouterr().err


def test_every_wrong_setting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--store", "no url", "--decisions", ""]) == 2
    text = capsys.readouterr().err
    assert "--bootstrap-server" in text
    assert "store 1: not a URL" in text
    assert "decision topic: its name is empty" in text


def test_it_has_the_options_of_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--help"]) == 0
    text = capsys.readouterr().out
    options = ("--bootstrap-server", "--command-config", "--store", "--decisions", "--grace-s", "--limit-s")
    more = ("--once", "--allow-actions", "--audit-log")
    assert [option for option in (*options, *more) if option not in text] == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--audit-log", "audit.jsonl"), "--audit-log: needs --allow-actions"),
        (("--once", "--allow-actions"), "--allow-actions: not with --once"),
    ],
)
def test_what_does_not_go_together_is_said(
    options: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--bootstrap-server", "127.0.0.1:1", *options]) == 2
    assert problem in capsys.readouterr().err
