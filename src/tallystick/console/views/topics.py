"""Topics as far as they explain transactions: where readers are held back, and by which transaction. Pure."""

from collections import defaultdict
from typing import Final

from tallystick.console.model.snapshot import PartitionOffsets
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction
from tallystick.console.views.holders import find_holder, index_groups
from tallystick.console.views.lists import PAGE_ROWS, ListQuery, select_rows
from tallystick.console.views.ordering import Keys, sort_rows
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.console.views.records import RecordsView
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value, replace


class TopicRow(Value, kw_only=True):
    """A topic. Offsets are summed over its partitions; None where one of them was not read."""

    name: str
    is_internal: bool
    partition_count: int
    offset_count: int | None
    held_back_count: int
    open_count: int


class PartitionRow(Value, kw_only=True):
    """A partition. `holder` is the URL's key of the transaction at its last stable offset.

    groups  that read it
    """

    partition: int
    start: int | None
    last_stable: int | None
    end: int | None
    held_back_count: int | None
    held_back_ms: int | None
    open_count: int
    holder: str
    holder_health: str
    groups: tuple[str, ...]


SORT_KEYS: Final[Keys[TopicRow]] = {
    "name": lambda row: row.name,
    "partitions": lambda row: row.partition_count,
    "offsets": lambda row: row.offset_count,
    "open": lambda row: row.open_count,
    "held_back": lambda row: row.held_back_count,
}


class TopicsPage(Value, kw_only=True):
    """The topics that the URL asks for, a page of them; those that hold readers back first."""

    info: PageInfo
    query: ListQuery
    topics: tuple[TopicRow, ...]
    match_count: int
    page_count: int


class TopicPage(Value, kw_only=True):
    """One topic. `is_known` is False if the cluster has none of this name.

    records  None if the URL asks for none
    problem  what in the URL says nothing
    """

    info: PageInfo
    name: str
    is_known: bool
    partitions: tuple[PartitionRow, ...]
    records: RecordsView | None
    problem: str


def build_topics(
    state: ConsoleState, now_ms: int, query: ListQuery | None = None, *, page_rows: int = PAGE_ROWS
) -> TopicsPage:
    """Build the list of topics, in pages of `page_rows`."""
    facts = state.snapshot.topics
    by_partition = _index_transactions(state)
    rows = []
    for name, count in facts.partition_counts.items():
        partitions = [TopicPartition(name, number) for number in range(count)]
        known = [facts.offsets[at] for at in partitions if at in facts.offsets]
        rows.append(
            TopicRow(
                name=name,
                is_internal=name in facts.internal_topics,
                partition_count=count,
                offset_count=sum(each.end - each.start for each in known) if len(known) == count else None,
                held_back_count=sum(each.held_back_count for each in known),
                open_count=sum(len(by_partition[at]) for at in partitions),
            )
        )
    rows.sort(key=lambda row: (-row.held_back_count, row.is_internal, row.name))
    query = query or ListQuery()
    rows = sort_rows(rows, query.sort, SORT_KEYS)
    chosen = select_rows(rows, query, lambda row: row.name, page_rows=page_rows)
    return TopicsPage(
        info=_describe(state, "Topics", now_ms),
        query=replace(query, page=chosen.page),
        topics=chosen.rows,
        match_count=chosen.match_count,
        page_count=chosen.page_count,
    )


def build_topic(
    state: ConsoleState, name: str, now_ms: int, records: RecordsView | None = None, problem: str = ""
) -> TopicPage:
    """Build the page of one topic, with records if the URL asks for some."""
    facts = state.snapshot.topics
    by_partition = _index_transactions(state)
    groups = index_groups(state.snapshot)
    count = facts.partition_counts.get(name, 0)
    return TopicPage(
        info=_describe(state, f"Topic {name}", now_ms),
        name=name,
        is_known=name in facts.partition_counts,
        partitions=tuple(
            _view_partition(
                at,
                facts.offsets.get(at),
                find_holder(by_partition[at], at),
                now_ms,
                open_count=len(by_partition[at]),
                groups=groups.get(at, ()),
            )
            for at in (TopicPartition(name, number) for number in range(count))
        ),
        records=records,
        problem=problem,
    )


def _describe(state: ConsoleState, title: str, now_ms: int) -> PageInfo:
    snapshot = state.snapshot
    return describe_page(title, snapshot, [snapshot.topics.status, snapshot.transactions.status], now_ms)


def _index_transactions(state: ConsoleState) -> dict[TopicPartition, list[AssessedTransaction]]:
    by_partition: dict[TopicPartition, list[AssessedTransaction]] = defaultdict(list)
    for each in state.transactions:
        for at in each.views.partitions:
            by_partition[at].append(each)
    return by_partition


def _view_partition(
    at: TopicPartition,
    offsets: PartitionOffsets | None,
    holder: AssessedTransaction | None,
    now_ms: int,
    *,
    open_count: int,
    groups: tuple[str, ...],
) -> PartitionRow:
    is_held = offsets is not None and offsets.held_back_count > 0
    return PartitionRow(
        partition=at.partition,
        start=None if offsets is None else offsets.start,
        last_stable=None if offsets is None else offsets.last_stable,
        end=None if offsets is None else offsets.end,
        held_back_count=None if offsets is None else offsets.held_back_count,
        held_back_ms=holder.views.compute_age_ms(now_ms) if holder is not None and is_held else None,
        open_count=open_count,
        holder="" if holder is None else holder.key,
        holder_health="" if holder is None else holder.health.value,
        groups=groups,
    )
