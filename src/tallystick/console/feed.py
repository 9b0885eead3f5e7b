"""The newest state, for everything that shows it: pages, streams, scrapes and the terminal.

There is one feed in a process. A follower is woken for a new state and reads the newest one: a slow
follower skips states, and can hold up neither the collector nor another follower.
"""

import asyncio
from collections.abc import AsyncIterator

from tallystick.console.snapshot import Snapshot
from tallystick.console.state import ConsoleState, advance
from tallystick.kernel.value import replace


class StateFeed:
    """Holds the newest state. Used on one event loop."""

    def __init__(self, state: ConsoleState | None = None) -> None:
        self.state = state or ConsoleState()
        self._changed = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Advance the state by the next snapshot, and wake the followers."""
        self._replace(advance(self.state, snapshot))

    def note(self, subject: str, text: str, at_ms: int) -> None:
        """Add an event that no snapshot tells of, and wake the followers."""
        self._replace(replace(self.state, events=self.state.events.note(subject, text, at_ms)))

    async def follow(self) -> AsyncIterator[ConsoleState]:
        """Yield each state that is newer than the present one, or the newest of several."""
        state = self.state
        while True:
            state = await self.wait_for_next(state)
            yield state

    async def wait_for_next(self, state: ConsoleState) -> ConsoleState:
        """Return the newest state, once it is another one than `state`."""
        while self.state is state:
            await self._changed.wait()
        return self.state

    def _replace(self, state: ConsoleState) -> None:
        self.state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
