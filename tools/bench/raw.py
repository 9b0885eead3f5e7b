"""Raw requests to any broker, many concurrently: for states that no client library reaches quickly."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Self, TypeVar

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol import decode, decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiSpec
from tallystick.protocol.messages.headers import RequestHeader, ResponseHeader

R = TypeVar("R")
T = TypeVar("T")

CONNECTIONS: Final = 16
PATIENCE_S: Final = 60.0
# Retriable errors: "not yet", in one way or another.
RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class Refused(Exception):
    """The broker answered with an error that is not retriable, or with a retriable one for too long."""


class Raw:
    """One connection, with one request at a time. Made by `connect`, closed by `async with`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    async def connect(cls, bootstrap: str) -> Self:
        host, _, port = bootstrap.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, request: object, answer: type[R], version: int) -> R:
        """Send one request and wait for its answer."""
        return self.decode_answer(await self.exchange(request, version), request, answer, version)

    async def exchange(self, request: object, version: int) -> bytes:
        """Send one request and wait for its answer, which `read` decodes."""
        spec = find_spec(request)
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=spec.key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id="bench",
        )
        body = encode(header, spec.get_request_header_version(version)) + encode(request, version)
        self._writer.write(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    @staticmethod
    def decode_answer(frame: bytes, request: object, answer: type[R], version: int) -> R:
        """Decode the answer to `request` from a frame.

        Our decoder takes longer than some brokers, so measure time without it.
        """
        _, at = decode_prefix(ResponseHeader, frame, find_spec(request).get_response_header_version(version))
        return decode(answer, memoryview(frame)[at:], version)


def find_spec(request: object) -> ApiSpec:
    """Return the registry's entry for a request."""
    return next(spec for spec in API_SPECS.values() if spec.request is type(request))


async def ask_until_done(ask: Callable[[], Awaitable[R]], code_of: Callable[[R], int]) -> R:
    """Ask until the answer's error code is 0.

    Raises:
        Refused: another error came that is not retriable, or retriable ones for too long.
    """
    give_up_at = time.monotonic() + PATIENCE_S
    while code := code_of(answer := await ask()):
        if code not in RETRIED or time.monotonic() > give_up_at:
            raise Refused(f"{answer}: {ErrorCode(code).name}")
        await asyncio.sleep(0.02)
    return answer


async def run_for_each(bootstrap: str, items: Iterable[T], work: Callable[[Raw, T], Awaitable[None]]) -> None:
    """Do `work` for every item, on a few connections concurrently."""
    remaining = iter(items)

    async def work_on_one_connection() -> None:
        async with await Raw.connect(bootstrap) as raw:
            for item in remaining:
                await work(raw, item)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(work_on_one_connection())
