"""Runs the application with a collector, and leaves the terminal as it was."""

import asyncio
import json
import logging
import signal
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tallystick.console.actions.audit import AUDIT_LOGGER
from tallystick.console.actions.service import CLOSE_TIMEOUT_S
from tallystick.console.collect.feed import SnapshotFollower, StateFeed
from tallystick.console.model.health import Limits
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.action_stage import list_outcome
from tallystick.console.terminal.app import TopApp, TopServices
from tallystick.console.terminal.pages.guide import CONSOLE_HOST, CONSOLE_PORT
from tallystick.kernel.errors import TallystickError

AUDIT_LINES_MAX: Final = 1_000
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
FIND_SECONDS_MAX: Final = 1
OVERVIEW_BYTES_MAX: Final = 256 * 1024
COLLECTOR_FAILED: Final = "the collector has failed: nothing is read any more"


class TerminalEnded(TallystickError):
    """The terminal application ended by itself."""


class HeldLog(logging.Handler):
    """Keeps what is logged while it would be in the way of the screen: the audit log, and the last error.

    The audit log is written to stderr as soon as the screen is gone: the lines that were kept, and those that
    come then, of an action that is still under way.
    """

    def __init__(self) -> None:
        """Hold lines back from now on."""
        super().__init__(logging.WARNING)
        self.last_error = ""
        self._lines: deque[str] = deque(maxlen=AUDIT_LINES_MAX)
        self._is_held = True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an error with the exception's own line, and hold an audit line back or write it."""
        if record.name == AUDIT_LOGGER:
            self._lines.append(record.getMessage())
            if not self._is_held:
                self.let_through()
        elif record.levelno >= logging.ERROR:
            cause = record.exc_info[1] if record.exc_info else None
            text = record.getMessage()
            self.last_error = text if cause is None else f"{text}: {cause!r}"

    def let_through(self) -> None:
        """Write what was held back, and hold no more."""
        self._is_held = False
        while self._lines:
            print_after_screen(self._lines.popleft())


def print_after_screen(text: str) -> None:
    """Print a line, unless the terminal is gone: what was begun goes on without it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def hold_log() -> Iterator[HeldLog]:
    """Hold the log back; what is still held when the context ends is written."""
    logger, handler = logging.getLogger("tallystick"), HeldLog()
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        handler.let_through()
        logger.removeHandler(handler)


async def run_top(source: SnapshotFollower, limits: Limits, services: TopServices, log: HeldLog) -> None:
    """Run until the user quits, or SIGTERM, or the terminal is gone.

    The mouse is left to the terminal: what is shown can be marked and copied as everywhere else. An action
    that is under way is waited for, and its result printed.

    Raises: TerminalEnded if nothing would be new any more.
    """
    feed = StateFeed(ConsoleState(limits=limits))
    app = TopApp(feed, services=services)
    feeding = asyncio.create_task(_feed(source, feed))
    # Without a collector there is nothing to show: its failure ends the terminal.
    feeding.add_done_callback(lambda task: None if task.cancelled() else app.exit(COLLECTOR_FAILED))
    loop = asyncio.get_running_loop()
    for each in ENDING_SIGNALS:
        loop.add_signal_handler(each, app.exit)
    try:
        reason = await app.run_async(mouse=False)
        log.let_through()
        await _wait_for_action(app)
    finally:
        for each in ENDING_SIGNALS:
            loop.remove_signal_handler(each)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    if not feeding.cancelled() and (failure := feeding.exception()) is not None:
        raise failure
    if reason is not None:
        raise TerminalEnded(log.last_error or reason)
    if app.return_code:
        raise TerminalEnded("the terminal application failed")


async def find_console(cluster_id: str | None, port: int = CONSOLE_PORT) -> str:
    """Return the URL of a console of this cluster on this machine; empty if none answers where it listens."""
    request = f"GET /?format=json HTTP/1.0\r\nHost: {CONSOLE_HOST}:{port}\r\n\r\n"
    overview = b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(FIND_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(CONSOLE_HOST, port)
            try:
                writer.write(request.encode())
                overview = await reader.readexactly(OVERVIEW_BYTES_MAX)
            except asyncio.IncompleteReadError as exc:
                overview = exc.partial
            finally:
                writer.close()
    is_found = cluster_id is not None and f'"cluster_id": {json.dumps(cluster_id)}'.encode() in overview
    return f"http://{CONSOLE_HOST}:{port}" if is_found else ""


async def _wait_for_action(app: TopApp) -> None:
    """Wait for an action whose result was not shown, and print it."""
    if app.panel.is_running:
        print_after_screen("The action is under way: waiting for its result.")
    stage = await app.panel.wait(CLOSE_TIMEOUT_S)
    if stage is not None:
        for line in list_outcome(stage):
            print_after_screen(line)


async def _feed(source: SnapshotFollower, feed: StateFeed) -> None:
    async for snapshot in source.follow():
        feed.publish(snapshot)
