"""What a process loads: the broker stays small because it never imports what it does not need."""

import subprocess
import sys

import pytest

HEAVY = {
    "numpy",
    "pandas",
    "pyarrow",
    "sqlalchemy",
    "pyspark",
    "rich",
    "typer",
    "click",
    "hypothesis",
    "confluent_kafka",
    "textual",
}


def modules_after(code: str) -> set[str]:
    printed = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in printed.stdout.split()}


@pytest.mark.parametrize(
    "code",
    [
        "import tallystick",
        "import tallystick.broker.broker",
        "import tallystick.broker.embedded",
        "import tallystick.testing",
        "import tallystick.cli.main, tallystick.cli.commands.broker",
    ],
)
@pytest.mark.slow
def test_nothing_heavy_is_loaded(code: str) -> None:
    assert not modules_after(code) & HEAVY


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--help"], {"tallystick.broker", "tallystick.storage", "tallystick.client.net", "asyncio"}),
        (["topics", "--help"], {"tallystick.broker", "tallystick.storage", "tallystick.spark"}),
        (["run", "--help"], {"pyspark", "pyarrow", "sqlalchemy", "tallystick.broker"}),
        (["console", "--help"], {"textual", "starlette", "sqlalchemy", "tallystick.broker"}),
        (["top", "--help"], {"textual", "starlette", "sqlalchemy", "tallystick.broker"}),
        (["demo", "--help"], {"pyspark", "pyarrow", "psycopg", "tallystick.broker"}),
    ],
)
def test_help_loads_only_what_its_command_needs(words: list[str], unused: set[str]) -> None:
    code = f"import sys; from tallystick.cli.main import main; sys.stdout = sys.stderr; main({words})"
    printed = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules, file=sys.__stdout__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tallystick.cli.app" in printed.stdout.split()
    assert not unused & set(printed.stdout.split())
