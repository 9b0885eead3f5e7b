"""Request dispatch: headers, versions, decoding, the handler, encoding, and failures of each step.

As in Kafka, a request that cannot be decoded, or whose API or version this broker does not have, closes the
connection; only ApiVersions answers an unknown version, so that a newer client can learn which one to use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import isawaitable
from struct import Struct
from typing import Any, Final, TypeVar

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.handlers.ports import BrokerPorts, HasRequestMemory
from tallystick.broker.handlers.sliced_response import SlicedResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.request_memory import estimate_decoded_bytes
from tallystick.broker.server.server import CloseConnection, ExclusiveResponse, Peer, ResponseBuffers
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import KIB, REQUEST_BYTES_MAX, REQUEST_BYTES_PER_PARTITION
from tallystick.kernel.value import Value
from tallystick.protocol import DecodeError, decode_prefix, encode_parts
from tallystick.protocol.apis import API_SPECS, ApiKey, ApiSpec
from tallystick.protocol.frames import Buffer
from tallystick.protocol.messages.cluster.api_versions import ApiVersion, ApiVersionsResponse
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.wire import get_struct_spec

_log = logging.getLogger("tallystick.broker.dispatch")

Q = TypeVar("Q")
V = TypeVar("V")

ResponseBody = list[Buffer] | None  # a response without length and header; None: no response (acks=0)
RawHandler = Callable[[BrokerPorts, memoryview, RequestContext], ResponseBody | Awaitable[ResponseBody]]
Handler = Callable[[BrokerPorts, Q, RequestContext], object]

# A request up to this size is decoded on the event loop, within a few milliseconds.
INLINE_DECODE_BYTES_MAX: Final = 64 * KIB

_HEADER_START: Final = Struct(">hhi")
_ANSWER_START: Final = Struct(">ii")


class HandlerEntry(Value):
    """An API with its handler.

    pipelined_bytes_max  up to this size it may start behind unanswered requests that are pipelined, too
    is_cancellable       is dropped when its connection closes, because it changes nothing, or waits for other
                         clients; anything else runs to its end, so that no change stops half-way
    carries_records      may be as large as socket.request.max.bytes
    """

    spec: ApiSpec
    run: RawHandler
    pipelined_bytes_max: int = 0
    is_cancellable: bool = False
    carries_records: bool = False


def message_entry(
    api: ApiKey,
    handle: Handler[Q],
    *,
    pipelined: bool = False,
    cancellable: bool = False,
    waits: bool = False,
) -> HandlerEntry:
    """Wrap a handler of messages: decode its request and encode its response.

    `handle` returns the response, a `SlicedResponse`, or an awaitable of one of them. One that `waits` for
    other clients holds up no large request meanwhile.
    """
    spec = API_SPECS[api]
    request: type[Q] = spec.request
    large = _LargeRequestHandler(request, handle, waits)

    def run(
        broker: BrokerPorts, body: memoryview, context: RequestContext
    ) -> ResponseBody | Awaitable[ResponseBody]:
        if len(body) > INLINE_DECODE_BYTES_MAX:
            return large.serve(broker, body, context)
        # As in Kafka, bytes after the request are ignored: librdkafka 2.16 sends three of them after a
        # Metadata v13 for all topics.
        value, _ = decode_prefix(request, body, context.api_version)
        response = handle(broker, value, context)
        if isinstance(response, spec.response):
            return _encode_now(response, context.api_version)
        if isawaitable(response):
            return _encode_when_done(response, context.api_version)
        if isinstance(response, SlicedResponse) and not response.is_short:
            return _encode_in_slices(response, context.api_version)
        return _encode_now(response, context.api_version)

    # A smaller request must not overtake one that is being decoded in a thread.
    return HandlerEntry(spec, run, INLINE_DECODE_BYTES_MAX if pipelined else 0, cancellable)


def raw_entry(
    api: ApiKey,
    run: RawHandler,
    *,
    pipelined: bool = False,
    cancellable: bool = False,
    carries_records: bool = False,
) -> HandlerEntry:
    """Wrap a handler of bytes. The body is a view of the connection's buffer, valid until `run` returns."""
    return HandlerEntry(API_SPECS[api], run, INT32_MAX if pipelined else 0, cancellable, carries_records)


class _LargeRequestHandler(Value):
    """Handler of the large requests of an API. One that `waits` does so for other clients."""

    request: type[Any]
    handle: Handler[Any]
    waits: bool

    async def serve(self, broker: BrokerPorts, body: memoryview, context: RequestContext) -> ResponseBody:
        """Serve a request in its turn. Its memory counts until it is answered [SRV-4]."""
        version, room = context.api_version, limit_request_bytes(broker.config)
        memory, host = broker.request_memory, context.client_host
        with memory.acquired(host, len(body)):
            async with memory.turn(host, estimate_decoded_bytes(len(body), room)) as turn:
                value, _ = await decode_in_thread(
                    broker, partial(decode_prefix, self.request, body, version, room=room)
                )
                if self.waits:
                    turn.end()
                response = self.handle(broker, value, context)
                if isawaitable(response):
                    response = await response
                if isinstance(response, SlicedResponse):
                    return await _encode_in_slices(response, version)
                return list(await asyncio.to_thread(encode_parts, response, version))


async def decode_in_thread(broker: HasRequestMemory, decode: Callable[[], V]) -> V:
    """Decode a large request in a thread, one at a time for all connections [SRV-3].

    A client that leaves does not end this: the thread goes on, and the next one must wait for it.
    """
    async with broker.decode_lock:
        decoding = asyncio.ensure_future(asyncio.to_thread(decode))
        try:
            return await asyncio.shield(decoding)
        except asyncio.CancelledError:
            await asyncio.wait([decoding])
            raise


async def _encode_when_done(response: Awaitable[object], version: int) -> ResponseBody:
    ready = await response
    if isinstance(ready, SlicedResponse) and not ready.is_short:
        return await _encode_in_slices(ready, version)
    return _encode_now(ready, version)


def _encode_now(response: object, version: int) -> ResponseBody:
    if isinstance(response, SlicedResponse):
        response = response.build()
    return list(encode_parts(response, version))


async def _encode_in_slices(response: SlicedResponse, version: int) -> ResponseBody:
    parts: list[Buffer] = []
    for part in response.iter_slices(version):
        parts.append(part)
        await asyncio.sleep(0)  # yield to other connections
    return parts


def limit_request_bytes(config: BrokerConfig) -> int:
    """Return the size limit of a request that carries no records."""
    return max(REQUEST_BYTES_MAX, REQUEST_BYTES_PER_PARTITION * config.max_partitions)


class RequestDispatcher:
    """Router of the frames of all connections. Lives on the event loop."""

    def __init__(self, broker: BrokerPorts, handlers: Mapping[ApiKey, HandlerEntry]) -> None:
        self._broker = broker
        self._handlers: dict[int, HandlerEntry] = {int(key): entry for key, entry in handlers.items()}

    def is_pipelined(self, frame: memoryview) -> bool:
        entry = self._handlers.get(int.from_bytes(frame[:2], "big", signed=True))
        return entry is not None and len(frame) <= entry.pipelined_bytes_max

    def get_frame_bytes_max(self, api_key: int) -> int:
        """Return the size limit of a request of an API; a larger one is not even received."""
        entry, config = self._handlers.get(api_key), self._broker.config
        if entry is not None and entry.carries_records:
            return config.socket_request_max_bytes
        return min(limit_request_bytes(config), config.socket_request_max_bytes)

    def is_cancellable(self, frame: memoryview) -> bool:
        entry = self._handlers.get(int.from_bytes(frame[:2], "big", signed=True))
        return entry is not None and entry.is_cancellable

    def dispatch(self, frame: memoryview, peer: Peer) -> ResponseBuffers | Awaitable[ResponseBuffers]:
        """Answer one request.

        Raises: CloseConnection, with a text for the log, when there is no response to send.
        """
        if len(frame) < _HEADER_START.size:
            raise CloseConnection(f"a request has {len(frame)} bytes, fewer than a header")
        key, version, correlation_id = _HEADER_START.unpack_from(frame)
        entry = self._handlers.get(key)
        if entry is None:
            raise CloseConnection(f"API key {key} (version {version}) is not supported")
        spec = entry.spec
        if not spec.min_version <= version <= spec.max_version:
            if key == ApiKey.API_VERSIONS:
                return _answer_unsupported_versions(spec, correlation_id)
            raise CloseConnection(
                f"{spec.name} version {version} is not supported, only {spec.min_version} to"
                f" {spec.max_version}"
            )
        try:
            header, at = decode_prefix(RequestHeader, frame, spec.get_request_header_version(version))
        except DecodeError as exc:
            raise CloseConnection(f"{spec.name} version {version} has an unreadable header: {exc}") from exc
        context = RequestContext(
            key,
            version,
            correlation_id,
            header.client_id,
            peer.host,
            peer.connection_id,
            peer.listener,
            peer.principal,
            peer.port,
            peer.known_rights,
        )
        try:
            body = entry.run(self._broker, frame[at:], context)
        except DecodeError as exc:
            raise _close_on_decode_error(spec, context, exc) from exc
        except CloseConnection:
            raise
        except Exception:
            body = _answer_failure(spec, context, peer)
        if isinstance(body, list) or body is None:
            return _build_frame(spec, context, body)
        later = self._answer_later(spec, context, body, peer)
        return ExclusiveResponse(later) if isinstance(body, ExclusiveResponse) else later

    async def _answer_later(
        self, spec: ApiSpec, context: RequestContext, body: Awaitable[ResponseBody], peer: Peer
    ) -> ResponseBuffers:
        try:
            ready = await body
        except DecodeError as exc:
            raise _close_on_decode_error(spec, context, exc) from exc
        except CloseConnection:
            raise
        except Exception:
            ready = _answer_failure(spec, context, peer)
        return _build_frame(spec, context, ready)


def _close_on_decode_error(spec: ApiSpec, context: RequestContext, why: DecodeError) -> CloseConnection:
    return CloseConnection(f"{spec.name} version {context.api_version} cannot be read: {why}")


def _build_frame(spec: ApiSpec, context: RequestContext, body: ResponseBody) -> ResponseBuffers:
    if body is None:
        return None
    size = 4
    for part in body:
        size += len(part)
    if spec.get_response_header_version(context.api_version):
        return [_ANSWER_START.pack(size + 1, context.correlation_id) + b"\0", *body]
    return [_ANSWER_START.pack(size, context.correlation_id), *body]


def _answer_unsupported_versions(spec: ApiSpec, correlation_id: int) -> ResponseBuffers:
    """Answer with version 0, whatever version was requested, and the served range (KIP-511)."""
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(api_key=spec.key, min_version=spec.min_version, max_version=spec.max_version),),
    )
    body = b"".join(encode_parts(response, 0))
    return [_ANSWER_START.pack(4 + len(body), correlation_id) + body]


def _answer_failure(spec: ApiSpec, context: RequestContext, peer: Peer) -> ResponseBody:
    """Log a handler's exception, and answer UNKNOWN_SERVER_ERROR if the response has an error code."""
    _log.exception("%s: %s version %d failed", peer, spec.name, context.api_version)
    names = {field.name for field in get_struct_spec(spec.response).fields}
    if "error_code" in names:
        try:
            response = spec.response(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            return list(encode_parts(response, context.api_version))
        except (TypeError, DecodeError):
            pass
    raise CloseConnection(f"{spec.name} failed, and its response has no place for an error")
