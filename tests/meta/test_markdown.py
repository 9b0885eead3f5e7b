"""Markdown is wrapped, so that a diff shows the sentence that has changed."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS = 100
FOLDERS = ("docs", "deploy", "examples", "tests", ".github")
# A row of a table or a heading has one line; an address cannot be broken.
ONE_LINE = re.compile(r"\s*(\||#|\[[^]]+\]: |([-*] )?\S+$)")
FENCE = re.compile(r"\s*(```|~~~)")


def find_long_lines(text: str) -> Iterator[int]:
    """Yield the numbers of the lines of prose that are too long; code is as long as it has to be."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= FENCE.match(line) is not None
        if len(line) > COLUMNS and not is_code and not line.startswith("    ") and not ONE_LINE.match(line):
            yield number


def test_markdown_is_wrapped() -> None:
    paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    long = [f"{path.relative_to(ROOT)}:{n}" for path in paths for n in find_long_lines(path.read_text())]
    assert not long, f"wrap these at {COLUMNS} columns"


def test_a_long_line_of_prose_is_found() -> None:
    prose = "word " * 30
    text = f"{prose}\n```\n{prose}\n```\n| {prose} |\n    {prose}\n- {prose}\n"
    assert list(find_long_lines(text)) == [1, 7]
