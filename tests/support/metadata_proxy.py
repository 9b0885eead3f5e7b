"""A proxy before one broker whose Metadata answers lack what a test takes out of them.

A list leaves the topic out; a question that names it is answered with UNKNOWN_TOPIC_OR_PARTITION.

with MetadataProxy(broker.bootstrap_servers) as proxy:
    proxy.hide("orders", answers=1)   # the next answer that has it has it no more
"""

import contextlib
import socket
import struct
import threading
from typing import Self

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.value import replace
from tallystick.protocol import decode, decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.headers import RequestHeader, ResponseHeader
from tallystick.protocol.messages.topics.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)

_METADATA = API_SPECS[ApiKey.METADATA]


class MetadataProxy:
    """Clients learn its address in place of the broker's, so all their requests pass it."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, port = bootstrap_servers.rsplit(":", 1)
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self.bootstrap_servers = f"127.0.0.1:{self._port}"
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._hidden, self._left = "", 0
        threading.Thread(target=self._accept, daemon=True).start()

    def hide(self, topic: str, answers: int) -> None:
        """Take a topic out of so many answers."""
        with self._lock:
            self._hidden, self._left = topic, answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for each in (self._listener, *self._open):
                _close(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                with self._lock:
                    self._open += [client, server]
                questions: dict[int, tuple[int, bool]] = {}
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=(*ends, questions), daemon=True).start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        is_request: bool,
        questions: dict[int, tuple[int, bool]],
    ) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _read(source, struct.unpack(">i", _read(source, 4))[0])
                if is_request:
                    key, version, correlation = struct.unpack(">hhi", frame[:8])
                    if key == ApiKey.METADATA:
                        questions[correlation] = (version, _names_topics(frame, version))
                else:
                    question = questions.pop(struct.unpack(">i", frame[:4])[0], None)
                    frame = frame if question is None else self._rewrite(frame, *question)
                sink.sendall(struct.pack(">i", len(frame)) + frame)
        _close(source)
        _close(sink)

    def _rewrite(self, frame: bytes, version: int, by_name: bool) -> bytes:
        header_version = _METADATA.get_response_header_version(version)
        head, at = decode_prefix(ResponseHeader, frame, header_version)
        answer = decode(MetadataResponse, frame[at:], version)
        brokers = tuple(replace(each, host="127.0.0.1", port=self._port) for each in answer.brokers)
        topics = answer.topics
        with self._lock:
            if self._left and any(each.name == self._hidden for each in topics):
                self._left -= 1
                topics = tuple(each for each in topics if each.name != self._hidden)
                if by_name:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    topics += (MetadataResponseTopic(error_code=code, name=self._hidden, partitions=()),)
        rewritten = replace(answer, brokers=brokers, topics=topics)
        return encode(head, header_version) + encode(rewritten, version)


def _names_topics(frame: bytes, version: int) -> bool:
    _, at = decode_prefix(RequestHeader, frame, _METADATA.get_request_header_version(version))
    return decode(MetadataRequest, frame[at:], version).topics is not None


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
