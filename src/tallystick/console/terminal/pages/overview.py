"""The overview in the terminal. Pure."""

from collections.abc import Iterator
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
from tallystick.console.terminal.routes import Route, Section, route_to_browser
from tallystick.console.views.events import EventRow
from tallystick.console.views.overview import OverviewPage, Problem, StoreSummary, build_overview
from tallystick.console.views.page import PageInfo
from tallystick.console.views.texts import format_count, format_duration, pluralize

_STORES: Final = (
    Column(head="Store", width=24, width_max=60),
    Column(head="Kind", width=9, rank=3),
    Column(head="State", width=8, rank=1),
    Column(head="Ids", width=8, rank=2, to_right=True),
    Column(head="Open", width=6, rank=1, to_right=True),
    Column(head="Read", width=12, rank=2, to_right=True),
)
_EVENTS: Final = (
    Column(head="Time", width=23),
    Column(head="Event", width=10, width_max=19, rank=2),
    Column(head="Of", width=16, width_max=40, rank=3),
    Column(head="What happened", width=36, width_max=200, rank=1),
)


def build(state: ConsoleState, route: Route, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the page."""
    page = build_overview(state, now_ms)
    return page.info, [*list_summary(page), *_list_details(page)]


def list_summary(page: OverviewPage) -> Iterator[Block]:
    """List health and figures."""
    yield Paragraph((badge(page.health), say("  "), say(page.headline, TextRole.STRONG)), indent=4)
    yield blank()
    for label, value in list_figures(page):
        yield field(label, value)


def list_figures(page: OverviewPage) -> Iterator[tuple[str, str]]:
    """List the figures with their names."""
    oldest = f", the oldest for {format_duration(page.oldest_ms)}" if page.open_count else ""
    yield "Open", f"{pluralize(page.open_count, 'transaction')}{oldest}"
    if page.prepared_count:
        oldest = format_duration(page.oldest_in_doubt_ms)
        count = format_count(page.prepared_count)
        yield "Two-phase", f"{count} of them: no timeout ends them; the oldest for {oldest}"
    partitions = pluralize(page.held_back_partitions, "partition")
    yield "Held back", f"{pluralize(page.held_back_count, 'record')} in {partitions}"
    if page.counts:
        yield "By health", ", ".join(f"{word} {format_count(number)}" for word, number in page.counts.items())


def list_problem(problem: Problem) -> Iterator[Block]:
    """List one problem: the word and its subject, the reason, the command."""
    target = Route(section=Section.TRANSACTIONS, key=problem.key) if problem.key else None
    anchor = Anchor(
        name=f"problem {problem.key or problem.reason}",
        target=target,
        command=problem.command,
    )
    yield Paragraph(
        (badge(problem.health), say("  "), say(problem.subject, TextRole.STRONG)), anchor, indent=4
    )
    hurts = [f"for {format_duration(problem.age_ms)}"] if problem.age_ms is not None else []
    if problem.held_back_count:
        waiting = f" from {', '.join(problem.groups[:3])}" if problem.groups else ""
        more = f" and {len(problem.groups) - 3} more" if len(problem.groups) > 3 else ""
        hurts.append(f"{pluralize(problem.held_back_count, 'record')} held back{waiting}{more}")
    if hurts:
        yield Paragraph((say("    "), say("; ".join(hurts), TextRole.QUIET)), indent=4)
    yield Paragraph((say("    "), say(problem.reason)), indent=4)
    if problem.command:
        yield Command(problem.command, Anchor(name=f"{anchor.name} command", command=problem.command), 4)


def _list_details(page: OverviewPage) -> Iterator[Block]:
    if page.problems:
        yield blank()
        yield heading("What to look at")
        for problem in page.problems:
            yield from list_problem(problem)
        more = page.problem_count - len(page.problems)
        if more > 0:
            text = f"{format_count(more)} more: see Transactions"
            anchor = Anchor(name="more problems", target=Route(section=Section.TRANSACTIONS))
            yield Paragraph((say(text),), anchor)
    yield blank()
    yield heading("Stores")
    empty = "No store is read, so what a database has decided is not known here. Start with --store URL."
    yield table_of([_make_store(store) for store in page.stores], _STORES, empty)
    yield blank()
    yield heading("Cluster")
    yield field("Id", page.cluster_id)
    yield field("Brokers", ", ".join(page.brokers))
    yield field("Transactional ids", format_count(page.id_count))
    yield field("Groups", format_count(page.group_count))
    yield field("Spark prefixes", format_count(page.prefix_count))
    yield field("Features", ", ".join(f"{name} {level}" for name, level in page.features.items()))
    yield blank()
    yield heading("Last events")
    empty = "Nothing has happened since this program was started."
    yield Table(columns=_EVENTS, items=page.events, make=_make_event, name=_name_event, empty=empty)
    if page.events:
        yield Paragraph((say("All events"),), Anchor(name="events", target=route_to_browser("events")))


def _make_store(store: StoreSummary) -> Row:
    cells = (
        say(store.name),
        say(store.kind),
        badge("ok" if store.is_reachable else "unknown"),
        say(format_count(store.id_count)),
        say(format_count(store.open_count)),
        say("never" if store.age_ms is None else f"{format_duration(store.age_ms)} ago"),
    )
    return Row(cells, Anchor(name=f"store {store.name}", target=route_to_browser("stores")))


def _name_event(event: EventRow) -> str:
    return f"event {event.number}"


def _make_event(event: EventRow) -> Row:
    cells = (
        say(write_time(event.at_ms)),
        say(event.kind),
        say(event.subject or "-", TextRole.STRONG),
        say(event.text),
    )
    target = Route(section=Section.TRANSACTIONS, key=event.key) if event.key else None
    return Row(cells, Anchor(name=_name_event(event), target=target, reason=event.text))
