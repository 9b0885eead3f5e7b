"""Names that mean harm on every screen of the terminal: what is really written to it, byte for byte."""

import re
from functools import cache

import pytest
from rich.cells import cell_len
from tests.support.console_facts import NOW_MS
from tests.support.hostile_console import (
    HARMLESS,
    HOSTILE,
    HostileAnswers,
    make_hostile_actions,
    make_hostile_state,
)
from tests.support.terminal import PLACING, WIDE, Screen, use_terminal
from textual.events import Paste

from tallystick.console.model.escaped import show
from tallystick.console.terminal.app import TopServices
from tallystick.console.terminal.routes import MENU, Section
from tallystick.console.terminal.summary import list_summary
from tallystick.kernel.value import Value, replace

pytestmark = pytest.mark.slow

# The shape of the mouse's pointer, which Textual sets to its default once.
POINTER = "\x1b]22;default\x07"
# The ways to each screen, by what is pressed from the overview on; the rows of all names stand alike.
WAYS = {
    **{section.value: ("question_mark", str(number)) for number, section in enumerate(MENU, 1)},
    "a transaction that hangs": ("2", "enter"),
    "a transaction that is known": ("2", "down", "down", "enter"),
    "the end of the page of one": ("2", "down", "down", "enter", "end"),
    "the end of the overview": ("end",),
    "help": ("question_mark",),
    "a history": ("2", "down", "down", "enter", "end"),
    "a dry run": ("2", "down", "down", "enter", "a"),
    "its end": ("2", "down", "down", "enter", "a", "end"),
    "what is to be typed": ("2", "down", "down", "enter", "a", "end", "enter"),
}


def list_sequences(written: str) -> set[str]:
    """Return the control sequences that style text, without those that only place it."""
    return {sequence for sequence in PLACING.findall(written) if sequence.endswith("m")}


class Visit(Value):
    """What was written on the way to a screen, and what is on it."""

    written: str
    lines: list[str]
    section: Section


@cache
def visit_all(name: str) -> dict[str, Visit]:
    visits: dict[str, Visit] = {}

    action_service = make_hostile_actions(name)

    async def steps(screen: Screen) -> None:
        async with action_service:
            for where, way in WAYS.items():
                await screen.press("escape", "1")
                length = len(screen.written)
                for key in way:
                    await screen.press(key)
                    await screen.wait_until(lambda: has_answers(screen))
                visits[where] = Visit(screen.written[length:], screen.lines, screen.app.route.section)
            visits["a result"] = await act(screen, name)

    state = make_hostile_state(name)
    events = state.events.note(name, f"{name} is a note", NOW_MS)
    services = TopServices(lookups=HostileAnswers(name), action_service=action_service, user="ada")
    use_terminal(replace(state, events=events), steps, size=WIDE, services=services)
    return visits


def has_answers(screen: Screen) -> bool:
    """Return whether everything has come that the page has asked for."""
    route, stage = screen.app.route, screen.app.panel.stage
    if route.action is not None:
        return stage is not None and stage.plan is not None
    return screen.app.answer is not None or not route.has_history


async def act(screen: Screen, name: str) -> "Visit":
    """Confirm the dry run that is shown, and return what its unknown outcome looks like."""
    plan = screen.app.panel.stage and screen.app.panel.stage.plan
    assert plan is not None
    length = len(screen.written)
    screen.app.post_message(Paste(plan.confirmation))
    await screen.press("enter")
    await screen.wait_until(lambda: "outcome unknown" in screen.text)
    return Visit(screen.written[length:], screen.lines, screen.app.route.section)


@cache
def list_harmless_styles() -> set[str]:
    """Return the styles of all screens where no name means harm, and the terminal's own colours."""
    styles = {style for visit in visit_all(HARMLESS).values() for style in list_sequences(visit.written)}
    # Whether a screen has a moment without a style of its own depends on when it is drawn.
    return {*styles, "\x1b[39;49m"}


@pytest.mark.gate(2)
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("where", [*WAYS, "a result"])
def test_a_name_does_nothing_and_each_character_of_it_is_seen(where: str, name: str) -> None:
    """[CON-9]"""
    visit = visit_all(name)[where]
    rest = PLACING.sub("", visit.written.replace(POINTER, ""))
    assert [each for each in rest if not each.isprintable() and each != "\n"] == []
    assert list_sequences(visit.written) <= list_harmless_styles()
    assert all(cell_len(line) == WIDE[0] for line in visit.lines)
    assert visit.section is visit_all(HARMLESS)[where].section
    if where != "help":
        # The first characters, which fit into the narrowest column that shows a name.
        beginning = show(name)[:4]
        assert any(beginning in line for line in visit.lines), visit.lines


def test_the_styles_are_looked_at() -> None:
    """A guard: the screens do have styles, and none of them blinks as the names would have it."""
    assert len(list_harmless_styles()) >= 5
    assert not any(re.search(r"[\[;]5[;m]", style) for style in list_harmless_styles())


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_the_summary_is_text(name: str) -> None:
    lines = list(list_summary(make_hostile_state(name), 0))
    assert all(line.isprintable() for line in lines)
    assert any(show(name)[:200] in line for line in lines)
