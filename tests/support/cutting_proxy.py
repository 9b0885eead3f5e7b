"""A TCP proxy that loses answers after the server sent them, or requests before they arrive.

with CuttingProxy(postgresql.port) as proxy:
    proxy.lose_answer(b"COMMIT")   # the next COMMIT is done, and its client never hears of it
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

# The data of one `recv` from a client. Statements this short are never split.
Wanted = Callable[[bytes], bool]


class CuttingProxy:
    """Forwards connections to a port on loopback; a cut closes both ends of a connection."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = ("127.0.0.1", upstream_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._refusing = False
        self._lose_request: Wanted | None = None
        self._lose_answer: Wanted | None = None
        self.cuts = 0
        # Told of everything that is forwarded: the data, and whether it is the server's.
        self.watch: Callable[[bytes, bool], None] = lambda data, is_answer: None
        self._start(self._accept)

    def lose_answer(self, wanted: bytes | Wanted) -> None:
        """Forward the next such request, wait for the server's answer, and then cut the connection."""
        self._lose_answer = _matcher(wanted)

    def lose_request(self, wanted: bytes | Wanted) -> None:
        """Cut the connection instead of forwarding the next such request."""
        self._lose_request = _matcher(wanted)

    def cut(self) -> None:
        """Cut every connection, and refuse new ones until `restore`."""
        with self._lock:
            self._refusing = True
            for end in self._open:
                _close(end)
            self._open.clear()

    def restore(self) -> None:
        """Forward new connections again."""
        self._refusing = False

    def close(self) -> None:
        """Cut every connection and stop listening."""
        self.cut()
        _close(self._listener)
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._upstream, timeout=10)
            except OSError:
                _close(client)
                continue
            server.settimeout(None)
            with self._lock:
                if self._refusing:
                    _close(client, server)
                    continue
                self._open += [client, server]
            answer_is_lost = threading.Event()
            self._start(self._requests, client, server, answer_is_lost)
            self._start(self._answers, server, client, answer_is_lost)

    def _requests(
        self, client: socket.socket, server: socket.socket, answer_is_lost: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self._lose_request is not None and self._lose_request(data):
                    self._lose_request = None
                    self.cuts += 1
                    break
                if self._lose_answer is not None and self._lose_answer(data):
                    self._lose_answer = None
                    answer_is_lost.set()
                self.watch(data, False)
                server.sendall(data)
        _close(client, server)

    def _answers(self, server: socket.socket, client: socket.socket, answer_is_lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if answer_is_lost.is_set():
                    self.cuts += 1
                    break
                self.watch(data, True)
                client.sendall(data)
        _close(client, server)


def _matcher(wanted: bytes | Wanted) -> Wanted:
    return wanted if callable(wanted) else lambda data: wanted in data


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
