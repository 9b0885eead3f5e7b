"""A session whose Python workers are another Python is refused at once, with the setting to write."""

import sys
from pathlib import Path

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.spark.session import check_worker_python


def make_python(folder: Path, ending: str) -> str:
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\n{ending}\n")
    program.chmod(0o755)
    return str(program)


def test_a_python_without_tallystick_is_refused_with_the_setting_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_python(tmp_path, "echo \"No module named 'tallystick'\" >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BadConfig) as refused:
        check_worker_python("python3")
    assert str(refused.value) == (
        f"PYSPARK_PYTHON: Spark's workers run {program}, which cannot import tallystick (No module named "
        f"'tallystick'): set PYSPARK_PYTHON={sys.executable} before the session is made"
    )


def test_this_python_another_with_tallystick_and_one_of_another_host_are_taken(tmp_path: Path) -> None:
    for command in (sys.executable, make_python(tmp_path, "exit 0"), "./environment/bin/python"):
        check_worker_python(command)
