"""The stores in the terminal: rows, leases, and what the database server itself has prepared. Pure."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import (
    Anchor,
    Block,
    Column,
    Command,
    Paragraph,
    Row,
    Table,
    TextRole,
    badge,
    blank,
    field,
    heading,
    say,
    table_of,
)
from tallystick.console.terminal.places import Place, Section
from tallystick.console.views.page import PageInfo
from tallystick.console.views.stores import PreparedInServer, StoredRow, StoreView, build_stores
from tallystick.console.views.texts import format_count, format_duration

_ROWS: Final = (
    Column(head="Transactional id", width=18, width_max=48),
    Column(head="Last committed", width=14, width_max=20, rank=1, to_right=True),
    Column(head="Settled", width=7, rank=2),
    Column(head="Lease", width=8, rank=3),
    Column(head="Open", width=13, rank=1),
    Column(head="Held by", width=14, width_max=40, rank=4),
)
_PREPARED: Final = (
    Column(head="Prepared in the server", width=24, width_max=60),
    Column(head="Owner", width=12, rank=1),
    Column(head="Database", width=12, rank=2),
    Column(head="Age", width=10, rank=1, to_right=True),
)


def build(state: ConsoleState, place: Place, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the page."""
    count = max((len(store.rows) for store in state.snapshot.stores), default=0)
    page = build_stores(state, now_ms, rows_max=count)
    blocks: list[Block] = []
    for store in page.stores:
        blocks += _list_store(store, place)
    if not page.stores:
        text = "No store is read. Start with --store URL, once for each database that decides."
        blocks.append(Paragraph((say(text, TextRole.QUIET),)))
    return page.info, blocks


def _list_store(store: StoreView, place: Place) -> Iterator[Block]:
    anchor = Anchor(
        name=f"store {store.name}", command=store.resolve_command, reason="; ".join(store.failures)
    )
    word = badge("ok" if store.is_reachable else "unknown")
    yield Paragraph((word, say("  "), say(store.name, TextRole.HEADING)), anchor, 4)
    yield field("Kind", f"{store.kind} {store.engine}".strip())
    yield field(
        "Rows", f"{format_count(store.row_count)}, {format_count(store.open_count)} with an open transaction"
    )
    if store.undecided_oldest_ms is not None:
        yield field("Oldest open", format_duration(store.undecided_oldest_ms))
    if store.expired_lease_count:
        yield field("Expired leases", format_count(store.expired_lease_count))
    is_read = store.age_ms is not None
    took = f"{format_duration(store.age_ms)} ago, in {format_duration(store.took_ms)}"
    yield field("Read", took if is_read else "never")
    yield Command(store.resolve_command, Anchor(name=f"resolve {store.name}", command=store.resolve_command))
    if store.rows:
        wanted = place.filter.text.lower()
        yield Table(
            columns=_ROWS,
            items=[row for row in store.rows if wanted in row.transactional_id.lower()],
            make=partial(_make_row, store=store.name),
            name=partial(_name_row, store=store.name),
            empty=f"No row matches {place.filter.text}.",
        )
    if store.server_prepared:
        yield heading("Prepared transactions of the server itself")
        yield table_of([_make_prepared(store.name, each) for each in store.server_prepared], _PREPARED, "")
    yield blank()


def _name_row(row: StoredRow, *, store: str) -> str:
    return f"{store} row {row.transactional_id}"


def _make_row(row: StoredRow, *, store: str) -> Row:
    cells = (
        say(row.transactional_id, TextRole.STRONG),
        say(row.stored_state or "-"),
        say("yes" if row.is_settled else "no"),
        say(row.lease or "-"),
        badge(row.health) if row.health else say("-"),
        say(row.lease_holder or "-"),
    )
    target = Place(section=Section.TRANSACTIONS, key=row.key)
    return Row(cells, Anchor(name=_name_row(row, store=store), target=target, reason=row.reason))


def _make_prepared(store: str, each: PreparedInServer) -> Row:
    cells = (say(each.gid), say(each.owner), say(each.database), say(format_duration(each.age_ms)))
    return Row(cells, Anchor(name=f"{store} prepared {each.gid}", reason=each.gid))
