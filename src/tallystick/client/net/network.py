"""Connections to brokers: sockets that send requests and receive answers.

`connection.py` and the callers decide what they mean. A Connection is one socket; `links.py` makes them.

Order. Requests leave in the order in which they were submitted, those that waited for the connection or for
room among the requests in flight first [CLI-5].

Effect. Until its bytes are handed to the socket a request had no effect; from then on it may have had one
[CLI-6], unless it only reads.

Ends. A request that is not answered in time closes its connection, as in Kafka, since later requests would
wait behind it. If the caller's own limit is shorter (an `Ask` with an earlier `limit`), only the caller's
wait ends, and the answer is dropped when it arrives.
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
from tallystick.client.jitter import noise
from tallystick.client.net.connection import Session, guess_protocol
from tallystick.client.retry import Deadline, backoff_ms, effect_of_loss
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.value import frozen
from tallystick.protocol import DecodeError, EncodeError, UnsupportedField, encode_parts
from tallystick.protocol.apis import ApiKey, ApiSpec
from tallystick.protocol.frames import Frame, frame_at

BUFFER_BYTES: Final = 64 * KIB
# A frame up to this size gets its buffer at once; the buffer of a larger one grows as bytes arrive.
TRUSTED_FRAME_BYTES: Final = 2 * MIB
WRITE_HIGH_WATER_BYTES: Final = 1 * MIB
CLOSE_S: Final = 1.0


class Measures:
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
class Terms:
    """Settings that all connections of a client share."""

    config: ClientConfig
    in_flight_max: int
    answer_bytes_max: int


@frozen
class ByVersion:
    """A request whose form depends on the chosen version, such as one coordinator key or several."""

    key: ApiKey
    build: Callable[[int], object]


class Ask:
    """A request in flight or waiting, and the future of its answer."""

    __slots__ = (
        "answer",
        "expires_ms",
        "limit",
        "max_version",
        "message",
        "sent_ms",
        "spec",
        "version",
        "where",
    )

    def __init__(self, spec: ApiSpec, message: object, limit: Deadline) -> None:
        """Create a request that has not been submitted.

        Args:
            limit: when the caller stops waiting.
        """
        self.spec, self.message, self.limit = spec, message, limit
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.version: int | None = None  # exactly this version, if set
        self.max_version: int | None = None
        self.expires_ms = limit.at_ms  # when its connection is closed
        self.sent_ms = -1.0
        self.where: Address | None = None

    def fail(self, error: TallystickError) -> None:
        """Set the error, unless the answer is already settled."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def time_out(self) -> None:
        """Fail with TimedOut: the limit passed [CLI-6]."""
        name, sent = self.spec.name, self.sent_ms >= 0
        doing = f"{name} at {self.where}{'' if sent else ', not sent yet'}"
        error = TimedOut(self.limit.limit, self.limit.length_ms, doing)
        self.fail(error.after(effect_of_loss(name)) if sent else error)

    def watch(self) -> None:
        """Enforce the limit wherever the request is. A connection enforces only `expires_ms`."""
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self.limit.at_ms / 1000, self.time_out)
        self.answer.add_done_callback(lambda _: timer.cancel())

    @property
    def wants_answer(self) -> bool:
        """Whether an answer is expected: always, except for Produce with acks=0."""
        return self.spec.key is not ApiKey.PRODUCE or getattr(self.message, "acks", None) != 0


class Connection(asyncio.BufferedProtocol):
    """One socket to a broker, from `connect` to `close` or until it breaks. Lives on one loop."""

    def __init__(self, address: Address, session: Session[Ask], measures: Measures, terms: Terms) -> None:
        self.address = address
        self.session = session
        self._measures = measures
        self._max_idle_ms = terms.config.connections_max_idle_ms
        self._patience_ms = terms.config.request_timeout_ms
        self._answer_bytes_max = terms.answer_bytes_max
        self._loop = asyncio.get_running_loop()
        self._scatters = type(self._loop).__module__.startswith("uvloop")
        self._queue: deque[tuple[Ask, int, list[bytes | memoryview]]] = deque()
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._big: bytearray | None = None
        self._big_filled = self._big_size = 0
        self._writing_paused = False
        self._quiet: asyncio.TimerHandle | None = None  # KIP-219: the broker throttles this connection
        self._why: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._active_ms = self.now_ms
        self.welcomed: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def now_ms(self) -> float:
        return self._loop.time() * 1000

    @property
    def usable(self) -> bool:
        """Whether a request may be submitted."""
        return self._transport is not None and self._why is None and not self._transport.is_closing()

    @property
    def load(self) -> int:
        """Number of requests that wait or are in flight."""
        return len(self._queue) + self.session.in_flight

    # ---------------------------------------------------------------- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport and not the type.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._measures.connection_creation_total += 1
        self._transport.write(self.session.hello())

    def connection_lost(self, exc: Exception | None) -> None:
        self._measures.connection_close_total += 1
        for timer in (self._watch, self._quiet):
            if timer is not None:
                timer.cancel()
        self._end_all(exc or self._why or ConnectionError("the broker closed the connection"))
        if not self.ended.done():
            self.ended.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._big is not None:
            return memoryview(self._big)[self._big_filled :]
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._measures.incoming_byte_total += nbytes
        try:
            if self._big is not None:
                self._big_received(nbytes)
            else:
                self._end += nbytes
                self._cut_frames()
        except (DecodeError, NotSupported) as exc:
            self.fail(exc)
            return
        self._pump()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._pump()

    # --------------------------------------------------------------------------- asking

    def submit(self, ask: Ask) -> None:
        """Send a request when its turn comes. Errors are set on its future."""
        versions = self.session.versions
        if not self.usable or versions is None:
            ask.fail(Unreachable(str(self.address), f"the connection is closed: {self._why}"))
            return
        key = ask.spec.key
        try:
            if ask.version is None:
                version = versions.pick(key, ask.max_version)
            else:
                version = versions.exactly(key, ask.version)
            if isinstance(ask.message, ByVersion):
                ask.message = ask.message.build(version)
            body = _encoded(ask.message, ask.spec, version)
        except (ClientError, EncodeError) as exc:
            ask.fail(exc)
            return
        self._queue.append((ask, version, body))
        self._pump()
        self._watch_until(ask.expires_ms)

    def _pump(self) -> None:
        """Write the requests that may be sent now."""
        queue, session = self._queue, self.session
        while queue and session.may_ask and self._may_write:
            ask, version, body = queue.popleft()
            if ask.answer.done():
                continue
            size = sum(map(len, body))
            waiter = ask if ask.wants_answer else None
            header = session.ask(ask.spec, version, size, waiter)
            ask.sent_ms = self._active_ms = self.now_ms
            self._measures.request_total += 1
            self._measures.outgoing_byte_total += len(header) + size
            self._write(header, body, size)
            if waiter is None:
                ask.answer.set_result(None)

    @property
    def _may_write(self) -> bool:
        return not self._writing_paused and self._quiet is None and self._why is None

    def _be_quiet(self, length_ms: int) -> None:
        """Pause writing while the broker throttles (KIP-219): requests held back here have no effect yet.

        A throttling broker reads nothing meanwhile. Kafka's pauses are bounded by a quota window, some
        seconds; a longer one is cut to request.timeout.ms.
        """
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = self._loop.call_later(min(length_ms, self._patience_ms) / 1000, self._speak_again)

    def _speak_again(self) -> None:
        self._quiet = None
        self._pump()

    def _write(self, header: bytes, body: list[bytes | memoryview], size: int) -> None:
        transport = self._transport
        assert transport is not None
        if size <= BUFFER_BYTES:
            transport.write(b"".join((header, *body)))
        elif self._scatters:
            transport.writelines([header, *body])
        else:  # asyncio would join them
            transport.write(header)
            for part in body:
                transport.write(part)

    # ------------------------------------------------------------------------- answers

    def _cut_frames(self) -> None:
        at = 0
        limit = self._answer_bytes_max
        while isinstance(found := frame_at(self._view, at, self._end, limit), Frame):
            self._frame(bytes(self._view[found.start : found.end]))
            at = found.end
        if found.size > BUFFER_BYTES:
            self._begin_big(at, found.size - 4)
        elif at:
            rest = self._end - at
            self._buffer[:rest] = self._buffer[at : self._end]
            self._end = rest

    def _begin_big(self, at: int, size: int) -> None:
        first = at + 4
        received = self._end - first
        self._big = bytearray(min(size, TRUSTED_FRAME_BYTES))
        self._big[:received] = self._view[first : self._end]
        self._big_filled, self._big_size = received, size
        self._end = 0

    def _big_received(self, nbytes: int) -> None:
        big = self._big
        assert big is not None
        self._big_filled += nbytes
        if self._big_filled == self._big_size:
            self._big = None
            self._frame(big)
        elif self._big_filled == len(big):
            grown = bytearray(min(2 * len(big), self._big_size))
            grown[: self._big_filled] = big
            self._big = grown

    def _frame(self, body: bytes | bytearray) -> None:
        if self.session.versions is None:
            again = self.session.welcome(body)
            if again is not None:
                assert self._transport is not None
                self._transport.write(again)
            elif not self.welcomed.done():
                self._active_ms = self.now_ms
                self._watch_until(self._active_ms + self._max_idle_ms)
                self.welcomed.set_result(None)
            return
        ask, message = self.session.answer(body)
        now = self._active_ms = self.now_ms
        measures = self._measures
        measures.response_total += 1
        took = now - ask.sent_ms
        measures.latency_ms_total += took
        measures.latency_ms_max = max(measures.latency_ms_max, took)
        throttled_ms = getattr(message, "throttle_time_ms", 0)
        if throttled_ms > 0:
            self._be_quiet(throttled_ms)
        if not ask.answer.done():
            ask.answer.set_result(message)

    # --------------------------------------------------------------------------- limits

    def _watch_until(self, at_ms: float) -> None:
        """Check the limits at `at_ms` or earlier. One timer serves the connection."""
        when = at_ms / 1000
        if self._watch is not None:
            if self._watch.when() <= when:
                return
            self._watch.cancel()
        self._watch = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._watch = None
        now = self.now_ms
        flying = self.session.waiters
        late = next((ask for ask in flying if ask.expires_ms <= now), None)
        if late is not None:
            late.time_out()
            self.fail(TimeoutError(f"{late.spec.name} was not answered within {late.limit.length_ms} ms"))
            return
        for ask, _, _ in self._queue:
            if ask.expires_ms <= now:
                ask.time_out()
        waiting = [*flying, *(q[0] for q in self._queue if not q[0].answer.done())]
        if not waiting and self._active_ms + self._max_idle_ms <= now:
            self.fail(ConnectionError("unused for connections.max.idle.ms"))
            return
        self._watch_until(min((a.expires_ms for a in waiting), default=self._active_ms + self._max_idle_ms))

    # -------------------------------------------------------------------------- the end

    def fail(self, why: Exception) -> None:
        """Close at once. Requests awaiting an answer fail with an unknown effect, unless they only read."""
        self._end_all(why)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close; bytes in the socket's buffer are still sent, for at most `CLOSE_S`."""
        self._end_all(Closed("the client was closed"))
        if self._transport is not None and not self.ended.done():
            self._transport.close()
            self._loop.call_later(CLOSE_S, self._transport.abort)

    def _end_all(self, why: Exception) -> None:
        if self._why is not None:
            return
        self._why = why
        address, text = str(self.address), self._explained(why)
        if not self.welcomed.done():
            self.welcomed.set_exception(Unreachable(address, text))
        awaited = self.session.awaited
        for ask in self.session.abandon():
            api = ask.spec.name
            if isinstance(why, Closed):
                ask.fail(Closed(text).after(effect_of_loss(api)))
            elif isinstance(why, DecodeError):
                ask.fail(BadAnswer(address, api, text if api == awaited else f"after {awaited}: {text}"))
            else:
                ask.fail(ConnectionLost(address, api, text))
        for ask, _, _ in self._queue:
            ask.fail(Closed(text) if isinstance(why, Closed) else Unreachable(address, text))
        self._queue.clear()

    def _explained(self, why: Exception) -> str:
        hint = guess_protocol(self._view[: self._end]) if isinstance(why, DecodeError) else ""
        text = why.what() if isinstance(why, ClientError) else str(why) or type(why).__name__
        return f"{text}: {hint}" if hint else text


def _encoded(message: object, spec: ApiSpec, version: int) -> list[bytes | memoryview]:
    try:
        return encode_parts(message, version)
    except UnsupportedField as exc:
        raise NotSupported(f"{spec.name} version {version}", str(exc)) from exc


async def connect(address: Address, terms: Terms, measures: Measures, failures: int = 0) -> Connection:
    """Open a connection and negotiate versions: TCP, then ApiVersions.

    Args:
        failures: number of earlier failures, which lengthen socket.connection.setup.timeout.ms.
    Raises: Unreachable, within that limit plus request.timeout.ms.
    """
    config = terms.config
    session: Session[Ask] = Session(config.client_id, tallystick.__version__, terms.in_flight_max)
    made = Connection(address, session, measures, terms)
    setup_ms = backoff_ms(
        failures,
        config.socket_connection_setup_timeout_ms,
        config.socket_connection_setup_timeout_max_ms,
        noise(),
    )
    try:
        async with _limited(address, "to connect", "socket.connection.setup.timeout.ms", setup_ms):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: made, address.host, address.port
            )
        _size_buffers(transport, config)
        answering = "to answer ApiVersions"
        async with _limited(address, answering, "request.timeout.ms", config.request_timeout_ms):
            await asyncio.shield(made.welcomed)
    except BaseException:
        made.welcomed.cancel()
        made.fail(ConnectionError("it was never ready"))
        raise
    return made


@asynccontextmanager
async def _limited(address: Address, what: str, limit: str, length_ms: int) -> AsyncIterator[None]:
    """Turn everything that prevents a connection, an invalid host or port included, into Unreachable."""
    try:
        async with asyncio.timeout(length_ms / 1000):
            yield
    except TimeoutError as exc:
        raise Unreachable(str(address), f"took longer {what} than {limit} = {length_ms} ms") from exc
    except (OSError, OverflowError, UnicodeError) as exc:
        raise Unreachable(str(address), str(exc) or type(exc).__name__) from exc


def _size_buffers(transport: asyncio.BaseTransport, config: ClientConfig) -> None:
    socket = transport.get_extra_info("socket")
    for option, size in ((SO_RCVBUF, config.receive_buffer_bytes), (SO_SNDBUF, config.send_buffer_bytes)):
        if size is not None and socket is not None:
            socket.setsockopt(SOL_SOCKET, option, size)
