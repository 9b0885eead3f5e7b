"""Link to one broker: connects on demand, reconnects with backoff, queues requests meanwhile in order."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context

from tallystick.client.config import Address
from tallystick.client.errors import Closed, Unreachable
from tallystick.client.jitter import noise
from tallystick.client.net.connection import BrokerVersions
from tallystick.client.net.network import Ask, Connection, Measures, Terms, connect
from tallystick.client.retry import backoff_ms

_log = logging.getLogger("tallystick.client")


class Link:
    """Link to one broker: opens a connection when one is needed, and a new one after it broke."""

    def __init__(
        self, address: Address, terms: Terms, measures: Measures, opened: Callable[[Connection], None]
    ) -> None:
        """Create a link without a connection.

        Args:
            opened: called with every new connection, before anything is sent on it.
        """
        self.address = address
        self._terms = terms
        self._measures = measures
        self._opened = opened
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._backlog: list[Ask] = []
        self._failures = 0
        self._closed = False
        self.last_failure: str | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.usable

    @property
    def versions_now(self) -> BrokerVersions | None:
        """API versions of the open connection; None without one."""
        connection = self._connection
        return connection.session.versions if connection is not None and connection.usable else None

    @property
    def load(self) -> int:
        """Number of requests waiting or in flight, to choose the idlest broker."""
        return len(self._backlog) + (self._connection.load if self._connection is not None else 0)

    @property
    def failing(self) -> bool:
        """Whether the last attempt to connect failed."""
        return self._failures > 0

    def submit(self, ask: Ask) -> None:
        """Send a request, in the order of these calls [CLI-5]; connect if necessary."""
        connection = self._connection
        if self._closed:
            ask.fail(Closed("the client was closed"))
        elif connection is not None and connection.usable and not self._backlog:
            if ask.limit.at_ms < ask.expires_ms:
                ask.watch()
            connection.submit(ask)
        else:
            ask.watch()
            self._backlog.append(ask)
            self._open()

    async def versions(self) -> BrokerVersions:
        """Return the broker's API versions; connect if necessary. Raises: Unreachable, Closed."""
        while self._connection is None or not self._connection.usable:
            if self._closed:
                raise Closed("the client was closed")
            await asyncio.wait((self._open(),))
            if self._failures:
                raise Unreachable(str(self.address), self.last_failure or "")
        versions = self._connection.session.versions
        assert versions is not None
        return versions

    def close(self) -> "asyncio.Future[None] | None":
        """Close for good; the future is done when the socket is closed."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        for ask in self._take_backlog():
            ask.fail(Closed("the client was closed"))
        if self._connection is None:
            return None
        self._connection.close()
        return self._connection.ended

    def _open(self) -> "asyncio.Task[None]":
        if self._opening is None or self._opening.done():
            # In a fresh context: the first caller's limits do not apply to the others.
            self._opening = asyncio.get_running_loop().create_task(self._connect(), context=Context())
        return self._opening

    async def _connect(self) -> None:
        """Make one attempt to connect, after the backoff for earlier failures."""
        config = self._terms.config
        if self._failures:
            wait_ms = backoff_ms(
                self._failures - 1, config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, noise()
            )
            await asyncio.sleep(wait_ms / 1000)
        try:
            made = await connect(self.address, self._terms, self._measures, self._failures)
        except Unreachable as exc:
            self._failures += 1
            self.last_failure = exc.why
            _log.debug("%s", exc)
            for ask in self._take_backlog():
                ask.fail(Unreachable(exc.address, exc.why))
            return
        self._failures = 0
        self.last_failure = None
        self._connection = made
        self._opened(made)
        for ask in self._take_backlog():
            if not ask.answer.done():
                made.submit(ask)

    def _take_backlog(self) -> list[Ask]:
        backlog, self._backlog = self._backlog, []
        return backlog
