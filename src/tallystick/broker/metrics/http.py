"""HTTP/1.1 server for GET /metrics only: one request per connection, answered and closed.

`metrics.listener` sets the address, and there is no default; `metrics.auth.*` say who may read. Its port is
made as those of Kafka's protocol are, so that TLS, its bounds and its reload are the same. The request
(its size and time), the time to read the answer, and the number of connections are bounded, which they are
not in prometheus_client's own server: that has a thread for each connection and waits for ever. Scrapes run
one at a time. The metrics are read on the loop, in slices between which the broker does its work; a thread
writes the text.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.metrics_listener import MetricsListener
from tallystick.broker.server.listening import ListeningPort, TlsListenerState, TlsPort, make_ports
from tallystick.kernel.limits import KIB
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.metrics.exposition import PrometheusText
from tallystick.metrics.model import MetricReading
from tallystick.security.http_credentials import ReloadingCredentials

_log = logging.getLogger("tallystick.broker.metrics")

PATH: Final = "/metrics"
REQUEST_BYTES_MAX: Final = 8 * KIB
CONNECTIONS_MAX: Final = 16
# Limit for the request to arrive, and again for the peer to read the answer.
REQUEST_TIMEOUT_S: Final = 10.0
_HEAD_END: Final = b"\r\n\r\n"
_BACKLOG: Final = 100
# Python's `http` has these, but importing it costs half a millisecond of every start.
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}


class MetricsServer:
    """The metrics endpoint. Lives on the loop that starts it; owned by the service."""

    def __init__(
        self,
        listen: MetricsListener,
        read: Callable[[], Iterator[MetricReading | None]],
        patience_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Create a server that is not listening.

        Args:
            read: yields the readings of one scrape; other tasks may run between two of them.
            patience_s: limit for the request, and again for the answer to be read.

        Raises: MissingLibrary; BadConfig with every problem of its keys and credentials.
        """
        self.loop = asyncio.get_running_loop()
        self._read = read
        self._text = PrometheusText()
        self._patience_s = patience_s
        self._port, self._credentials = self._load(listen)
        self._reload_interval_s = listen.listener.settings.ssl_reload_interval_ms / 1000
        self._reload_task: asyncio.Task[None] | None = None
        self._refusals = LogThrottle(self.loop.time)
        self._scrape_lock = asyncio.Lock()
        self._connection_tasks: set[asyncio.Task[None]] = set()

    def _load(self, listen: MetricsListener) -> tuple[ListeningPort, ReloadingCredentials]:
        problems, ports, credentials = list[str](), list[ListeningPort](), None
        with collect_problems(problems):
            ports = make_ports((listen.listener,), self)
        with collect_problems(problems):
            credentials = ReloadingCredentials(listen.credentials)
        if problems or credentials is None:
            raise BadConfig("\n".join(problems))
        return ports[0], credentials

    async def start(self) -> Endpoint:
        """Listen, and return the bound address, with the chosen port if it was 0. Raises: OSError."""
        await self._port.start(_BACKLOG)
        if self._credentials.current.are_required:
            self._reload_task = asyncio.create_task(self._watch_credentials(), name="metrics credentials")
        return Endpoint(*self._port.address)

    async def stop(self) -> None:
        """Close immediately: a scraper without an answer retries."""
        self._port.close()
        if self._reload_task is not None:
            self._reload_task.cancel()
        for task in self._connection_tasks:
            task.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)

    async def _watch_credentials(self) -> None:
        while True:
            await asyncio.sleep(self._reload_interval_s)
            await asyncio.to_thread(self._credentials.refresh)

    async def refresh_files(self) -> None:
        """Look for changed keys and credentials now, and not at the next interval."""
        await self._port.refresh_files()
        await asyncio.to_thread(self._credentials.refresh)

    @property
    def tls_states(self) -> list[TlsListenerState]:
        """The state of its listener, if that has TLS."""
        return [self._port.state] if isinstance(self._port, TlsPort) else []

    @property
    def url(self) -> str:
        """Address of the page while the server listens."""
        scheme = "https" if isinstance(self._port, TlsPort) else "http"
        return f"{scheme}://{Endpoint(*self._port.address)}{PATH}"

    # ------------------------------------------------------------------ called by its port

    def make_connection(self, port: ListeningPort) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        reader = asyncio.StreamReader(REQUEST_BYTES_MAX, self.loop)
        return asyncio.StreamReaderProtocol(reader, self._on_connected, self.loop)

    def find_refusal(self, listener: str, host: str, handshakes: int, handshakes_of_host: int) -> str | None:
        """Refuse none before its handshake: the number of those has its own bound."""
        return None

    def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connection_tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="metrics")
        self._connection_tasks.add(task)
        task.add_done_callback(self._connection_tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        transport.set_write_buffer_limits(high=0)  # `drain` then waits until the kernel has all of it
        try:
            answer = await self._build_response(reader, writer)
            if answer is not None:
                for part in answer:  # after `writelines` drain waits for nothing in CPython 3.12 and 3.13.0
                    writer.write(part)
                async with asyncio.timeout(self._patience_s):
                    await writer.drain()
                transport.close()
        except (OSError, TimeoutError):
            pass  # the peer is gone, or does not read
        finally:
            if not transport.is_closing():
                transport.abort()

    async def _build_response(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> list[bytes] | None:
        """Return the whole answer; None for a peer that left without a request."""
        try:
            async with asyncio.timeout(self._patience_s):
                head = await reader.readuntil(_HEAD_END)
        except TimeoutError:
            return _build_plain_response(408)
        except asyncio.LimitOverrunError:
            return _build_plain_response(431)
        except asyncio.IncompleteReadError:
            return None
        # Before the request itself: without credentials nothing is learned of what is here.
        if not self._credentials.current.accept(find_header(head, b"authorization")):
            self._log_refusal(writer)
            return _build_plain_response(401, self._credentials.current.list_challenges("tallystick metrics"))
        status = _check_request(head)
        if status != 200:
            return _build_plain_response(status)
        try:
            body = await self._scrape_body()
        except Exception:
            _log.exception("a scrape failed")
            return _build_plain_response(500)
        return [_build_response_head(status, self._text.content_type, len(body)), body]

    def _log_refusal(self, writer: asyncio.StreamWriter) -> None:
        more = self._refusals.take()
        if more is not None:
            host = (writer.get_extra_info("peername") or ("unknown",))[0]
            _log.warning("no metrics for %s: its request has no credentials, or wrong ones%s", host, more)

    async def _scrape_body(self) -> bytes:
        readings = []
        async with self._scrape_lock:
            for reading in self._read():
                if reading is not None:
                    family, samples = reading
                    readings.append((family, list(samples)))
                await asyncio.sleep(0)  # yield to other tasks
            return await asyncio.to_thread(self._text.format, readings)


def _check_request(head: bytes) -> int:
    """Return the HTTP status for a request; only its first line matters."""
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return 400
    method, target, _ = words
    if target.partition("?")[0] != PATH:
        return 404
    return 200 if method == "GET" else 405


def find_header(head: bytes, name: bytes) -> str | None:
    """Return the value of a header; None without it, or if it is there more than once."""
    values = [
        value.strip().decode("latin-1")
        for key, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        if key.lower() == name
    ]
    return values[0] if len(values) == 1 else None


def _build_plain_response(status: int, challenges: Sequence[str] = ()) -> list[bytes]:
    text = f"{status} {_REASONS[status]}\n".encode()
    more = "".join(f"WWW-Authenticate: {challenge}\r\n" for challenge in challenges)
    more += "Allow: GET\r\n" if status == 405 else ""
    return [_build_response_head(status, "text/plain; charset=utf-8", len(text), more), text]


def _build_response_head(status: int, content_type: str, length: int, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {length}\r\n{more}Connection: close\r\n\r\n"
    ).encode()
