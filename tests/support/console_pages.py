"""The pages of the console, a row each: what is added here is opened by every test of the browser."""

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tests.support.browser import Tab
from tests.support.console_worlds import SHOP

from tallystick.kernel.value import Value

if TYPE_CHECKING:
    from playwright.sync_api import Page

DRY_RUN: Final = f"/actions/resolve/payments-1?store={quote(SHOP, safe='')}"


class PageCase(Value, kw_only=True):
    """One page over the snapshot of the shop.

    name      of its picture in the documentation
    path      with its query
    says      texts that the page shows in the shop
    is_live   whether it follows the stream
    is_found  whether what the path names exists; the browser reports an answer of 404
    """

    name: str
    path: str
    says: tuple[str, ...]
    is_live: bool = True
    is_found: bool = True

    def open(self, tab: Tab) -> "Page":
        """Open the page, and return once it follows the stream, if it does."""
        page = tab.follow(self.path) if self.is_live else tab.open(self.path)
        if not self.is_found:
            tab.expect_failed_loads()
        return page


PAGE_CASES: Final = (
    PageCase(name="overview", path="/", says=("1 transaction hanging", "payments-1", "kafka-1.example.com")),
    PageCase(name="transactions", path="/transactions", says=("ledger-import", "PrepareCommit", "orphan")),
    PageCase(
        name="transactions-filtered",
        path=f"/transactions?health=recover&store={quote(SHOP, safe='')}",
        says=("payments-1", "1 transaction"),
    ),
    PageCase(
        name="transactions-selected",
        path=f"/transactions?store={quote(SHOP, safe='')}&select=yes",
        says=("can be selected", "Dry run of the selected"),
        is_live=False,
    ),
    PageCase(
        name="transaction",
        path="/transactions/payments-1",
        says=("Both sides", "4012:17", "Raw row", "History"),
    ),
    PageCase(name="transaction-hanging", path="/transactions/producer:2291:0", says=("--start-offset",)),
    PageCase(name="transaction-closed", path="/transactions/payments-3", says=("No transaction of this id",)),
    PageCase(name="stores", path="/stores", says=("PostgreSQL 18.1", "xa-billing-000117", "refused by")),
    PageCase(name="pipelines", path="/pipelines", says=("clicks", "parcels", "812")),
    PageCase(name="topics", path="/topics", says=("ledger-entries", "internal")),
    PageCase(name="topic", path="/topics/orders", says=("8,671,540", "payments-1")),
    PageCase(
        name="records",
        path="/topics/orders?partition=1",
        says=("order-77120", "held back", "COMMIT, coordinator epoch 7"),
    ),
    PageCase(name="events", path="/events", says=("payments-1", "committed it in Kafka")),
    PageCase(name="dry-run", path=DRY_RUN, says=("This is a dry run", "to confirm"), is_live=False),
    PageCase(name="search", path="/search?q=or", says=("Topics", "orders", "Groups", "Look it up")),
    PageCase(name="groups", path="/groups", says=("search-indexer", "Reconciling")),
    PageCase(name="group", path="/groups/search-indexer", says=("29 markers and 12 aborted records",)),
    PageCase(name="group-unknown", path="/groups/none", says=("no group of this name",), is_found=False),
)
