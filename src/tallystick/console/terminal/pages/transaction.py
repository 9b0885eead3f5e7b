"""One transaction in the terminal: its time line, both sides, partitions, and commands to copy. Pure."""

from collections.abc import Iterator, Sequence
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
    write_time,
)
from tallystick.console.terminal.routes import Route, route_to_browser
from tallystick.console.views.history import HistoryRow, HistoryView
from tallystick.console.views.page import PageInfo
from tallystick.console.views.page_request import PageRequest
from tallystick.console.views.texts import format_count, format_duration
from tallystick.console.views.timeline import TimelineEvent
from tallystick.console.views.transaction import (
    CoordinatorView,
    DatabaseView,
    DecisionView,
    TransactionPage,
    TransactionPartition,
    build_transaction,
)

_TIME_LINE: Final = (
    Column(head="", width=3),
    Column(head="Where", width=18, width_max=50),
    Column(head="What", width=24, rank=1),
    Column(head="When", width=23, rank=2),
    Column(head="Ago", width=11, rank=3, to_right=True),
)
_PARTITIONS: Final = (
    Column(head="Partition", width=14, width_max=40),
    Column(head="Finding", width=18, width_max=60, rank=1),
    Column(head="First offset", width=12, rank=2, to_right=True),
    Column(head="Last stable", width=11, rank=4, to_right=True),
    Column(head="End", width=9, rank=5, to_right=True),
    Column(head="Held back", width=9, rank=3, to_right=True),
    Column(head="Producer", width=12, rank=6, to_right=True),
    Column(head="Last record", width=23, rank=7),
)
_HISTORY: Final = (
    Column(head="Time", width=23),
    Column(head="Transition", width=16),
    Column(head="State", width=14, rank=1),
    Column(head="Producer", width=12, width_max=20, rank=2, to_right=True),
    Column(head="Fenced", width=12, width_max=20, rank=4, to_right=True),
    Column(head="Partitions", width=10, rank=5, to_right=True),
    Column(head="Client", width=16, width_max=40, rank=3),
    Column(head="Address", width=15, width_max=40, rank=6),
)


def build(
    state: ConsoleState, route: Route, now_ms: int, answer: PageRequest | None = None
) -> tuple[PageInfo, list[Block]]:
    """Build the page.

    Args:
        answer: what was read for this page; None if that has not come yet.
    """
    history = None if answer is None else answer.history
    page = build_transaction(state, route.key or "", now_ms, history)
    return page.info, list(_list_blocks(page, now_ms, is_read=answer is not None))


def _list_blocks(page: TransactionPage, now_ms: int, *, is_read: bool) -> Iterator[Block]:
    if page.row is None:
        text = "No transaction of this id is open. Below is what is known of the id."
        yield Paragraph((say(text, TextRole.STRONG),))
    else:
        anchor = Anchor(name="verdict", command=page.row.command)
        yield Paragraph((badge(page.row.health), say("  "), say(page.row.reason, TextRole.STRONG)), anchor, 4)
        if page.row.command:
            yield Command(page.row.command, Anchor(name="verdict command", command=page.row.command), 4)
    yield field("Id", page.key)
    if page.timeline is not None:
        yield blank()
        yield heading("Time line")
        events = [drawn.event for drawn in page.timeline.events]
        yield table_of(_make_events(events, now_ms), _TIME_LINE, "Nothing is known of it.")
    yield from _list_sides(page)
    if page.partitions:
        yield blank()
        yield heading("Partitions")
        yield Table(
            columns=_PARTITIONS,
            items=page.partitions,
            make=_make_partition,
            name=_name_partition,
            empty="",
        )
    yield blank()
    yield heading("Commands")
    for number, line in enumerate(page.commands):
        yield Paragraph((say(f"{line.purpose[:1].upper()}{line.purpose[1:]}:"),))
        yield Command(line.text, Anchor(name=f"command {number}", command=line.text), 4)
    if page.history is not None or not is_read:
        # It comes after all else has been shown, and moves nothing there.
        yield blank()
        yield heading("History")
        yield from _list_history(page.history)


def _list_history(view: HistoryView | None) -> Iterator[Block]:
    """List the history; None: it is being read."""
    if view is None:
        yield Paragraph((say("Being read.", TextRole.QUIET),))
        return
    texts = [view.source] if view.source else []
    if view.followed_since_ms is not None:
        since = write_time(view.followed_since_ms)
        texts.append(f"Followed since {since}, and from a bounded number of records before.")
    if view.is_catching_up:
        texts.append("Still being read.")
    if view.failure:
        texts.append(view.failure)
    if not view.rows and not view.failure:
        texts.append("Nothing is known.")
    yield Paragraph((say(" ".join(texts), TextRole.QUIET),))
    if view.rows:
        yield Table(columns=_HISTORY, items=view.rows, make=_make_history, name=_name_history, empty="")


def _name_history(row: HistoryRow) -> str:
    return f"history {row.key}"


def _make_history(row: HistoryRow) -> Row:
    fenced = f"{row.fenced} is fenced." if row.fenced else ""
    client = f"By {row.client_id or '-'} from {row.address or '-'}." if row.client_id or row.address else ""
    cells = (
        say(write_time(row.at_ms)),
        say(row.kind, TextRole.STRONG),
        say(row.state),
        say(row.producer or "-"),
        say(row.fenced or "-"),
        say(format_count(row.partition_count)),
        say(row.client_id or "-"),
        say(row.address or "-"),
    )
    reason = " ".join(filter(None, (row.text, fenced, client)))
    return Row(cells, Anchor(name=_name_history(row), reason=reason))


def _make_events(events: Sequence[TimelineEvent], now_ms: int) -> list[Row]:
    rows = []
    for event in events:
        mark, role = ("[x]", TextRole.GOOD) if event.is_done else ("[ ]", TextRole.QUIET)
        if event.is_wrong:
            mark, role = "[!]", TextRole.BAD
        cells = (
            say(mark, role),
            say(event.row),
            say(event.text, TextRole.NORMAL if event.is_done else role),
            say(write_time(event.at_ms)),
            say("-" if event.at_ms is None else format_duration(max(0, now_ms - event.at_ms))),
        )
        rows.append(Row(cells))
    return rows


def _list_sides(page: TransactionPage) -> Iterator[Block]:
    yield blank()
    yield heading("Kafka")
    if page.coordinator is None:
        yield Paragraph((say("No coordinator knows it.", TextRole.QUIET),))
    else:
        yield from _list_coordinator(page.coordinator)
    yield blank()
    yield heading("Database")
    if page.database is None:
        yield Paragraph((say("No store that is read here has a row of it.", TextRole.QUIET),))
    else:
        yield from _list_database(page.database)
    if page.decision is not None:
        yield blank()
        yield heading("Spark")
        yield from _list_decision(page.decision)


def _list_coordinator(view: CoordinatorView) -> Iterator[Block]:
    timeout = "none: two-phase commit" if view.timeout_ms is None else format_duration(view.timeout_ms)
    yield field("State", view.state)
    yield field("Token", f"{view.token} (producer id:epoch)")
    yield field("Begun", write_time(view.started_ms))
    yield field("Timeout", timeout)
    yield field("Coordinator", f"broker {view.coordinator}")
    if view.superseded is not None:
        yield field("Former pair", view.superseded)
    if view.forced_outcomes:
        yield field("Ended by others", ", ".join(view.forced_outcomes))


def _list_database(view: DatabaseView) -> Iterator[Block]:
    yield field("Store", view.store)
    yield field("Last committed", view.stored_state or "nothing yet")
    yield field("Settled", "yes" if view.is_settled else "no")
    for label, value in (
        ("Finding", view.finding),
        ("Recovery would", view.verdict),
        ("Lease", view.lease),
        ("Also a row in", ", ".join(view.other_stores)),
    ):
        if value:
            yield field(label, value)
    raw = ", ".join(
        f"{name}={'NULL' if value is None else repr(value)}" for name, value in view.raw_row.items()
    )
    yield field("Raw row", raw)


def _list_decision(view: DecisionView) -> Iterator[Block]:
    yield field("Prefix", view.prefix)
    yield field("Place", view.role)
    yield field("Last decision", view.decision)
    yield field("Decided", write_time(view.decided_ms))
    yield field("Decisions in", view.source)
    yield field("Offsets", view.offsets)


def _name_partition(each: TransactionPartition) -> str:
    return f"partition {each.partition}"


def _make_partition(each: TransactionPartition) -> Row:
    cells = (
        say(each.partition),
        say(each.finding),
        say(format_count(each.start_offset)),
        say(format_count(each.last_stable_offset)),
        say(format_count(each.end_offset)),
        say(format_count(each.held_back_count)),
        say(each.producer or "-"),
        say(write_time(each.last_record_ms)),
    )
    target = route_to_browser("topics", each.partition.rpartition("-")[0])
    return Row(cells, Anchor(name=_name_partition(each), target=target, reason=each.finding))
