"""What `make run` and `make test` install, and what they print of it."""

import shutil
import tomllib
from pathlib import Path

import pytest
from tools import environment
from typer.testing import CliRunner

from tallystick.cli.commands.demo import app

PROJECT = tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["project"]


def test_the_demo_installs_no_test_and_no_documentation_tools() -> None:
    """`make run`: installs only what it needs (never test or docs tools)."""
    requirements = environment.list_requirements("demo")
    assert {each for each in PROJECT["optional-dependencies"]["demo"] if "tallystick[" not in each} <= set(
        requirements
    )
    assert any(each.startswith("pyspark") for each in requirements)
    assert any(each.startswith("uvicorn") for each in requirements), "the console is part of the demo"
    names = ("pytest", "mkdocs", "mypy", "ruff", "hypothesis", "tallystick")
    assert [each for each in requirements if each.startswith(names)] == []


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "..."),
        ("Collecting pyspark<4.4,>=3.5\n  Downloading pyspark-4", "Collecting pyspark<4.4,>=3.5"),
        ("Downloading pyspark (434.8MiB)\n\n", "Downloading pyspark (434.8MiB)"),
        ("x" * 200 + "\n", "x" * 88),
    ],
)
def test_what_an_installer_does_is_told_in_its_last_whole_line(log: str, line: str) -> None:
    assert environment.last_line(log) == line


@pytest.mark.slow
def test_an_environment_that_was_left_without_pip_is_given_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation may be interrupted, and uv may have left the PATH."""
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(environment, "has_pip_for_others", lambda: True)
    monkeypatch.setattr("shutil.which", lambda _: None)
    environment.make_environment()
    assert not environment.PYTHON.with_name("pip").exists()
    monkeypatch.setattr(environment, "has_pip_for_others", lambda: False)
    environment.make_environment()
    assert environment.PYTHON.with_name("pip").exists()


@pytest.mark.slow
def test_an_environment_whose_python_is_gone_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that is upgraded leaves links that lead nowhere, and stamps of what was installed."""
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    for maker in (None, shutil.which("uv")):
        monkeypatch.setattr("shutil.which", lambda _, maker=maker: maker)
        environment.make_environment()
        for path in environment.PYTHON.parent.glob("python*"):
            path.unlink()
        environment.PYTHON.symlink_to(tmp_path / "removed")
        (environment.VENV / ".ready").touch()
        environment.make_environment()
        assert environment.PYTHON.exists()
        assert not (environment.VENV / ".ready").exists()


def test_the_versions_are_those_that_the_tests_have_seen() -> None:
    assert environment.install_command(["x"])[-3:] == ["-c", "constraints.txt", "x"]


def test_the_flights_can_be_shown_with_these_options() -> None:
    """And `tallystick demo` shows the whole year on executors."""
    result = CliRunner().invoke(app, [*environment.FLIGHTS_OPTIONS, "--quick"])
    assert "without Spark" in result.output, "no option is unknown, and each differs from the default"
