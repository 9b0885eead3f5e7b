"""Runs the application beside a collector, and leaves the terminal as it was."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class LastError(logging.Handler):
    """Keeps the last error of a logger: on the screen it would be in the way, and after it, gone."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is logged, with the exception's own line."""
        cause = record.exc_info[1] if record.exc_info else None
        self.text = record.getMessage() if cause is None else f"{record.getMessage()}: {cause!r}"


@contextmanager
def _keep_errors() -> Iterator[LastError]:
    logger, handler = logging.getLogger("tallystick"), LastError(logging.ERROR)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


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
        with _keep_errors() as last_error:
            reason = await app.run_async(mouse=False)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    if not feeding.cancelled() and (failure := feeding.exception()) is not None:
        raise failure
    if reason is not None:
        raise TerminalEnded(last_error.text or reason)
    if app.return_code:
        raise TerminalEnded("the terminal application failed")


async def _feed(source: SnapshotFollower, feed: StateFeed) -> None:
    async for snapshot in source.follow():
        feed.publish(snapshot)
