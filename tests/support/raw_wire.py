"""A connection that speaks our own messages to any broker: one request, one answer."""

import socket
import struct
from types import TracebackType
from typing import Self, TypeVar

from tallystick.protocol import decode, decode_prefix, encode
from tallystick.protocol.apis import API
from tallystick.protocol.messages.headers import RequestHeader, ResponseHeader

R = TypeVar("R")


class RawConnection:
    """Closed by `with`."""

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
        spec = next(spec for spec in API.values() if spec.request is type(request))
        self._sent += 1
        header = RequestHeader(
            request_api_key=spec.key,
            request_api_version=version,
            correlation_id=self._sent,
            client_id="raw",
        )
        body = encode(header, spec.request_header_version(version)) + encode(request, version)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        answered, at = decode_prefix(ResponseHeader, frame, spec.response_header_version(version))
        assert answered.correlation_id == self._sent
        return decode(cls, frame[at:], version)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data
