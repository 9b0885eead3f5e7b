"""Serves the console: binds its address, feeds its pages from a collector, and stops in order."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

import uvicorn

from tallystick.console.actions.desk import ActionDesk
from tallystick.console.feed import StateFeed
from tallystick.console.health import Limits
from tallystick.console.listen import ListenOptions
from tallystick.console.snapshot import Snapshot
from tallystick.console.state import ConsoleState
from tallystick.console.web.app import WebOptions, create_app
from tallystick.kernel.settings import BadConfig

STOP_SECONDS_MAX: Final = 2
"""Seconds that open streams have to end when the console stops."""


class SnapshotSource(Protocol):
    """What publishes snapshots; `console.collect.collector.Collector` does."""

    def follow(self) -> AsyncIterator[Snapshot]:
        """Yield snapshots as they are made, from the newest on."""


async def serve(
    source: SnapshotSource,
    options: ListenOptions,
    limits: Limits,
    announce: Callable[[str], None],
    desk: ActionDesk | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        desk: carries actions out; without one, pages change nothing.
        announce: called with the address, once requests are answered.
    Raises: BadConfig; OSError if the address cannot be bound.
    """
    options.credentials.read()  # a file that cannot be used ends the start, and not the first request
    feed = StateFeed(ConsoleState(limits=limits))
    web = WebOptions(names=options.list_names(), read_credentials=options.credentials.read)
    listener = _bind(options)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(feed, web, desk=desk),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
        )
    )
    feeding = asyncio.create_task(_feed(source, feed))
    # Without a collector there is nothing to show: its failure ends the console.
    feeding.add_done_callback(lambda _: setattr(server, "should_exit", True))
    scheme = "http" if options.certificate is None else "https"
    announce(f"{scheme}://{_format_host(options.host)}:{listener.getsockname()[1]}/")
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


def _bind(options: ListenOptions) -> socket.socket:
    """Bind the address. Raises: BadConfig, with the address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as exc:
        raise BadConfig(f"--listen {options.host}:{options.port}: {exc.strerror or exc}") from exc
    return listener


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
