"""Connections of the broker: frames from sockets, answers to sockets. The dispatcher handles the frames.

Order. Answers leave in the order of the requests [SRV-1]. As in Kafka a request is started when the one
before it is answered; only requests that are `is_pipelined` (Produce) are started behind one another, so that
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
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator
from functools import partial
from typing import Any, Final, Protocol, cast

from msgspec import field

from tallystick.broker.authorizer.known_rights import KnownRights
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.server.connection_limits import ConnectionCounts
from tallystick.broker.server.listening import (
    ListeningPort,
    explain_length,
    list_signing_keys,
    load_keys,
    make_ports,
    prepare_keys,
)
from tallystick.broker.server.login import LoginRefused
from tallystick.broker.server.login_gate import LoginGate
from tallystick.broker.server.login_rules import FindScramCredential, find_no_credential
from tallystick.broker.server.request_context import DEFAULT_LISTENER
from tallystick.broker.server.request_memory import LargeRequestMemory, RequestMemory
from tallystick.broker.server.unsent import CLOSED_TRANSPORT, HandedOver, UnsentAnswers
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.kernel.value import Value, replace
from tallystick.protocol.frames import Buffer, InvalidFrameLength, ReceiveBuffer, join_small
from tallystick.security.principals import ANONYMOUS, Principal

_log = logging.getLogger("tallystick.broker.server")

ResponseBuffers = list[Buffer] | None  # None: no answer is sent


class ExclusiveResponse:
    """Marks a pipelined request behind which nothing may be started before it is answered."""

    def __init__(self, answer: Awaitable[ResponseBuffers]) -> None:
        self.response = answer

    def __await__(self) -> Generator[Any, None, ResponseBuffers]:
        return self.response.__await__()


BUFFER_BYTES: Final = 16 * KIB
# While memory is short, a connection whose large request makes no progress for this long is closed.
STUCK_REQUEST_S: Final = 3.0
WRITE_HIGH_WATER_BYTES: Final = 1 * MIB
PIPELINE_MAX: Final = 256
_SMALL_BYTES: Final = 64 * KIB


class CloseConnection(TallystickError):
    """The peer violated the protocol; the message is for the log."""


class FrameHandler(Protocol):
    """Handling of frames, as used by connections."""

    def is_pipelined(self, frame: memoryview) -> bool:
        """Return whether this request may be started behind unanswered ones of its kind."""
        ...

    def is_cancellable(self, frame: memoryview) -> bool:
        """Return whether work on this request may be dropped when its connection ends."""
        ...

    def get_frame_bytes_max(self, api_key: int) -> int:
        """Return the largest size of a request of an API."""
        ...

    def dispatch(self, frame: memoryview, peer: "Peer") -> ResponseBuffers | Awaitable[ResponseBuffers]:
        """Answer a request. Raises CloseConnection.

        `frame` is valid until this returns, and one above `BUFFER_BYTES` for as long as it is kept.
        """
        ...


class Peer(Value):
    """The client at the other end; its string is for the log.

    A connection has a new one after each login: requests keep the principal and the rights they came with.
    """

    host: str
    port: int
    connection_id: int
    listener: str = DEFAULT_LISTENER
    principal: Principal = ANONYMOUS
    known_rights: KnownRights = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}#{self.connection_id}"


class _PendingResponse:
    """The place of one answer in the order of a connection."""

    __slots__ = ("is_cancellable", "is_done", "response", "task")

    def __init__(self) -> None:
        self.is_done = self.is_cancellable = False
        self.response: ResponseBuffers = None
        self.task: asyncio.Future[ResponseBuffers] | None = None


class ServerConnection(asyncio.BufferedProtocol):
    """One client. Lives on the loop; owned by its Server.

    A half-closed connection is closed, as asyncio does by default: Kafka's clients do not half-close.
    """

    __slots__ = (
        "_gate",
        "_is_closing",
        "_is_ending",
        "_is_exclusive",
        "_is_reading_paused",
        "_is_writing_paused",
        "_large_memory",
        "_pending",
        "_port",
        "_receive_buffer",
        "_send_queue",
        "_server",
        "_transport",
        "handed_over",
        "last_active_s",
        "peer",
        "was_refused",
    )

    def __init__(self, server: "Server", port: ListeningPort) -> None:
        self._server, self._port = server, port
        self._pending: deque[_PendingResponse] = deque()
        self._send_queue: list[Buffer] = []
        self.handed_over = HandedOver()
        self._is_exclusive = self._is_ending = self.was_refused = False
        self._is_reading_paused = self._is_writing_paused = self._is_closing = False
        self.last_active_s = server.loop.time()
        self._gate: LoginGate | None = None

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        # uvloop's transport has the methods of asyncio.Transport and not the type.
        self._transport = cast(asyncio.Transport, transport)
        address = self._transport.get_extra_info("peername") or ("unknown", 0)
        host, port = str(address[0]), int(address[1])
        refusal = None
        try:
            principal = self._port.identify(self._transport)
        except TallystickError as exc:
            principal, refusal = ANONYMOUS, str(exc)
        self.peer = Peer(host, port, server.take_connection_id(), self._port.name, principal)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        check_size: Callable[[int, memoryview], None] = server.check_large_request
        logins = self._port.logins
        if logins is not None:
            # Thousands that never log in are one line a second in the log.
            refuse = partial(server.refuse_connection, self)
            self._gate = LoginGate(logins, server.loop, server.failed_logins, refuse, host)
            check_size = self._gate.limit(check_size)
        elif self._port.authentications is not None:
            count = self._port.authentications
            (count.record_failure if refusal else count.record_success)(is_renewal=False)
        self._large_memory = LargeRequestMemory(server.memory, host, check_size, server.loop.time)
        self._receive_buffer = ReceiveBuffer(BUFFER_BYTES, server.frame_bytes_max, self._large_memory)
        refusal = server.register(self) or refusal
        if refusal is not None:
            server.refuse_connection(self, refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gate is not None:
            self._gate.stop()
        self._is_ending = self._is_ending or self._is_closing  # it was not the peer: start nothing more
        self._is_closing = True
        slots = [slot for slot in self._pending if slot.task is not None]
        self._pending.clear()
        for slot in slots:
            if slot.is_cancellable:
                # After its first step, without which what it was given would never be awaited.
                self._server.loop.call_soon(cast("asyncio.Future[ResponseBuffers]", slot.task).cancel)
            else:
                self._pending.append(slot)
        self._transport = CLOSED_TRANSPORT
        for tell in self._server.loss_listeners:
            tell(self.peer.connection_id)
        self._carry_out_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive_buffer.get_writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._receive_buffer.add(nbytes)
        self._advance()

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._server.loop.call_soon(self._server.unsent.check)

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self.last_active_s = self._server.loop.time()
        self._advance()

    # -------------------------------------------------------------------- cutting frames

    def _advance(self) -> None:
        """Start every request that may start, then send ready answers and update reading."""
        try:
            while not self._is_closing and self._start_next():
                pass
        except (CloseConnection, LoginRefused) as exc:
            self._is_ending = True
            _log.warning("%s: closed: %s", self.peer, exc)
        if self._is_closing:
            return
        if self._send_queue:
            self._send()
        if self._is_ending:
            self._close_when_answered()
        else:
            self._update_reading()

    def _start_next(self) -> bool:
        """Start the next whole frame if its turn has come. Returns False when nothing can be started now."""
        if (
            self._is_writing_paused
            or self._is_exclusive
            or self._is_ending
            or len(self._pending) >= PIPELINE_MAX
        ):
            return False
        try:
            frame = self._receive_buffer.next_frame()
        except InvalidFrameLength as exc:
            raise CloseConnection(explain_length(exc, self._port.name)) from exc
        if frame is None or not self._start_request(frame):
            return False
        self._receive_buffer.consume()
        return True

    def _carry_out_received(self) -> None:
        """Carry out what the peer sent before it closed the connection, without answers.

        Kafka's Selector does the same with its closing channels: a LeaveGroup behind a heartbeat is not lost.
        """
        self._is_writing_paused = False
        self._is_exclusive = self._is_exclusive and bool(self._pending)
        try:
            while self._start_next():
                pass
        except (CloseConnection, LoginRefused):
            self._is_ending = True
        if not self._pending:
            self._receive_buffer.discard_large()
            self._server.unregister(self)

    def _start_request(self, frame: memoryview) -> bool:
        server = self._server
        is_pipelined = server.dispatcher.is_pipelined(frame)
        if self._pending and not is_pipelined:
            return False
        if self._is_closing and server.dispatcher.is_cancellable(frame):
            return True  # it would wait for something, and then answer a peer that is gone
        self.last_active_s = server.loop.time()
        answer = None if self._gate is None else _take_login(self, self._gate, frame)
        if answer is None:
            answer = server.dispatcher.dispatch(frame, self.peer)
        if isinstance(answer, list) or answer is None:
            if self._is_closing:
                return True
            if not self._pending:
                if answer:
                    self._queue(answer)
                return True
            slot = _PendingResponse()
            slot.is_done, slot.response = True, answer
            self._pending.append(slot)
            return True
        slot = _PendingResponse()
        slot.task = asyncio.ensure_future(
            answer.response if isinstance(answer, ExclusiveResponse) else answer
        )
        slot.is_cancellable = server.dispatcher.is_cancellable(frame)
        self._is_exclusive = not is_pipelined or isinstance(answer, ExclusiveResponse)
        self._pending.append(slot)
        slot.task.add_done_callback(lambda task: self._on_answered(slot, task))
        return True

    def _on_answered(self, slot: _PendingResponse, task: "asyncio.Future[ResponseBuffers]") -> None:
        if self._is_closing:
            if not task.cancelled():
                task.exception()
            if slot in self._pending:
                self._pending.remove(slot)
                self._carry_out_received()
            return
        try:
            slot.response = task.result()
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
        slot.is_done, slot.task = True, None
        slots = self._pending
        while slots and slots[0].is_done:
            ready = slots.popleft().response
            if ready:
                self._queue(ready)
        self._is_exclusive = self._is_exclusive and bool(slots)
        self._advance()

    # ------------------------------------------------------------------- pausing, sending

    def _update_reading(self) -> None:
        """Stop reading while the buffer is full or no request may start [SRV-2]."""
        buffer = self._receive_buffer
        full = buffer.is_full or (buffer.has_large and not self._server.may_receive(self))
        if full != self._is_reading_paused:
            self._is_reading_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def maybe_resume_reading(self) -> None:
        """Resume reading if this connection waited for memory: some was given back."""
        if self._receive_buffer.has_large and not self._is_closing:
            self._update_reading()

    def _queue(self, answer: list[Buffer]) -> None:
        """Queue an answer, and send once enough is queued.

        Small answers to pipelined requests leave together; enough for a write goes at once, so that the
        transport reports a slow peer before the next request is begun [SRV-2].
        """
        self._send_queue += answer
        if sum(map(len, self._send_queue)) > _SMALL_BYTES:
            self._send()

    def _send(self) -> None:
        out, self._send_queue = join_small(self._send_queue), []
        self.handed_over.add(sum(map(len, out)))
        if len(out) > 1 and self._server.supports_scatter:
            self._transport.writelines(out)
        else:  # asyncio would join them
            for part in out:
                self._transport.write(part)
        self._server.unsent.add(self)

    # ------------------------------------------------------------------------- the end

    def _close_when_answered(self) -> None:
        """Answer the requests before the protocol violation, in order, then close."""
        self._pause_reading()
        if not self._pending:
            # Sends buffered answers; the sweep closes a connection whose peer does not read them.
            self._transport.close()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    @property
    def announced_bytes(self) -> int:
        """Size of the large request that is being received; 0 without one."""
        return self._receive_buffer.announced_bytes

    def is_stuck(self, patience_s: float) -> bool:
        """Return whether the peer sent too little of a large request for too long, while we were reading."""
        received_bytes = self._receive_buffer.large_received_bytes
        if self._is_reading_paused or not self._receive_buffer.is_receiving_large:
            self._large_memory.record_progress(received_bytes)
            return False
        return self._large_memory.is_stuck(received_bytes, patience_s)

    @property
    def is_busy(self) -> bool:
        """Whether answers are pending while the peer keeps reading."""
        return bool(self._pending) and not self._is_writing_paused

    @property
    def unsent_bytes(self) -> int:
        return int(self._transport.get_write_buffer_size())

    def close(self, why: str) -> None:
        """Log and close immediately; unsent answers are lost."""
        if not self._is_closing:
            _log.warning("%s: closed: %s", self.peer, why)
            self.abort()

    def abort(self) -> None:
        """Close immediately, without a log line."""
        self._is_closing = True
        self._transport.abort()

    def cancel_work(self) -> "list[asyncio.Future[ResponseBuffers]]":
        """Begin nothing more, and cancel and return what is under way."""
        self._is_ending = True
        tasks = [slot.task for slot in self._pending if slot.task is not None]
        for task in tasks:
            self._server.loop.call_soon(task.cancel)  # as in `connection_lost`
        return tasks

    def drain(self) -> bool:
        """Accept no further request; return True when every answer has been handed to the kernel."""
        if self._is_closing:
            return not self._pending  # its client may be gone while a change is under way
        self._pause_reading()
        if self._pending or self.unsent_bytes:
            return False
        self._is_closing = True
        self._transport.close()
        return True


def _take_login(
    connection: ServerConnection, gate: LoginGate, frame: memoryview
) -> ResponseBuffers | Awaitable[ResponseBuffers]:
    """Answer a request of the login; None: the request is for the dispatcher. Raises: LoginRefused."""
    answer = gate.take(frame, connection.peer)
    _apply_login(connection, gate)
    if answer is None or isinstance(answer, list):
        return answer
    return _finish_login(connection, gate, answer)


async def _finish_login(
    connection: ServerConnection, gate: LoginGate, answer: Awaitable[ResponseBuffers]
) -> ResponseBuffers:
    """Wait for the answer to a request of the login, and apply it before the next request is started."""
    buffers = await answer
    _apply_login(connection, gate)
    return buffers


def _apply_login(connection: ServerConnection, gate: LoginGate) -> None:
    if gate.has_failed:
        connection._is_ending = True
    elif gate.principal is not connection.peer.principal:
        connection.peer = replace(connection.peer, principal=gate.principal, known_rights={})


class Server:
    """The listening sockets and their connections."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatcher: FrameHandler,
        connections_max: Callable[[], int],
        *,
        memory: RequestMemory | None = None,
        find_credential: FindScramCredential = find_no_credential,
        patience_s: float = STUCK_REQUEST_S,
    ) -> None:
        """Create a server that is not listening. Raises: BadConfig, if the keys of a listener cannot be used.

        Args:
            connections_max: returns how many connections the descriptors suffice for now.
            memory: the account that is shared with handlers.
            find_credential: returns what a login with SCRAM is checked with.
        """
        self.memory = memory or RequestMemory(lambda: self._config.queued_max_request_bytes)
        self.memory.release_listeners.append(self._schedule_recheck)
        self.patience_s = patience_s
        self._stuck_timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self.supports_scatter = type(self.loop).__module__.startswith("uvloop")
        self.dispatcher = dispatcher
        self.frame_bytes_max = config.socket_request_max_bytes
        self._config, self._last_connection_id = config, 0
        self._connections: dict[int, ServerConnection] = {}
        self._refusals = LogThrottle(self.loop.time)
        self.failed_logins = LogThrottle(self.loop.time)
        self.unsent = UnsentAnswers(
            self.loop, lambda: self._config.queued_max_response_bytes, patience_s, self.memory.grant_turns
        )
        self.loss_listeners: list[Callable[[int], None]] = []  # are given the id of a lost connection
        problems: list[str] = []
        with collect_problems(problems):
            self._counts = ConnectionCounts(config, connections_max)
        with collect_problems(problems):
            self.ports = make_ports(config.make_listeners(), self, find_credential)
        if problems:
            raise BadConfig("\n".join(problems))
        self.authentications = {
            port.name: port.authentications for port in self.ports if port.authentications is not None
        }
        self._idle_timer: asyncio.TimerHandle | None = None

    async def prepare(self) -> None:
        """Fetch the keys that logins are checked with. Raises: BadConfig with every listener's problem."""
        problems = []
        for keys in list_signing_keys(self.ports):
            try:
                await keys.start()
            except BadConfig as exc:
                problems.append(str(exc))
        if problems:
            raise BadConfig("\n".join(problems))

    async def start(self) -> tuple[str, int]:
        """Listen, and return the address of the first listener, with the chosen port if it was 0.

        Raises: OSError.
        """
        for port in self.ports:
            await port.start(self._config.socket_listen_backlog_size)
        self._schedule_idle_check()
        return self.ports[0].address

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The bound address of each listener, by its name."""
        return {port.name: port.address for port in self.ports}

    async def stop(self, deadline_s: float) -> None:
        """Accept no connection, answer pending requests, close; at the deadline the rest is cut."""
        for timer in (self._idle_timer, self._stuck_timer):
            if timer is not None:
                timer.cancel()
        self.unsent.stop()
        for port in self.ports:
            port.close()
        for keys in list_signing_keys(self.ports):
            keys.stop()
        give_up_at = self.loop.time() + deadline_s
        while [c for c in list(self._connections.values()) if not c.drain()]:
            if self.loop.time() >= give_up_at:
                break
            await asyncio.sleep(0.005)
        cancelled = []
        for connection in list(self._connections.values()):
            connection.close("the broker is stopping")
            cancelled += connection.cancel_work()  # it must not go on when the broker's files are closed
        await asyncio.gather(*cancelled, return_exceptions=True)

    # ------------------------------------------------------------- called by connections

    def take_connection_id(self) -> int:
        self._last_connection_id += 1
        return self._last_connection_id

    def register(self, connection: ServerConnection) -> str | None:
        """Count a new connection; return the reason to refuse it if it is one too many."""
        peer = connection.peer
        self._connections[peer.connection_id] = connection
        why = self._counts.add(peer.listener, peer.host)
        connection.was_refused = bool(why)
        return why

    def find_refusal(self, listener: str, host: str, handshakes: int, handshakes_of_host: int) -> str | None:
        """Return why no further connection from `host` is let in, even before its handshake."""
        return self._counts.find_refusal(listener, host, handshakes, handshakes_of_host)

    def make_connection(self, port: ListeningPort) -> ServerConnection:
        """Return the protocol of a new connection at a port."""
        return ServerConnection(self, port)

    def refuse_connection(self, connection: ServerConnection, why: str) -> None:
        """Close one connection too many; a flood of them is logged as one line per second."""
        more = self._refusals.take()
        if more is None:
            connection.abort()
        else:
            connection.close(f"{why}{more}")

    def unregister(self, connection: ServerConnection) -> None:
        """Count a connection no longer: it is lost, and what it began has ended."""
        peer = connection.peer
        self.unsent.discard(connection)
        if self._connections.pop(peer.connection_id, None) is not None:
            self._counts.remove(peer.listener, peer.host, was_refused=connection.was_refused)

    def check_large_request(self, size: int, head: memoryview) -> None:
        """Raise CloseConnection for a request that is larger than its API allows."""
        api_key = int.from_bytes(head[:2], "big", signed=True)
        limit = self.dispatcher.get_frame_bytes_max(api_key)
        if size > limit:
            raise CloseConnection(
                f"a request has {size} bytes, but one of API key {api_key} may have at most {limit}"
            )

    def may_receive(self, connection: ServerConnection) -> bool:
        """Return whether a connection may continue to receive a large request.

        One connection of a host always may, so that too little memory is slow and not a deadlock; but while
        the limit of the broker is exceeded, only one connection of all hosts may. None of a host does whose
        large request waits for its turn: another one would wait, too.
        """
        host = connection.peer.host
        if not self.memory.is_short_for(host):
            return True
        if self._stuck_timer is None:
            self._stuck_timer = self.loop.call_later(self.patience_s / 3, self._close_stuck_connections)
        receivers = (
            c
            for c in self._connections.values()
            if c.announced_bytes
            and (self.memory.is_short or c.peer.host == host)
            and not self.memory.has_large_of(c.peer.host)
        )
        return next(receivers, None) is connection

    def _close_stuck_connections(self) -> None:
        """Close stuck connections while memory is short, the largest announced request first."""
        self._stuck_timer = None
        receiving = [c for c in self._connections.values() if c.announced_bytes]
        stuck_connections = [c for c in receiving if c.is_stuck(self.patience_s)]
        for connection in sorted(stuck_connections, key=lambda c: c.announced_bytes, reverse=True):
            if not self.memory.is_short_for(connection.peer.host):
                break
            connection.close(
                f"memory for requests is short, and of {connection.announced_bytes} bytes it sent too few "
                f"in {self.patience_s:.0f} s"
            )
            connection._receive_buffer.discard_large()
        if any(self.memory.is_short_for(c.peer.host) for c in receiving):
            self._stuck_timer = self.loop.call_later(self.patience_s / 3, self._close_stuck_connections)

    def _schedule_recheck(self) -> None:
        for connection in list(self._connections.values()):
            self.loop.call_soon(connection.maybe_resume_reading)

    @property
    def is_listening(self) -> bool:
        return all(port.is_listening for port in self.ports)

    def apply_config(self, config: BrokerConfig) -> None:
        """Apply limits that were changed at run time."""
        self._config = config
        self._counts.apply(config)

    def load_config(self, config: BrokerConfig) -> None:
        """Apply the stored settings before the server listens. Raises: BadConfig."""
        self._counts.load(config)
        self.apply_config(config)
        load_keys(self.ports, config.make_listeners())

    async def prepare_change(self, config: BrokerConfig, touched: Collection[str]) -> Callable[[], None]:
        """Load the keys and find the addresses of changed settings; return what puts them in use.

        Raises: BadConfig; nothing has changed then.
        """
        problems: list[str] = []
        with collect_problems(problems):
            use_addresses = await self._counts.prepare(config, touched)
        with collect_problems(problems):
            use_keys = await prepare_keys(self.ports, config.make_listeners(), touched)
        if problems:
            raise BadConfig("\n".join(problems))

        def use() -> None:
            use_keys()
            use_addresses()

        return use

    def _schedule_idle_check(self) -> None:
        period_s = min(max(self._config.connections_max_idle_ms / 10_000, 0.05), 10.0)
        self._idle_timer = self.loop.call_later(period_s, self._close_idle)

    def _close_idle(self) -> None:
        idle_ms = self._config.connections_max_idle_ms
        since = self.loop.time() - idle_ms / 1000
        for connection in list(self._connections.values()):
            if connection.last_active_s < since and not connection.is_busy:
                connection.close(f"no request completed for connections.max.idle.ms, {idle_ms}")
        self._schedule_idle_check()
