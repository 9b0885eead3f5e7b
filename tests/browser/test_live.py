"""An open page follows the cluster and nothing jumps: scroll, focus, selected text, rows under the mouse."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.support.browser import Tab, open_tab
from tests.support.console_facts import describe, make_snapshot, pair
from tests.support.console_site import Site, serve
from tests.support.console_worlds import make_crowd, make_shop

from tallystick.console.model.snapshot import Snapshot
from tallystick.kernel.value import replace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(make_some(30)) as running:
        yield running


@pytest.fixture
def tab(browser: "Browser", site: Site) -> Iterator[Tab]:
    with open_tab(browser, site.url) as opened:
        yield opened
        assert opened.problems == []


def make_some(count: int, first: int = 0, ages: int = 1) -> Snapshot:
    """Return a cluster with transactions `pay-<first>` and so on; the list shows the oldest first."""
    return make_snapshot(
        *(
            describe(f"pay-{number}", writer=pair(number, 0), age_ms=ages * (60_000 - number * 1_000))
            for number in range(first, first + count)
        )
    )


def expect_rows(page: "Page", count: int) -> None:
    page.wait_for_function("n => document.querySelectorAll('#transactions tbody tr').length === n", arg=count)


def find_box(page: "Page", selector: str) -> dict[str, float]:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return dict(box)


def see_number(page: "Page", site: Site) -> None:
    """Wait until the page shows the newest snapshot."""
    page.wait_for_function(
        "n => document.getElementById('age').textContent.includes(`snapshot ${n}.`)",
        arg=site.feed.state.snapshot.number,
    )


def test_a_page_follows_the_stream_without_a_reload(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.evaluate("window.mark = 'the same document'")
    site.publish(make_some(31))
    expect_rows(page, 31)
    assert page.evaluate("window.mark") == "the same document"


def test_a_page_is_live_in_whichever_order_its_scripts_arrive(tab: Tab) -> None:
    """The stream's script may come late: htmx must not begin without it."""

    def answer_late(route: "Route") -> None:
        held.append(route)

    held: list[Route] = []
    tab.page.route("**/hx-sse.min.js", answer_late)
    tab.page.goto(tab.url + "/", wait_until="commit")
    tab.page.wait_for_function("() => window.htmx")
    tab.page.evaluate("() => new Promise((done) => setTimeout(done))")
    held[0].continue_()
    tab.page.wait_for_selector("#live[data-state=live]")


def test_what_happens_between_loading_and_following_is_shown(tab: Tab, site: Site) -> None:
    """A snapshot that comes after the page was rendered, and before its stream is open, is not missed."""

    def answer_late(route: "Route") -> None:
        held.append(route)

    held: list[Route] = []
    tab.page.route("**/events**", answer_late)
    page = tab.open("/transactions")
    page.wait_for_function("() => performance.getEntriesByType('resource').length >= 5")
    site.publish(make_some(33))
    while not held:
        page.wait_for_timeout(10)
    held[0].continue_()
    expect_rows(page, 33)


def test_a_stream_is_taken_up_again_when_the_console_is_back(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    site.stop()
    page.wait_for_selector("#live[data-state=away]")
    assert "not connected since" in page.inner_text("#live")
    site.publish(make_some(29))
    site.start()
    page.wait_for_selector("#live[data-state=live]")
    expect_rows(page, 29)
    site.publish(make_some(28))
    expect_rows(page, 28)
    tab.expect_failed_loads()


def test_the_header_says_when_the_console_answers_and_the_cluster_does_not(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.wait_for_selector("#live[data-state=live]")
    snapshot = make_some(31)
    away = replace(snapshot.transactions.status, away_since_ms=snapshot.at_ms, failures=("it hangs",))
    site.publish(replace(snapshot, transactions=replace(snapshot.transactions, status=away)))
    page.wait_for_selector("#live[data-state=stale]")
    assert page.inner_text("#live") == "not up to date"
    page.reload()
    page.wait_for_selector("#live[data-state=stale]")
    site.publish(make_some(32))
    page.wait_for_selector("#live[data-state=live]")


@pytest.mark.gate(0)
def test_a_stream_that_could_not_be_opened_is_tried_again(tab: Tab, site: Site) -> None:
    answers = iter([503])

    def answer(route: "Route") -> None:
        status = next(answers, None)
        if status is None:
            route.continue_()
        else:
            route.fulfill(status=status, body="busy")

    tab.page.route("**/events**", answer)
    page = tab.open("/transactions")
    page.wait_for_selector("#live[data-state=away]")
    site.publish(make_some(31))
    page.wait_for_selector("#live[data-state=live]")
    expect_rows(page, 31)
    tab.expect_failed_loads()


def test_an_error_of_the_server_does_not_take_the_page_away(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.route("**/transactions", lambda route: route.fulfill(status=500, body="Internal Server Error"))
    site.publish(make_some(31))
    page.wait_for_selector("#live[data-state=away]")
    expect_rows(page, 30)
    page.unroute("**/transactions")
    site.publish(make_some(32))
    expect_rows(page, 32)
    page.wait_for_selector("#live[data-state=live]")
    tab.expect_failed_loads()


def test_the_row_under_the_mouse_stays_when_rows_come_and_go(tab: Tab, site: Site) -> None:
    """Older transactions come before it and one goes: the order is restored when the mouse has left."""
    page = tab.follow("/transactions")
    page.hover("#txn-pay-15 td:nth-child(3)")
    before = find_box(page, "#txn-pay-15")
    site.publish(make_some(31, first=-1))
    expect_rows(page, 31)
    assert find_box(page, "#txn-pay-15") == before
    site.publish(make_some(26, first=5))
    see_number(page, site)
    assert find_box(page, "#txn-pay-15") == before
    assert page.locator("#txn-pay-2.gone").count() == 1
    page.hover("h1")
    expect_rows(page, 26)
    ids = page.eval_on_selector_all("#transactions tbody tr", "rows => rows.map((row) => row.id)")
    assert ids == [f"txn-pay-{number}" for number in range(5, 31)]


def test_the_row_under_the_mouse_stays_when_what_is_above_it_grows_and_shrinks(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.hover("#txn-pay-4 td:nth-child(3)")
    before = find_box(page, "#txn-pay-4")
    failing = make_snapshot(
        *make_some(30).transactions.descriptions.values(), failures=("coordinator 1: does not answer",)
    )
    site.publish(failing)
    page.wait_for_selector("#failures")
    assert find_box(page, "#txn-pay-4") == before
    site.publish(make_some(30))
    page.wait_for_selector("#failures", state="detached")
    assert find_box(page, "#txn-pay-4") == before


def test_a_table_of_what_happened_waits_while_the_mouse_is_over_it(tab: Tab, site: Site) -> None:
    """Its rows would move down with each event; the rest of the page follows."""
    page = tab.follow("/events")
    ids = "rows => rows.map((row) => row.id)"
    site.publish(make_some(31))
    page.wait_for_selector("#events tbody tr")
    before = page.eval_on_selector_all("#events tbody tr", ids)
    page.hover(f"#{before[0]} td:nth-child(2)")
    box = find_box(page, f"#{before[0]}")
    page.evaluate(
        "document.addEventListener('htmx:after:swap', () => (window.swaps = (window.swaps ?? 0) + 1))"
    )
    site.publish(make_some(29))
    page.wait_for_function("() => window.swaps === 1")
    assert page.eval_on_selector_all("#events tbody tr", ids) == before
    assert page.locator("#events .gone").count() == 0
    assert page.locator(".paused").is_visible()
    assert find_box(page, f"#{before[0]}") == box
    page.hover("h1")
    page.wait_for_selector(f"#event-{site.feed.state.events.last_number}")


@pytest.mark.gate(0)
def test_a_reader_that_missed_events_reads_the_page_anew(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.route("**/transactions", lambda route: route.fulfill(status=500, body="Internal Server Error"))
    site.publish(make_some(31))
    page.wait_for_selector("#live[data-state=away]")
    page.unroute("**/transactions")
    page.evaluate("window.htmx.trigger('#stream', 'resync')")
    expect_rows(page, 31)
    tab.expect_failed_loads()


def test_what_shrinks_above_a_page_that_is_not_scrolled_moves_nothing_under_the_mouse(
    browser: "Browser",
) -> None:
    failing = make_snapshot(
        *make_some(3).transactions.descriptions.values(), failures=("coordinator 1: does not answer",)
    )
    with serve(failing) as site, open_tab(browser, site.url) as tab:
        page = tab.follow("/transactions")
        page.hover("#txn-pay-1 td:nth-child(3)")
        before = find_box(page, "#txn-pay-1")
        site.publish(make_some(3))
        page.wait_for_selector("#failures", state="detached")
        assert find_box(page, "#txn-pay-1") == before
        assert tab.problems == []


def test_values_that_grow_do_not_move_their_neighbours(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    before = [find_box(page, f"#txn-pay-20 td:nth-child({column})") for column in range(1, 8)]
    site.publish(make_some(30, ages=3_000))
    page.wait_for_function("() => document.querySelector('#txn-pay-20').textContent.includes(' d ')")
    after = [find_box(page, f"#txn-pay-20 td:nth-child({column})") for column in range(1, 8)]
    assert [(box["x"], box["width"]) for box in after] == [(box["x"], box["width"]) for box in before]


def test_scroll_focus_and_selected_text_are_kept(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.mouse.move(2, 2)
    page.focus("#txn-pay-25 a")
    page.evaluate("scrollTo(0, 300)")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#txn-pay-20 a'))")
    site.publish(make_some(31))
    expect_rows(page, 31)
    assert page.evaluate("scrollY") == 300
    assert page.evaluate("getSelection().toString()") == "pay-20"
    assert page.evaluate("document.activeElement.closest('tr').id") == "txn-pay-25"


@pytest.mark.gate(0)
def test_a_focused_row_keeps_its_place(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.mouse.move(2, 2)
    page.focus("#txn-pay-25 a")
    before = find_box(page, "#txn-pay-25")
    site.publish(make_some(40, first=-10))
    expect_rows(page, 40)
    assert find_box(page, "#txn-pay-25") == before
    assert page.evaluate("document.activeElement.closest('tr').id") == "txn-pay-25"


def test_a_filter_that_is_being_typed_is_kept(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    page.select_option("select[name=state]", "Ongoing")
    page.locator("input[name=text]").press_sequentially("pay-1")
    site.publish(make_some(31))
    expect_rows(page, 31)
    assert page.input_value("input[name=text]") == "pay-1"
    assert page.input_value("select[name=state]") == "Ongoing"
    assert page.evaluate("document.activeElement.name") == "text"
    assert page.evaluate("document.activeElement.selectionStart") == 5


def test_what_was_opened_stays_open(browser: "Browser") -> None:
    with serve(make_shop()) as site, open_tab(browser, site.url) as tab:
        page = tab.follow("/transactions/payments-1")
        page.click("summary")
        assert page.locator("#raw-row[open]").count() == 1
        site.publish(make_shop())
        see_number(page, site)
        assert page.locator("#raw-row[open]").count() == 1
        assert tab.problems == []


def test_many_snapshots_in_a_row_end_with_the_newest(tab: Tab, site: Site) -> None:
    page = tab.follow("/transactions")
    for count in range(1, 21):
        site.publish(make_some(count))
    expect_rows(page, 20)
    see_number(page, site)


@pytest.mark.gate(0)
def test_a_crowd_is_followed_and_stays_usable(browser: "Browser") -> None:
    """With 10,000 transactions and 1,000 groups a page opens, follows, and can be filtered and paged."""
    with serve(make_crowd()) as site, open_tab(browser, site.url) as tab:
        page = tab.follow("/transactions")
        assert "10,000 transactions" in page.inner_text("#pages")
        site.publish(make_crowd(9_999))
        page.wait_for_function("() => document.getElementById('pages').textContent.includes('9,999')")
        page.click("a[rel=next]")
        assert "page 2 of 100" in page.inner_text("#pages")
        page.fill("input[name=text]", "service-7-")
        page.keyboard.press("Enter")
        page.wait_for_url("**/transactions?*service-7-*")
        assert "250 transactions" in page.inner_text("#pages")
        tab.follow("/groups")
        assert "1,000 groups" in page.inner_text("#pages")
        page.fill("input[name=text]", "group-99")
        page.keyboard.press("Enter")
        page.wait_for_url("**/groups?text=group-99")
        assert page.locator("#groups tbody tr").count() == 11
        assert tab.problems == []
