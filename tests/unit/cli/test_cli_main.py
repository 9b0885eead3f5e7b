"""The command line: a mistake is one line and exit code 2, never a traceback."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

from tallystick import __version__
from tallystick.cli.app import _SaidOnce
from tallystick.cli.cluster_command import create_app
from tallystick.cli.main import main
from tallystick.client.errors import AuthenticationFailed, TimedOut


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


@pytest.mark.parametrize("group", [(), *((name,) for name in ("topics", "groups", "acls", "transactions"))])
def test_what_commands_do_fits_a_terminal(
    group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*group, "--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2].splitlines()
    assert commands
    assert not [line for line in commands if line.endswith("...")]


def test_help_of_a_subcommand_names_the_options_that_all_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--help"]) == 0
    options = capsys.readouterr().out.partition("Options:")[2]
    assert {"--bootstrap-server", "--command-config", "--output", "--timeout-ms"} <= {
        word.strip(",") for word in options.split()
    }


@pytest.mark.parametrize(
    "words", [("topics", "list"), ("consume", "t"), ("produce", "t")], ids=lambda w: w[0]
)
def test_a_command_without_a_cluster_names_the_option(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    assert "--bootstrap-server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "servers", "output"),
    [
        (["--bootstrap-server", "a:1", "--output", "json", "show"], "a:1", "json"),
        (["show", "--bootstrap-server=a:1", "--output", "json"], "a:1", "json"),
        (["--bootstrap-servers", "a:1", "show", "--output", "json"], "a:1", "json"),
        (["--bootstrap-server", "a:1", "show", "--bootstrap-server", "b:2"], "b:2", "table"),
        (["show", "--bootstrap-server", "a:1", "--", "--output"], "a:1", "table"),
    ],
)
def test_shared_options_stand_before_or_after_the_subcommand(
    words: list[str], servers: str, output: str
) -> None:
    app, seen = create_app("Help."), []

    @app.command()
    def show(context: typer.Context, word: Annotated[str, typer.Argument()] = "") -> None:
        seen.append((context.obj.config["bootstrap.servers"], context.obj.output.value, word))

    typer.main.get_command(app)(words, standalone_mode=False)
    assert seen == [(servers, output, words[-1] if "--" in words else "")]


def test_a_settings_file_that_cannot_be_read_is_named_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing, binary = tmp_path / "missing.properties", tmp_path / "binary.properties"
    binary.write_bytes(b"\xff")
    for path, why in ((missing, "No such file or directory\n"), (binary, "is not UTF-8: ")):
        assert main(["doctor", "--bootstrap-server", "b:1", "--command-config", str(path)]) == 2
        assert f"--command-config: {path}: {why}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("broker", "--config"), ("topics", "list", "--command-config")])
def test_a_file_in_another_encoding_is_named(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java reads a file of properties as Latin-1."""
    file = tmp_path / "settings.properties"
    file.write_bytes("log.dirs=/x\n# café\n".encode("latin-1"))
    assert main([*words, str(file)]) == 2
    said = capsys.readouterr().err
    assert f"{file}: is not UTF-8" in said
    assert len(said.splitlines()) == 1


@pytest.mark.slow
def test_a_name_that_stdout_cannot_take_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "profiles.toml").write_text('[profiles."日本"]\n', "utf-8")
    for encoding, name in (("utf-8", "日本"), ("latin-1", r"\u65e5\u672c")):
        done = subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", "profile", "list"],
            env={**os.environ, "TALLYSTICK_CONFIG_HOME": str(tmp_path), "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert name in done.stdout.decode(encoding)


def test_a_word_that_is_not_utf_8_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALLYSTICK_CONFIG_HOME", str(tmp_path))
    word = os.fsdecode(b"x\xff")
    assert main(["profile", "create", "a", "--bootstrap-server", "b:1", "--set", f"client.id={word}"]) == 2
    assert "argument 7 is not UTF-8" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_log_and_error_do_not_say_the_same_twice() -> None:
    """`Log and error never say the same twice`: the log tells the cause, the error that it went on."""
    said_once = _SaidOnce()
    cause = "127.0.0.1:1: ClusterOptions refused"
    error = TimedOut("default.api.timeout.ms", 10_000, "Metadata", cause)
    assert cause in said_once.format_error(error)
    record = logging.LogRecord("", logging.WARNING, "", 1, "%s: trying again", (cause,), None)
    assert said_once.filter(record)
    assert cause not in said_once.format_error(error)
    assert "default.api.timeout.ms = 10000 ms" in said_once.format_error(error)
    login = logging.LogRecord("", logging.ERROR, "", 1, "%s", (AuthenticationFailed("b:1", "no"),), None)
    assert not said_once.filter(login)
