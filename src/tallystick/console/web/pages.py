"""The pages: which URL shows which view model with which template."""

from collections.abc import Callable, Mapping
from typing import Final

from tallystick.console.state import ConsoleState
from tallystick.console.views.groups import build_group, build_groups
from tallystick.console.views.overview import build_overview
from tallystick.console.views.pipelines import build_pipelines
from tallystick.console.views.stores import build_stores
from tallystick.console.views.topics import build_topic, build_topics
from tallystick.console.views.transaction import build_transaction
from tallystick.console.views.transactions import TransactionFilter, build_transactions
from tallystick.kernel.value import Value


class PageRequest(Value, kw_only=True):
    """What a page is built from. `key` is the rest of the path, where the page has one."""

    state: ConsoleState
    query: Mapping[str, str]
    key: str
    now_ms: int


Build = Callable[[PageRequest], object]


class Page(Value, kw_only=True):
    """One page.

    path     below the root; `{key:text}` stands for the rest
    section  the entry of the menu that it belongs to
    """

    path: str
    template: str
    section: str
    build: Build


class MenuEntry(Value):
    """One entry of the menu."""

    section: str
    path: str
    title: str


MENU: Final = (
    MenuEntry("overview", "/", "Overview"),
    MenuEntry("transactions", "/transactions", "Transactions"),
    MenuEntry("stores", "/stores", "Stores"),
    MenuEntry("pipelines", "/pipelines", "Pipelines"),
    MenuEntry("topics", "/topics", "Topics"),
    MenuEntry("groups", "/groups", "Groups"),
)

PAGES: Final = (
    Page(
        path="/",
        template="overview.html",
        section="overview",
        build=lambda request: build_overview(request.state, request.now_ms),
    ),
    Page(
        path="/transactions",
        template="transactions.html",
        section="transactions",
        build=lambda request: build_transactions(
            request.state, TransactionFilter.parse(request.query), request.now_ms
        ),
    ),
    Page(
        path="/transactions/{key:text}",
        template="transaction.html",
        section="transactions",
        build=lambda request: build_transaction(request.state, request.key, request.now_ms),
    ),
    Page(
        path="/stores",
        template="stores.html",
        section="stores",
        build=lambda request: build_stores(request.state, request.now_ms),
    ),
    Page(
        path="/pipelines",
        template="pipelines.html",
        section="pipelines",
        build=lambda request: build_pipelines(request.state, request.now_ms),
    ),
    Page(
        path="/topics",
        template="topics.html",
        section="topics",
        build=lambda request: build_topics(request.state, request.now_ms),
    ),
    Page(
        path="/topics/{key:text}",
        template="topic.html",
        section="topics",
        build=lambda request: build_topic(request.state, request.key, request.now_ms),
    ),
    Page(
        path="/groups",
        template="groups.html",
        section="groups",
        build=lambda request: build_groups(request.state, request.now_ms),
    ),
    Page(
        path="/groups/{key:text}",
        template="group.html",
        section="groups",
        build=lambda request: build_group(request.state, request.key, request.now_ms),
    ),
)
