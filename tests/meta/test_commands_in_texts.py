"""Every `tallystick ...` that an error text or the documentation tells a user to type is one that exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tallystick.cli.app import app

ROOT = Path(__file__).parents[2]
PLACEHOLDER = "VALUE"
# Up to the end of the sentence, of the code, or of the line.
COMMAND = re.compile(r"(?<![\w./-])tallystick( [a-z][^`|\n;]*)")
# Options that are added to every command that talks to a cluster, when it is run.
OPTIONS_OF_ALL = {"--bootstrap-server", "--command-config", "--profile", "--output", "--timeout-ms", "--help"}
OPTION = re.compile(r"--[a-z][a-z-]*")


def list_texts(path: Path) -> Iterator[str]:
    """Yield the string literals of a module without docstrings; values of an f-string are a placeholder."""
    tree = ast.parse(path.read_text())
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in parts | docstrings:
            yield node.value if isinstance(node.value, str) else ""


def find_problem(words: list[str]) -> str | None:
    """Return what is wrong with the words behind `tallystick`; None for prose, and for what can be typed."""
    # Typer brings its own click: there is no class to compare with.
    command: Any = typer.main.get_command(app)
    path = ["tallystick"]
    if words[0] == "broker":
        return None  # Its options are not declared here.
    while hasattr(command, "resolve_command") and words:
        context = command.make_context(path[-1], [], resilient_parsing=True)
        if words[0] not in command.list_commands(context):
            options = OPTION.findall(" ".join(words))
            return f"{' '.join(path)} has no command {words[0]!r}" if options else None
        name, command, _ = command.resolve_command(context, words)
        words = words[1:]
        path.append(name)
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    known |= OPTIONS_OF_ALL
    for option in OPTION.findall(" ".join(words)):
        if option not in known:
            return f"{' '.join(path)} has no option {option}"
    takes_arguments = any(each.param_type_name == "argument" for each in command.params)
    if words[:1] == [PLACEHOLDER] and not takes_arguments:
        return f"{' '.join(path)} takes an option here, and no argument"
    return None


SOURCES = sorted((ROOT / "src" / "tallystick").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.slow
def test_texts_of_the_sources() -> None:
    problems = [
        f"{path.relative_to(ROOT)}: {problem}: {match[0]}"
        for path in SOURCES
        if "tallystick " in path.read_text()
        for text in list_texts(path)
        for match in COMMAND.finditer(text)
        if (problem := find_problem(match[1].split())) is not None
    ]
    assert problems == []


@pytest.mark.slow
def test_pages_of_the_documentation() -> None:
    problems = [
        f"{path.relative_to(ROOT)}: {problem}: {match[0]}"
        for path in PAGES
        for match in COMMAND.finditer(path.read_text())
        if (problem := find_problem(match[1].split())) is not None
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("topics create --topic VALUE --partitions 1", None),
        ("topics create VALUE", None),
        ("topics list VALUE", "tallystick topics list takes an option here, and no argument"),
        ("topics create --topics VALUE", "tallystick topics create has no option --topics"),
        ("topic create --topic VALUE", "tallystick has no command 'topic'"),
        ("is a broker", None),
    ],
)
def test_what_is_a_problem(text: str, problem: str | None) -> None:
    assert find_problem(text.split()) == problem
