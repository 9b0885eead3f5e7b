"""The documentation's site: what its build refuses, loads from elsewhere, and finds first."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.docs_hooks import on_page_content, on_page_markdown
from tools.gate import BIN, DOCS

VENDOR = Path(__file__).parents[2] / "docs" / "vendor"

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


def make_page(path: str) -> Page:
    config = MkDocsConfig()
    config.load_dict({"site_name": "one page"})
    config.validate()
    return Page(None, File(path, "docs", "site", use_directory_urls=True), config)


def test_a_page_with_a_diagram_brings_what_draws_it_and_asks_no_other_site() -> None:
    """Wanted: "mermaid and every asset local"; the theme loads it from a CDN unless it is there."""
    page, config = make_page("concepts/modes.md"), MkDocsConfig()
    drawn = on_page_content('<pre class="mermaid">', page, config, Files([]))
    assert drawn.endswith('<script src="../../vendor/mermaid.tiny.js"></script>')
    assert on_page_content("<p>", page, config, Files([])) == "<p>"


def test_what_draws_diagrams_is_as_its_authors_published_it() -> None:
    (line,) = (line for line in (VENDOR / "VENDORED.txt").read_text().splitlines() if "  " in line)
    expected, name = line.split("  ")
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected


def test_decisions_rank_below_guides_in_the_search() -> None:
    """N27: "ADRs rank above troubleshooting in search"."""
    config = MkDocsConfig()
    config.docs_dir = "docs"
    boosts = []
    for path in ("adr/0012-request-order.md", "concepts/modes.md", "troubleshooting.md"):
        page = make_page(path)
        on_page_markdown("", page, config, Files([]))
        boosts.append(page.meta.get("search", {}).get("boost", 1))
    assert boosts == [0.2, 1, 2]
