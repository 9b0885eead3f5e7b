"""The console without a mouse, and without a script; filters in the URL; on paper."""

from typing import TYPE_CHECKING

import pytest
from tests.support.browser import Tab, open_tab
from tests.support.console_pages import PAGE_CASES, PageCase
from tests.support.console_site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.server, pytest.mark.gate(0)]

FOCUSED = """() => {
  const node = document.activeElement, style = getComputedStyle(node), box = node.getBoundingClientRect();
  return {
    name: node.getAttribute("aria-label") || node.name || node.textContent.trim(),
    isMarked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    isSeen: box.width && box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight,
    box: [box.left, box.top, box.right, box.bottom],
  };
}"""


def tab_through(page: "Page", count: int) -> list[str]:
    """Press Tab, and return what has the focus each time; it must be seen and marked."""
    names = []
    for _ in range(count):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        assert (focused["isMarked"], focused["isSeen"]) == (True, True), focused
        names.append(focused["name"])
    return names


def test_the_order_of_the_keyboard_is_that_of_the_page(tab: Tab) -> None:
    page = tab.open("/transactions")
    menu = ["Overview", "Transactions", "Stores", "Pipelines", "Topics", "Groups"]
    form = ["text", "health", "state", "store", "Filter"]
    rows = ["refunds-1", "producer:2291:0", "ledger-import"]
    tools = ["Search ids, topics and groups", "Dense", "Local time"]
    heads = ["Health", "Transactional id", "State", "Decided by", "Finding", "Age / timeout", "Held back"]
    order = ["To the content", "tallystick", *menu, *tools, "JSON", *form, *heads, *rows]
    assert tab_through(page, len(order)) == order


def test_the_skip_link_leads_past_the_menu(tab: Tab) -> None:
    page = tab.open("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page"
    assert tab_through(page, 1) == ["JSON"]


@pytest.mark.parametrize("case", PAGE_CASES, ids=lambda case: case.name)
def test_every_stop_of_the_keyboard_is_seen(tab: Tab, case: PageCase) -> None:
    page = case.open(tab)
    stops = page.locator("a, button, input, select, summary, [tabindex='0']")
    visible = sum(stops.nth(at).is_visible() for at in range(stops.count()))
    assert len(tab_through(page, min(visible, 40))) > 8


def test_a_transaction_is_found_and_opened_by_keyboard(tab: Tab) -> None:
    page = tab.open("/transactions")
    page.focus("input[name=text]")
    page.keyboard.type("PAYMENTS-1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/transactions?*PAYMENTS-1*")
    page.focus("#transactions tbody a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/transactions/payments-1")
    assert page.inner_text("h1") == "Transaction payments-1"
    page.focus("summary")
    page.keyboard.press("Enter")
    assert page.get_by_text("prepared_transaction_state").is_visible()


def test_the_filter_is_in_the_url_and_the_back_button_keeps_it(tab: Tab) -> None:
    page = tab.follow("/transactions")
    page.select_option("select[name=health]", "recover")
    page.click("text=Filter")
    page.wait_for_url("**health=recover**")
    assert page.locator("#transactions tbody tr").count() == 1
    page.click("#transactions tbody a")
    page.wait_for_url("**/transactions/payments-1")
    page.go_back()
    assert "health=recover" in page.url
    assert page.input_value("select[name=health]") == "recover"
    assert page.locator("#transactions tbody tr").count() == 1
    page.go_back()
    assert page.input_value("select[name=health]") == ""
    assert page.locator("#transactions tbody tr").count() == 9
    page.go_forward()
    assert page.input_value("select[name=health]") == "recover"
    page.click("text=clear")
    assert page.url.endswith("/transactions")


def test_a_health_on_the_overview_leads_to_its_transactions(tab: Tab) -> None:
    page = tab.open("/")
    page.click("#counts a:has-text('hanging')")
    page.wait_for_url("**/transactions?health=hanging")
    assert page.locator("#transactions tbody tr").count() == 1


def test_a_command_is_copied(browser: "Browser", shop: Site) -> None:
    rights = ["clipboard-read", "clipboard-write"]
    with open_tab(browser, shop.url, permissions=rights) as tab:
        page = tab.open("/transactions/payments-1")
        page.click("#health button.copy")
        page.wait_for_selector("#health button[data-said=Copied]")
        assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#health code")
        assert tab.problems == []


@pytest.mark.parametrize("case", PAGE_CASES, ids=lambda case: case.name)
def test_a_page_without_a_script_shows_the_same(browser: "Browser", shop: Site, case: PageCase) -> None:
    with (
        open_tab(browser, shop.url) as tab,
        open_tab(browser, shop.url, java_script_enabled=False) as bare,
    ):
        content = case.open(tab).locator("#page").text_content()
        page = bare.open(case.path)
        assert page.locator("#page").text_content() == content
        assert page.locator("#live").all_inner_texts() == ["reload to see changes"] * case.is_live
        assert page.locator("button.copy:visible").count() == 0
        if not case.is_found:
            bare.expect_failed_loads()
        assert bare.problems == []


def test_filters_and_links_work_without_a_script(browser: "Browser", shop: Site) -> None:
    with open_tab(browser, shop.url, java_script_enabled=False) as tab:
        page = tab.open("/transactions")
        page.fill("input[name=text]", "payments")
        page.click("text=Filter")
        page.wait_for_url("**text=payments**")
        assert page.locator("#transactions tbody tr").count() == 2
        page.click("#transactions tbody a")
        page.click("summary")
        assert page.get_by_text("prepared_transaction_state").is_visible()
        page.go_back()
        assert page.input_value("input[name=text]") == "payments"


@pytest.mark.parametrize("case", PAGE_CASES, ids=lambda case: case.name)
def test_paper_shows_the_content_and_nothing_else(browser: "Browser", shop: Site, case: PageCase) -> None:
    with open_tab(browser, shop.url, color_scheme="dark") as tab:
        page = case.open(tab)
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert (
            page.locator(
                "nav:visible, form:visible, #view:visible, #live:visible, button.copy:visible"
            ).count()
            == 0
        )
        assert page.locator("h1").is_visible()
        assert page.pdf().startswith(b"%PDF")
        assert tab.problems == []


@pytest.mark.parametrize("case", PAGE_CASES, ids=lambda case: case.name)
def test_nothing_moves_by_itself_where_no_motion_is_wanted(
    browser: "Browser", shop: Site, case: PageCase
) -> None:
    with open_tab(browser, shop.url, reduced_motion="reduce") as tab:
        page = case.open(tab)
        assert page.evaluate("document.getAnimations().length") == 0
        moving = "(node) => getComputedStyle(node).transitionDuration !== '0s'"
        assert page.evaluate(f"[...document.querySelectorAll('*')].filter({moving}).length") == 0
        assert tab.problems == []
