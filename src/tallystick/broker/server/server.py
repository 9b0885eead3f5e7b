"""Connections of the broker: frames from sockets, answers to sockets. The dispatcher handles the frames.

A connection owns one small buffer and cuts frames out of it in place. A frame that does not fit gets its own
buffer, which grows as its bytes arrive and is read into directly.

Order. Answers leave in the order of the requests [SRV-1]. As in Kafka a request is started when the one
before it is answered; only requests that are `pipelined` (Produce) are started behind one another, so that
several appends share one sync.

Memory. A connection starts no request while its peer does not read; it stops reading when it cannot start
one, and TCP flow control then slows the peer [SRV-2]. Requests being received share
`queued.max.request.bytes` with those that wait: a buffer begins small and doubles as its bytes arrive, so
that announcing many bytes takes no memory. While memory is short, connections that stop sending are closed,
the largest announced request first. A connection that completes no request for `connections.max.idle.ms` is
closed, even if it keeps sending single bytes.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator
from math import inf
from typing import Any, Final, Protocol, cast

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.server.request_memory import RequestMemory
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.value import frozen

_log = logging.getLogger("tallystick.broker.server")

Buffer = bytes | bytearray | memoryview
Answer = list[Buffer] | None  # None: no answer is sent


class Alone:
    """Marks a pipelined request behind which nothing may be started before it is answered."""

    def __init__(self, answer: Awaitable[Answer]) -> None:
        self.answer = answer

    def __await__(self) -> Generator[Any, None, Answer]:
        return self.answer.__await__()


BUFFER_BYTES: Final = 16 * KIB
# Initial size of a frame's buffer; larger if its connection has sent as much before.
FIRST_BUFFER_BYTES: Final = 64 * KIB
TRUSTED_BUFFER_BYTES: Final = 2 * MIB
# While memory is short, a connection that sends less than this in PATIENCE_S is closed.
PROGRESS_BYTES: Final = 16 * KIB
PATIENCE_S: Final = 3.0
WRITE_HIGH_WATER_BYTES: Final = 1 * MIB
PIPELINE_MAX: Final = 256
_SMALL_BYTES: Final = 64 * KIB
_REFUSALS_TOLD_S: Final = 1.0


class CloseConnection(TallystickError):
    """The peer violated the protocol; the message is for the log."""


class Dispatcher(Protocol):
    """Handling of frames, as used by connections."""

    def pipelined(self, frame: memoryview) -> bool:
        """Return whether this request may be started behind unanswered ones of its kind."""
        ...

    def cancellable(self, frame: memoryview) -> bool:
        """Return whether work on this request may be dropped when its connection ends."""
        ...

    def frame_bytes_max(self, api_key: int) -> int:
        """Return the largest size of a request of an API."""
        ...

    def dispatch(self, frame: memoryview, peer: "Peer") -> Answer | Awaitable[Answer]:
        """Answer a request. Raises CloseConnection.

        `frame` is valid until this returns, and one above `BUFFER_BYTES` for as long as it is kept.
        """
        ...


@frozen
class Peer:
    """The client at the other end; its string is for the log."""

    host: str
    port: int
    connection_id: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}#{self.connection_id}"


class _Slot:
    """The place of one answer in the order of a connection."""

    __slots__ = ("answer", "cancellable", "done", "task")

    def __init__(self) -> None:
        self.done = self.cancellable = False
        self.answer: Answer = None
        self.task: asyncio.Future[Answer] | None = None


class Connection(asyncio.BufferedProtocol):
    """One client. Lives on the loop; owned by its Server."""

    __slots__ = (
        "_big",
        "_big_filled",
        "_big_size",
        "_big_trust",
        "_buffer",
        "_closing",
        "_end",
        "_ending",
        "_exclusive",
        "_out",
        "_progress",
        "_reading_paused",
        "_server",
        "_slots",
        "_start",
        "_transport",
        "_view",
        "_writing_paused",
        "active_at",
        "peer",
    )

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._big: bytearray | None = None
        self._big_filled = self._big_size = 0
        self._big_trust = FIRST_BUFFER_BYTES
        self._progress = (0, 0.0)  # bytes of the large request received, and when
        self._slots: deque[_Slot] = deque()
        self._out: list[Buffer] = []
        self._exclusive = self._ending = False
        self._reading_paused = self._writing_paused = self._closing = False
        self.active_at = server.loop.time()

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport and not the type.
        self._transport = cast(asyncio.Transport, transport)
        address = self._transport.get_extra_info("peername") or ("unknown", 0)
        self.peer = Peer(str(address[0]), int(address[1]), self._server.next_connection_id())
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        refusal = self._server.admit(self)
        if refusal is not None:
            self._server.refuse(self, refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._drop_big()
        for slot in self._slots:
            if slot.task is not None and slot.cancellable:
                slot.task.cancel()
        self._slots.clear()
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._big is not None:
            return memoryview(self._big)[self._big_filled :]
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._big is not None:
            self._big_received(nbytes)
        else:
            self._end += nbytes
        self._advance()

    def eof_received(self) -> bool:
        # Pending answers are of no use to a peer that is gone, and Kafka does not half-close connections.
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.active_at = self._server.loop.time()
        self._advance()

    # -------------------------------------------------------------------- cutting frames

    def _advance(self) -> None:
        """Start every request that may start, then send ready answers and update reading."""
        try:
            while not self._closing and self._start_next():
                pass
        except CloseConnection as exc:
            self._ending = True
            _log.warning("%s: closed: %s", self.peer, exc)
        if self._closing:
            return
        if self._out:
            self._send()
        if self._ending:
            self._close_when_answered()
        else:
            self._see_about_reading()

    def _start_next(self) -> bool:
        """Start the next whole frame if its turn has come. Returns False when nothing can be started now."""
        if self._writing_paused or self._exclusive or self._ending or len(self._slots) >= PIPELINE_MAX:
            return False
        if self._big is not None:
            if self._big_filled < self._big_size:
                return False
            frame = memoryview(self._big)[: self._big_size]
            if not self._start_request(frame):
                return False
            self._drop_big()
            return True
        have = self._end - self._start
        if have < 4:
            return False
        size = int.from_bytes(self._view[self._start : self._start + 4], "big", signed=True)
        if not 0 < size <= self._server.frame_bytes_max:
            raise CloseConnection(
                f"a request of {size} bytes, socket.request.max.bytes is {self._server.frame_bytes_max}"
            )
        first = self._start + 4
        if have - 4 < size:
            if size + 4 > BUFFER_BYTES and have >= 6:
                self._begin_big(size)
            return False
        if not self._start_request(self._view[first : first + size]):
            return False
        self._start = first + size
        return True

    def _start_request(self, frame: memoryview) -> bool:
        server = self._server
        pipelined = server.dispatcher.pipelined(frame)
        if self._slots and not pipelined:
            return False
        self.active_at = server.loop.time()
        answer = server.dispatcher.dispatch(frame, self.peer)
        if isinstance(answer, list) or answer is None:
            if not self._slots:
                if answer:
                    self._queue(answer)
                return True
            slot = _Slot()
            slot.done, slot.answer = True, answer
            self._slots.append(slot)
            return True
        slot = _Slot()
        slot.task = asyncio.ensure_future(answer.answer if isinstance(answer, Alone) else answer)
        slot.cancellable = server.dispatcher.cancellable(frame)
        self._exclusive = not pipelined or isinstance(answer, Alone)
        self._slots.append(slot)
        slot.task.add_done_callback(lambda task: self._answered(slot, task))
        return True

    def _answered(self, slot: _Slot, task: "asyncio.Future[Answer]") -> None:
        if self._closing:
            if not task.cancelled():
                task.exception()
            return
        try:
            slot.answer = task.result()
        except CloseConnection as exc:
            self.close(str(exc))
            return
        except asyncio.CancelledError:
            self.close("its request was cancelled")
            return
        except Exception:
            _log.exception("%s: a request failed", self.peer)
            self.close("its request failed")
            return
        slot.done, slot.task = True, None
        slots = self._slots
        while slots and slots[0].done:
            ready = slots.popleft().answer
            if ready:
                self._queue(ready)
        if not slots:
            self._exclusive = False
        self._advance()

    # --------------------------------------------------------------------- large frames

    def _begin_big(self, size: int) -> None:
        first = self._start + 4
        received = self._end - first
        api_key = int.from_bytes(self._view[first : first + 2], "big", signed=True)
        allowed = self._server.dispatcher.frame_bytes_max(api_key)
        if size > allowed:
            raise CloseConnection(f"a request of {size} bytes; API key {api_key} has at most {allowed}")
        self._big = bytearray(min(size, self._big_trust))
        self._server.memory.take(self.peer.host, len(self._big))
        self._big[:received] = self._view[first : self._end]
        self._big_filled, self._big_size = received, size
        self._start = self._end = 0
        self._progress = (received, self._server.loop.time())

    def _big_received(self, nbytes: int) -> None:
        big = self._big
        assert big is not None
        self._big_filled += nbytes
        if self._big_filled == len(big) < self._big_size:
            grown = bytearray(min(2 * len(big), self._big_size))
            grown[: self._big_filled] = big
            self._server.memory.take(self.peer.host, len(grown) - len(big))
            self._big = grown
        elif self._big_filled == self._big_size:
            # A connection that has sent this much gets a larger buffer next time, unless memory is scarce.
            crowded = self._server.is_crowded
            self._big_trust = FIRST_BUFFER_BYTES if crowded else min(len(big), TRUSTED_BUFFER_BYTES)

    def _drop_big(self) -> None:
        if self._big is not None:
            size, self._big = len(self._big), None
            self._server.memory.give(self.peer.host, size)

    # ------------------------------------------------------------------- pausing, sending

    def _see_about_reading(self) -> None:
        """Make room in the buffer; stop reading while it is full or no request may start [SRV-2]."""
        if self._big is None and self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        if self._big is None:
            full = self._end == BUFFER_BYTES
        else:
            complete = self._big_filled == self._big_size
            full = complete or not self._server.may_receive(self)
        if full != self._reading_paused:
            self._reading_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def recheck_reading(self) -> None:
        """Resume reading if this connection waited for memory: some was given back."""
        if self._big is not None and not self._closing:
            self._see_about_reading()

    def _queue(self, answer: list[Buffer]) -> None:
        """Queue an answer, and send once enough is queued.

        Small answers to pipelined requests leave together; enough for a write goes at once, so that the
        transport reports a slow peer before the next request is begun [SRV-2].
        """
        self._out += answer
        if sum(map(len, self._out)) > _SMALL_BYTES:
            self._send()

    def _send(self) -> None:
        out, self._out = self._out, []
        if len(out) == 1:
            self._transport.write(out[0])
        # uvloop writes a list at once; asyncio joins it, which suits small parts only.
        elif self._server.scatters or sum(map(len, out)) <= _SMALL_BYTES:
            self._transport.writelines(out)
        else:
            for part in out:
                self._transport.write(part)
        self._server.sent(self)

    # ------------------------------------------------------------------------- the end

    def _close_when_answered(self) -> None:
        """Answer the requests before the protocol violation, in order, then close."""
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        if not self._slots:
            # Sends buffered answers; the sweep closes a connection whose peer does not read them.
            self._transport.close()

    @property
    def receives_big(self) -> bool:
        return self._big is not None and self._big_filled < self._big_size

    @property
    def promised_bytes(self) -> int:
        """Size of the request that is being received; 0 without a large one."""
        return self._big_size if self.receives_big else 0

    def is_stuck(self, now: float) -> bool:
        """Return whether the peer sent too little of a large request for too long, while we were reading."""
        filled, since = self._progress
        if self._reading_paused or not self.receives_big or self._big_filled >= filled + PROGRESS_BYTES:
            self._progress = (self._big_filled, now)
            return False
        return now - since >= self._server.patience_s

    @property
    def busy(self) -> bool:
        """Whether answers are pending while the peer keeps reading."""
        return bool(self._slots) and not self._writing_paused

    @property
    def unsent_bytes(self) -> int:
        return int(self._transport.get_write_buffer_size())

    def close(self, why: str) -> None:
        """Log and close at once; unsent answers are lost."""
        if not self._closing:
            _log.warning("%s: closed: %s", self.peer, why)
            self.abort()

    def release(self) -> None:
        """Give back the receive buffer of a connection that was closed."""
        self._drop_big()

    def abort(self) -> None:
        """Close at once, without a log line."""
        self._closing = True
        self._transport.abort()

    def finish(self) -> bool:
        """Take no further request; return True when every answer has been handed to the kernel."""
        if self._closing:
            return True
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        if self._slots or self.unsent_bytes:
            return False
        self._closing = True
        self._transport.close()
        return True


class Server:
    """The listening socket and its connections."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatcher: Dispatcher,
        connections_max: Callable[[], int],
        *,
        memory: RequestMemory | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Create a server that is not listening.

        Args:
            connections_max: returns how many connections the descriptors suffice for now.
            memory: the account that is shared with handlers.
        """
        self.memory = memory or RequestMemory(lambda: self._config.queued_max_request_bytes)
        self.memory.given_back.append(self._recheck_soon)
        self.patience_s = patience_s
        self._easing: asyncio.TimerHandle | None = None
        self._connections_max = connections_max
        self.loop = asyncio.get_running_loop()
        self.scatters = type(self.loop).__module__.startswith("uvloop")
        self.dispatcher = dispatcher
        self.frame_bytes_max = config.socket_request_max_bytes
        self._config = config
        self._connections: dict[int, Connection] = {}
        self._per_host: Counter[str] = Counter()
        self._ids = 0
        self._refusals_told_at, self._refusals_untold = -inf, 0
        # Connections that may have unsent bytes; `unsent_bytes` drops those that have none.
        self._senders: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self) -> tuple[str, int]:
        """Listen, and return the bound address, with the chosen port if it was 0. Raises: OSError."""
        listen = self._config.listen
        self._server = await self.loop.create_server(
            lambda: Connection(self),
            listen.host or None,
            listen.port,
            backlog=self._config.socket_listen_backlog_size,
        )
        address = self._server.sockets[0].getsockname()
        self._schedule_sweep()
        return str(address[0]), int(address[1])

    async def stop(self, deadline_s: float) -> None:
        """Accept no connection, answer pending requests, close; at the deadline the rest is cut."""
        for timer in (self._sweep, self._easing):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        give_up_at = self.loop.time() + deadline_s
        while [c for c in list(self._connections.values()) if not c.finish()]:
            if self.loop.time() >= give_up_at:
                break
            await asyncio.sleep(0.005)
        for connection in list(self._connections.values()):
            connection.finish()
            connection.close("the broker is stopping")

    # ------------------------------------------------------------- called by connections

    def next_connection_id(self) -> int:
        self._ids += 1
        return self._ids

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection; return the reason to refuse it if it is one too many."""
        peer, config = connection.peer, self._config
        self._connections[peer.connection_id] = connection
        self._per_host[peer.host] += 1
        if len(self._connections) > config.max_connections:
            return f"max.connections is {config.max_connections}"
        if len(self._connections) > (allowed := self._connections_max()):
            return (
                f"the limit of open files leaves {allowed} connections beside what the broker needs itself; "
                "raise it (ulimit -n, LimitNOFILE)"
            )
        if self._per_host[peer.host] > config.max_connections_per_ip:
            return f"max.connections.per.ip is {config.max_connections_per_ip}"
        return None

    def refuse(self, connection: Connection, why: str) -> None:
        """Close one connection too many; a flood of them is logged as one line per second."""
        now = self.loop.time()
        if now >= self._refusals_told_at + _REFUSALS_TOLD_S:
            untold = (
                f" ({self._refusals_untold} more since the last such line)" if self._refusals_untold else ""
            )
            self._refusals_told_at, self._refusals_untold = now, 0
            connection.close(f"{why}{untold}")
        else:
            self._refusals_untold += 1
            connection.abort()

    def forget(self, connection: Connection) -> None:
        peer = connection.peer
        self._senders.discard(connection)
        if self._connections.pop(peer.connection_id, None) is not None:
            self._per_host[peer.host] -= 1
            if not self._per_host[peer.host]:
                del self._per_host[peer.host]

    @property
    def is_crowded(self) -> bool:
        """Whether half of the memory for requests is taken."""
        return 2 * self.memory.bytes > self._config.queued_max_request_bytes

    def may_receive(self, connection: Connection) -> bool:
        """Return whether a connection may continue to receive a large request.

        One connection of a host always may, so that too little memory is slow and not a deadlock; but while
        the limit of the broker is exceeded, only one connection of all hosts may.
        """
        host = connection.peer.host
        if not self.memory.is_short_for(host):
            return True
        if self._easing is None:
            self._easing = self.loop.call_later(self.patience_s / 3, self._ease)
        short = self.memory.is_short
        receivers = (
            c for c in self._connections.values() if c.receives_big and (short or c.peer.host == host)
        )
        return next(receivers, None) is connection

    def _ease(self) -> None:
        """Close stuck connections while memory is short, the largest announced request first."""
        self._easing = None
        now = self.loop.time()
        waiting = [c for c in self._connections.values() if c.receives_big]
        stuck = [c for c in waiting if c.is_stuck(now)]
        for connection in sorted(stuck, key=lambda c: c.promised_bytes, reverse=True):
            if not self.memory.is_short_for(connection.peer.host):
                break
            connection.close(
                f"memory for requests is short, and of {connection.promised_bytes} bytes it sent too few "
                f"in {self.patience_s:.0f} s"
            )
            connection.release()
        if any(self.memory.is_short_for(c.peer.host) for c in waiting):
            self._easing = self.loop.call_later(self.patience_s / 3, self._ease)

    def _recheck_soon(self) -> None:
        for connection in list(self._connections.values()):
            self.loop.call_soon(connection.recheck_reading)

    @property
    def listening(self) -> bool:
        return self._server is not None and self._server.is_serving()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def sent(self, connection: Connection) -> None:
        """Note that a connection handed bytes to its transport."""
        self._senders.add(connection)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that peers have not taken yet. Cost: linear in connections that sent since the last call."""
        total = 0
        for connection in tuple(self._senders):
            size = connection.unsent_bytes
            total += size
            if not size:
                self._senders.discard(connection)
        return total

    def configure(self, config: BrokerConfig) -> None:
        """Apply limits that were changed at run time."""
        self._config = config

    def _schedule_sweep(self) -> None:
        period_s = min(max(self._config.connections_max_idle_ms / 10_000, 0.05), 10.0)
        self._sweep = self.loop.call_later(period_s, self._close_idle)

    def _close_idle(self) -> None:
        idle_ms = self._config.connections_max_idle_ms
        since = self.loop.time() - idle_ms / 1000
        for connection in list(self._connections.values()):
            if connection.active_at < since and not connection.busy:
                connection.close(f"no request completed for connections.max.idle.ms, {idle_ms}")
        self._schedule_sweep()
