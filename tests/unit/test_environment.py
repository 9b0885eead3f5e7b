"""What `make run` and `make test` install, and what they print of it."""

import tomllib
from pathlib import Path

import pytest
from tools import environment

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


def test_each_package_is_named_once_whether_pip_or_uv_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "install.log"
    monkeypatch.setattr(environment, "LOG", log)
    log.write_text("Collecting pyspark<4.4,>=3.5 (from -r x)\n  Using cached pyspark.tar.gz\nColl")
    names, position = environment.new_names(0)
    assert names == "pyspark"
    log.write_text(log.read_text() + "ecting numpy>=1.26\n + pandas==2.3.3\n")
    assert environment.new_names(position) == ("numpy pandas", len(log.read_text()))


def test_the_versions_are_those_that_the_tests_have_seen() -> None:
    assert environment.install_command(["x"])[-3:] == ["-c", "constraints.txt", "x"]
