"""Runs the terminal application without a terminal, and keeps what it would have written to one."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from tests.support.console_facts import NOW_MS
from textual.drivers import headless_driver
from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot

from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.app import TopApp, TopServices
from tallystick.testing import FakeClock

HOPS: Final = 4
"""From the application to its screen, to the widget in focus, and back with an action."""

SECONDS_MAX: Final = 60
"""After which a condition that does not come is a failure; nothing waits for so long otherwise."""

MOVES_MAX: Final = 200
"""Lines below the cursor among which one is looked for."""

CHARACTERS: Final = {"slash": "/", "question_mark": "?", "space": " "}
SMALL: Final = (80, 24)
WIDE: Final = (160, 50)

# What Textual writes to place text, to style it, and to bracket an update.
PLACING: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STYLE: Final = re.compile(r"\x1b\[([0-9;]*)m")


class Screen:
    """An application that runs, and what it has written so far."""

    def __init__(self, app: TopApp, feed: StateFeed, clock: FakeClock, written: list[str]) -> None:
        self.app, self.feed, self.clock, self._written = app, feed, clock, written
        self.pilot: Pilot[str] | None = None

    @property
    def written(self) -> str:
        return "".join(self._written)

    @property
    def lines(self) -> list[str]:
        """What is on the screen, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip) for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def cursor_line(self) -> int | None:
        """The line of the screen with the cursor."""
        marked = [number for number, line in enumerate(self.lines) if line.startswith("> ")]
        return marked[0] if marked else None

    async def press(self, *keys: str) -> None:
        """Press keys, by Textual's names or as the characters that they write."""
        for key in keys:
            character = CHARACTERS.get(key, key if len(key) == 1 else None)
            name = key if key.isalnum() or len(key) > 1 else _character_to_key(key)
            self.app.post_message(Key(name, character))
            await self.settle()

    async def move_to(self, text: str) -> None:
        """Move the cursor down to the first line that has a text, or whose command or reason has it."""
        for _ in range(MOVES_MAX):
            line = self.cursor_line
            if line is not None and any(text in each for each in (self.lines[line], *self.lines[-3:-1])):
                return
            await self.press("down")
        raise AssertionError(self.text)

    async def resize(self, width: int, height: int) -> None:
        assert self.pilot is not None
        await self.pilot.resize_terminal(width, height)
        await self.settle()

    async def settle(self) -> None:
        """Let every message be handled, and what they have led to be drawn.

        Textual's own `pause` takes a process for idle when it has used no processor time for a moment: on a
        busy machine that is one which had no turn.
        """
        assert self.pilot is not None
        for _ in range(2):
            for _ in range(HOPS):
                await self.pilot._wait_for_screen()
            if self.app.is_running:
                with self.app._context():
                    self.app.screen._on_timer_update()

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until something is true of the screen or of what it has asked."""
        async with asyncio.timeout(SECONDS_MAX):
            while not is_true():
                await self.settle()

    async def publish(self, snapshot: Snapshot) -> None:
        self.feed.publish(snapshot)
        await self.settle()


@contextmanager
def keep_output() -> Iterator[list[str]]:
    """Keep what is written to a terminal, byte for byte as text."""
    written: list[str] = []

    class KeepingDriver(headless_driver.HeadlessDriver):
        @property
        def is_headless(self) -> bool:
            return False  # an application writes nothing otherwise

        def write(self, data: str) -> None:
            written.append(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headless_driver, "HeadlessDriver", KeepingDriver)
        yield written


def use_terminal(
    state: ConsoleState,
    steps: Callable[[Screen], Awaitable[None]],
    *,
    size: tuple[int, int] = SMALL,
    services: TopServices | None = None,
) -> None:
    """Start the application on a state, and do `steps` with it."""

    async def on_loop() -> None:
        feed, clock = StateFeed(state), FakeClock(NOW_MS)
        with keep_output() as written:
            app = TopApp(feed, clock, services)
            screen = Screen(app, feed, clock, written)
            async with app.run_test(size=size) as pilot:
                screen.pilot = pilot
                await screen.settle()
                await steps(screen)

    asyncio.run(on_loop())
