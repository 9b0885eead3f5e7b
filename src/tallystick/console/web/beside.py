"""The console beside a program of one's own, in a thread: `tallystick demo` is watched through it."""

import asyncio
import threading
from types import TracebackType
from typing import Final, Self

from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.collect.feed import StateFeed
from tallystick.console.lookup.lookups import ClusterLookups
from tallystick.console.model.health import Limits
from tallystick.console.web.listen import ListenOptions, format_address, open_listener
from tallystick.console.web.serve import Services, open_feed, serve
from tallystick.kernel.clock import SystemClock

STOP_SECONDS_MAX: Final = 10.0


class ConsoleThread:
    """A console from `with` or `start` to `close`. Its methods may be called from any thread.

    with ConsoleThread(config) as console:
        print(console.address)
    """

    def __init__(
        self, config: CollectorConfig, options: ListenOptions | None = None, limits: Limits | None = None
    ) -> None:
        """Prepare a console on any free port of the loopback, unless `options` say otherwise."""
        self._config, self._limits = config, limits or Limits()
        self._options = options or ListenOptions(port=0)
        self._clock = SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._feed: StateFeed | None = None
        self._end = asyncio.Event()
        self._is_ready = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Listen, and return the address. Raises: BadConfig, if the address cannot be bound."""
        self._listener = open_listener(self._options)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="console", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        return self.address

    @property
    def address(self) -> str:
        """The URL of the first page."""
        return format_address(self._options, self._listener)

    def note(self, subject: str, text: str) -> None:
        """Add an event to those that the console shows."""
        loop, feed = self._loop, self._feed
        if loop is not None and feed is not None and not loop.is_closed():
            loop.call_soon_threadsafe(feed.note, subject, text, self._clock.now_ms())

    def close(self) -> None:
        """Stop serving and reading; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)
        thread.join(STOP_SECONDS_MAX)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _run(self) -> None:
        try:
            async with Collector(self._config) as collector, ClusterLookups(self._config) as lookups:
                feed = open_feed(collector, self._limits)
                self._loop, self._feed = asyncio.get_running_loop(), feed
                self._is_ready.set()
                ending = asyncio.create_task(self._end_with(collector))
                try:
                    await serve(collector, Services(lookups=lookups), self._listener, self._options, feed)
                finally:
                    ending.cancel()
        finally:
            self._is_ready.set()

    async def _end_with(self, collector: Collector) -> None:
        """Close the collector when the thread is to end: serving ends with what it serves."""
        await self._end.wait()
        await collector.close()
