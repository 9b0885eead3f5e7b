"""Request dispatch: headers, versions, decoding, the handler, encoding, and failures of each step.

As in Kafka, a request that cannot be decoded, or whose API or version this broker does not have, closes the
connection; only ApiVersions answers an unknown version, so that a newer client can learn which one to use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from struct import Struct
from typing import Final, TypeVar

from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.handlers.listing import Sliced
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.server import Alone, Answer, Buffer, CloseConnection, Peer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import KIB, REQUEST_BYTES_MAX, REQUEST_BYTES_PER_PARTITION
from tallystick.kernel.value import frozen
from tallystick.protocol import DecodeError, decode_prefix, encode_parts
from tallystick.protocol.apis import API, ApiKey, ApiSpec
from tallystick.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.wire import struct_spec

_log = logging.getLogger("tallystick.broker.dispatch")

Q = TypeVar("Q")

Body = list[Buffer] | None  # a response without length and header; None: no response (acks=0)
RawHandler = Callable[[Broker, memoryview, RequestContext], Body | Awaitable[Body]]
Handler = Callable[[Broker, Q, RequestContext], object]

# A request up to this size is decoded on the event loop, within a few milliseconds.
QUICK_BYTES: Final = 64 * KIB

_HEADER_START: Final = Struct(">hhi")
_ANSWER_START: Final = Struct(">ii")


@frozen
class HandlerEntry:
    """An API with its handler.

    pipelined_bytes_max   up to this size it may start behind unanswered requests that are pipelined, too
    cancellable           is dropped when its connection closes; anything else runs to its end, so that no
                          change to topics or groups stops half-way
    carries_records       may be as large as socket.request.max.bytes
    """

    spec: ApiSpec
    run: RawHandler
    pipelined_bytes_max: int = 0
    cancellable: bool = False
    carries_records: bool = False


def message(api: ApiKey, handle: Handler[Q], *, pipelined: bool = False) -> HandlerEntry:
    """Wrap a handler of messages: decode its request and encode its response.

    `handle` returns the response, a `Sliced`, or an awaitable of one of them.
    """
    spec = API[api]
    request: type[Q] = spec.request

    def run(broker: Broker, body: memoryview, context: RequestContext) -> Body | Awaitable[Body]:
        if len(body) > QUICK_BYTES:
            return _run_beside(broker, request, handle, body, context)
        # As in Kafka, bytes after the request are ignored: librdkafka 2.16 sends three of them after a
        # Metadata v13 for all topics.
        value, _ = decode_prefix(request, body, context.api_version)
        response = handle(broker, value, context)
        if isawaitable(response):
            return _encoded(response, context.api_version)
        if isinstance(response, Sliced) and not response.is_short:
            return _in_slices(response, context.api_version)
        return _at_once(response, context.api_version)

    # A smaller request must not overtake one that is being decoded in a thread.
    return HandlerEntry(spec, run, QUICK_BYTES if pipelined else 0)


def raw(
    api: ApiKey,
    run: RawHandler,
    *,
    pipelined: bool = False,
    cancellable: bool = False,
    carries_records: bool = False,
) -> HandlerEntry:
    """Wrap a handler of bytes. The body is a view of the connection's buffer, valid until `run` returns."""
    return HandlerEntry(API[api], run, INT32_MAX if pipelined else 0, cancellable, carries_records)


async def _run_beside(
    broker: Broker, request: type[Q], handle: Handler[Q], body: memoryview, context: RequestContext
) -> Body:
    """Serve a large request: decode it in a thread, one at a time for all connections [SRV-3]."""
    version, room = context.api_version, request_bytes_max(broker.config)
    with broker.request_memory.taken(context.client_host, len(body)):
        async with broker.decoding:
            value, _ = await asyncio.to_thread(decode_prefix, request, body, version, room=room)
    response = handle(broker, value, context)
    if isawaitable(response):
        response = await response
    if isinstance(response, Sliced):
        return await _in_slices(response, version)
    return list(await asyncio.to_thread(encode_parts, response, version))


async def _encoded(response: Awaitable[object], version: int) -> Body:
    ready = await response
    if isinstance(ready, Sliced) and not ready.is_short:
        return await _in_slices(ready, version)
    return _at_once(ready, version)


def _at_once(response: object, version: int) -> Body:
    if isinstance(response, Sliced):
        response = response.whole()
    return list(encode_parts(response, version))


async def _in_slices(listed: Sliced, version: int) -> Body:
    parts: list[Buffer] = []
    for part in listed.slices(version):
        parts.append(part)
        await asyncio.sleep(0)  # yield to other connections
    return parts


def request_bytes_max(config: BrokerConfig) -> int:
    """Return the size limit of a request that carries no records."""
    return max(REQUEST_BYTES_MAX, REQUEST_BYTES_PER_PARTITION * config.max_partitions)


class Dispatcher:
    """Router of the frames of all connections. Lives on the event loop."""

    def __init__(self, broker: Broker, handlers: Mapping[ApiKey, HandlerEntry]) -> None:
        self._broker = broker
        self._handlers: dict[int, HandlerEntry] = {int(key): entry for key, entry in handlers.items()}

    def pipelined(self, frame: memoryview) -> bool:
        entry = self._handlers.get(int.from_bytes(frame[:2], "big", signed=True))
        return entry is not None and len(frame) <= entry.pipelined_bytes_max

    def frame_bytes_max(self, api_key: int) -> int:
        """Return the size limit of a request of an API; a larger one is not even received."""
        entry, config = self._handlers.get(api_key), self._broker.config
        if entry is not None and entry.carries_records:
            return config.socket_request_max_bytes
        return min(request_bytes_max(config), config.socket_request_max_bytes)

    def cancellable(self, frame: memoryview) -> bool:
        entry = self._handlers.get(int.from_bytes(frame[:2], "big", signed=True))
        return entry is not None and entry.cancellable

    def dispatch(self, frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
        """Answer one request.

        Raises: CloseConnection, with a text for the log, when there is no response to send.
        """
        if len(frame) < _HEADER_START.size:
            raise CloseConnection(f"a request of {len(frame)} bytes has no room for a header")
        key, version, correlation_id = _HEADER_START.unpack_from(frame)
        entry = self._handlers.get(key)
        if entry is None:
            raise CloseConnection(f"API key {key} (version {version}) is not served here")
        spec = entry.spec
        if not spec.min_version <= version <= spec.max_version:
            if key == ApiKey.API_VERSIONS:
                return _unsupported_api_versions(spec, correlation_id)
            raise CloseConnection(
                f"{spec.name} version {version} is not served, {spec.min_version} to {spec.max_version} are"
            )
        try:
            header, at = decode_prefix(RequestHeader, frame, spec.request_header_version(version))
        except DecodeError as exc:
            raise CloseConnection(f"{spec.name} version {version} has an unreadable header: {exc}") from exc
        context = RequestContext(
            key, version, correlation_id, header.client_id, peer.host, peer.connection_id
        )
        try:
            body = entry.run(self._broker, frame[at:], context)
        except DecodeError as exc:
            raise _unreadable(spec, context, exc) from exc
        except CloseConnection:
            raise
        except Exception:
            body = _failed(spec, context, peer)
        if isinstance(body, list) or body is None:
            return _framed(spec, context, body)
        later = self._later(spec, context, body, peer)
        return Alone(later) if isinstance(body, Alone) else later

    async def _later(
        self, spec: ApiSpec, context: RequestContext, body: Awaitable[Body], peer: Peer
    ) -> Answer:
        try:
            ready = await body
        except DecodeError as exc:
            raise _unreadable(spec, context, exc) from exc
        except CloseConnection:
            raise
        except Exception:
            ready = _failed(spec, context, peer)
        return _framed(spec, context, ready)


def _unreadable(spec: ApiSpec, context: RequestContext, why: DecodeError) -> CloseConnection:
    return CloseConnection(f"{spec.name} version {context.api_version} cannot be read: {why}")


def _framed(spec: ApiSpec, context: RequestContext, body: Body) -> Answer:
    if body is None:
        return None
    tags = b"\0" if spec.response_header_version(context.api_version) else b""
    size = 4 + len(tags) + sum(map(len, body))
    return [_ANSWER_START.pack(size, context.correlation_id) + tags, *body]


def _unsupported_api_versions(spec: ApiSpec, correlation_id: int) -> Answer:
    """Answer with version 0, whatever version was requested, and the served range (KIP-511)."""
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(api_key=spec.key, min_version=spec.min_version, max_version=spec.max_version),),
    )
    body = b"".join(encode_parts(response, 0))
    return [_ANSWER_START.pack(4 + len(body), correlation_id) + body]


def _failed(spec: ApiSpec, context: RequestContext, peer: Peer) -> Body:
    """Log a handler's exception, and answer UNKNOWN_SERVER_ERROR if the response has an error code."""
    _log.exception("%s: %s version %d failed", peer, spec.name, context.api_version)
    names = {field.name for field in struct_spec(spec.response).fields}
    if "error_code" in names:
        try:
            response = spec.response(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            return list(encode_parts(response, context.api_version))
        except (TypeError, DecodeError):
            pass
    raise CloseConnection(f"{spec.name} failed, and its response has no place for an error")
