"""What keeps a tag from being released."""

import re
from pathlib import Path

import pytest
from tools.release import find_notes, find_problems

CHANGELOG = (
    "# Changelog\n\n## [0.2.0] - 2027-01-02\n\n### Added\n\n- New.\n\n## [0.1.0] - 2026-11-22\n\n- First.\n"
)


def test_the_notes_are_the_section_of_the_version_alone() -> None:
    assert find_notes("0.2.0", CHANGELOG) == "### Added\n\n- New."
    assert find_notes("0.1.0", CHANGELOG) == "- First."


def test_a_version_that_is_written_up_can_be_released() -> None:
    assert find_problems("v0.2.0", "0.2.0", CHANGELOG, []) == []


@pytest.mark.parametrize(
    ("tag", "version", "fragments", "problem"),
    [
        ("v0.2.0", "0.1.0", [], "the tag is v0.2.0, the package v0.1.0"),
        ("v0.3.0", "0.3.0", [], "CHANGELOG.md has no section [0.3.0]"),
        ("v0.2.0", "0.2.0", ["a.added.md"], "these are in no section yet: a.added.md"),
    ],
)
def test_a_version_that_is_not_ready_is_refused(
    tag: str, version: str, fragments: list[str], problem: str
) -> None:
    assert find_problems(tag, version, CHANGELOG, fragments) == [problem]


def test_the_extension_takes_no_length_by_a_format() -> None:
    # The wheel is for Python 3.11 and later. Compiled by Python 3.13, formats with `#` raise SystemError in
    # 3.11 and 3.12, whatever PY_SSIZE_T_CLEAN says: 3.13's headers name no variant for it any more.
    source = (Path(__file__).parents[2] / "src/tallystick/_native.c").read_text()
    formats = re.findall(r'Py(?:Arg_Parse\w*|_BuildValue)\([^"]*"([^"]*)"', source)
    assert formats
    assert not [each for each in formats if "#" in each]
