"""The pages: which URL shows which view model with which template."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from tallystick.console.lookup.history import IdHistory
from tallystick.console.lookup.record_page import RecordPage
from tallystick.console.lookup.record_query import BadQuery, RecordQuery, parse_format, parse_query
from tallystick.console.state import ConsoleState
from tallystick.console.views.events import build_events
from tallystick.console.views.groups import build_group, build_groups
from tallystick.console.views.lists import ListQuery
from tallystick.console.views.overview import build_overview
from tallystick.console.views.pipelines import build_pipelines
from tallystick.console.views.records import view_records
from tallystick.console.views.stores import build_stores
from tallystick.console.views.topics import TopicPage, build_topic, build_topics
from tallystick.console.views.transaction import build_transaction
from tallystick.console.views.transactions import STRANGER_PREFIX, TransactionFilter, build_transactions
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value, replace


class Lookups(Protocol):
    """Answers what single pages ask for. What keeps it from answering is in the answer."""

    async def read_history(self, transactional_id: str) -> IdHistory:
        """Return what has happened to a transactional id."""

    async def browse_records(self, query: RecordQuery) -> RecordPage:
        """Return a page of records of one partition."""

    async def download(self, at: TopicPartition, offset: int, *, is_key: bool) -> bytes | None:
        """Return the whole value of one record, or its key; None if there is none.

        Raises: ClientError, RecordsError; TimeoutError.
        """


class PageRequest(Value, kw_only=True):
    """What a page is built from. `key` is the rest of the path, where the page has one.

    history  of the transactional id, if the page has asked for it
    records  of a partition, if the URL asks for some
    problem  what in the URL says nothing
    """

    state: ConsoleState
    query: Mapping[str, str]
    key: str
    now_ms: int
    history: IdHistory | None = None
    records: RecordPage | None = None
    problem: str = ""


Build = Callable[[PageRequest], object]
Ask = Callable[[Lookups, PageRequest], Awaitable[PageRequest]]


class Page(Value, kw_only=True):
    """One page.

    path     below the root; `{key:name}` stands for the rest
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


async def _ask_records(lookups: Lookups, request: PageRequest) -> PageRequest:
    """Read the records that the URL asks for, of a topic that is known."""
    topics = request.state.snapshot.topics
    try:
        query = parse_query(request.key, request.query)
    except BadQuery as exc:
        return replace(request, problem=str(exc))
    if query is None or request.key not in topics.partition_counts:
        return request
    if query.partition.partition >= topics.partition_counts[request.key]:
        return replace(request, problem=f"There is no partition {query.partition.partition}")
    if topics.status.is_away:
        page = RecordPage(partition=query.partition, failure="; ".join(topics.status.failures))
    else:
        page = await lookups.browse_records(query)
    return replace(request, records=page)


def _build_topic(request: PageRequest) -> TopicPage:
    records = None
    if request.records is not None:
        records = view_records(request.state, request.records, parse_format(request.query))
    return build_topic(request.state, request.key, request.now_ms, records, request.problem)


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
        build=lambda request: build_topics(request.state, request.now_ms, ListQuery.parse(request.query)),
    ),
    Page(
        path="/topics/{key:name}",
        template="topic.html",
        section="topics",
        build=_build_topic,
        ask=_ask_records,
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
    ),
)
