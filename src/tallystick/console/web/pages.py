"""The pages: which URL shows which view model with which template."""

from collections.abc import Callable
from typing import Final

from tallystick.console.views.events import build_events
from tallystick.console.views.groups import GroupPage, build_group, build_groups
from tallystick.console.views.lists import ListQuery
from tallystick.console.views.overview import build_overview
from tallystick.console.views.page import is_incomplete
from tallystick.console.views.page_request import (
    Ask,
    PageRequest,
    ask_history,
    ask_records,
    build_topic_page,
)
from tallystick.console.views.pipelines import build_pipelines
from tallystick.console.views.search import build_search
from tallystick.console.views.stores import build_stores
from tallystick.console.views.topics import TopicPage, build_topics
from tallystick.console.views.transaction import TransactionPage, build_transaction, may_exist
from tallystick.console.views.transactions import TransactionFilter, build_transactions
from tallystick.kernel.value import Value

Build = Callable[[PageRequest], object]
IsKnown = Callable[[object], bool]


class Page(Value, kw_only=True):
    """One page.

    path     below the root; `{key:name}` stands for the rest
    section  the entry of the menu that it belongs to
    ask      reads what only this page shows, and returns the request with it
    is_stream  who asks for an event stream gets one under the same path
    is_known  whether what the path names is there, as far as everything could be read
    """

    path: str
    template: str
    section: str
    build: Build
    ask: Ask | None = None
    is_stream: bool = False
    is_known: IsKnown = lambda model: True


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
        path="/transactions/{key:name}",
        template="transaction.html",
        section="transactions",
        build=lambda request: build_transaction(request.state, request.key, request.now_ms, request.history),
        ask=ask_history,
        is_known=lambda model: not isinstance(model, TransactionPage) or may_exist(model),
    ),
    Page(
        path="/search",
        template="search.html",
        section="",
        build=lambda request: build_search(request.state, request.query.get("q", ""), request.now_ms),
    ),
    Page(
        path="/events",
        template="events.html",
        section="overview",
        build=lambda request: build_events(request.state, request.query.get("since", ""), request.now_ms),
        is_stream=True,
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
        build=lambda request: build_topics(request.state, request.now_ms, ListQuery.parse(request.query)),
    ),
    Page(
        path="/topics/{key:name}",
        template="topic.html",
        section="topics",
        build=build_topic_page,
        ask=ask_records,
        is_known=lambda model: (
            not isinstance(model, TopicPage) or model.is_known or is_incomplete(model.info)
        ),
    ),
    Page(
        path="/groups",
        template="groups.html",
        section="groups",
        build=lambda request: build_groups(request.state, request.now_ms, ListQuery.parse(request.query)),
    ),
    Page(
        path="/groups/{key:name}",
        template="group.html",
        section="groups",
        build=lambda request: build_group(request.state, request.key, request.now_ms),
        is_known=lambda model: (
            not isinstance(model, GroupPage) or model.row is not None or is_incomplete(model.info)
        ),
    ),
)
