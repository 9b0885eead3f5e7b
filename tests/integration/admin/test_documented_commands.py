"""The tutorials and the examples of the guides are run as they are printed, command by command."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.effort import long_form

from tallystick.testing import EmbeddedBroker

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND_SECONDS_MAX = 240

# Done, something is in doubt, ended by `--timeout-ms`, killed on purpose.
EXPECTED_CODES = {0, 3, 4, 137}

pytestmark = [pytest.mark.server, pytest.mark.slow]


@dataclass(frozen=True)
class Command:
    line: str
    prints: tuple[str, ...]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def steps(page: str, address: str) -> Iterator[tuple[str, str] | Command]:
    """Yield the files that a page has the reader write, and its commands, in their order."""
    text = re.sub(r"(localhost|127\.0\.0\.1):9092", address, (DOCS / page).read_text())
    for language, title, body in FENCE.findall(text):
        if title:
            yield title, body
        elif language == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                line, *printed = part.rstrip("\n").split("\n")
                yield Command(line, tuple(printed))


def run(command: Command, folder: Path) -> None:
    # `python` and `tallystick` are those of the environment that the tests run in.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command.line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    lines = done.stdout.splitlines()
    missing = [line for line in command.prints if line not in lines]
    shown = f"$ {command.line}\n{done.stdout}{done.stderr}"
    assert done.returncode in EXPECTED_CODES, shown
    assert not missing, shown


def follow(page: str, address: str, folder: Path) -> int:
    """Do what a page says; return how many commands it has."""
    commands = 0
    for step in steps(page, address):
        if isinstance(step, Command):
            run(step, folder)
            commands += 1
        else:
            name, text = step
            (folder / name).write_text(text)
    return commands


@pytest.mark.gate(0)
def test_the_dual_write_tutorial(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-1] What the tutorial kills is equal on both sides afterwards, and a cut transaction is resolved."""
    assert follow("tutorial/dual-write.md", broker.bootstrap_servers, tmp_path) >= 12


@pytest.mark.gate(0)
def test_readme_and_tutorial_run_in_one_folder_in_any_order(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Every snippet runs as pasted in an empty folder, in any order: they share no file, topic or id."""
    readme = (ROOT / "README.md").read_text().replace("localhost:9092", broker.bootstrap_servers)
    snippets = {"write.py": "DualWriter(", "test.py": "EmbeddedBroker()"}
    for name, part in snippets.items():
        (text,) = [body for _, _, body in FENCE.findall(readme) if part in body and "import" in body]
        (tmp_path / name).write_text(text)
    (table,) = re.findall(r"^\$ (python -c .*)$", readme, re.MULTILINE)
    run(Command("python test.py", ()), tmp_path)
    run(Command(f"{table} && python write.py", ()), tmp_path)
    follow("tutorial/dual-write.md", broker.bootstrap_servers, tmp_path)
    run(Command("python write.py && python test.py && python check.py", ("equal",)), tmp_path)


@pytest.mark.gate(0)
@pytest.mark.parametrize("page", ["add-to-your-service", "from-an-outbox"])
def test_a_guide(broker: EmbeddedBroker, page: str, tmp_path: Path) -> None:
    assert follow(f"how-to/{page}.md", broker.bootstrap_servers, tmp_path) == 3


@long_form
def test_the_spark_tutorial(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert follow("tutorial/spark.md", broker.bootstrap_servers, tmp_path) >= 6


@pytest.mark.gate(0)
def test_the_examples_for_tests(tmp_path: Path) -> None:
    for step in steps("how-to/pytest.md", "unused"):
        assert isinstance(step, tuple)
        (tmp_path / step[0]).write_text(step[1])
    run(
        Command("python -m pytest -q -p no:cacheprovider test_orders.py && echo passed", ("passed",)),
        tmp_path,
    )
    run(Command("python embedded.py && python crash_test.py && echo done", ("done",)), tmp_path)
