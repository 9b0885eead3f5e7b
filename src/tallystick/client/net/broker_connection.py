"""Link to one broker: connects on demand, reconnects with backoff, queues requests meanwhile in order."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Any, Final, Protocol

from tallystick.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConnectionLost,
    NotSupported,
    TlsFailed,
    Unreachable,
    WrongBroker,
)
from tallystick.client.net.backoff import compute_backoff_ms, uniform
from tallystick.client.net.network import (
    CLOSE_TIMEOUT_S,
    Connection,
    ConnectionSettings,
    NetworkMetrics,
    SocketProtocol,
    is_uvloop,
)
from tallystick.client.net.pending_request import PendingRequest
from tallystick.client.net.protocol_state import ANY_BROKER, BrokerIdentity, NodeApiVersions
from tallystick.client.net.retry_scope import read_clock_ms
from tallystick.client.settings.config import Address, ClientConfig
from tallystick.security.tls.failures import explain_handshake_failure

_log = logging.getLogger("tallystick.client")

# A broker that restarts is back before a person could read of it.
_REPORT_AFTER_MS: Final = 1000
_REPORT_SILENCE_AFTER_MS: Final = 1500
_END_IN_HANDSHAKE: Final = (
    "the peer closed the connection in the TLS handshake: is that a port without TLS? Then security.protocol "
    "is PLAINTEXT or SASL_PLAINTEXT"
)
_ACCEPT: Final = "accept the connection"


class ConnectionOwner(Protocol):
    """The pool of a link, which knows the cluster."""

    def identify(self, address: Address) -> BrokerIdentity:
        """Return the broker that is to answer at an address."""

    def note_open(self, versions: NodeApiVersions) -> None:
        """Take note of the versions of a new connection, before anything is sent on it."""

    def note_wrong_broker(self, failure: WrongBroker) -> None:
        """Take note that another broker answers there."""


class BrokerConnection:
    """Link to one broker: opens a connection when one is needed, and a new one after it broke."""

    def __init__(
        self,
        address: Address,
        settings: ConnectionSettings,
        metrics: NetworkMetrics,
        owner: ConnectionOwner,
    ) -> None:
        """Create a link without a connection."""
        self.address = address
        self._settings = settings
        self._network_metrics = metrics
        self._owner = owner
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
                wanted=self._owner.identify(self.address),
            )
        except (Unreachable, AuthenticationFailed) as exc:
            if isinstance(exc, WrongBroker):
                self._owner.note_wrong_broker(exc)
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
        self._owner.note_open(connection.protocol_state.versions)
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


class ConnectProgress:
    """Next step of the broker in an attempt to connect, for the texts of limits that pass."""

    __slots__ = ("step",)

    def __init__(self) -> None:
        self.step = _ACCEPT


async def connect(
    address: Address,
    settings: ConnectionSettings,
    metrics: NetworkMetrics,
    failures: int = 0,
    progress: ConnectProgress | None = None,
    *,
    wanted: BrokerIdentity = ANY_BROKER,
) -> Connection:
    """Open a connection: TCP, TLS, ApiVersions, login, the second and the last if they are configured.

    Args:
        failures: number of earlier failures, which lengthen socket.connection.setup.timeout.ms.
        progress: told every step.
        wanted: the broker that is to answer; another one is WrongBroker.
    Raises: Unreachable, within that limit plus request.timeout.ms for each answer; AuthenticationFailed.
    """
    config, security = settings.config, settings.security
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[Connection] = loop.create_future()
    progress = progress or ConnectProgress()
    has_tls = security.ssl_context is not None
    progress.step = f"{_ACCEPT} and finish the TLS handshake" if has_tls else _ACCEPT

    def create_protocol() -> SocketProtocol:
        if has_tls and not is_uvloop(loop):
            # asyncio asks for the protocol when the socket is connected, uvloop before.
            progress.step = "finish the TLS handshake"
        return SocketProtocol(address, settings, metrics, ready, wanted)

    setup_ms = compute_backoff_ms(
        failures,
        config.socket_connection_setup_timeout_ms,
        config.socket_connection_setup_timeout_max_ms,
        uniform(),
    )
    try:
        limit = "socket.connection.setup.timeout.ms"
        async with _bound_connect_step(address, progress, limit, setup_ms, has_tls=has_tls):
            transport, _ = await loop.create_connection(
                create_protocol,
                address.host,
                address.port,
                **_list_tls_arguments(address, security.ssl_context, setup_ms),
            )
        try:
            _set_socket_buffers(transport, config)
            progress.step = "answer ApiVersions"
            limit_ms = config.request_timeout_ms
            async with _bound_connect_step(address, progress, "request.timeout.ms", limit_ms):
                connection = await asyncio.shield(ready)
            if security.has_login:
                progress.step = "answer the login"
                await _log_in(connection)
            return connection
        except BaseException:
            transport.abort()
            raise
    finally:
        ready.cancel()


def _list_tls_arguments(address: Address, context: ssl.SSLContext | None, timeout_ms: int) -> dict[str, Any]:
    if context is None:
        return {}
    return {
        "ssl": context,
        "server_hostname": address.host,
        "ssl_handshake_timeout": timeout_ms / 1000,
        "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
    }


async def _log_in(connection: Connection) -> None:
    """Log in for the first time. Raises: AuthenticationFailed, Unreachable."""
    address = str(connection.address)
    try:
        await connection.log_in()
    except (AuthenticationFailed, Unreachable):
        raise
    except NotSupported as exc:
        raise AuthenticationFailed(address, exc.what()) from exc
    except ConnectionLost as exc:
        raise Unreachable(address, f"the connection ended during the login: {exc.why}") from exc
    except ClientError as exc:
        raise Unreachable(address, exc.what()) from exc


@asynccontextmanager
async def _bound_connect_step(
    address: Address, progress: ConnectProgress, limit: str, length_ms: int, *, has_tls: bool = False
) -> AsyncIterator[None]:
    """Turn everything that prevents a connection, an invalid host or port included, into Unreachable."""
    try:
        async with asyncio.timeout(length_ms / 1000):
            yield
    except TimeoutError as exc:
        raise Unreachable(
            str(address), f"took longer to {progress.step} than {limit} = {length_ms} ms"
        ) from exc
    except ssl.SSLError as exc:
        if isinstance(exc, ssl.SSLEOFError):
            raise Unreachable(str(address), _END_IN_HANDSHAKE) from exc
        raise TlsFailed(str(address), explain_handshake_failure(exc)) from exc
    except (ConnectionResetError, ConnectionAbortedError) as exc:
        # asyncio ends a handshake with these; a port that is closed refuses before it.
        raise Unreachable(
            str(address), _END_IN_HANDSHAKE if has_tls else str(exc) or type(exc).__name__
        ) from exc
    except (OSError, OverflowError, UnicodeError) as exc:
        raise Unreachable(str(address), str(exc) or type(exc).__name__) from exc


def _set_socket_buffers(transport: asyncio.BaseTransport, config: ClientConfig) -> None:
    socket = transport.get_extra_info("socket")
    for option, size in ((SO_RCVBUF, config.receive_buffer_bytes), (SO_SNDBUF, config.send_buffer_bytes)):
        if size is not None and socket is not None:
            socket.setsockopt(SOL_SOCKET, option, size)
