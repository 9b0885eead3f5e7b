"""The Textual application: one screen, whose page is built anew from each state of the feed."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.worker import Worker, WorkType

from tallystick.console.actions.request import find_action
from tallystick.console.collect.feed import StateFeed
from tallystick.console.terminal import cursor as cursors
from tallystick.console.terminal.action_panel import ActionPanel, Actions
from tallystick.console.terminal.action_stage import ActionStage
from tallystick.console.terminal.frame import (
    DETAIL_LINES,
    Frame,
    describe_away,
    detail_lines,
    head_lines,
    key_line,
)
from tallystick.console.terminal.line_view import InputLine, LineView, PageView
from tallystick.console.terminal.lines import PageLines
from tallystick.console.terminal.pages import build_page
from tallystick.console.terminal.prompts import (
    Prompt,
    PromptKind,
    answer_prompt,
    ask_filter,
)
from tallystick.console.terminal.routes import MENU, Route, Section, Visit, cycle_order
from tallystick.console.views.overview import build_overview
from tallystick.console.views.page_request import Histories, PageRequest, ask_history
from tallystick.console.views.transactions import TransactionFilter
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.value import Value, replace

TICK_S: Final = 1.0
"""Seconds between two looks at the clock: the age on the screen grows while nothing is read."""

VISITS_MAX: Final = 100

HEAD_LINES: Final = 3

# The terminal's own sixteen colours and background, which suit each other whether they are light or dark.
COLOURS_OF_THE_TERMINAL: Final = "ansi-dark"

UNDER_WAY: Final = (
    "An action is under way. Wait for its result, or quit once more: then it is waited for after the "
    "screen, for 10 seconds, and its result is printed."
)


async def _find_none(_: str | None) -> str:
    return ""


class TopServices(Value, kw_only=True):
    """Services of the terminal besides its feed.

    read_soon     called when newer data are wanted
    lookups       reads histories
    action_service  carries actions out; None: nothing can be changed
    user          the operator, in the audit log
    find_console  returns the URL of the console of a cluster, by the cluster's id; empty: none was found
    """

    read_soon: Callable[[], None] = lambda: None
    lookups: Histories | None = None
    action_service: Actions | None = None
    user: str = ""
    find_console: Callable[[str | None], Awaitable[str]] = _find_none


class TopApp(App[str]):
    """`tallystick top`. The result is why it ended, or None where its user has quit.

    It is used on one event loop, which is also the feed's. What a single page shows is read in the
    background, and nothing else is for a key.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "tallystick top"
    CSS = f"""
    Screen {{ layout: vertical; }}
    #head {{ height: {HEAD_LINES}; }}
    #page {{ height: 1fr; }}
    #detail {{ height: {DETAIL_LINES}; }}
    #keys {{ height: 1; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(at), f"go('{section.name}')", show=False) for at, section in enumerate(MENU, 1)),
        Binding("question_mark", "go('HELP')", show=False),
        Binding("enter", "open", show=False),
        Binding("escape,backspace", "leave", show=False),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("c", "copy", show=False),
        Binding("r", "read", show=False),
        Binding("a", "act", show=False),
        Binding("q,ctrl+c", "quit", show=False),
    ]

    def __init__(
        self, feed: StateFeed, clock: Clock | None = None, services: TopServices | None = None
    ) -> None:
        """Show a feed, which is the caller's, as the services are."""
        # Said here as well: NO_COLOR would be made of greys otherwise, black on black among them.
        super().__init__(ansi_color=True)
        self._services = services or TopServices()
        self._feed, self._clock = feed, clock or SystemClock()
        # Kept, and not looked up: a state may come while the application ends, and finds them still.
        self._head, self._page = LineView("head"), PageView("page")
        self._detail, self._keys = LineView("detail"), LineView("keys")
        self._input = InputLine()
        action_service, user = self._services.action_service, self._services.user
        self.panel = ActionPanel(action_service, user, self._clock, self._show_stage)
        self.answer: PageRequest | None = None
        self._question: Worker[None] | None = None
        self._console_url = ""
        self.route = Route()
        self._visits: list[Visit] = []
        self._note = ""
        self._warned_of: ActionStage | None = None
        self._frame: Frame | None = None
        self.theme = COLOURS_OF_THE_TERMINAL

    def compose(self) -> ComposeResult:
        yield from (self._head, self._page, self._detail, self._input, self._keys)

    def on_mount(self) -> None:
        self._page.focus()
        self.set_interval(TICK_S, self.show_frame)
        follow: WorkType[None] = self._follow
        self.run_worker(follow, exit_on_error=True)

    def on_page_view_size_changed(self) -> None:
        self.show_state()

    def on_page_view_moved(self) -> None:
        if self._input.prompt is None:  # a key may have asked for something before this came
            self._say("")

    async def _follow(self) -> None:
        async for _ in self._feed.follow():
            self.show_state()
            if self._question is None or not self._question.is_running:
                self._ask_history()  # it grows on its own

    def _ask_history(self) -> None:
        """Ask for the history of the transaction that is shown; the former answer stays until it comes."""
        lookups = self._services.lookups
        if self.route.has_history and lookups is not None:
            read: WorkType[None] = partial(self._read_history, lookups, self.route)
            self._question = self.run_worker(read, group="page", exclusive=True, exit_on_error=True)

    async def _read_history(self, lookups: Histories, route: Route) -> None:
        request = PageRequest(
            state=self._feed.state, query={}, key=route.key or "", now_ms=self._clock.now_ms()
        )
        answer = await ask_history(lookups, request)
        if route == self.route:
            self.answer = answer
            self.show_state()

    async def _find_console(self) -> None:
        cluster_id = self._feed.state.snapshot.cluster.cluster_id
        self._console_url = await self._services.find_console(cluster_id)
        self.show_state()

    # ----------------------------------------------------------------------- what is shown

    def show_state(self) -> None:
        """Show the newest state; the cursor stays where it is."""
        self._page.follow_page(self._build())
        self.show_frame()

    def _build(self) -> PageLines:
        state, now_ms = self._feed.state, self._clock.now_ms()
        if self.route.action is not None:
            self.panel.note_seen()
        page = build_page(
            state,
            self.route,
            now_ms,
            self.answer,
            self.panel.stage,
            console_url=self._console_url,
        )
        self._frame = Frame(
            health=build_overview(state, now_ms).health,
            route=self.route,
            info=page.info,
            built_ms=now_ms,
            allows_actions=self.panel.is_allowed,
        )
        return PageLines(page.blocks, self._page.size.width)

    def show_frame(self) -> None:
        """Show what surrounds the page: how old its data are by now, and what is said."""
        if self._frame is None:
            return
        page, width, now_ms = self._page, self.size.width, self._clock.now_ms()
        note = self._note or self.panel.notice
        frame = replace(self._frame, away=describe_away(self._feed.state, now_ms), note=note)
        self._head.show_lines(head_lines(frame, now_ms, page.describe_position(), width))
        self._detail.show_lines(detail_lines(frame, page.anchor_at_cursor, width))
        self._keys.show_lines((key_line(frame.route, width),))

    def _say(self, note: str) -> None:
        self._note = note
        self.show_frame()

    def _go(self, route: Route, *, visit: Visit | None = None, is_kept: bool = False) -> None:
        """Show a page from its beginning, or as it was when it was left.

        Args:
            is_kept: the page that is shown now is on the way back.
        """
        stage = self.panel.stage
        if route.action is not None and stage is not None and self.panel.is_held:
            route = replace(route, action=stage.address)
        if is_kept:
            anchor = self._page.anchor_at_cursor
            left = Visit(
                route=self.route, top=self._page.view.top, anchor="" if anchor is None else anchor.name
            )
            self._visits = [*self._visits, left][-VISITS_MAX:]
        self.route, self._note = route, ""
        self.answer = None
        self._ask_history()
        if route.section is Section.BROWSER:
            find: WorkType[None] = self._find_console
            self.run_worker(find, group="console", exclusive=True, exit_on_error=True)
        if route.action is not None and self.panel.begin(route.action):
            plan: WorkType[None] = self.panel.plan
            self.run_worker(plan, group="dry run", exit_on_error=True)
        lines, height = self._build(), self._page.size.height
        top, name = (0, "") if visit is None else (visit.top, visit.anchor)
        self._page.show_page(lines, cursors.enter(lines, height, top=top, anchor=name))
        self.show_frame()

    def _show_stage(self) -> None:
        """Show how far the action has come: on its page from the beginning, elsewhere in a note."""
        if self.route.action is not None:
            lines = self._build()
            self._page.show_page(lines, cursors.enter(lines, self._page.size.height))
        self.show_frame()

    # ------------------------------------------------------------------------------- keys

    def action_go(self, section: str) -> None:
        """Go to a page of the menu, or to the page with the keys."""
        route = Route(section=Section[section])
        if route != self.route:
            self._go(route, is_kept=True)

    def action_open(self) -> None:
        """Go where the line under the cursor leads, or ask its question."""
        anchor = self._page.anchor_at_cursor
        if anchor is None:
            return
        if anchor.target is not None:
            self._go(anchor.target, is_kept=True)
        elif anchor.prompt is not None:
            self._ask(anchor.prompt)

    def action_leave(self) -> None:
        """Go back: out of the prompt, to the list without its filter, or to the page before."""
        if self._input.prompt is not None:
            self._close_prompt()
        elif self.route.filter != TransactionFilter():
            self._go(replace(self.route, filter=TransactionFilter()))
        elif self._visits:
            *self._visits, visit = self._visits
            self._go(visit.route, visit=visit)

    def action_sort(self) -> None:
        """Sort the transactions in the next order."""
        if self.route.lists_transactions:
            self._go(replace(self.route, order=cycle_order(self.route.order)))

    def action_copy(self) -> None:
        """Copy the command or address of the line under the cursor."""
        anchor = self._page.anchor_at_cursor
        if anchor is None or not anchor.command:
            self._say("There is no command here.")
            return
        self.copy_to_clipboard(anchor.command)
        self._say("Copied, if your terminal lets programs use its clipboard (OSC 52).")

    def action_read(self) -> None:
        """Read the cluster soon, or begin a new dry run."""
        if self.route.action is not None:
            self._go(self.route)
            return
        self._services.read_soon()
        self._ask_history()
        self._say("It is read again as soon as its load allows.")

    def action_act(self) -> None:
        """Make the dry run of what the line under the cursor would do."""
        anchor, stage = self._page.anchor_at_cursor, self.panel.stage
        address = None if anchor is None else find_action(anchor.command)
        if stage is not None and self.panel.is_held:
            address = stage.address
        if self.route.action is not None:
            self._say("This is the page of an action. What it asks for is on the line under the cursor.")
        elif address is None:
            self._say("There is no action here.")
        elif not self.panel.is_allowed:
            self._say("Actions are off: start it with --allow-actions. c copies the command.")
        else:
            self._go(Route(section=self.route.section, action=address), is_kept=True)

    async def action_quit(self) -> None:
        """End, at the second time if an action is under way."""
        stage = self.panel.stage
        if self.panel.is_running and stage is not self._warned_of:
            self._warned_of = stage
            self._say(UNDER_WAY)
            return
        self.exit()

    # ----------------------------------------------------------------------------- prompts

    def action_filter(self) -> None:
        """Ask for a filter of the transactions."""
        if self.route.lists_transactions:
            self._ask(ask_filter(self.route))

    def _ask(self, prompt: Prompt) -> None:
        self._input.ask(prompt)
        self._say(prompt.note)

    def on_input_submitted(self, event: InputLine.Submitted) -> None:
        """Go where the answer leads, or hand it to the action."""
        prompt, typed = self._close_prompt(), event.value
        if prompt is None:
            return
        if prompt.kind in (PromptKind.REASON, PromptKind.CONFIRMATION):
            more = self.panel.answer(prompt, typed)
            if more is not None:
                self._ask(more)
            return
        self._go(answer_prompt(prompt, self.route, typed), is_kept=False)

    def _close_prompt(self) -> Prompt | None:
        prompt = self._input.close()
        self._page.focus()
        self._say("")
        return prompt
