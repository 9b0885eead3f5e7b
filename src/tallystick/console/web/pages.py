"""The pages: which URL shows which view model with which template."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from tallystick.console.lookup.history import IdHistory
from tallystick.console.state import ConsoleState
from tallystick.console.views.events import build_events
from tallystick.console.views.groups import build_group, build_groups
from tallystick.console.views.overview import build_overview
from tallystick.console.views.pipelines import build_pipelines
from tallystick.console.views.stores import build_stores
from tallystick.console.views.topics import build_topic, build_topics
from tallystick.console.views.transaction import build_transaction
from tallystick.console.views.transactions import STRANGER_PREFIX, TransactionFilter, build_transactions
from tallystick.kernel.value import Value, replace


class Lookups(Protocol):
    """Answers what single pages ask for. What keeps it from answering is in the answer."""

    async def read_history(self, transactional_id: str) -> IdHistory:
        """Return what has happened to a transactional id."""


class PageRequest(Value, kw_only=True):
    """What a page is built from. `key` is the rest of the path, where the page has one.

    history  of the transactional id, if the page has asked for it
    """

    state: ConsoleState
    query: Mapping[str, str]
    key: str
    now_ms: int
    history: IdHistory | None = None


Build = Callable[[PageRequest], object]
Ask = Callable[[Lookups, PageRequest], Awaitable[PageRequest]]


class Page(Value, kw_only=True):
    """One page.

    path     below the root; `{key:path}` stands for the rest
    section  the entry of the menu that it belongs to
    ask      reads what only this page shows, and returns the request with it
    is_stream  who asks for an event stream gets one under the same path
    """

    path: str
    template: str
    section: str
    build: Build
    ask: Ask | None = None
    is_stream: bool = False


class MenuEntry(Value):
    """One entry of the menu."""

    section: str
    path: str
    title: str


async def _ask_history(lookups: Lookups, request: PageRequest) -> PageRequest:
    """Read the history of a transactional id; a cluster that is away is not asked once more."""
    if request.key.startswith(STRANGER_PREFIX):
        return request
    status = request.state.snapshot.transactions.status
    if status.is_away:
        history = IdHistory(failure="; ".join(status.failures))
    else:
        history = await lookups.read_history(request.key)
    return replace(request, history=history)


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
        path="/transactions/{key:path}",
        template="transaction.html",
        section="transactions",
        build=lambda request: build_transaction(request.state, request.key, request.now_ms, request.history),
        ask=_ask_history,
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
        build=lambda request: build_topics(request.state, request.now_ms),
    ),
    Page(
        path="/topics/{key:path}",
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
        path="/groups/{key:path}",
        template="group.html",
        section="groups",
        build=lambda request: build_group(request.state, request.key, request.now_ms),
    ),
)
