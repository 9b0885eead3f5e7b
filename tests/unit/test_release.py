"""What keeps a tag from being released."""

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
