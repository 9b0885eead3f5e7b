"""Connections to brokers: sockets that send requests and receive answers.

`protocol_state.py` and the callers decide what they mean. A Connection is one socket; `broker_connection.py`
makes them.

Order. Requests leave in the order in which they were submitted, those that waited for the connection or for
room among the requests in flight first [CLI-5].

Effect. Until its bytes are handed to the socket a request had no effect; from then on it may have had one
[CLI-6], unless it only reads.

Ends. A request that is not answered in time closes its connection, as in Kafka, since later requests would
wait behind it. If the caller's own limit is shorter (a `PendingRequest` with an earlier `deadline`), only
the caller's wait ends, and the answer is dropped when it arrives.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Final, cast

import tallystick
from tallystick.client.config import Address, ClientConfig
from tallystick.client.errors import (
    BadAnswer,
    ClientError,
    Closed,
    ConnectionLost,
    NotSupported,
    TimedOut,
    Unreachable,
)
from tallystick.client.jitter import uniform
from tallystick.client.net.protocol_state import ProtocolState, guess_protocol
from tallystick.client.retry import Deadline, compute_backoff_ms, infer_loss_effect
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.value import frozen
from tallystick.protocol import DecodeError, EncodeError, UnsupportedField, encode_parts
from tallystick.protocol.apis import ApiKey, ApiSpec
from tallystick.protocol.frames import Frame, find_frame

READ_BUFFER_BYTES: Final = 64 * KIB
# A frame up to this size gets its buffer at once; the buffer of a larger one grows as bytes arrive.
PREALLOCATED_FRAME_BYTES: Final = 2 * MIB
WRITE_HIGH_WATER_BYTES: Final = 1 * MIB
CLOSE_TIMEOUT_S: Final = 1.0


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
        answered = self.response_total or 1
        return {
            "connection-creation-total": self.connection_creation_total,
            "connection-close-total": self.connection_close_total,
            "connection-count": self.connection_creation_total - self.connection_close_total,
            "request-total": self.request_total,
            "response-total": self.response_total,
            "incoming-byte-total": self.incoming_byte_total,
            "outgoing-byte-total": self.outgoing_byte_total,
            "request-latency-avg": self.latency_ms_total / answered,
            "request-latency-max": self.latency_ms_max,
        }


@frozen(kw_only=True)
class ConnectionSettings:
    """Settings that all connections of a client share."""

    config: ClientConfig
    in_flight_max: int
    response_bytes_max: int


@frozen
class RequestBuilder:
    """A request whose form depends on the chosen version, such as one coordinator key or several."""

    api_key: ApiKey
    build: Callable[[int], object]


class PendingRequest:
    """A request in flight or waiting, and the future of its answer."""

    __slots__ = (
        "address",
        "deadline",
        "expires_at_ms",
        "max_version",
        "message",
        "response_future",
        "sent_at_ms",
        "spec",
        "version",
    )

    def __init__(self, spec: ApiSpec, message: object, limit: Deadline) -> None:
        """Create a request that has not been submitted.

        Args:
            limit: when the caller stops waiting.
        """
        self.spec, self.message, self.deadline = spec, message, limit
        self.response_future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.version: int | None = None  # exactly this version, if set
        self.max_version: int | None = None
        self.expires_at_ms = limit.at_ms  # when its connection is closed
        self.sent_at_ms = -1.0
        self.address: Address | None = None

    def fail(self, error: TallystickError) -> None:
        """Set the error, unless the answer is already settled."""
        if not self.response_future.done():
            self.response_future.set_exception(error)

    def time_out(self) -> None:
        """Fail with TimedOut: the limit passed [CLI-6]."""
        name, sent = self.spec.name, self.sent_at_ms >= 0
        doing = f"{name} at {self.address}{'' if sent else ', not sent yet'}"
        error = TimedOut(self.deadline.limit_name, self.deadline.length_ms, doing)
        self.fail(error.after(infer_loss_effect(name)) if sent else error)

    def start_timer(self) -> None:
        """Enforce the limit wherever the request is. A connection enforces only `expires_at_ms`."""
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self.deadline.at_ms / 1000, self.time_out)
        self.response_future.add_done_callback(lambda _: timer.cancel())

    @property
    def expects_response(self) -> bool:
        """Whether an answer is expected: always, except for Produce with acks=0."""
        return self.spec.key is not ApiKey.PRODUCE or getattr(self.message, "acks", None) != 0


class Connection(asyncio.BufferedProtocol):
    """One socket to a broker, from `connect` to `close` or until it breaks. Lives on one loop."""

    def __init__(
        self,
        address: Address,
        session: ProtocolState[PendingRequest],
        measures: NetworkMetrics,
        terms: ConnectionSettings,
    ) -> None:
        self.address = address
        self.protocol_state = session
        self._network_metrics = measures
        self._max_idle_ms = terms.config.connections_max_idle_ms
        self._throttle_ms_max = terms.config.request_timeout_ms
        self._response_bytes_max = terms.response_bytes_max
        self._loop = asyncio.get_running_loop()
        self._has_scatter_write = type(self._loop).__module__.startswith("uvloop")
        self._send_queue: deque[tuple[PendingRequest, int, list[bytes | memoryview]]] = deque()
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._buffer_view = memoryview(self._buffer)
        self._buffered_bytes = 0
        self._large_frame: bytearray | None = None
        self._large_received = self._large_size = 0
        self._writing_paused = False
        self._throttle_timer: asyncio.TimerHandle | None = (
            None  # KIP-219: the broker throttles this connection
        )
        self._close_reason: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._last_active_ms = self.now_ms
        self.ready_future: asyncio.Future[None] = self._loop.create_future()
        self.closed_future: asyncio.Future[None] = self._loop.create_future()

    @property
    def now_ms(self) -> float:
        return self._loop.time() * 1000

    @property
    def is_usable(self) -> bool:
        """Whether a request may be submitted."""
        return self._transport is not None and self._close_reason is None and not self._transport.is_closing()

    @property
    def pending_count(self) -> int:
        """Number of requests that wait or are in flight."""
        return len(self._send_queue) + self.protocol_state.in_flight_count

    # ---------------------------------------------------------------- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport and not the type.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._network_metrics.connection_creation_total += 1
        self._transport.write(self.protocol_state.build_api_versions_request())

    def connection_lost(self, exc: Exception | None) -> None:
        self._network_metrics.connection_close_total += 1
        for timer in (self._deadline_timer, self._throttle_timer):
            if timer is not None:
                timer.cancel()
        self._fail_all(exc or self._close_reason or ConnectionError("the broker closed the connection"))
        if not self.closed_future.done():
            self.closed_future.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large_frame is not None:
            return memoryview(self._large_frame)[self._large_received :]
        return self._buffer_view[self._buffered_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        self._network_metrics.incoming_byte_total += nbytes
        try:
            if self._large_frame is not None:
                self._receive_large_frame(nbytes)
            else:
                self._buffered_bytes += nbytes
                self._split_frames()
        except (DecodeError, NotSupported) as exc:
            self.fail(exc)
            return
        self._send_queued()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._send_queued()

    # --------------------------------------------------------------------------- asking

    def submit(self, ask: PendingRequest) -> None:
        """Send a request when its turn comes. Errors are set on its future."""
        versions = self.protocol_state.versions
        if not self.is_usable or versions is None:
            ask.fail(Unreachable(str(self.address), f"the connection is closed: {self._close_reason}"))
            return
        key = ask.spec.key
        try:
            if ask.version is None:
                version = versions.choose_version(key, ask.max_version)
            else:
                version = versions.require_version(key, ask.version)
            if isinstance(ask.message, RequestBuilder):
                ask.message = ask.message.build(version)
            body = _encode_body(ask.message, ask.spec, version)
        except (ClientError, EncodeError) as exc:
            ask.fail(exc)
            return
        self._send_queue.append((ask, version, body))
        self._send_queued()
        self._schedule_check(ask.expires_at_ms)

    def _send_queued(self) -> None:
        """Write the requests that may be sent now."""
        queue, session = self._send_queue, self.protocol_state
        while queue and session.can_send_more and self._may_write:
            ask, version, body = queue.popleft()
            if ask.response_future.done():
                continue
            size = sum(map(len, body))
            waiter = ask if ask.expects_response else None
            header = session.register_request(ask.spec, version, size, waiter)
            ask.sent_at_ms = self._last_active_ms = self.now_ms
            self._network_metrics.request_total += 1
            self._network_metrics.outgoing_byte_total += len(header) + size
            self._write(header, body, size)
            if waiter is None:
                ask.response_future.set_result(None)

    @property
    def _may_write(self) -> bool:
        return not self._writing_paused and self._throttle_timer is None and self._close_reason is None

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
        self._send_queued()

    def _write(self, header: bytes, body: list[bytes | memoryview], size: int) -> None:
        transport = self._transport
        assert transport is not None
        if size <= READ_BUFFER_BYTES:
            transport.write(b"".join((header, *body)))
        elif self._has_scatter_write:
            transport.writelines([header, *body])
        else:  # asyncio would join them
            transport.write(header)
            for part in body:
                transport.write(part)

    # ------------------------------------------------------------------------- answers

    def _split_frames(self) -> None:
        at = 0
        limit = self._response_bytes_max
        while isinstance(found := find_frame(self._buffer_view, at, self._buffered_bytes, limit), Frame):
            self._handle_frame(bytes(self._buffer_view[found.start : found.end]))
            at = found.end
        if found.size > READ_BUFFER_BYTES:
            self._begin_large_frame(at, found.size - 4)
        elif at:
            rest = self._buffered_bytes - at
            self._buffer[:rest] = self._buffer[at : self._buffered_bytes]
            self._buffered_bytes = rest

    def _begin_large_frame(self, at: int, size: int) -> None:
        first = at + 4
        received = self._buffered_bytes - first
        self._large_frame = bytearray(min(size, PREALLOCATED_FRAME_BYTES))
        self._large_frame[:received] = self._buffer_view[first : self._buffered_bytes]
        self._large_received, self._large_size = received, size
        self._buffered_bytes = 0

    def _receive_large_frame(self, nbytes: int) -> None:
        big = self._large_frame
        assert big is not None
        self._large_received += nbytes
        if self._large_received == self._large_size:
            self._large_frame = None
            self._handle_frame(big)
        elif self._large_received == len(big):
            grown = bytearray(min(2 * len(big), self._large_size))
            grown[: self._large_received] = big
            self._large_frame = grown

    def _handle_frame(self, body: bytes | bytearray) -> None:
        if self.protocol_state.versions is None:
            again = self.protocol_state.handle_api_versions(body)
            if again is not None:
                assert self._transport is not None
                self._transport.write(again)
            elif not self.ready_future.done():
                self._last_active_ms = self.now_ms
                self._schedule_check(self._last_active_ms + self._max_idle_ms)
                self.ready_future.set_result(None)
            return
        ask, message = self.protocol_state.match_response(body)
        now = self._last_active_ms = self.now_ms
        measures = self._network_metrics
        measures.response_total += 1
        took = now - ask.sent_at_ms
        measures.latency_ms_total += took
        measures.latency_ms_max = max(measures.latency_ms_max, took)
        throttled_ms = getattr(message, "throttle_time_ms", 0)
        if throttled_ms > 0:
            self._throttle(throttled_ms)
        if not ask.response_future.done():
            ask.response_future.set_result(message)

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
        late = next((ask for ask in flying if ask.expires_at_ms <= now), None)
        if late is not None:
            late.time_out()
            self.fail(TimeoutError(f"{late.spec.name} was not answered within {late.deadline.length_ms} ms"))
            return
        for ask, _, _ in self._send_queue:
            if ask.expires_at_ms <= now:
                ask.time_out()
        waiting = [*flying, *(q[0] for q in self._send_queue if not q[0].response_future.done())]
        if not waiting and self._last_active_ms + self._max_idle_ms <= now:
            self.fail(ConnectionError("unused for connections.max.idle.ms"))
            return
        self._schedule_check(
            min((a.expires_at_ms for a in waiting), default=self._last_active_ms + self._max_idle_ms)
        )

    # -------------------------------------------------------------------------- the end

    def fail(self, why: Exception) -> None:
        """Close at once. Requests awaiting an answer fail with an unknown effect, unless they only read."""
        self._fail_all(why)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close; bytes in the socket's buffer are still sent, for at most `CLOSE_TIMEOUT_S`."""
        self._fail_all(Closed("the client was closed"))
        if self._transport is not None and not self.closed_future.done():
            self._transport.close()
            self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def _fail_all(self, why: Exception) -> None:
        if self._close_reason is not None:
            return
        self._close_reason = why
        address, text = str(self.address), self._describe_error(why)
        if not self.ready_future.done():
            self.ready_future.set_exception(Unreachable(address, text))
        awaited = self.protocol_state.awaited_api
        for ask in self.protocol_state.clear_in_flight():
            api = ask.spec.name
            if isinstance(why, Closed):
                ask.fail(Closed(text).after(infer_loss_effect(api)))
            elif isinstance(why, DecodeError):
                ask.fail(BadAnswer(address, api, text if api == awaited else f"after {awaited}: {text}"))
            else:
                ask.fail(ConnectionLost(address, api, text))
        for ask, _, _ in self._send_queue:
            ask.fail(Closed(text) if isinstance(why, Closed) else Unreachable(address, text))
        self._send_queue.clear()

    def _describe_error(self, why: Exception) -> str:
        hint = (
            guess_protocol(self._buffer_view[: self._buffered_bytes]) if isinstance(why, DecodeError) else ""
        )
        text = why.what() if isinstance(why, ClientError) else str(why) or type(why).__name__
        return f"{text}: {hint}" if hint else text


def _encode_body(message: object, spec: ApiSpec, version: int) -> list[bytes | memoryview]:
    try:
        return encode_parts(message, version)
    except UnsupportedField as exc:
        raise NotSupported(f"{spec.name} version {version}", str(exc)) from exc


async def connect(
    address: Address, terms: ConnectionSettings, measures: NetworkMetrics, failures: int = 0
) -> Connection:
    """Open a connection and negotiate versions: TCP, then ApiVersions.

    Args:
        failures: number of earlier failures, which lengthen socket.connection.setup.timeout.ms.
    Raises: Unreachable, within that limit plus request.timeout.ms.
    """
    config = terms.config
    session: ProtocolState[PendingRequest] = ProtocolState(
        config.client_id, tallystick.__version__, terms.in_flight_max
    )
    made = Connection(address, session, measures, terms)
    setup_ms = compute_backoff_ms(
        failures,
        config.socket_connection_setup_timeout_ms,
        config.socket_connection_setup_timeout_max_ms,
        uniform(),
    )
    try:
        async with _bound_connect_step(address, "to connect", "socket.connection.setup.timeout.ms", setup_ms):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: made, address.host, address.port
            )
        _set_socket_buffers(transport, config)
        answering = "to answer ApiVersions"
        async with _bound_connect_step(address, answering, "request.timeout.ms", config.request_timeout_ms):
            await asyncio.shield(made.ready_future)
    except BaseException:
        made.ready_future.cancel()
        made.fail(ConnectionError("it was never ready"))
        raise
    return made


@asynccontextmanager
async def _bound_connect_step(
    address: Address, what: str, deadline: str, length_ms: int
) -> AsyncIterator[None]:
    """Turn everything that prevents a connection, an invalid host or port included, into Unreachable."""
    try:
        async with asyncio.timeout(length_ms / 1000):
            yield
    except TimeoutError as exc:
        raise Unreachable(str(address), f"took longer {what} than {deadline} = {length_ms} ms") from exc
    except (OSError, OverflowError, UnicodeError) as exc:
        raise Unreachable(str(address), str(exc) or type(exc).__name__) from exc


def _set_socket_buffers(transport: asyncio.BaseTransport, config: ClientConfig) -> None:
    socket = transport.get_extra_info("socket")
    for option, size in ((SO_RCVBUF, config.receive_buffer_bytes), (SO_SNDBUF, config.send_buffer_bytes)):
        if size is not None and socket is not None:
            socket.setsockopt(SOL_SOCKET, option, size)
