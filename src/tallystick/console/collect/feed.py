"""The newest state, for everything that shows it: pages, streams, scrapes and the terminal.

There is one feed in a process. A follower is woken for a new state and reads the newest one: a slow
follower skips states, and can hold up neither the collector nor another follower.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.kernel.value import replace


class SnapshotFollower(Protocol):
    """A source of snapshots, such as a `Collector`."""

    def follow(self) -> AsyncIterator[Snapshot]:
        """Yield snapshots as they are made, from the newest on."""


class StateFeed:
    """Holds the newest state, until it is closed. Used on one event loop."""

    def __init__(self, state: ConsoleState | None = None) -> None:
        self.state = state or ConsoleState()
        self.is_closed = False
        self._changed = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Advance the state by the next snapshot, and wake the followers."""
        self._replace(advance(self.state, snapshot))

    def note(self, subject: str, text: str, at_ms: int) -> None:
        """Add an event that no snapshot tells of, and wake the followers."""
        self._replace(replace(self.state, events=self.state.events.note(subject, text, at_ms)))

    def close(self) -> None:
        """End every follower."""
        self.is_closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[ConsoleState]:
        """Yield each state that is newer than the present one, or the newest of several."""
        state: ConsoleState | None = self.state
        while state is not None and (state := await self.wait_for_next(state)) is not None:
            yield state

    async def wait_for_next(self, state: ConsoleState) -> ConsoleState | None:
        """Return the newest state, once it is another one than `state`; None once there is no next one."""
        while self.state is state and not self.is_closed:
            await self._changed.wait()
        return None if self.is_closed else self.state

    def _replace(self, state: ConsoleState) -> None:
        self.state = state
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
