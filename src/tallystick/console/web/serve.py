"""Serves the console: feeds its pages from a collector, and stops in order."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Final, Protocol

import uvicorn

from tallystick.console.actions.desk import ActionDesk
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.events import EventLog
from tallystick.console.model.health import Limits
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState
from tallystick.console.views.page_request import Lookups
from tallystick.console.web.app import REQUEST_BYTES_MAX, WebOptions, create_app
from tallystick.console.web.listen import ListenOptions
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.value import Value

STOP_SECONDS_MAX: Final = 2
"""Seconds that open streams have to end when the console stops."""


class SnapshotSource(Protocol):
    """What publishes snapshots; `console.collect.collector.Collector` does."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; its number is 0 before the first reading."""

    def follow(self) -> AsyncIterator[Snapshot]:
        """Yield snapshots as they are made, from the newest on."""


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
    """What pages use besides the feed.

    lookups  answers what single pages ask for
    desk     carries actions out; without one, pages change nothing
    """

    lookups: Lookups
    desk: ActionDesk | None = None


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
        create_app(feed, web, lookups=services.lookups, desk=services.desk),
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


async def _feed(source: SnapshotSource, feed: StateFeed) -> None:
    async for snapshot in source.follow():
        feed.publish(snapshot)
