"""The network between clients and the broker: requests and replies are lost, late or duplicated.

Frames are the real ones, decoded and dispatched by the broker itself. A frame that arrives while no broker
runs is lost, and so is a reply to a client that has stopped waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, Protocol, TypeVar
from zlib import crc32

from harness.sim.faults import FaultPlan, Repeats
from harness.sim.loop import VirtualLoop
from harness.sim.machine import BrokerMachine
from tallystick.broker.server.server import CloseConnection, Peer, ResponseBuffers
from tallystick.kernel.value import Value
from tallystick.protocol import decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiKey, ApiSpec
from tallystick.protocol.messages.headers import RequestHeader, ResponseHeader

R = TypeVar("R")

REQUEST_TIMEOUT_S: Final = 0.4


class NoReply(Exception):
    """No reply came: whether the request was carried out is unknown."""


class RequestSender(Protocol):
    """What carries the requests of a client: the network, or its process's part of it."""

    async def call(
        self, caller: str, request: object, version: int, answer: type[R], repeats: Repeats = "none"
    ) -> R:
        """Send a request and wait for its reply. Raises: NoReply."""


class RequestExchange(Value):
    """The broker's answer to a request, seen before the reply can be lost."""

    caller: str
    api: ApiKey
    version: int
    request: object
    response: object
    life: int


class SimNetwork:
    """The network of a world; `is_quiet` ends all its faults."""

    def __init__(
        self, machine: BrokerMachine, clients: VirtualLoop, faults: FaultPlan, random: Random
    ) -> None:
        self.is_quiet = False
        self.log_line: Callable[[str], None] | None = None
        self.on_answer: list[Callable[[RequestExchange], None]] = []
        self.digest = 0  # of every frame that reached or left the broker, in order
        self._machine = machine
        self._clients = clients
        self._faults = faults
        self._random = random
        self._correlation = 0
        # The longest that a copy of a request stays under way.
        self.late_max_ms = round(1_000 * (faults.late_max_s + faults.latency_max_s))

    async def call(
        self,
        caller: str,
        request: object,
        version: int,
        answer: type[R],
        repeats: Repeats = "none",
    ) -> R:
        """Send a request and wait for its reply.

        Args:
            caller: the name of the client.
            request: the request's body.
            version: the version of the API.
            answer: the type of the response.
            repeats: whether the network may deliver the request again, or late. Before version 2 of the
                transaction protocol it may not, since nothing in such a request tells it from one for the
                next transaction (KAFKA-17754).

        Raises:
            NoReply: no reply came in time.
        """
        spec = _SPECS[type(request)]
        self._correlation += 1
        header = RequestHeader(
            request_api_key=spec.key,
            request_api_version=version,
            correlation_id=self._correlation,
            client_id=caller,
        )
        frame = encode(header, spec.get_request_header_version(version)) + encode(request, version)
        reply: asyncio.Future[R] = self._clients.create_future()
        in_flight = _RequestInFlight(
            caller=caller, spec=spec, version=version, request=request, frame=frame, reply=reply
        )
        fates = self._draw_arrivals(repeats)
        if self.log_line is not None:
            self.log_line(f"{caller} asks {self._correlation} v{version} at +{fates}: {request!r}")
        for delay_s in fates:
            self._clients.call_later(delay_s, self._deliver, in_flight)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                response = await reply
        except TimeoutError:
            raise NoReply from None
        if not isinstance(response, answer):
            raise TypeError(f"{spec.name} was answered with {response!r}")
        return response

    def _draw_arrivals(self, repeats: Repeats) -> tuple[float, ...]:
        """Return when each copy of a request arrives; nothing for a request that is lost."""
        if self.is_quiet:
            return (0.0,)
        faults, random = self._faults, self._random
        delay_s = random.uniform(0, faults.latency_max_s)
        if random.random() < faults.lose_request:
            return ()
        if repeats != "none" and random.random() < faults.repeat_request:
            later_s = random.uniform(0, faults.late_max_s) if repeats == "any time" else 0.0
            return (delay_s, delay_s + later_s)
        if repeats == "any time" and random.random() < faults.late_request:
            return (random.uniform(0, faults.late_max_s),)
        return (delay_s,)

    def _deliver(self, in_flight: "_RequestInFlight") -> None:
        if self._machine.dispatcher is None:
            self._clients.call_later(0.01, _reject_reply, in_flight.reply)
        else:
            self._machine.loop.call_soon(self._dispatch, in_flight, self._machine.boot_count)

    def _dispatch(self, in_flight: "_RequestInFlight", life: int) -> None:
        """Deliver a request to the broker, in its process."""
        dispatcher = self._machine.dispatcher
        if dispatcher is None:
            return
        self.digest = crc32(in_flight.frame, self.digest)
        peer = Peer("10.0.0.1", 1, 1)
        try:
            answer = dispatcher.dispatch(memoryview(in_flight.frame), peer)
        except CloseConnection as exc:
            self._report_closed(exc)
            return
        if isinstance(answer, list) or answer is None:
            self._send_reply(in_flight, life, answer)
        else:
            self._machine.loop.create_task(self._await_answer(in_flight, life, answer))

    async def _await_answer(
        self, in_flight: "_RequestInFlight", life: int, answer: Awaitable[ResponseBuffers]
    ) -> None:
        try:
            self._send_reply(in_flight, life, await answer)
        except CloseConnection as exc:
            self._report_closed(exc)

    def _report_closed(self, exc: CloseConnection) -> None:
        """Report a connection that the broker closed, unless its disk is broken: clients break no rule."""
        if not self._machine.is_broken:
            self._machine.loop.call_exception_handler({"message": "closed a connection", "exception": exc})

    def _send_reply(self, in_flight: "_RequestInFlight", life: int, answer: ResponseBuffers) -> None:
        """Send a reply that the broker has handed to its socket."""
        machine = self._machine
        if answer is None or machine.boot_count != life or not machine.is_alive:
            return
        frame = b"".join(answer)
        self.digest = crc32(frame, self.digest)
        spec, version = in_flight.spec, in_flight.version
        _, at = decode_prefix(ResponseHeader, frame, spec.get_response_header_version(version), 4)
        response: object = decode_prefix(spec.response, frame, version, at)[0]
        if self.log_line is not None:
            self.log_line(f"{in_flight.caller} is answered: {response!r}")
        exchange = RequestExchange(in_flight.caller, spec.key, version, in_flight.request, response, life)
        for tell in self.on_answer:
            tell(exchange)
        if self.is_quiet:
            self._clients.call_soon(_resolve_reply, in_flight.reply, response)
        elif self._random.random() >= self._faults.lose_reply:
            delay_s = self._random.uniform(0, self._faults.latency_max_s)
            self._clients.call_later(delay_s, _resolve_reply, in_flight.reply, response)


class _RequestInFlight:
    """A request under way."""

    __slots__ = ("caller", "frame", "reply", "request", "spec", "version")

    def __init__(
        self,
        *,
        caller: str,
        spec: ApiSpec,
        version: int,
        request: object,
        frame: bytes,
        reply: "asyncio.Future[Any]",
    ) -> None:
        self.caller, self.spec, self.version = caller, spec, version
        self.request, self.frame, self.reply = request, frame, reply


def _resolve_reply(reply: "asyncio.Future[object]", response: object) -> None:
    if not reply.done():
        reply.set_result(response)


def _reject_reply(reply: "asyncio.Future[object]") -> None:
    if not reply.done():
        reply.set_exception(NoReply())


_SPECS: Final = {spec.request: spec for spec in API_SPECS.values()}
