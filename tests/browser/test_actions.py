"""An action in a browser: from the transaction to its dry run, the id typed, the form sent, the result."""

import pytest
from tests.support.browser import Tab, find_axe_violations, measure_overflow
from tests.support.console_pages import DRY_RUN

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_a_dry_run_is_reached_confirmed_and_answered_with_its_result(tab: Tab) -> None:
    page = tab.follow("/transactions/payments-1")
    page.click("#health a.action")
    page.wait_for_selector("#confirm")
    assert "it changes nothing until the form is sent" in page.inner_text("footer")
    page.fill("#confirm input[name=confirmation]", "payments-1")
    page.click("#confirm button")
    page.wait_for_selector("#result.done")
    assert "committed it in Kafka" in page.inner_text("#result")
    assert find_axe_violations(page) == []
    assert measure_overflow(page) == 0
    page.click("text=To its page")
    page.wait_for_selector("#kafka")
    assert page.url.endswith("/transactions/payments-1")


@pytest.mark.gate(0)
def test_a_dry_run_follows_no_stream(tab: Tab) -> None:
    """A form must not change while it is filled in."""
    page = tab.open(DRY_RUN)
    page.wait_for_load_state("load")
    assert page.locator("#stream, #live").count() == 0
    paths = page.evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
    assert [path for path in paths if "/events" in path] == []
