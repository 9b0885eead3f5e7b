"""The newest snapshot, and those who wait for the next one."""

import asyncio
from collections.abc import AsyncIterator

from tallystick.console.model.snapshot import Snapshot


class Publisher:
    """Hands snapshots to any number of followers. Belongs to one event loop.

    A snapshot replaces the one before. A follower that is slow misses those in between, and neither it nor
    one that has stopped reading keeps the others waiting.
    """

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        """Begin with a snapshot that no follower is given, because nothing in it has been read."""
        self.snapshot = snapshot or Snapshot()
        self._is_closed = False
        self._changed = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot and wake the followers."""
        self.snapshot = snapshot
        self._wake()

    def close(self) -> None:
        """End every `follow`."""
        self._is_closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[Snapshot]:
        """Yield the present snapshot, once there is one, and then the newest as often as it changes."""
        seen = 0
        while not self._is_closed:
            snapshot, changed = self.snapshot, self._changed
            if snapshot.number > seen:
                seen = snapshot.number
                yield snapshot
            else:
                await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
