"""Every page in light and dark, on a phone, a laptop and a wide screen: whole, accessible, never too wide.

On a laptop in the light each is looked at by test_each_page, which `make test` runs.
"""

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.browser import (
    LAPTOP,
    PHONE,
    WIDE,
    find_axe_violations,
    find_cut_off,
    measure_overflow,
    open_tab,
)
from tests.support.console_pages import PAGE_CASES, PageCase
from tests.support.console_site import Site, serve, serve_site
from tests.support.console_worlds import make_nothing, make_shop
from tools.screenshots import BYTES_MAX, Picture, list_pictures, take

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.server, pytest.mark.gate(0)]

WINDOWS: dict[str, dict[str, Any]] = {
    "laptop light": {"viewport": LAPTOP, "color_scheme": "light"},
    "laptop dark": {"viewport": LAPTOP, "color_scheme": "dark"},
    "phone light": {"viewport": PHONE, "color_scheme": "light", "has_touch": True, "is_mobile": True},
    "phone dark": {"viewport": PHONE, "color_scheme": "dark", "has_touch": True, "is_mobile": True},
    "wide light": {"viewport": WIDE, "color_scheme": "light"},
    "wide dark": {"viewport": WIDE, "color_scheme": "dark"},
}
NEEDS: dict[str, dict[str, Any]] = {
    "more contrast": {"contrast": "more"},
    "own colours": {"forced_colors": "active"},
    "large text": {"viewport": {"width": 640, "height": 400}},  # 200 % on a laptop; WCAG 1.4.4 and 1.4.10
    "largest text": {"viewport": {"width": 320, "height": 256}},  # 400 %
}
PICTURES = {picture.file: picture for picture in list_pictures()}
MENU_PATHS = ["/", "/events", "/transactions", "/stores", "/pipelines", "/topics", "/groups"]


@pytest.mark.parametrize("window", [window for window in WINDOWS if window != "laptop light"])
@pytest.mark.parametrize("case", PAGE_CASES, ids=lambda case: case.name)
def test_a_page_is_whole_and_accessible(browser: "Browser", shop: Site, case: PageCase, window: str) -> None:
    with open_tab(browser, shop.url, **WINDOWS[window]) as tab:
        page = case.open(tab)
        text = page.inner_text("body")
        assert [said for said in case.says if said not in text] == []
        assert find_axe_violations(page) == []
        assert measure_overflow(page) == 0
        assert find_cut_off(page) == []
        assert tab.problems == []


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("path", [*MENU_PATHS, "/transactions/payments-1"])
def test_a_page_serves_who_needs_more(browser: "Browser", shop: Site, path: str, need: str) -> None:
    with open_tab(browser, shop.url, **NEEDS[need]) as tab:
        page = tab.follow(path)
        assert find_axe_violations(page) == []
        assert measure_overflow(page) == 0
        assert tab.problems == []


@pytest.mark.parametrize("window", WINDOWS)
def test_the_longest_word_for_a_health_has_its_place(browser: "Browser", window: str) -> None:
    site = Site()
    site.publish(make_shop())  # once: what looks broken is looked at again
    with serve_site(site), open_tab(browser, site.url, **WINDOWS[window]) as tab:
        page = tab.follow("/transactions")
        assert page.locator("td .looking-again").is_visible()
        assert find_cut_off(page) == []


@pytest.mark.parametrize("window", ["laptop light", "phone dark"])
@pytest.mark.parametrize("path", MENU_PATHS)
def test_a_page_with_nothing_on_it_is_accessible_and_says_why(
    browser: "Browser", path: str, window: str
) -> None:
    with serve(make_nothing()) as site, open_tab(browser, site.url, **WINDOWS[window]) as tab:
        page = tab.open(path)
        assert page.locator("#page .empty, #page .banner").first.is_visible()
        assert find_axe_violations(page) == []
        assert measure_overflow(page) == 0
        assert tab.problems == []


@pytest.mark.parametrize("path", MENU_PATHS)
def test_a_page_is_accessible_before_anything_was_read(browser: "Browser", path: str) -> None:
    with serve() as site, open_tab(browser, site.url) as tab:
        page = tab.open(path)
        assert "Nothing has been read yet" in page.inner_text("#page")
        assert find_axe_violations(page) == []
        assert tab.problems == []


@pytest.mark.parametrize("picture", PICTURES.values(), ids=lambda picture: picture.name)
def test_a_picture_of_each_page_is_taken_and_small(browser: "Browser", shop: Site, picture: Picture) -> None:
    content = take(browser, shop, picture)
    assert (content[:4], content[8:12]) == (b"RIFF", b"WEBP")
    assert len(content) < BYTES_MAX
