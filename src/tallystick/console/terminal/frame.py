"""The lines around each page: health, age and menu above it, reason and keys below it. Pure."""

from typing import Final

from rich.cells import cell_len

from tallystick.console.actions.request import find_action
from tallystick.console.model.escaped import clip, join_visible, shorten, show, wrap
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import COMMAND_MAX, Anchor, Line, Span, TextRole, badge, say
from tallystick.console.terminal.routes import MENU, Route, list_keys
from tallystick.console.views.page import PageInfo, list_outages
from tallystick.console.views.texts import format_duration
from tallystick.kernel.value import Value

DETAIL_LINES: Final = 2
"""Lines below the page for the reason of the row under the cursor."""


class Frame(Value, kw_only=True):
    """Content of the lines around a page.

    note            stands in place of the reason until the next key
    allows_actions  `a` makes a dry run of what the command under the cursor does
    """

    health: str
    route: Route
    info: PageInfo
    built_ms: int
    away: str = ""
    note: str = ""
    allows_actions: bool = False


def describe_away(state: ConsoleState, now_ms: int) -> str:
    """Return what a page of the browser says first if the cluster cannot be read; empty if it can."""
    outages = list_outages(state.snapshot, state.snapshot.list_statuses(), now_ms)
    return next((outage.text for outage in outages if outage.is_cluster), "")


def head_lines(frame: Frame, now_ms: int, position: str, width: int) -> tuple[Line, ...]:
    """Return the lines above the page: always the same number, so that nothing jumps."""
    left = (say("tallystick ", TextRole.STRONG), badge(frame.health), say("  "))
    right = say(f"  {describe_age(frame, now_ms)}")
    room = max(0, width - sum(cell_len(span.text) for span in (*left, right)))
    servers = shorten(show(frame.info.bootstrap_servers), room)
    filler = show(" " * (room - cell_len(servers)))
    first = Line((*left, Span(servers, TextRole.QUIET), Span(filler), right))
    title, role = (f"! {frame.away}", TextRole.BAD) if frame.away else (frame.info.title, TextRole.HEADING)
    return (
        first,
        _menu_line(frame.route),
        _spread(Span(show(title), role), say(position, TextRole.QUIET), width),
    )


def _spread(left: Span, right: Span, width: int) -> Line:
    """Return a line with one text at each end; the left one is cut where both do not fit."""
    room = max(0, width - cell_len(right.text) - 1)
    text = clip(left.text, room)
    return Line(
        (Span(text, left.role), Span(show(" " * (width - cell_len(text) - cell_len(right.text)))), right)
    )


def describe_age(frame: Frame, now_ms: int) -> str:
    """Return how old the data of the page are; they age while nothing new is read."""
    if frame.info.age_ms is None:
        return "not all read yet" if frame.info.snapshot_number else "not read yet"
    return f"read {format_duration(frame.info.age_ms + max(0, now_ms - frame.built_ms))} ago"


def _menu_line(route: Route) -> Line:
    spans: list[Span] = []
    for number, section in enumerate(MENU, 1):
        is_here = section is route.section
        text = f"[{number} {section.value}]" if is_here else f" {number} {section.value} "
        spans.append(say(text, TextRole.STRONG if is_here else TextRole.QUIET))
    return Line(tuple(spans))


def detail_lines(frame: Frame, anchor: Anchor | None, width: int) -> tuple[Line, ...]:
    """Return what is said of the line under the cursor: a note, or the reason and the command to copy."""
    role = TextRole.STRONG if frame.note else TextRole.NORMAL
    text = frame.note or ("" if anchor is None else anchor.reason)
    texts = wrap(show(text), width) if text else []
    if len(texts) > DETAIL_LINES:
        rest = join_visible(" ", texts[DETAIL_LINES - 1 :])
        texts = [*texts[: DETAIL_LINES - 1], clip(rest, width)]
    lines = [Line((Span(each, role),)) for each in texts]
    if anchor is not None and len(lines) < DETAIL_LINES:
        keys = ["a: dry run"] if _has_action(frame, anchor) else []
        head = say(", ".join([*keys, "c copies: "] if anchor.command else keys), TextRole.QUIET)
        command = clip(show(anchor.command, max_length=COMMAND_MAX), width - cell_len(head.text))
        lines.append(Line((head, Span(command, TextRole.COMMAND))))
    return (*lines, *(Line() for _ in range(DETAIL_LINES - len(lines))))


def _has_action(frame: Frame, anchor: Anchor) -> bool:
    """Return whether `a` leads anywhere; on the page of an action it does not."""
    is_possible = frame.allows_actions and frame.route.action is None
    return is_possible and find_action(anchor.command) is not None


def key_line(route: Route, width: int) -> Line:
    """Return the keys that do something here, as many as there is room for."""
    spans: list[Span] = []
    room = width + 2  # the last one needs no blanks behind it
    for key, does in list_keys(route):
        texts = (say(key, TextRole.STRONG), say(f" {does}  ", TextRole.QUIET))
        size = sum(cell_len(span.text) for span in texts)
        if size > room:
            break
        room -= size
        spans += texts
    return Line(tuple(spans))
