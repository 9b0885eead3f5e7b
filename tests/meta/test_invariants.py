"""Every numbered invariant is defined once, kept somewhere in the code and shown by a test (style R8)."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\[([A-Z]{2,6}-\d+)\]")


def mentioned(folder: str) -> set[str]:
    return {
        number
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".txt"} and path.name != Path(__file__).name
        for number in NUMBER.findall(path.read_text())
    }


def test_every_invariant_has_definition_code_and_test() -> None:
    defined = re.findall(r"^\| \[([A-Z]{2,6}-\d+)\]", (ROOT / "docs/invariants.md").read_text(), re.MULTILINE)
    assert len(defined) == len(set(defined)), "a number is defined once"
    assert set(defined) == mentioned("src"), "defined but not in the code, or in the code but not defined"
    assert set(defined) == mentioned("tests"), "defined but in no test, or in a test but not defined"
