"""The last events: as rows of a page, and as messages of the stream. Pure.

A stream's reader is told the number of each event as the message's id. Coming back it names the last one
that it has seen (Last-Event-ID, HTML "Server-sent events"), and gets those since. Where they cannot be told,
because the log no longer reaches back as far or a slow reader has left too many unread, it gets `resync` in
their place: what it shows is not connected with what comes, and it has to read the page anew [CON-13].
"""

import json
from collections.abc import Sequence
from typing import Final

from tallystick.console.model.events import TRANSACTION_KINDS, Event, EventLog
from tallystick.console.model.state import ConsoleState
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.kernel.value import Value

OVERVIEW_EVENTS: Final = 20
STREAM_EVENTS_MAX: Final = 100
"""A reader that is more events behind is told to read the page anew."""


class EventRow(Value, kw_only=True):
    """One event. `key`: of its transaction in a URL; empty if it is not one transaction's."""

    number: int
    at_ms: int
    kind: str
    subject: str
    text: str
    key: str


class EventsPage(Value, kw_only=True):
    """All events that are remembered since a number, newest first.

    last_number  of the newest event, for the next question
    is_resync    events after the number that was asked for are forgotten, or the number is another process's
    """

    info: PageInfo
    last_number: int
    is_resync: bool
    events: tuple[EventRow, ...]


class StreamMessage(Value):
    """One message of the stream. `id` None: the reader keeps the one that it has."""

    name: str
    data: str
    id: str | None


def build_events(state: ConsoleState, since: str, now_ms: int) -> EventsPage:
    """Build the page of all events; `since` is the number after which they are wanted, or anything else."""
    log = state.events
    events = _list_since(log, since) if since else log.events
    return EventsPage(
        info=describe_page("Events", state.snapshot, state.snapshot.list_statuses(), now_ms),
        last_number=log.last_number,
        is_resync=events is None,
        events=tuple(build_event(event) for event in reversed(log.events if events is None else events)),
    )


def list_last_events(log: EventLog) -> tuple[EventRow, ...]:
    """Return the rows of the overview, newest first."""
    return tuple(build_event(event) for event in reversed(log.events[-OVERVIEW_EVENTS:]))


def build_event(event: Event) -> EventRow:
    """Build the row of one event."""
    return EventRow(
        number=event.number,
        at_ms=event.at_ms,
        kind=event.kind.value,
        subject=event.subject,
        text=event.text,
        key=event.subject if event.kind in TRANSACTION_KINDS else "",
    )


def stream_events(state: ConsoleState, last_id: str) -> tuple[StreamMessage, ...]:
    """Return the messages for a reader that has seen `last_id`; an empty one has just loaded the page."""
    log = state.events
    if not last_id:
        return ()
    events = _list_since(log, last_id)
    if events is None or len(events) > STREAM_EVENTS_MAX:
        return (StreamMessage("resync", str(log.last_number), str(log.last_number)),)
    return tuple(
        StreamMessage("event", json.dumps(_to_json(build_event(event))), str(event.number))
        for event in events
    )


def announce_snapshot(state: ConsoleState) -> StreamMessage:
    """Return the message of a new snapshot. It has no id, which would hide the last event's."""
    return StreamMessage("snapshot", str(state.snapshot.number), None)


def list_unseen(state: ConsoleState, seen: str | None) -> tuple[StreamMessage, ...]:
    """Return the messages for a reader whose page shows the snapshot `seen`; None: it has no page."""
    return () if seen in (None, str(state.snapshot.number)) else (announce_snapshot(state),)


def _list_since(log: EventLog, number: str) -> Sequence[Event] | None:
    """Return the events after a number; None where they cannot be told."""
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        return None
    return log.list_since(int(number))


def _to_json(row: EventRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
