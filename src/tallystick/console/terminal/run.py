"""Runs the application beside a collector, and leaves the terminal as it was."""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from tallystick.console.feed import StateFeed
from tallystick.console.health import Limits
from tallystick.console.state import ConsoleState
from tallystick.console.terminal.app import TopApp
from tallystick.console.terminal.once import SnapshotFollower
from tallystick.kernel.errors import TallystickError

COLLECTOR_FAILED: Final = "the collector has failed: nothing is read any more"


class TerminalEnded(TallystickError):
    """The terminal application ended by itself."""


async def run_top(source: SnapshotFollower, limits: Limits, read_soon: Callable[[], None]) -> None:
    """Run until the user quits, or SIGTERM.

    The mouse is left to the terminal: what is shown can be marked and copied as everywhere else.

    Raises: TerminalEnded if nothing would be new any more.
    """
    feed = StateFeed(ConsoleState(limits=limits))
    app = TopApp(feed, read_soon=read_soon)
    feeding = asyncio.create_task(_feed(source, feed))
    # Without a collector there is nothing to show: its failure ends the terminal.
    feeding.add_done_callback(lambda task: None if task.cancelled() else app.exit(COLLECTOR_FAILED))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, app.exit)
    try:
        reason = await app.run_async(mouse=False)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    if not feeding.cancelled() and (failure := feeding.exception()) is not None:
        raise failure
    if reason is not None:
        raise TerminalEnded(reason)
    if app.return_code:
        raise TerminalEnded("the terminal application failed")


async def _feed(source: SnapshotFollower, feed: StateFeed) -> None:
    async for snapshot in source.follow():
        feed.publish(snapshot)
