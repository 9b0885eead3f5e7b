"""A browser for each file, and the console over the shop's snapshot."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.support.browser import Tab, open_tab, run_browser
from tests.support.console_answers import serve_shop
from tests.support.console_site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with run_browser() as running:
        yield running


@pytest.fixture(scope="module")
def shop() -> Iterator[Site]:
    """The console over the shop, with actions. Tests that publish something start a site of their own."""
    with serve_shop() as site:
        yield site


@pytest.fixture
def tab(browser: "Browser", shop: Site) -> Iterator[Tab]:
    """A window of a laptop's size that shows the shop; at its end the browser has no complaint."""
    with open_tab(browser, shop.url) as opened:
        yield opened
        assert opened.problems == []
