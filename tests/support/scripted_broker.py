"""A socket that answers as a test says: with Kafka's frames, and any bytes the test puts in them.

It is neither a broker nor a test double of one: it does what our broker never does, such as garbage, silence,
old versions and closing the connection in the middle.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ssl import SSLContext
from types import TracebackType
from typing import Self

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol import decode, decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.cluster.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.topics.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class HangUp(Exception):
    """Close the connection instead of answering."""


@dataclass
class Seen:
    """A request as it was received."""

    key: ApiKey
    version: int
    request: object
    connection: int


Answer = object | bytes | None
"""A response; bytes to send as they are; None for silence."""

Script = Callable[[Seen], Answer | Awaitable[Answer]]


@dataclass
class ScriptedBroker:
    """Listens inside `async with`; `scripts` holds the answer for each API."""

    node_id: int = 1
    scripts: dict[ApiKey, Script] = field(default_factory=dict)
    greeting: bytes | None = None  # sent at once to every client that connects
    features: dict[str, int] = field(default_factory=dict)
    features_epoch: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    ssl: SSLContext | None = None
    host: str = "127.0.0.1"  # as metadata names it

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def count(self, key: ApiKey) -> int:
        return sum(seen.key is key for seen in self.seen)

    async def __aenter__(self) -> Self:
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Close every connection."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.append(writer)
        self.connections += 1
        number = self.connections
        if self.greeting is not None:
            writer.write(self.greeting)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                await self._one(await reader.readexactly(size), writer, number)
        except (HangUp, asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()

    async def _one(self, frame: bytes, writer: asyncio.StreamWriter, number: int) -> None:
        key, version = ApiKey(int.from_bytes(frame[:2], "big")), int.from_bytes(frame[2:4], "big")
        spec = API_SPECS[key]
        known = version in spec
        header, at = decode_prefix(RequestHeader, frame, spec.get_request_header_version(version))
        request = decode(spec.request, memoryview(frame)[at:], version) if known else None
        seen = Seen(key, version, request, number)
        self.seen.append(seen)
        answer = self.scripts.get(key, self._default)(seen)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer is None:
            return
        if isinstance(answer, bytes):
            writer.write(answer)
            return
        writer.write(self.frame(key, version, header.correlation_id, answer))

    @staticmethod
    def frame(key: ApiKey, version: int, correlation_id: int, answer: object) -> bytes:
        """Return a whole answer frame. A refused version of ApiVersions is told in version 0 (KIP-511)."""
        spec = API_SPECS[key]
        if key is ApiKey.API_VERSIONS and getattr(answer, "error_code", 0) == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
        tags = b"\0" if spec.get_response_header_version(version) else b""
        body = correlation_id.to_bytes(4, "big") + tags + encode(answer, version)
        return len(body).to_bytes(4, "big") + body

    def _default(self, seen: Seen) -> Answer:
        match seen.key:
            case ApiKey.API_VERSIONS:
                return self.versions()
            case ApiKey.METADATA:
                return self.metadata()
            case _:
                raise HangUp

    def versions(self, **ranges: tuple[int, int]) -> ApiVersionsResponse:
        """Return all versions we know, or other ranges by API name."""
        keys = tuple(
            ApiVersion(api_key=spec.key, min_version=low, max_version=high)
            for spec in API_SPECS.values()
            for low, high in [ranges.get(spec.name, (spec.min_version, spec.max_version))]
            if high >= 0
        )
        levels = tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in self.features.items()
        )
        return ApiVersionsResponse(
            api_keys=keys, finalized_features=levels, finalized_features_epoch=self.features_epoch
        )

    def metadata(self, *others: "ScriptedBroker", **leaders: int) -> MetadataResponse:
        """Return metadata with this broker and `others`; `leaders` are topics of one partition."""
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(node_id=b.node_id, host=b.host, port=b.port) for b in (self, *others)
            ),
            cluster_id="scripted",
            controller_id=self.node_id,
            topics=tuple(
                MetadataResponseTopic(
                    name=name,
                    partitions=(
                        MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=1),
                    ),
                )
                for name, leader in leaders.items()
            ),
        )
