"""Input of a page: console state, URL query, and data that were read for this page only. Pure."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from tallystick.console.lookup.history import IdHistory
from tallystick.console.lookup.record_page import BadQuery, RecordPage, RecordQuery, parse_format, parse_query
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import STRANGER_PREFIX
from tallystick.console.views.records import view_records
from tallystick.console.views.topics import TopicPage, build_topic
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value, replace


class Histories(Protocol):
    """Reads the history of an id for the page that shows it; a failure is part of the answer."""

    async def read_history(self, transactional_id: str) -> IdHistory:
        """Return the transitions of a transactional id."""


class Lookups(Histories, Protocol):
    """Reads histories and records for single pages; a failure is part of the answer."""

    async def browse_records(self, query: RecordQuery) -> RecordPage:
        """Return a page of records of one partition."""

    async def download(self, at: TopicPartition, offset: int, *, is_key: bool) -> bytes | None:
        """Return the whole value of one record, or its key; None if there is none.

        Raises: ClientError, RecordsError; TimeoutError.
        """


class PageRequest(Value, kw_only=True):
    """The input of a page.

    query    of the page's URL
    key      the rest of the URL's path, where the page has one
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


Ask = Callable[[Lookups, PageRequest], Awaitable[PageRequest]]
"""Reads what only one page shows, and returns the request with it."""


async def ask_history(lookups: Histories, request: PageRequest) -> PageRequest:
    """Read the history of a transactional id; a cluster that is away is not asked once more."""
    if request.key.startswith(STRANGER_PREFIX):
        return request
    status = request.state.snapshot.transactions.status
    if status.is_away:
        history = IdHistory(failure="; ".join(status.failures))
    else:
        history = await lookups.read_history(request.key)
    return replace(request, history=history)


async def ask_records(lookups: Lookups, request: PageRequest) -> PageRequest:
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


def build_topic_page(request: PageRequest) -> TopicPage:
    """Build the page of one topic, with the records that were read for it."""
    records = None
    if request.records is not None:
        records = view_records(request.state, request.records, parse_format(request.query))
    return build_topic(request.state, request.key, request.now_ms, records, request.problem)
