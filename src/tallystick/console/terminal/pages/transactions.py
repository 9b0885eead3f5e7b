"""The list of transactions in the terminal: all rows, which the page makes as they are scrolled to. Pure."""

from functools import partial
from typing import Final

from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import (
    Anchor,
    Block,
    Column,
    Paragraph,
    Row,
    Table,
    TextRole,
    badge,
    blank,
    say,
)
from tallystick.console.terminal.routes import Route, Section, format_filter, sort_rows
from tallystick.console.views.page import PageInfo
from tallystick.console.views.texts import format_count, format_duration
from tallystick.console.views.transactions import TransactionRow, TransactionsPage, build_transactions

_COLUMNS: Final = (
    Column(head="Health", width=13),
    Column(head="Transactional id", width=18, width_max=48),
    Column(head="State", width=14, rank=2),
    Column(head="Age", width=10, rank=1, to_right=True),
    Column(head="Timeout", width=10, rank=4, to_right=True),
    Column(head="Held back", width=9, rank=1, to_right=True),
    Column(head="Decided by", width=16, width_max=40, rank=3),
    Column(head="Finding", width=16, width_max=40, rank=5),
    Column(head="Producer", width=12, width_max=20, rank=6, to_right=True),
    Column(head="Partitions", width=10, rank=7, to_right=True),
)


def build(state: ConsoleState, route: Route, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the page."""
    page = build_transactions(state, route.filter, now_ms, page_rows=max(1, len(state.transactions)))
    rows = sort_rows(page.rows, route.order)
    empty = "No transaction is open." if not state.transactions else "No transaction matches the filter."
    table = Table(
        columns=_COLUMNS,
        items=rows,
        make=partial(make_row, route=route),
        name=lambda row: row.key,
        empty="Nothing has been read yet." if state.is_first else empty,
    )
    return page.info, [_summarize(page, route), blank(), table]


def make_row(row: TransactionRow, *, route: Route) -> Row:
    """Make the row of one transaction."""
    age_ms, timeout_ms = row.age_ms, row.timeout_ms
    cells = (
        badge(row.health),
        say(row.transactional_id or row.key, TextRole.STRONG),
        say(row.state),
        say(format_duration(age_ms)),
        say("none" if timeout_ms is None and row.transactional_id else format_duration(timeout_ms)),
        say(format_count(row.held_back_count)),
        say(row.store or row.prefix or "-"),
        say(row.finding or "-"),
        say(row.producer or "-"),
        say(format_count(row.partition_count)),
    )
    target = Route(section=Section.TRANSACTIONS, key=row.key)
    return Row(cells, Anchor(name=row.key, target=target, command=row.command, reason=row.reason))


def _summarize(page: TransactionsPage, route: Route) -> Paragraph:
    counts = ", ".join(f"{word} {format_count(number)}" for word, number in page.counts.items())
    wanted = format_filter(route.filter)
    order = f"; {route.order.value}"
    if wanted:
        return Paragraph((say(f"{format_count(page.match_count)} match the filter {wanted}{order}"),))
    return Paragraph((say(f"{counts or 'none'}{order}"),))
