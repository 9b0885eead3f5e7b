"""Docstrings say who does what: no riddles about persons who are not there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Words of a style that hides the subject of a sentence: name the client, the broker, the caller instead.
BANNED = re.compile(r"\b(nobody|somebody|whoever|whomever)\b", re.IGNORECASE)


def docstrings(path: Path) -> list[str]:
    nodes = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [text for node in nodes if (text := ast.get_docstring(node)) is not None]


def test_docstrings_name_the_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group(0)}"
        for folder in ("src", "harness", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in docstrings(path)
        if (match := BANNED.search(text)) is not None
    ]
    assert found == []


def test_a_banned_word_is_found() -> None:
    assert BANNED.search("Whoever asks is told.")
    assert not BANNED.search("A nobodyish name.")
