"""Connections to brokers: sockets that send requests and receive answers.

`protocol_state.py` and the callers decide what they mean. A socket has two phases: a `_Handshake` negotiates
versions; its result is a `Connection`, which sends requests. `broker_connection.py` makes them. Where a login
is asked for, the first requests are its own, and no other is sent before it succeeds.

Logins that end. A session may be shorter than its connection (KIP-368). Before it ends, the client logs in
again on the same connection: requests in flight are answered first, new ones wait until it is done.

Order. Requests leave in the order in which they were submitted, those that waited for the connection or for
room among the requests in flight first [CLI-5].

Effect. Until its bytes are handed to the socket a request had no effect; from then on it may have had one
[CLI-6], unless it only reads.

Ends. A request that is not answered in time closes its connection, as in Kafka, since later requests would
wait behind it. If the caller's own limit is shorter (a `PendingRequest` with an earlier `deadline`), only
the caller's wait ends, and the answer is dropped when it arrives.
"""

import asyncio
import ssl
from collections import deque
from contextvars import Context
from typing import Final, Protocol, cast

import tallystick
from tallystick.client.errors import (
    BadAnswer,
    ClientError,
    Closed,
    ConnectionLost,
    NotKafka,
    NotSupported,
    TlsFailed,
    Unreachable,
    WrongBroker,
)
from tallystick.client.errors.rules import infer_loss_effect
from tallystick.client.net.backoff import uniform
from tallystick.client.net.login import ClientSecurity
from tallystick.client.net.login_exchange import HANDSHAKE_VERSION, LoginRequest, choose_reauthentication_ms
from tallystick.client.net.pending_request import PendingRequest, RequestBuilder
from tallystick.client.net.protocol_state import (
    BrokerIdentity,
    Misrouted,
    NodeApiVersions,
    ProtocolState,
    RequestHeaders,
    VersionNegotiation,
    guess_protocol,
)
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.settings.config import Address, ClientConfig
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.value import Value
from tallystick.protocol import DecodeError, EncodeError, UnsupportedField, encode_parts
from tallystick.protocol.apis import API_SPECS, ApiKey, ApiSpec
from tallystick.protocol.frames import Preallocation, ReceiveBuffer, join_small
from tallystick.protocol.messages.security.sasl import SaslHandshakeRequest
from tallystick.security.tls.failures import explain_handshake_failure

READ_BUFFER_BYTES: Final = 64 * KIB
# A frame up to this size gets its buffer at once; the buffer of a larger one grows as bytes arrive.
PREALLOCATED_FRAME_BYTES: Final = 2 * MIB
WRITE_HIGH_WATER_BYTES: Final = 1 * MIB
CLOSE_TIMEOUT_S: Final = 1.0
_END_BEFORE_ANSWER: Final = (
    "nothing was answered; is that a port with TLS? Then security.protocol is SSL or SASL_SSL"
)
# Requests for which several callers wait, and none of them knows the broker.
_LOOKUPS: Final = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR)
_LOGIN_HINT: Final = "a listener that asks for a login does so: see security.protocol"
_CLOSED_BY_BROKER: Final = ConnectionError("the broker closed the connection")


class NetworkMetrics:
    """Network counters; plain numbers, read by metrics."""

    __slots__ = (
        "connection_close_total",
        "connection_creation_total",
        "incoming_byte_total",
        "latency_ms_max",
        "latency_ms_total",
        "outgoing_byte_total",
        "request_total",
        "response_total",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    connection_creation_total: int
    connection_close_total: int
    incoming_byte_total: int
    outgoing_byte_total: int
    request_total: int
    response_total: int
    latency_ms_total: float
    latency_ms_max: float

    def as_metrics(self) -> dict[str, float]:
        """Return the counters by Kafka's names (client metrics, group `producer-metrics` and similar)."""
        response_count = self.response_total or 1
        return {
            "connection-creation-total": self.connection_creation_total,
            "connection-close-total": self.connection_close_total,
            "connection-count": self.connection_creation_total - self.connection_close_total,
            "request-total": self.request_total,
            "response-total": self.response_total,
            "incoming-byte-total": self.incoming_byte_total,
            "outgoing-byte-total": self.outgoing_byte_total,
            "request-latency-avg": self.latency_ms_total / response_count,
            "request-latency-max": self.latency_ms_max,
        }


class ConnectionSettings(Value, kw_only=True):
    """Settings that all connections of a client share."""

    config: ClientConfig
    in_flight_max: int
    response_bytes_max: int
    security: ClientSecurity


class _Phase(Protocol):
    """Meaning of a socket's events in one phase of its life."""

    def handle_frame(self, body: bytes | bytearray) -> None:
        """Handle a frame. Raises: DecodeError, NotSupported, Misrouted; the connection ends then."""

    def fail(self, why: Exception, hint: str = "") -> None:
        """Close at once."""

    def handle_connection_lost(self, why: Exception | None) -> None:
        """Handle the end of the socket."""

    def send_queued(self) -> None:
        """Write the requests that may be sent now."""


class SocketProtocol(asyncio.BufferedProtocol):
    """Callbacks of asyncio for one socket: cuts bytes into frames, and hands them to the phase."""

    phase: _Phase
    """From `connection_made` on, which asyncio calls first."""

    def __init__(
        self,
        address: Address,
        settings: ConnectionSettings,
        metrics: NetworkMetrics,
        ready: "asyncio.Future[Connection]",
        wanted: BrokerIdentity,
    ) -> None:
        """Create a protocol without a socket.

        Args:
            ready: yields the connection when the versions are negotiated, or Unreachable.
        """
        self.address, self.settings, self.metrics = address, settings, metrics
        self.ready, self.wanted = ready, wanted
        self.is_writing_paused = False
        self._receive_buffer = ReceiveBuffer(
            READ_BUFFER_BYTES, settings.response_bytes_max, Preallocation(PREALLOCATED_FRAME_BYTES)
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.metrics.connection_creation_total += 1
        # uvloop's transport has the methods of asyncio.Transport and not the type.
        self.phase = _Handshake(self, cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self.metrics.connection_close_total += 1
        self.phase.handle_connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive_buffer.get_writable()

    def buffer_updated(self, nbytes: int) -> None:
        self.metrics.incoming_byte_total += nbytes
        try:
            self._receive_buffer.add(nbytes)
            while (body := self._receive_buffer.take_frame()) is not None:
                self.phase.handle_frame(body)
        except (NotSupported, Misrouted) as exc:
            self.phase.fail(exc)
        except DecodeError as exc:
            self.phase.fail(exc, guess_protocol(self._receive_buffer.unconsumed))
        else:
            self.phase.send_queued()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        self.phase.send_queued()


class _Handshake:
    """First phase of a socket: ApiVersions, until both sides have found a version."""

    def __init__(self, socket: SocketProtocol, transport: asyncio.Transport) -> None:
        self._socket, self._transport = socket, transport
        self._headers = RequestHeaders(socket.settings.config.client_id)
        self._negotiation = VersionNegotiation(self._headers, tallystick.__version__, socket.wanted)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        transport.write(self._negotiation.build_request())

    def handle_frame(self, body: bytes | bytearray) -> None:
        """Repeat the request in an older version, or go on to the next phase."""
        step = self._negotiation.handle_response(body)
        if isinstance(step, NodeApiVersions):
            self._socket.phase = connection = Connection(self._socket, self._transport, self._headers, step)
            if not self._socket.ready.done():
                self._socket.ready.set_result(connection)
        else:
            self._transport.write(step)

    def send_queued(self) -> None:
        """Do nothing: no request waits for the socket in this phase."""

    def fail(self, why: Exception, hint: str = "") -> None:
        """Close at once. With a `hint` the peer's protocol is known, and it is not Kafka's."""
        if hint and not self._socket.ready.done():
            self._socket.ready.set_exception(NotKafka(str(self._socket.address), hint))
        self.handle_connection_lost(why)
        self._transport.abort()

    def handle_connection_lost(self, why: Exception | None) -> None:
        """Report that there is no connection."""
        if self._socket.ready.done():
            return
        has_tls = self._socket.settings.security.ssl_context is not None
        # To a port with TLS the first request is a bad greeting, and few servers send their alert first.
        hint = "" if has_tls or not isinstance(why, ConnectionResetError | None) else _END_BEFORE_ANSWER
        address, text = str(self._socket.address), _describe_error(why or _CLOSED_BY_BROKER, hint)
        # TLS 1.3: a broker refuses the client's certificate after the client's side of the handshake.
        is_refusal = isinstance(why, ssl.SSLError) and not isinstance(why, ssl.SSLEOFError)
        kind = TlsFailed if is_refusal else WrongBroker if isinstance(why, Misrouted) else Unreachable
        self._socket.ready.set_exception(kind(address, text))


class Connection:
    """Second phase of a socket, in which requests are sent, until `close` or until it breaks. On one loop."""

    def __init__(
        self,
        socket: SocketProtocol,
        transport: asyncio.Transport,
        headers: RequestHeaders,
        versions: NodeApiVersions,
    ) -> None:
        settings = socket.settings
        self.address = socket.address
        self.protocol_state: ProtocolState[PendingRequest] = ProtocolState(
            headers, versions, settings.in_flight_max
        )
        self._socket, self._transport, self._metrics = socket, transport, socket.metrics
        self._max_idle_ms = settings.config.connections_max_idle_ms
        self._throttle_ms_max = settings.config.request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._has_scatter_write = is_uvloop(self._loop)
        self._send_queue: deque[tuple[PendingRequest, int, list[bytes | memoryview]]] = deque()
        # KIP-219: the broker throttles this connection.
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._login_timer: asyncio.TimerHandle | None = None
        self._login_task: asyncio.Task[None] | None = None
        self._is_login_due = False
        self._has_answered = False
        self._close_reason: Exception | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self.closed_future: asyncio.Future[None] = self._loop.create_future()
        self.session_lifetime_ms = 0  # of the last login; 0 for as long as the connection
        self._last_active_ms = self.now_ms
        self._schedule_check(self._last_active_ms + self._max_idle_ms)

    @property
    def now_ms(self) -> float:
        return self._loop.time() * 1000

    @property
    def is_usable(self) -> bool:
        """Whether a request may be submitted."""
        return self._close_reason is None and not self._transport.is_closing()

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS session; None without TLS."""
        return cast(ssl.SSLObject | None, self._transport.get_extra_info("ssl_object"))

    def describe_wait(self) -> str:
        """Name the lookup that is not answered, or was not in time; empty if neither is true."""
        if isinstance(self._close_reason, TimeoutError):
            return f"{self.address}: {self._close_reason}"
        for pending in self.protocol_state.waiters:
            if pending.spec.key in _LOOKUPS:
                return f"{self.address} still had to answer {pending.spec.name}"
        return ""

    @property
    def pending_count(self) -> int:
        """Number of requests that wait or are in flight."""
        return len(self._send_queue) + self.protocol_state.in_flight_count

    # ------------------------------------------------------------------------- requests

    def submit(self, pending: PendingRequest) -> None:
        """Send a request when its turn comes. Errors are set on its future."""
        if not self.is_usable:
            pending.fail(Unreachable(str(self.address), f"the connection is closed: {self._close_reason}"))
            return
        key, versions = pending.spec.key, self.protocol_state.versions
        try:
            if pending.version is None:
                version = versions.choose_version(key, pending.max_version)
            else:
                version = versions.require_version(key, pending.version)
            if isinstance(pending.message, RequestBuilder):
                pending.message = pending.message.build(version)
            body = _encode_body(pending.message, pending.spec, version)
        except (ClientError, EncodeError) as exc:
            pending.fail(exc)
            return
        self._send_queue.append((pending, version, body))
        self.send_queued()
        self._schedule_check(pending.expires_at_ms)

    def send_queued(self) -> None:
        """Write the requests that may be sent now."""
        queue, state = self._send_queue, self.protocol_state
        while queue and state.can_send_more and self._may_write:
            pending, version, body = queue.popleft()
            if pending.response_future.done():
                continue
            self._last_active_ms = self.now_ms
            self._send_now(pending, version, body)

    def _send_now(self, pending: PendingRequest, version: int, body: list[bytes | memoryview]) -> None:
        size = sum(map(len, body))
        waiter = pending if pending.expects_response else None
        header = self.protocol_state.register_request(pending.spec, version, size, waiter)
        pending.sent_at_ms = self.now_ms
        self._metrics.request_total += 1
        self._metrics.outgoing_byte_total += len(header) + size
        self._write(header, body, size)
        if waiter is None:
            pending.response_future.set_result(None)

    @property
    def _may_write(self) -> bool:
        return (
            not self._socket.is_writing_paused
            and self._throttle_timer is None
            and self._close_reason is None
            and not self._is_login_due
        )

    def _throttle(self, length_ms: int) -> None:
        """Pause writing while the broker throttles (KIP-219): requests held back here have no effect yet.

        A throttling broker reads nothing meanwhile. Kafka's pauses are bounded by a quota window, some
        seconds; a longer one is cut to request.timeout.ms.
        """
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        self._throttle_timer = self._loop.call_later(
            min(length_ms, self._throttle_ms_max) / 1000, self._end_throttle
        )

    def _end_throttle(self) -> None:
        self._throttle_timer = None
        self.send_queued()

    def _write(self, header: bytes, body: list[bytes | memoryview], size: int) -> None:
        transport = self._transport
        parts = [b"".join((header, *body))] if size <= READ_BUFFER_BYTES else join_small([header, *body])
        if len(parts) > 1 and self._has_scatter_write:
            transport.writelines(parts)
        else:  # asyncio would join them
            for part in parts:
                transport.write(part)

    # ---------------------------------------------------------------------------- login

    async def log_in(self) -> None:
        """Log in, before the first request or between two. Raises: AuthenticationFailed, ClientError."""
        lifetime_ms = await self._socket.settings.security.log_in(self.address, self._send_login_request)
        self.session_lifetime_ms = lifetime_ms
        if lifetime_ms:
            after_ms = choose_reauthentication_ms(lifetime_ms, uniform())
            self._login_timer = self._loop.call_later(after_ms / 1000, self._require_login)

    async def _send_login_request(self, request: LoginRequest) -> object:
        """Send a request of a login, whatever waits, and return its answer. Raises: ClientError."""
        if not self.is_usable:  # it ended while the mechanism computed this request in another thread
            raise Unreachable(str(self.address), f"the login lost its connection: {self._close_reason}")
        versions, timeout_ms = self.protocol_state.versions, self._throttle_ms_max
        if isinstance(request, SaslHandshakeRequest):
            spec = API_SPECS[ApiKey.SASL_HANDSHAKE]
            version = versions.require_version(spec.key, HANDSHAKE_VERSION)
        else:
            spec = API_SPECS[ApiKey.SASL_AUTHENTICATE]
            version = versions.choose_version(spec.key)
        pending = PendingRequest(
            spec, request, Deadline(int(self.now_ms) + timeout_ms, "request.timeout.ms", timeout_ms)
        )
        pending.address = self.address
        self._send_now(pending, version, _encode_body(request, spec, version))
        self._schedule_check(pending.expires_at_ms)
        pending.start_timer()  # whatever becomes of the connection: a login holds back every other request
        return await pending.response_future

    def _require_login(self) -> None:
        """Log in again as soon as no request is in flight; send no new one until then (KIP-368)."""
        self._is_login_due = True
        self._log_in_when_idle()

    def _log_in_when_idle(self) -> None:
        if self._login_task is None and not self.protocol_state.in_flight_count and self.is_usable:
            # In a fresh context: the login is not part of the call that happens to run now.
            self._login_task = self._loop.create_task(self._log_in_again(), context=Context())

    async def _log_in_again(self) -> None:
        try:
            await self.log_in()
        except Exception as exc:
            # Of whatever kind: a connection that waits for a login for ever would look like a slow broker.
            # What waits was not sent: its callers connect anew, and learn there if the login is refused for
            # good.
            self.fail(exc)
            return
        self._login_task = None
        self._is_login_due = False
        self.send_queued()

    # ------------------------------------------------------------------------ responses

    def handle_frame(self, body: bytes | bytearray) -> None:
        """Hand a response to the request that waits for it."""
        pending, response = self.protocol_state.match_response(body)
        now = self._last_active_ms = self.now_ms
        self._has_answered = True
        metrics = self._metrics
        metrics.response_total += 1
        latency_ms = now - pending.sent_at_ms
        metrics.latency_ms_total += latency_ms
        metrics.latency_ms_max = max(metrics.latency_ms_max, latency_ms)
        throttled_ms = getattr(response, "throttle_time_ms", 0)
        if throttled_ms > 0:
            self._throttle(throttled_ms)
        if not pending.response_future.done():
            pending.response_future.set_result(response)
        if self._is_login_due:
            self._log_in_when_idle()

    # --------------------------------------------------------------------------- limits

    def _schedule_check(self, at_ms: float) -> None:
        """Check the limits at `at_ms` or earlier. One timer serves the connection."""
        when = at_ms / 1000
        if self._deadline_timer is not None:
            if self._deadline_timer.when() <= when:
                return
            self._deadline_timer.cancel()
        self._deadline_timer = self._loop.call_at(when, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        now = self.now_ms
        flying = self.protocol_state.waiters
        overdue_request = next((pending for pending in flying if pending.expires_at_ms <= now), None)
        if overdue_request is not None:
            overdue_request.time_out()
            limit_ms = overdue_request.deadline.length_ms
            self.fail(TimeoutError(f"{overdue_request.spec.name} was not answered within {limit_ms} ms"))
            return
        for pending, _, _ in self._send_queue:
            if pending.expires_at_ms <= now:
                pending.time_out()
        waiting_requests = [*flying, *(q[0] for q in self._send_queue if not q[0].response_future.done())]
        if not waiting_requests and self._last_active_ms + self._max_idle_ms <= now:
            self.fail(ConnectionError("unused for connections.max.idle.ms"))
            return
        self._schedule_check(
            min(
                (each.expires_at_ms for each in waiting_requests),
                default=self._last_active_ms + self._max_idle_ms,
            )
        )

    # -------------------------------------------------------------------------- the end

    def fail(self, why: Exception, hint: str = "") -> None:
        """Close at once. Requests awaiting an answer fail with an unknown effect, unless they only read.

        Args:
            hint: what the peer may be, if its bytes make no sense.
        """
        self._fail_all(why, hint)
        self._transport.abort()

    def close(self) -> None:
        """Close; bytes in the socket's buffer are still sent, for at most `CLOSE_TIMEOUT_S`."""
        self._fail_all(Closed("the client was closed"))
        if not self.closed_future.done():
            self._transport.close()
            self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def handle_connection_lost(self, why: Exception | None) -> None:
        """Fail what waits: the socket is closed."""
        for timer in (self._deadline_timer, self._throttle_timer, self._login_timer, self._login_task):
            if timer is not None:
                timer.cancel()
        self._deadline_timer = self._throttle_timer = self._login_timer = None
        # Kafka closes a connection without a word if something else than a login comes first.
        is_mute = not self._has_answered and not self._socket.settings.security.has_login
        self._fail_all(why or _CLOSED_BY_BROKER, _LOGIN_HINT if is_mute else "")
        if not self.closed_future.done():
            self.closed_future.set_result(None)

    def _fail_all(self, why: Exception, hint: str = "") -> None:
        if self._close_reason is not None:
            return
        self._close_reason = why
        address, text = str(self.address), _describe_error(why, hint)
        awaited_api = self.protocol_state.awaited_api
        for pending in self.protocol_state.clear_in_flight():
            api = pending.spec.name
            if isinstance(why, Closed):
                pending.fail(Closed(text).after(infer_loss_effect(api)))
            elif isinstance(why, DecodeError):
                pending.fail(
                    BadAnswer(address, api, text if api == awaited_api else f"after {awaited_api}: {text}")
                )
            else:
                pending.fail(ConnectionLost(address, api, text))
        for pending, _, _ in self._send_queue:
            pending.fail(Closed(text) if isinstance(why, Closed) else Unreachable(address, text))
        self._send_queue.clear()


def _describe_error(why: Exception, hint: str) -> str:
    if isinstance(why, ClientError):
        text = why.what()
    elif isinstance(why, ssl.SSLError):
        text = explain_handshake_failure(why)
    else:
        text = str(why) or type(why).__name__
    return f"{text}: {hint}" if hint else text


def _encode_body(message: object, spec: ApiSpec, version: int) -> list[bytes | memoryview]:
    try:
        return encode_parts(message, version)
    except UnsupportedField as exc:
        raise NotSupported(f"{spec.name} version {version}", str(exc)) from exc


def is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    return type(loop).__module__.startswith("uvloop")
