"""The Textual application: one screen, whose page is built anew from each state of the feed."""

from collections.abc import Callable
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from tallystick.console.feed import StateFeed
from tallystick.console.terminal import cursor as cursors
from tallystick.console.terminal.frame import (
    DETAIL_LINES,
    Frame,
    describe_away,
    detail_lines,
    head_lines,
    key_line,
)
from tallystick.console.terminal.line_view import LineView, PageView
from tallystick.console.terminal.lines import PageLines
from tallystick.console.terminal.pages import build_page
from tallystick.console.terminal.places import (
    MENU,
    Place,
    Section,
    Visit,
    cycle_order,
    format_filter,
    parse_filter,
)
from tallystick.console.views.overview import build_overview
from tallystick.console.views.transactions import TransactionFilter
from tallystick.console.visible import show
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.value import replace

TICK_S: Final = 1.0
"""Seconds between two looks at the clock: the age on the screen grows while nothing is read."""

VISITS_MAX: Final = 100

HEAD_LINES: Final = 3

# The terminal's own sixteen colours and background, which suit each other whether they are light or dark.
COLOURS_OF_THE_TERMINAL: Final = "ansi-dark"


class FilterPrompt(Input):
    """Reads a filter. What is pasted into it is made visible first."""

    def replace(self, text: str, start: int, end: int) -> None:
        """Replace a part of the value."""
        super().replace(show(text), start, end)


class TopApp(App[str]):
    """`tallystick top`. The result is why it ended, or None where its user has quit.

    It is used on one event loop, which is also the feed's. Nothing is read from the cluster for a key.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "tallystick top"
    CSS = f"""
    Screen {{ layout: vertical; }}
    #head {{ height: {HEAD_LINES}; }}
    #page {{ height: 1fr; }}
    #detail {{ height: {DETAIL_LINES}; }}
    #keys {{ height: 1; }}
    FilterPrompt {{ height: 1; border: none; padding: 0; display: none; }}
    FilterPrompt:focus {{ border: none; }}
    FilterPrompt > .input--cursor {{ background: ansi_default; color: ansi_default; text-style: reverse; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"visit({number})", show=False) for number in range(1, len(MENU) + 1)),
        Binding("enter", "open", show=False),
        Binding("escape,backspace", "leave", show=False),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("c", "copy", show=False),
        Binding("r", "read", show=False),
        Binding("question_mark", "explain", show=False),
        Binding("q,ctrl+c", "quit", show=False),
    ]

    def __init__(
        self, feed: StateFeed, clock: Clock | None = None, read_soon: Callable[[], None] | None = None
    ) -> None:
        """Show a feed, which is the caller's.

        Args:
            read_soon: called when the user wants newer data.
        """
        # Said here as well: NO_COLOR would be made of greys otherwise, black on black among them.
        super().__init__(ansi_color=True)
        self._feed, self._clock, self._read_soon = feed, clock or SystemClock(), read_soon
        # Kept, and not looked up: a state may come while the application ends, and finds them still.
        self._head, self._page = LineView("head"), PageView("page")
        self._detail, self._keys = LineView("detail"), LineView("keys")
        self._prompt = FilterPrompt(id="filter", select_on_focus=False)
        self._place = Place()
        self._visits: list[Visit] = []
        self._note = ""
        self._frame: Frame | None = None
        self.theme = COLOURS_OF_THE_TERMINAL

    @property
    def place(self) -> Place:
        """The page that is shown."""
        return self._place

    def compose(self) -> ComposeResult:
        yield from (self._head, self._page, self._detail, self._prompt, self._keys)

    def on_mount(self) -> None:
        self._page.focus()
        self.set_interval(TICK_S, self.show_age)
        self.run_worker(self._follow(), exit_on_error=True)

    def on_page_view_size_changed(self) -> None:
        self.show_state()

    def on_page_view_moved(self) -> None:
        self._say("")

    async def _follow(self) -> None:
        async for _ in self._feed.follow():
            self.show_state()

    # ----------------------------------------------------------------------- what is shown

    def show_state(self) -> None:
        """Show the newest state; the cursor stays where it is."""
        self._page.follow_page(self._build())
        self._show_frame()

    def show_age(self) -> None:
        """Show how old the data are by now."""
        if self._frame is None:
            return
        away = describe_away(self._feed.state, self._clock.now_ms())
        self._frame = replace(self._frame, away=away)
        self._show_frame()

    def _build(self) -> PageLines:
        state, now_ms = self._feed.state, self._clock.now_ms()
        page = build_page(state, self._place, now_ms)
        self._frame = Frame(
            health=build_overview(state, now_ms).health,
            place=self._place,
            info=page.info,
            built_ms=now_ms,
            away=describe_away(state, now_ms),
            note=self._note,
        )
        return PageLines(page.blocks, self._page.size.width)

    def _show_frame(self) -> None:
        frame, width = self._frame, self.size.width
        if frame is None:
            return
        page = self._page
        head = head_lines(frame, self._clock.now_ms(), page.describe_position(), width)
        self._head.show_lines(head)
        self._detail.show_lines(detail_lines(frame, page.anchor_at_cursor, width))
        self._keys.show_lines((key_line(frame.place, width),))

    def _say(self, note: str) -> None:
        self._note = note
        if self._frame is not None:
            self._frame = replace(self._frame, note=note)
        self._show_frame()

    def _go(self, place: Place, *, visit: Visit | None = None) -> None:
        """Show a page from its beginning, or as it was when it was left."""
        self._place, self._note = place, ""
        lines, height = self._build(), self._page.size.height
        top, anchor = (0, "") if visit is None else (visit.top, visit.anchor)
        self._page.show_page(lines, cursors.enter(lines, height, top=top, anchor=anchor))
        self._show_frame()

    # ------------------------------------------------------------------------------- keys

    def _remember(self) -> None:
        view, anchor = self._page.view, self._page.anchor_at_cursor
        name = "" if anchor is None else anchor.name
        visit = Visit(place=self._place, top=view.top, anchor=name)
        self._visits = [*self._visits, visit][-VISITS_MAX:]

    def action_visit(self, number: int) -> None:
        """Go to a page of the menu."""
        place = Place(section=MENU[number - 1])
        if place != self._place:
            self._remember()
            self._go(place)

    def action_explain(self) -> None:
        """Go to the page with the keys."""
        if self._place.section is not Section.HELP:
            self._remember()
            self._go(Place(section=Section.HELP))

    def action_open(self) -> None:
        """Go where the line under the cursor leads."""
        anchor = self._page.anchor_at_cursor
        if anchor is not None and anchor.target is not None:
            self._remember()
            self._go(anchor.target)

    def action_leave(self) -> None:
        """Go back: out of the prompt, to the list without its filter, or to the page before."""
        if isinstance(self.focused, FilterPrompt):
            self._close_prompt()
        elif self._place.filter != TransactionFilter():
            self._go(replace(self._place, filter=TransactionFilter()))
        elif self._visits:
            *self._visits, visit = self._visits
            self._go(visit.place, visit=visit)

    def action_sort(self) -> None:
        """Sort the transactions in the next order."""
        if self._place.can_sort:
            self._go(replace(self._place, order=cycle_order(self._place.order)))

    def action_copy(self) -> None:
        """Copy the command of the line under the cursor."""
        anchor = self._page.anchor_at_cursor
        if anchor is None or not anchor.command:
            self._say("There is no command here.")
            return
        self.copy_to_clipboard(anchor.command)
        self._say("Copied, if your terminal lets programs use its clipboard (OSC 52).")

    def action_read(self) -> None:
        """Read the cluster soon."""
        if self._read_soon is not None:
            self._read_soon()
            self._say("It is read again as soon as its load allows.")

    # ----------------------------------------------------------------------------- filter

    def action_filter(self) -> None:
        """Ask for a filter."""
        if not self._place.can_filter:
            return
        prompt = self._prompt
        prompt.value = show(format_filter(self._place.filter))
        prompt.display = True
        prompt.focus()
        prompt.cursor_position = len(prompt.value)
        fields = "health=WORD state=STATE store=NAME and " if self._place.can_sort else ""
        self._say(f"Filter by {fields}a part of the name. Enter applies it, Esc keeps what is shown.")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show what matches."""
        self._close_prompt()
        self._go(replace(self._place, filter=parse_filter(event.value)))

    def _close_prompt(self) -> None:
        self._prompt.display = False
        self._page.focus()
        self._say("")
