"""Link to one broker: connects on demand, reconnects with backoff, queues requests meanwhile in order."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Final

from tallystick.client.errors import AuthenticationFailed, Closed, Unreachable
from tallystick.client.net.backoff import compute_backoff_ms, uniform
from tallystick.client.net.network import (
    Connection,
    ConnectionSettings,
    ConnectProgress,
    NetworkMetrics,
    connect,
)
from tallystick.client.net.pending_request import PendingRequest
from tallystick.client.net.protocol_state import NodeApiVersions
from tallystick.client.net.retry_scope import read_clock_ms
from tallystick.client.settings.config import Address

_log = logging.getLogger("tallystick.client")

# A broker that restarts is back before a person could read of it.
_REPORT_AFTER_MS: Final = 1000
_REPORT_SILENCE_AFTER_MS: Final = 1500


class BrokerConnection:
    """Link to one broker: opens a connection when one is needed, and a new one after it broke."""

    def __init__(
        self,
        address: Address,
        settings: ConnectionSettings,
        metrics: NetworkMetrics,
        on_open: Callable[[NodeApiVersions], None],
    ) -> None:
        """Create a link without a connection.

        Args:
            on_open: called with the versions of every new connection, before anything is sent on it.
        """
        self.address = address
        self._settings = settings
        self._network_metrics = metrics
        self._on_open = on_open
        self._connection: Connection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._backlog: list[PendingRequest] = []
        self._connect_progress = ConnectProgress()
        self._failure_count = 0
        self._first_failed_ms = 0
        self._is_reported = False
        self._is_closed = False
        self.last_failure: Unreachable | AuthenticationFailed | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_usable

    @property
    def current_versions(self) -> NodeApiVersions | None:
        """API versions of the open connection; None without one."""
        connection = self._connection
        return connection.protocol_state.versions if connection is not None and connection.is_usable else None

    @property
    def pending_count(self) -> int:
        """Number of requests waiting or in flight, to choose the idlest broker."""
        return len(self._backlog) + (self._connection.pending_count if self._connection is not None else 0)

    def describe_wait(self) -> str:
        """Describe what the broker has not done yet or did too late; empty if neither is true."""
        if self._connect_task is not None and not self._connect_task.done():
            return f"{self.address} still had to {self._connect_progress.step}"
        return self._connection.describe_wait() if self._connection is not None else ""

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to connect failed."""
        return self._failure_count > 0

    def submit(self, pending: PendingRequest) -> None:
        """Send a request, in the order of these calls [CLI-5]; connect if necessary."""
        connection = self._connection
        if self._is_closed:
            pending.fail(Closed("the client was closed"))
        elif connection is not None and connection.is_usable and not self._backlog:
            if pending.deadline.at_ms < pending.expires_at_ms:
                pending.start_timer()
            connection.submit(pending)
        else:
            pending.start_timer()
            self._backlog.append(pending)
            self._ensure_connecting()

    async def wait_for_versions(self) -> NodeApiVersions:
        """Return the broker's API versions; connect if necessary.

        Raises: Unreachable, AuthenticationFailed, Closed.
        """
        while self._connection is None or not self._connection.is_usable:
            if self._is_closed:
                raise Closed("the client was closed")
            await asyncio.wait((self._ensure_connecting(),))
            if self.last_failure is not None:
                raise _copy_failure(self.last_failure)
        return self._connection.protocol_state.versions

    def close(self) -> "asyncio.Future[None] | None":
        """Close for good; the future is done when the socket is closed."""
        self._is_closed = True
        if self._connect_task is not None:
            self._connect_task.cancel()
        for pending in self._take_backlog():
            pending.fail(Closed("the client was closed"))
        if self._connection is None:
            return None
        self._connection.close()
        return self._connection.closed_future

    def _ensure_connecting(self) -> "asyncio.Task[None]":
        if self._connect_task is None or self._connect_task.done():
            # In a fresh context: the first caller's limits do not apply to the others.
            self._connect_task = asyncio.get_running_loop().create_task(self._connect(), context=Context())
        return self._connect_task

    async def _connect(self) -> None:
        """Make one attempt to connect, after the backoff for earlier failures; send or fail the backlog."""
        config = self._settings.config
        if self._failure_count:
            wait_ms = compute_backoff_ms(
                self._failure_count - 1,
                config.reconnect_backoff_ms,
                config.reconnect_backoff_max_ms,
                uniform(),
            )
            await asyncio.sleep(wait_ms / 1000)
        loop = asyncio.get_running_loop()
        reporting = loop.call_later(_REPORT_SILENCE_AFTER_MS / 1000, self._report_silence)
        try:
            connection = await connect(
                self.address,
                self._settings,
                self._network_metrics,
                self._failure_count,
                self._connect_progress,
            )
        except (Unreachable, AuthenticationFailed) as exc:
            self._report(exc)
            self._fail_backlog(exc)
            return
        except Exception as exc:
            # Of whatever kind: the backlog would wait for an attempt that has ended.
            _log.exception("the attempt to connect to %s failed", self.address)
            self._fail_backlog(Unreachable(str(self.address), f"{type(exc).__name__}: {exc}"))
            return
        finally:
            reporting.cancel()
        if self._is_reported:
            _log.info("%s: connected", self.address)
        self._failure_count, self._is_reported = 0, False
        self.last_failure = None
        self._connection = connection
        self._on_open(connection.protocol_state.versions)
        for pending in self._take_backlog():
            if not pending.response_future.done():
                connection.submit(pending)

    def _report(self, failure: Unreachable | AuthenticationFailed) -> None:
        """Log a login that failed; and once until it ends, that a broker has been away for a second."""
        if isinstance(failure, AuthenticationFailed):
            _log.error("%s", failure)
            return
        now_ms = read_clock_ms()
        if not self._failure_count:
            self._first_failed_ms = now_ms
        if not self._is_reported and now_ms - self._first_failed_ms >= _REPORT_AFTER_MS:
            self._is_reported = True
            _log.warning("%s: trying again until the call's limit is over", failure.what())

    def _report_silence(self) -> None:
        """Log what the broker has not done yet, unless it is known to be away."""
        if not self._is_reported:
            self._is_reported = True
            step = self._connect_progress.step
            _log.warning("%s still has to %s: waiting until the call's limit is over", self.address, step)

    def _fail_backlog(self, failure: Unreachable | AuthenticationFailed) -> None:
        self._failure_count += 1
        self.last_failure = failure
        for pending in self._take_backlog():
            pending.fail(_copy_failure(failure))

    def _take_backlog(self) -> list[PendingRequest]:
        backlog, self._backlog = self._backlog, []
        return backlog


def _copy_failure(failure: Unreachable | AuthenticationFailed) -> Unreachable | AuthenticationFailed:
    """Return an error of its own for each caller: what they learn of its effect differs."""
    return type(failure)(failure.address, failure.why)
