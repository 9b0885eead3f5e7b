"""The newest state, for everything that shows it: pages, streams, scrapes and the terminal.

There is one feed in a process. A follower is woken for a new state and reads the newest one: a slow
follower skips states, and can hold up neither the collector nor another follower.
"""

import asyncio
from collections.abc import AsyncIterator

from tallystick.console.snapshot import Snapshot
from tallystick.console.state import ConsoleState, advance


class StateFeed:
    """Holds the newest state. Used on one event loop."""

    def __init__(self, state: ConsoleState | None = None) -> None:
        self.state = state or ConsoleState()
        self._changed = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Advance the state by the next snapshot, and wake the followers."""
        self.state = advance(self.state, snapshot)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self) -> AsyncIterator[ConsoleState]:
        """Yield each state that is newer than the present one, or the newest of several."""
        last_state = self.state
        while True:
            changed = self._changed
            if self.state is last_state:
                await changed.wait()
            last_state = self.state
            yield last_state
