"""Files of a checkpoint for Python workers of the driver's host: the driver's Python reads and writes them.

A data source's hooks run in Python workers, which Spark starts from its Java and gives no way to it. The
program that made the session has one. `serve` makes it listen on the loopback address, and the data source
carries address and token to the workers of the driver; tasks get neither.

One request and one answer for each connection, each a line of JSON, after a short line with the token: no one
without it makes this process read more than that. Only files that a checkpoint of ours has may be named.
"""

import atexit
import hmac
import json
import os
import re
import secrets
import socket
import threading
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, Final

from tallystick.kernel.value import Value
from tallystick.spark.files.folder import CheckpointFiles, SparkFiles

_ADDRESS: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 32
_NAME: Final = re.compile(r"metadata|state|offsets/\d+|tallystick(?:/[a-z0-9-]+\.json)?")
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
_TOKEN_LINE_BYTES_MAX: Final = 2 * _TOKEN_BYTES + 1
CONNECTIONS_MAX: Final = 64
"""Each has a thread; further ones are closed at once."""
_REQUEST_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 120.0
"""An object store may be asked several times, and Hadoop repeats requests."""


class FilesAddress(Value, kw_only=True):
    """The address where the driver's Python serves files to its workers. Prints without the token."""

    port: int
    token: str
    default_is_local: bool

    def __repr__(self) -> str:
        return f"FilesAddress(port={self.port})"


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    token: str
    files: SparkFiles

    def __init__(self) -> None:
        super().__init__((_ADDRESS, 0), _Handler)
        self._slots = threading.Semaphore(CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()


class _Handler(StreamRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S

    def handle(self) -> None:
        try:
            token = self.rfile.readline(_TOKEN_LINE_BYTES_MAX).removesuffix(b"\n")
            if not hmac.compare_digest(token, self.server.token.encode()):
                return
            request = json.loads(self.rfile.readline(_LINE_BYTES_MAX))
        except (OSError, ValueError):
            return
        if isinstance(request, dict):
            answer = _answer(self.server.files, request)
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def _answer(files: SparkFiles, request: dict[str, Any]) -> dict[str, Any]:
    """Return `value`, or `error` and whether it says that there is no such file."""
    try:
        name = str(request["name"])
        if not _NAME.fullmatch(name):
            raise OSError(f"{name!r} is no file of a checkpoint")
        place = files.open(str(request["location"]))
        match request["method"]:
            case "read":
                return {"value": place.read(name)}
            case "exists":
                return {"value": place.exists(name)}
            case "list_names":
                return {"value": place.list_names(name)}
            case "write":
                place.write(name, str(request["text"]))
                return {"value": None}
            case method:
                raise OSError(f"no method {method!r}")
    except Exception as exc:  # of Java, of py4j: the worker reports it
        return {"error": str(exc) or type(exc).__name__, "missing": isinstance(exc, FileNotFoundError)}


_SERVERS: Final[dict[int, _Server]] = {}


def serve(files: SparkFiles) -> FilesAddress:
    """Serve files to this driver's workers until the process ends; the last session's are served."""
    server = _SERVERS.get(os.getpid())
    if server is None:
        server = _SERVERS[os.getpid()] = _Server()
        server.token = secrets.token_hex(_TOKEN_BYTES)
        thread = threading.Thread(
            target=server.serve_forever, name="tallystick-checkpoint-files", daemon=True
        )
        thread.start()
        atexit.register(server.server_close)
    server.files = files
    return FilesAddress(
        port=server.server_address[1], token=server.token, default_is_local=files.default_is_local
    )


class ServedSystem:
    """The file systems of the session whose Python serves them."""

    def __init__(self, address: FilesAddress) -> None:
        self._address = address
        self.default_is_local = address.default_is_local

    def open(self, location: str) -> CheckpointFiles:
        return ServedFiles(self._address, location)


class ServedFiles:
    """The files of one checkpoint, as the driver's Python gives them."""

    def __init__(self, address: FilesAddress, location: str) -> None:
        self._address, self._location = address, location

    def read(self, name: str) -> str:
        return str(self._ask("read", name))

    def exists(self, name: str) -> bool:
        return bool(self._ask("exists", name))

    def list_names(self, folder: str) -> list[str]:
        return [str(name) for name in self._ask("list_names", folder)]

    def write(self, name: str, text: str) -> None:
        self._ask("write", name, text)

    def __str__(self) -> str:
        return self._location

    def _ask(self, method: str, name: str, text: str = "") -> Any:
        request = {
            "method": method,
            "location": self._location,
            "name": name,
            "text": text,
        }
        with socket.create_connection((_ADDRESS, self._address.port), _ANSWER_TIMEOUT_S) as connection:
            connection.sendall(f"{self._address.token}\n{json.dumps(request)}\n".encode())
            with connection.makefile("rb") as lines:
                line = lines.readline(_LINE_BYTES_MAX)
        if not line:
            raise OSError(f"{self._location}: the driver's Python gave no answer about {name}")
        answer = json.loads(line)
        if "error" in answer:
            raise (FileNotFoundError if answer["missing"] else OSError)(answer["error"])
        return answer["value"]


_SYSTEMS: Final[list[ServedSystem]] = []


def use_served_files(address: FilesAddress | None) -> None:
    """Take the driver's files in this worker from now on; None for a session that serves none."""
    _SYSTEMS[:] = [] if address is None else [ServedSystem(address)]


def find_served_files() -> ServedSystem | None:
    """Return what `use_served_files` was given."""
    return _SYSTEMS[0] if _SYSTEMS else None
