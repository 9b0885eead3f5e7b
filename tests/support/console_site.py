"""The console over snapshots that a test publishes, on a real socket, for a real browser."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import uvicorn
from tests.support.console_facts import NOW_MS, read_again

from tallystick.console.actions.service import ActionService
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.views.page_request import Lookups
from tallystick.console.web.app import REQUEST_BYTES_MAX, create_app
from tallystick.console.web.serve import ConsoleServer
from tallystick.kernel.clock import Clock
from tallystick.kernel.value import replace
from tallystick.testing import FakeClock


class Site:
    """A console whose clock stands still. Its server may be stopped and started again on the same port.

    `feed` is the server thread's: use `publish`.
    """

    def __init__(
        self,
        feed: StateFeed | None = None,
        clock: Clock | None = None,
        lookups: Lookups | None = None,
        make_action_service: Callable[[Clock], ActionService] | None = None,
    ) -> None:
        self._lookups, self._make_action_service = lookups, make_action_service
        self.feed = feed or StateFeed()
        self.clock = clock or FakeClock(NOW_MS)
        self._snapshot = Snapshot()
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve, on the same port as before if it has served before."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen()  # from here on a browser may connect, and waits until it is answered
        self._port = listener.getsockname()[1]
        ready = threading.Event()

        async def serve() -> None:
            async with AsyncExitStack() as stack:
                action_service = None
                if self._make_action_service is not None:
                    action_service = await stack.enter_async_context(self._make_action_service(self.clock))
                self._loop, self._server = asyncio.get_running_loop(), self._make_server(action_service)
                ready.set()
                await self._server.serve([listener])

        self._thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        self._thread.start()
        ready.wait()

    def _make_server(self, action_service: ActionService | None) -> uvicorn.Server:
        config = uvicorn.Config(
            create_app(self.feed, clock=self.clock, lookups=self._lookups, action_service=action_service),
            http="h11",
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
            log_level="error",
            timeout_graceful_shutdown=1,
        )
        return ConsoleServer(config, self.feed)

    def stop(self) -> None:
        """Stop serving: open streams end."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = self._loop = None
            self.feed = StateFeed(self.feed.state)  # the other is closed

    def publish(self, snapshot: Snapshot) -> None:
        """Publish a snapshot under the next number; followers are woken before this returns."""
        self._snapshot = replace(snapshot, number=self._snapshot.number + 1)
        if self._loop is None:
            self.feed.publish(self._snapshot)
            return
        loop, done = self._loop, threading.Event()

        def publish() -> None:
            self.feed.publish(self._snapshot)
            done.set()

        loop.call_soon_threadsafe(publish)
        done.wait()

    def publish_settled(self, snapshot: Snapshot) -> None:
        """Publish a snapshot twice, as if every part had been read once more: no verdict waits for a look."""
        self.publish(snapshot)
        self.publish(read_again(snapshot, after_ms=1))


@contextmanager
def serve(*snapshots: Snapshot) -> Iterator[Site]:
    """Serve the console over these snapshots while the context is open."""
    site = Site()
    for snapshot in snapshots:
        site.publish_settled(snapshot)
    with serve_site(site):
        yield site


@contextmanager
def serve_site(site: Site) -> Iterator[Site]:
    """Serve a site while the context is open."""
    site.start()
    try:
        yield site
    finally:
        site.stop()
