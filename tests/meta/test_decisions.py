"""Decision records: every one that is named exists, has the same form and length, and is in the index."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/adr"
RECORDS: Final = sorted(FOLDER.glob("[0-9]*.md"))

# `ADR` or the folder, then a number or several, or a file's name.
_NAMED: Final = re.compile(r"(?:\bADRs?\s+\[?|\badr/)(\d{4}(?!\d)(?:(?:, | and | to )\d{4}(?!\d))*)")
_FILE: Final = re.compile(r"\badr/(\d{4}-[a-z0-9-]+\.md)")
_SECTIONS: Final = ["Context", "Decision", "Consequences", "Alternatives", "When to revisit"]
_HEAD: Final = re.compile(
    r"# (?P<number>\d{4})\. (?P<title>.+)\n\n"
    r"- \*\*Date:\*\* (?P<date>\d{4}-\d{2}-\d{2}(?:, last decision \d{4}-\d{2}-\d{2})?)\n"
    r"- \*\*Status:\*\* (?P<status>.+)\n\n"
)


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text file that git knows, with its name."""
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in known.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".c", ".md", ".toml", ".txt", ".yml"} and path.is_file():
            yield name, path.read_text()


def dangling(text: str) -> list[str]:
    """Return the decision records that a text names and that do not exist."""
    files = {record.name for record in RECORDS}
    numbers = {name[:4] for name in files}
    named = [number for run in _NAMED.findall(text) for number in re.findall(r"\d{4}", run)]
    return [n for n in named if n not in numbers] + [f for f in _FILE.findall(text) if f not in files]


@pytest.mark.parametrize("lead", ["ADR ", "[ADR ", "docs/adr/", "ADRs 0001 and ", "docs/adr/0001, "])
def test_a_record_that_does_not_exist_is_noticed(lead: str) -> None:
    assert dangling(f"{lead}0001.") == []
    assert dangling(f"{lead}{9999}.") == ["9999"]
    assert dangling("(../adr/" + "0001-another-name.md)") == ["0001-another-name.md"]


@pytest.mark.slow
def test_every_record_that_is_named_exists() -> None:
    assert {name: missing for name, text in texts() if (missing := dangling(text))} == {}


def test_every_record_has_the_same_form() -> None:
    for record in RECORDS:
        text = record.read_text()
        head = _HEAD.match(text)
        assert head is not None, f"{record.name}: title, date, status"
        assert head["number"] == record.name[:4], record.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == _SECTIONS, record.name


@pytest.mark.parametrize(("folder", "words_max"), [("docs/adr", 400), ("docs/design", 900)])
def test_records_and_designs_are_short(folder: str, words_max: int) -> None:
    """A longer record has a design document, and a longer design has two subjects."""
    pages = [page for page in sorted((ROOT / folder).glob("*.md")) if page.name != "README.md"]
    assert [page.name for page in pages if len(page.read_text().split()) > words_max] == []


def test_the_index_has_every_record_once() -> None:
    index = (FOLDER / "README.md").read_text()
    rows = re.findall(r"^\| [^|]*\| \[(\d{4})\]\((.+?)\) \| .+ \|$", index, re.MULTILINE)
    assert sorted(rows) == [(record.name[:4], record.name) for record in RECORDS]


def test_a_merged_number_leads_to_a_record() -> None:
    """A number is not used again: an older text may still name it."""
    index = (FOLDER / "README.md").read_text()
    merged = re.findall(r"(?:(\d{4}) to )?((?:\d{4}(?:,\s)?)+)\s->\s((?:\d{4}(?:,\s)?)+)", index)
    numbers = {record.name[:4] for record in RECORDS}
    assert merged != []
    for first, sources, targets in merged:
        assert set(re.findall(r"\d{4}", targets)) <= numbers
        assert set(re.findall(r"\d{4}", f"{first} {sources}")).isdisjoint(numbers)
