"""On a phone and a wide screen, in light and dark: nothing off the screen, and no word broken into letters.

And the views that the reader chooses: more rows, the own time, the order of a list, the search.
"""

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.browser import (
    Tab,
    find_axe_violations,
    find_broken_words,
    find_sideways,
    measure_overflow,
    open_tab,
)
from tests.support.console_pages import PAGE_CASES, PageCase
from tests.support.console_site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.server, pytest.mark.gate(2)]

SIZES: dict[str, dict[str, Any]] = {
    f"{width} {scheme}": {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    for width in (420, 1400)
    for scheme in ("light", "dark")
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", PAGE_CASES, ids=lambda case: case.name)
def test_everything_is_on_the_screen_and_no_word_is_broken(
    browser: "Browser", shop: Site, case: PageCase, size: str
) -> None:
    """Wanted: "phone: halves below each other, tables as cards"."""
    with open_tab(browser, shop.url, **SIZES[size]) as tab:
        page = case.open(tab)
        assert measure_overflow(page) == 0
        assert find_sideways(page) == []
        assert find_broken_words(page) == []
        assert tab.problems == []


def test_the_halves_of_a_dry_run_are_below_each_other_on_a_phone(browser: "Browser", shop: Site) -> None:
    case = next(case for case in PAGE_CASES if case.name == "dry-run")
    with open_tab(browser, shop.url, **SIZES["420 light"]) as tab:
        page = case.open(tab)
        boxes = page.locator("#plan tbody > tr > *").evaluate_all(
            "cells => cells.map((cell) => { const box = cell.getBoundingClientRect(); "
            "return [box.left, box.top, box.width]; })"
        )
        assert len({left for left, _, _ in boxes}) == 1
        assert [top for _, top, _ in boxes] == sorted({top for _, top, _ in boxes})
        assert min(width for _, _, width in boxes) > 300


def test_a_list_is_put_in_order_by_a_click_and_keeps_its_filter(tab: Tab) -> None:
    page = tab.follow("/transactions?store=clicks")
    page.click("th a:has-text('Held back')")
    page.wait_for_url("**/transactions?store=clicks&sort=-held_back")
    assert page.get_attribute("th:has-text('Held back')", "aria-sort") == "descending"
    assert page.locator("td[data-label='Held back']").all_inner_texts() == ["4,362", "4,349"]
    page.click("th a:has-text('Held back')")
    page.wait_for_url("**sort=held_back")
    assert page.get_attribute("th:has-text('Held back')", "aria-sort") == "ascending"
    page.select_option("select[name=health]", "ok")
    page.click("text=Filter")
    page.wait_for_url("**health=ok**sort=held_back")
    page.click("th a:has-text('Held back')")
    page.wait_for_url(lambda url: "sort=" not in url and "health=ok" in url)


def test_a_list_is_put_in_order_without_a_script(browser: "Browser", shop: Site) -> None:
    with open_tab(browser, shop.url, java_script_enabled=False, **SIZES["420 light"]) as tab:
        page = tab.open("/groups")
        page.click("th a:has-text('Held back')")
        assert page.locator("td[data-label='Held back']").all_inner_texts() == ["16,451", "1,132", "401"]
        assert page.locator("#view:visible").count() == 0


def test_a_slash_leads_to_the_search_which_finds_names_of_every_kind(tab: Tab) -> None:
    page = tab.follow("/stores")
    page.keyboard.press("/")
    page.keyboard.type("or/")  # and is written like any other sign where there is something to write in
    assert page.input_value("#search input") == "or/"
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=or")
    page.click("a:has-text('orders')")
    page.wait_for_url("**/topics/orders")


def test_more_rows_are_on_a_screen_where_that_is_chosen_and_it_is_remembered(tab: Tab) -> None:
    page = tab.follow("/transactions")
    height = "document.querySelector('#transactions').offsetHeight"
    before = page.evaluate(height)
    page.click("button:has-text('Dense')")
    assert page.evaluate(height) < before * 0.6
    assert find_axe_violations(page) == []
    page.reload()
    assert page.get_attribute("button:has-text('Dense')", "aria-pressed") == "true"
    assert page.evaluate(height) < before * 0.6
    page.click("button:has-text('Dense')")
    assert page.evaluate(height) == before
    assert tab.context.cookies() == []


def test_the_reader_s_own_time_is_beside_utc_and_says_its_zone(browser: "Browser", shop: Site) -> None:
    """Wanted: "local time and "3 min ago" beside UTC"."""
    with open_tab(browser, shop.url, timezone_id="Asia/Tokyo", locale="en-GB") as tab:
        page = tab.follow("/transactions/payments-1")
        time = page.locator("#history time").first
        assert time.inner_text() == "2026-09-21 14:09:00.000"
        assert time.get_attribute("title") == "21 Sept 2026, 23:09:00 (Asia/Tokyo)"
        assert page.locator("#history .when").first.inner_text().endswith("4 min ago")
        shown = "getComputedStyle(document.querySelector('#history time'), '::after').content"
        assert page.evaluate(shown) == "none"
        page.click("button:has-text('Local time')")
        assert page.evaluate(shown) == '"21 Sept 2026, 23:09:00"'
        shop.feed.note("payments-1", "noted", shop.clock.now_ms())
        assert tab.problems == []
