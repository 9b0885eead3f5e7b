"""Looks at the cluster once, for `tallystick top --once`. It needs no terminal, and no Textual."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, Protocol

from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.health import Limits
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.summary import Looks

ONCE_SECONDS_MAX: Final = 30


class SnapshotFollower(Protocol):
    """What publishes snapshots; `console.collect.collector.Collector` does."""

    def follow(self) -> AsyncIterator[Snapshot]:
        """Yield snapshots as they are made, from the newest on."""


async def look_once(
    source: SnapshotFollower,
    limits: Limits,
    read_soon: Callable[[], None],
    *,
    seconds_max: float = ONCE_SECONDS_MAX,
) -> ConsoleState:
    """Return the state as soon as one more look would say no more, or what there is when the time is over."""
    feed, looks = StateFeed(ConsoleState(limits=limits)), Looks()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_max):
            async for snapshot in source.follow():
                feed.publish(snapshot)
                looks = looks.advance(snapshot)
                if looks.are_enough(feed.state):
                    break
                read_soon()
    return feed.state
