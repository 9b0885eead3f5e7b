"""Events in the terminal: all that are remembered, and the last ones on the overview. Pure."""

from collections.abc import Sequence
from typing import Final

from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import Anchor, Block, Column, Row, Table, TextRole, say, write_time
from tallystick.console.terminal.places import Place, Section
from tallystick.console.views.events import EventRow, build_events
from tallystick.console.views.page import PageInfo

_EVENTS: Final = (
    Column(head="Time", width=23),
    Column(head="Event", width=10, width_max=19, rank=2),
    Column(head="Of", width=16, width_max=40, rank=3),
    Column(head="What happened", width=36, width_max=200, rank=1),
)


def build(state: ConsoleState, place: Place, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the page."""
    page = build_events(state, "", now_ms)
    return page.info, [make_table(page.events, "Nothing has happened yet.")]


def make_table(events: Sequence[EventRow], empty: str) -> Table:
    """Make the table of some events, the newest first."""
    return Table(columns=_EVENTS, items=events, make=_make_event, name=_name_event, empty=empty)


def _name_event(event: EventRow) -> str:
    return f"event {event.number}"


def _make_event(event: EventRow) -> Row:
    cells = (
        say(write_time(event.at_ms)),
        say(event.kind),
        say(event.subject or "-", TextRole.STRONG),
        say(event.text),
    )
    target = Place(section=Section.TRANSACTIONS, key=event.key) if event.key else None
    return Row(cells, Anchor(name=_name_event(event), target=target, reason=event.text))
