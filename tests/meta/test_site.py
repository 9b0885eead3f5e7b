"""`make docs` and the gate refuse what mkdocs warns of."""

import subprocess
from pathlib import Path

import pytest
from tools.gate import BIN, DOCS

SITE = "site_name: one page\nstrict: true\nvalidation: { links: { anchors: warn } }\n"


@pytest.mark.slow
@pytest.mark.parametrize(("anchor", "is_refused"), [("first", False), ("second", True)])
def test_a_link_to_a_heading_that_is_missing_is_refused(
    anchor: str, is_refused: bool, tmp_path: Path
) -> None:
    """mkdocs counts only warnings that it prints: with --quiet, `strict` refuses nothing."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n## First\n\n[there](#{anchor})\n")
    (tmp_path / "mkdocs.yml").write_text(SITE)
    program, *arguments = DOCS["docs"]
    build = subprocess.run(
        [BIN / program, *arguments], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert bool(build.returncode) is is_refused, build.stderr
