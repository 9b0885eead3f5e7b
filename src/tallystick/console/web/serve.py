"""Serves the console, as a program of its own or in a thread: feeds its pages, and stops in order."""

import asyncio
import logging
import signal
import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self

import uvicorn

from tallystick.console.actions.service import ActionService
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.collect.feed import SnapshotFollower, StateFeed
from tallystick.console.lookup.lookups import ClusterLookups
from tallystick.console.model.events import EventLog
from tallystick.console.model.health import Limits
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState
from tallystick.console.views.page_request import Lookups
from tallystick.console.web.app import REQUEST_BYTES_MAX, create_app
from tallystick.console.web.gate import WebOptions
from tallystick.console.web.listen import ListenOptions, format_address, open_listener
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.value import Value

_log = logging.getLogger("tallystick.console")

STOP_SECONDS_MAX: Final = 2
"""Seconds that open streams have to end when the console stops."""

THREAD_STOP_SECONDS_MAX: Final = 10.0


class SnapshotSource(SnapshotFollower, Protocol):
    """A source of snapshots that has the newest one, too."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; its number is 0 before the first reading."""


class ConsoleServer(uvicorn.Server):
    """A server whose streams end when it stops, so that no open page keeps it waiting."""

    def __init__(self, config: uvicorn.Config, feed: StateFeed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, and then everything else."""
        self._feed.close()
        await super().shutdown(sockets)


def open_feed(source: SnapshotSource, limits: Limits) -> StateFeed:
    """Return a feed that begins with what a source has."""
    now_ms = SystemClock().now_ms()  # numbers events, so that none is taken for one of an earlier console
    return StateFeed(
        ConsoleState(snapshot=source.snapshot, limits=limits, events=EventLog(next_number=now_ms))
    )


class Services(Value, kw_only=True):
    """Services of the pages besides the feed.

    lookups         reads histories and records
    action_service  carries actions out; without one, pages change nothing
    """

    lookups: Lookups
    action_service: ActionService | None = None


async def serve(
    source: SnapshotSource,
    services: Services,
    listener: socket.socket,
    options: ListenOptions,
    feed: StateFeed,
) -> None:
    """Serve until SIGINT or SIGTERM, or the source ends, and close the listener and the feed."""
    web = WebOptions(names=options.list_names(), read_credentials=options.credentials.read)
    config = uvicorn.Config(
        create_app(feed, web, lookups=services.lookups, action_service=services.action_service),
        log_level="warning",
        access_log=False,
        server_header=False,
        http="h11",  # the one whose limit can be set
        h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
        timeout_graceful_shutdown=STOP_SECONDS_MAX,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
    )
    server = ConsoleServer(config, feed)
    with suppress(ValueError, RuntimeError):  # not the main thread: the signal is the program's around it
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload_certificate, config, options)
    feeding = asyncio.create_task(_feed(source, feed))
    # Without a collector there is nothing to show: its failure ends the console.
    feeding.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve([listener])
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        listener.close()
    if not feeding.cancelled() and (failure := feeding.exception()) is not None:
        raise failure


def _reload_certificate(config: uvicorn.Config, options: ListenOptions) -> None:
    """Show new connections the certificate of changed files; one that cannot be used changes nothing.

    SIGHUP calls it, and ends nothing; credentials are read again by themselves.
    """
    if options.certificate is None or config.ssl is None:
        _log.info("SIGHUP: there is no certificate to read again")
        return
    try:
        # OpenSSL would take a certificate, and then refuse a key that is not its own: tried on another one.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config.ssl):
            context.load_cert_chain(options.certificate, options.key, password="")  # never asked for
    except OSError as exc:
        _log.error("SIGHUP: the certificate before stays in use: %s: %s", options.certificate, exc)
        return
    _log.info("SIGHUP: the certificate of %s is in use", options.certificate)


async def _feed(source: SnapshotSource, feed: StateFeed) -> None:
    async for snapshot in source.follow():
        feed.publish(snapshot)


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
        thread.join(THREAD_STOP_SECONDS_MAX)

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
