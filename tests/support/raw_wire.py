"""A connection that speaks our own messages to any broker: one request, one answer."""

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

from tallystick.protocol import decode, decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiSpec
from tallystick.protocol.messages.headers import RequestHeader, ResponseHeader

R = TypeVar("R")


class RawConnection:
    """A connection to a broker, closed by `with`."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: object, cls: type[R], version: int) -> R:
        return self.ask_all([request], cls, version)[0]

    def ask_all(self, requests: Sequence[object], cls: type[R], version: int) -> list[R]:
        """Send all requests, then read the answers, which come in the same order."""
        spec = next(spec for spec in API_SPECS.values() if spec.request is type(requests[0]))
        first = self._sent + 1
        frames = [self._frame(spec, request, version) for request in requests]
        self._socket.sendall(b"".join(frames))
        return [self._answer(spec, cls, version, number) for number in range(first, self._sent + 1)]

    def _frame(self, spec: ApiSpec, request: object, version: int) -> bytes:
        self._sent += 1
        header = RequestHeader(
            request_api_key=spec.key,
            request_api_version=version,
            correlation_id=self._sent,
            client_id="raw",
        )
        body = encode(header, spec.get_request_header_version(version)) + encode(request, version)
        return struct.pack(">i", len(body)) + body

    def _answer(self, spec: ApiSpec, cls: type[R], version: int, number: int) -> R:
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        answered, at = decode_prefix(ResponseHeader, frame, spec.get_response_header_version(version))
        assert answered.correlation_id == number
        return decode(cls, frame[at:], version)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data
