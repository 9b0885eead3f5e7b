"""The command line: a mistake is one line and exit code 2, never a traceback."""

import pytest

from tallystick import __version__
from tallystick.cli.main import main


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["brokr"]) == 2
    said = capsys.readouterr().err
    assert "No such command 'brokr'" in said
    assert "broker" in said
    assert "Traceback" not in said


def test_version_and_help_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tallystick {__version__}\n"
    assert main(["--help"]) == 0
    assert "broker" in capsys.readouterr().out


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) in {0, 2}
    printed = capsys.readouterr()
    assert "Commands:" in printed.out + printed.err
