"""The list of transactions: one row each, filtered and paged by the URL. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlencode

from tallystick.console.model.assessment import SparkRole
from tallystick.console.model.health import SEVERITY, Health
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction
from tallystick.console.views.lists import PAGE_ROWS, parse_page
from tallystick.console.views.ordering import Keys, parse_sort, sort_rows
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.console.views.texts import format_identity
from tallystick.kernel.value import Value

NO_STATE: Final = "no coordinator"
"""The state of a transaction that no coordinator knows."""


class TransactionFilter(Value, kw_only=True):
    """The rows that the URL asks for; an empty field selects all.

    health  a word of `Health`
    state   a state of Kafka's coordinator, or NO_STATE
    store   the name of a store, or a Spark prefix
    text    part of the transactional id
    page    from 1
    select  not empty: rows of the store can be selected to be resolved together
    sort    a column, as `ordering` reads it; empty: the worst first
    """

    health: str = ""
    state: str = ""
    store: str = ""
    text: str = ""
    page: int = 1
    select: str = ""
    sort: str = ""

    @staticmethod
    def parse(query: Mapping[str, str]) -> "TransactionFilter":
        """Read the query of a URL; what it does not know is ignored, as a shared link may be old."""
        return TransactionFilter(
            health=query.get("health", ""),
            state=query.get("state", ""),
            store=query.get("store", ""),
            text=query.get("text", ""),
            page=parse_page(query),
            select=query.get("select", ""),
            sort=parse_sort(query),
        )

    def format_query(self, **changes: object) -> str:
        """Return the query of a URL for this filter with some fields changed."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__} | changes
        return urlencode({name: value for name, value in fields.items() if value not in ("", 1)})

    def matches(self, row: "TransactionRow") -> bool:
        """Return whether a row is selected."""
        return (
            self.health in ("", row.health)
            and self.state in ("", row.state)
            and self.store in ("", row.store, row.prefix)
            and self.text.lower() in (row.transactional_id or row.producer or "").lower()
        )


class TransactionRow(Value, kw_only=True):
    """One transaction.

    key            names it in a URL: its transactional id, or `producer:` with its producer id and epoch
    producer       producer id and epoch of its data, as `id:epoch`
    finding        what recovery, or the comparison of partition and coordinator, found
    age_ms         since it began; where no coordinator knows it, since its last record
    held_back_ms   for how long `read_committed` readers have been held back by it; None if they are not
    """

    key: str
    transactional_id: str | None
    state: str
    health: str
    stage: str
    reason: str
    command: str
    finding: str
    verdict: str
    store: str
    prefix: str
    producer: str | None
    age_ms: int | None
    timeout_ms: int | None
    partition_count: int
    held_back_count: int
    held_back_ms: int | None


SORT_KEYS: Final[Keys[TransactionRow]] = {
    "health": lambda row: SEVERITY[Health(row.health)],
    "id": lambda row: row.transactional_id or row.key,
    "state": lambda row: row.state,
    "decided_by": lambda row: row.store or row.prefix or None,
    "finding": lambda row: row.finding or None,
    "age": lambda row: row.age_ms,
    "held_back": lambda row: row.held_back_count,
}


class TransactionsPage(Value, kw_only=True):
    """The list, after the filter.

    counts         transactions by health, before the filter
    states         the states that there are, for the filter
    stores         stores and prefixes, for the filter
    match_count    rows that the filter selects, on all pages
    """

    info: PageInfo
    filter: TransactionFilter
    counts: Mapping[str, int]
    states: tuple[str, ...]
    stores: tuple[str, ...]
    match_count: int
    page_count: int
    rows: tuple[TransactionRow, ...]


def build_transactions(
    state: ConsoleState, wanted: TransactionFilter, now_ms: int, *, page_rows: int = PAGE_ROWS
) -> TransactionsPage:
    """Build the list of transactions, in pages of `page_rows`."""
    snapshot = state.snapshot
    rows = [build_row(each, now_ms) for each in state.transactions]
    matching = sort_rows((row for row in rows if wanted.matches(row)), wanted.sort, SORT_KEYS)
    page_count = max(1, -(-len(matching) // page_rows))
    page = min(wanted.page, page_count)
    statuses = (snapshot.transactions.status, *(store.status for store in snapshot.stores))
    return TransactionsPage(
        info=describe_page("Transactions", snapshot, statuses, now_ms),
        filter=wanted,
        counts=count_by_health(state.transactions),
        states=tuple(sorted({row.state for row in rows})),
        stores=tuple(sorted({name for row in rows for name in (row.store, row.prefix) if name})),
        match_count=len(matching),
        page_count=page_count,
        rows=tuple(matching[(page - 1) * page_rows : page * page_rows]),
    )


def count_by_health(transactions: Iterable[AssessedTransaction]) -> Mapping[str, int]:
    """Return the number of transactions in each health, the worst first; those without any are left out."""
    counts = Counter(each.health for each in transactions)
    return {health.value: counts[health] for health in Health if counts[health]}


def build_row(each: AssessedTransaction, now_ms: int) -> TransactionRow:
    """Build the row of one transaction."""
    views = each.views
    description = views.description
    finding, verdict = _describe_finding(each)
    age_ms = views.compute_age_ms(now_ms)
    is_described = description is not None and not views.is_stranger
    return TransactionRow(
        key=build_key(each),
        transactional_id=views.transactional_id,
        state=description.state if description is not None and is_described else NO_STATE,
        health=each.health.value,
        stage=each.stage.value,
        reason=each.assessment.reason,
        command=each.assessment.command,
        finding=finding,
        verdict=verdict,
        store="" if views.store is None else views.store.store.name,
        prefix="" if views.spark is None else views.spark.prefix,
        producer=None if views.writer is None else format_identity(views.writer),
        age_ms=age_ms,
        timeout_ms=None if description is None else description.timeout_ms,
        partition_count=len(views.partitions),
        held_back_count=each.held_back_count,
        held_back_ms=age_ms if each.held_back_count else None,
    )


def build_key(each: AssessedTransaction) -> str:
    """Return the name of a transaction in a URL."""
    return each.key


_SPARK_VERDICTS: Final = {SparkRole.DECIDED: "commit", SparkRole.UNREAD: ""}


def _describe_finding(each: AssessedTransaction) -> tuple[str, str]:
    """Return the finding and the verdict of the rule that assessed a transaction."""
    views = each.views
    if views.store is not None and not views.is_stranger:
        return views.store.finding.value, views.store.verdict.name.lower()
    if views.spark is not None and not views.is_stranger:
        return views.spark.role.value, _SPARK_VERDICTS.get(views.spark.role, "abort")
    if views.cases:
        return views.cases[0].finding.value, views.cases[0].verdict.value
    return "", ""
