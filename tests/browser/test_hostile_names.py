"""Names that are markup, turn the direction of text, or are 10 kB long: shown as text, in their place."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from tests.support.browser import LAPTOP, PHONE, Tab, find_axe_violations, measure_overflow, open_tab
from tests.support.console_facts import describe, make_snapshot
from tests.support.console_site import Site, serve
from tests.support.console_worlds import ENDLESS, HOSTILE, make_hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.server, pytest.mark.gate(0)]

LISTS = ["/", "/events", "/transactions", "/stores", "/pipelines", "/topics", "/groups"]
PATHS = [
    *LISTS,
    *(
        f"/{kind}/{quote(name, safe='')}"
        for kind in ("transactions", "topics", "groups")
        for name in (HOSTILE, ENDLESS)
    ),
]
SHOWN = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
"""What steers the text behind it is shown by its escape."""
LINES_MAX = 12
"""Lines of a row of a list, with a command in it that names what is 10 kB long."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(make_hostile()) as running:
        yield running


def name_path(path: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", "", path)[:30]


@pytest.fixture
def tab(browser: "Browser", site: Site) -> Iterator[Tab]:
    with open_tab(browser, site.url) as opened:
        yield opened
        assert opened.problems == []


@pytest.mark.parametrize("path", PATHS, ids=name_path)
@pytest.mark.parametrize("window", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_hostile_names_are_text_and_stay_in_their_place(
    browser: "Browser", site: Site, path: str, window: dict[str, int]
) -> None:
    with open_tab(browser, site.url, viewport=window) as tab:
        page = tab.follow(path)
        name = ENDLESS if "endless" in path else SHOWN
        assert name in (page.locator("#page").text_content() or "")
        assert page.locator("#page img, #page script").count() == 0
        assert measure_overflow(page) == 0
        assert find_axe_violations(page) == []
        site.publish(make_hostile())
        page.wait_for_function(
            "n => document.getElementById('age').textContent.includes(`snapshot ${n}.`)",
            arg=site.feed.state.snapshot.number,
        )
        assert name in (page.locator("#page").text_content() or "")
        assert tab.problems == []


@pytest.mark.parametrize("path", LISTS)
def test_a_long_name_does_not_push_the_rest_off_the_screen(tab: Tab, path: str) -> None:
    page = tab.open(path)
    heights = page.eval_on_selector_all(
        "#page tr, #page h1, #page h2, #page li, #page .command",
        "nodes => nodes.map((node) => node.getBoundingClientRect().height)",
    )
    line = page.evaluate("parseFloat(getComputedStyle(document.body).lineHeight)")
    assert max(heights) < 2 * LINES_MAX * line


def test_a_name_leads_to_its_page_and_back(tab: Tab) -> None:
    for name in (HOSTILE, ENDLESS):
        page = tab.open("/transactions")
        page.click(f"#transactions a[href='/transactions/{quote(name, safe='')}']")
        page.wait_for_selector("#kafka")
        assert "Ongoing" in page.inner_text("#kafka")
        page.go_back()
        assert page.locator("#transactions tbody tr").count() == 2


def test_the_longest_name_that_kafka_knows_has_a_page_that_is_followed(browser: "Browser") -> None:
    """32,767 bytes, of which each takes three in a URL, and the URL is in a request twice."""
    name = "é" * 16_383
    with serve(make_snapshot(describe(name))) as site, open_tab(browser, site.url) as tab:
        page = tab.follow(f"/transactions/{quote(name)}")
        site.publish(make_snapshot(describe(name, "PrepareCommit")))
        page.wait_for_selector("#kafka >> text=PrepareCommit")
        assert tab.problems == []


def test_a_long_command_is_copied_whole(browser: "Browser", site: Site) -> None:
    rights = ["clipboard-read", "clipboard-write"]
    with open_tab(browser, site.url, permissions=rights) as tab:
        page = tab.open(f"/transactions/{ENDLESS}")
        page.click("#commands button.copy >> nth=0")
        page.wait_for_selector("button[data-said=Copied]")
        assert ENDLESS in page.evaluate("navigator.clipboard.readText()")
        assert tab.problems == []
