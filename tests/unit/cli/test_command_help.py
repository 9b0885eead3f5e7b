"""Every `--help`: values with names, two examples that can be typed, `-h`; and completion."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tallystick.cli.app import COMMANDS, app
from tallystick.cli.commands.broker import _build_parser
from tallystick.cli.examples import EXAMPLES
from tallystick.cli.main import main

ROOT: Any = typer.main.get_command(app)


def list_commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the command and the context of each command, but of the broker."""
    context = ROOT.make_context("tallystick", [], resilient_parsing=True)
    yield "", ROOT, context
    for name in COMMANDS:
        if name == "broker":
            continue
        _, command, _ = ROOT.resolve_command(context, [name])
        own = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield name, command, own
        for each, subcommand in getattr(command, "commands", {}).items():
            if not subcommand.hidden:
                its = subcommand.make_context(each, [], parent=own, resilient_parsing=True)
                yield f"{name} {each}", subcommand, its


HELPS = {path: command.get_help(context) for path, command, context in list_commands()}


def test_each_command_has_two_examples_and_no_other_has() -> None:
    assert set(EXAMPLES) == {*HELPS, "broker"}
    for path, text in HELPS.items():
        assert text.endswith("\n".join(f"    {each}" for each in EXAMPLES[path])), path


@pytest.mark.parametrize("path", sorted(HELPS))
def test_values_have_names_of_ours(path: str) -> None:
    """`No words of typer ... (<list[str]>, <int range>)`."""
    assert not re.findall(r"<(?:list|int|str|float|path|file|bool|text)|\bRANGE\b", HELPS[path])


def parse(words: list[str]) -> None:
    """Parse as a command would, and run nothing."""
    command, context = ROOT, ROOT.make_context("tallystick", words)
    while words:
        words = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [each for name, some in EXAMPLES.items() if name != "broker" for each in some]
)
def test_examples_can_be_typed(example: str) -> None:
    (part,) = re.findall(r"(?:^|\| |\$\()tallystick ([^|<>)]*)", example)
    parse(shlex.split(part))


@pytest.mark.parametrize("example", EXAMPLES["broker"])
def test_examples_of_the_broker_can_be_typed(example: str) -> None:
    words = shlex.split(example)
    assert words[:2] == ["tallystick", "broker"]
    _build_parser().parse_args(words[2:])


@pytest.mark.parametrize("words", [(), ("topics",), ("topics", "list"), ("consume",), ("broker",)], ids=str)
def test_h_is_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([*words, "-h"])
    except SystemExit as exc:  # argparse
        code = int(exc.code or 0)
    assert code == 0
    said = capsys.readouterr().out
    assert "Examples:" in said
    assert "-h, --help" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_TALLYSTICK_COMPLETE=complete_{shell}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("to", "topics\ntop"),
        ("topics del", "delete\ndelete-records"),
        ("topics create --par", "--partitions"),
        ("topics list --output ", "table\njson"),
        ("completion ", "bash\nzsh\nfish"),
        ("broker --da", ""),
    ],
)
def test_a_shell_is_told_how_a_word_goes_on(line: str, expected: str) -> None:
    words = f"tallystick {line}"
    environment = {
        "_TALLYSTICK_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tallystick.cli.main"],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == expected


@pytest.mark.slow
def test_help_loads_no_command() -> None:
    """Completion and examples must not slow `tallystick --help`."""
    code = (
        "import sys; from tallystick.cli.main import main; main(['--help']); "
        "heavy = ('tallystick.cli.commands.', 'tallystick.cli.connection', 'rich'); "
        "print([name for name in sys.modules if name.startswith(heavy)], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("topics", "create", "t", "--partitions", "x"), "'--partitions': 'x' is not a whole number"),
        (("topics", "create", "t", "--partitions", "1.5"), "'1.5' is not a whole number"),
        (("topics", "create", "t", "--partitions", "0"), "'--partitions': 0 is below 1"),
        (("topics", "list", "--timeout-ms", "0"), "'--timeout-ms': 0 is below 1"),
        (("topics", "list", "--timeout-ms", "9999999999"), "'--timeout-ms': 9999999999 is above 2147483647"),
        (("topics", "list", "--output", "yaml"), "'--output': 'yaml' is not one of 'table', 'json'"),
        (("transactions", "list", "--producer-id", "1x"), "'1x' is not a whole number"),
        (("consume", "t", "--partition", "x"), "'x' is not a whole number"),
        (("groups", "reset-offsets", "g"), "Error: give one of --to-earliest, --to-latest"),
        (("transactions", "complete", "t", "x"), "Error: STATE: 'x' is not the state"),
        (("completion", "tcsh"), "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_a_wrong_value_is_said_in_our_words(
    words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`No words of ... pydantic-like validators in messages`."""
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert not re.search(r"Input should|Value error|<\w", said)
