"""Every page once, on a laptop in the light: whole, accessible, never too wide. The rest is in test_pages."""

import re
from pathlib import Path

import pytest
from tests.support.browser import Tab, find_axe_violations, find_cut_off, measure_overflow
from tests.support.console_pages import PAGE_CASES, PageCase
from tools.screenshots import BYTES_MAX, IMAGES, list_pictures

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PICTURES = {picture.file for picture in list_pictures()}


@pytest.mark.gate(2)
@pytest.mark.parametrize("case", PAGE_CASES, ids=lambda case: case.name)
def test_a_page_is_whole_and_accessible(tab: Tab, case: PageCase) -> None:
    page = case.open(tab)
    text = page.inner_text("body")
    assert [said for said in case.says if said not in text] == []
    assert find_axe_violations(page) == []
    assert measure_overflow(page) == 0
    assert find_cut_off(page) == []


def test_the_documentation_shows_the_pictures_that_there_are() -> None:
    texts = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    shown = {
        name for path in texts for name in re.findall(r"images/(console-[\w-]+\.webp)", path.read_text())
    }
    files = {path.name for path in IMAGES.glob("console-*.webp")}
    assert shown == files
    assert files <= PICTURES
    assert all((IMAGES / name).stat().st_size < BYTES_MAX for name in files)
