"""Hold thousands of connections in the middle of a handshake or login: python -m tools.half_open.

Each stops at one point and says nothing more. Meanwhile eight producers go on, and another client logs in.
How far the broker's memory grows, and how it goes for the others, is written into docs/hostile-clients.md.
"""

import argparse
import resource
import select
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
import trustme
from tools.hostile import DOCUMENT, RSS_MIB_GOAL

from tallystick import Producer
from tallystick.testing import EmbeddedBroker

BEGIN, END = "<!-- half-open: begin -->", "<!-- half-open: end -->"
PRODUCERS: Final = 8
ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(2, 34))
PAUSE_S: Final = 0.05
JAAS: Final = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonder";'
# The end of a handshake's time, until the last of thousands is closed on a machine that has other work.
SLACK_S: Final = 60.0
MIB: Final = 2**20

_HANDSHAKE: Final = struct.pack(">ihhihh", 17, 17, 1, 7, -1, 5) + b"PLAIN"
_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 7, -1)
_HALF_TOKEN: Final = struct.pack(">ihh", 524_288, 36, 1) + bytes(100)


@dataclass(frozen=True)
class Point:
    """Where connections stop: what they have said by then. `tls`: said inside TLS, or None."""

    name: str
    plain: bytes = b""
    tls: bytes | None = None
    is_secure: bool = True


def _make_hello() -> bytes:
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


HELLO: Final = _make_hello()
POINTS: Final = (
    Point("TLS: nothing sent"),
    Point("TLS: half a hello", plain=HELLO[: len(HELLO) // 2]),
    Point("TLS: a hello, and no answer to the broker's", plain=HELLO),
    Point("SASL_SSL: TLS done", tls=b""),
    Point("SASL_SSL: SaslHandshake done", tls=_VERSIONS + _HANDSHAKE),
    Point("SASL_SSL: half a token of 512 KiB", tls=_HANDSHAKE + _HALF_TOKEN),
    Point("SASL_PLAINTEXT: nothing sent", is_secure=False),
    Point("SASL_PLAINTEXT: SaslHandshake done", plain=_VERSIONS + _HANDSHAKE, is_secure=False),
    Point("SASL_PLAINTEXT: half a token of 512 KiB", plain=_HANDSHAKE + _HALF_TOKEN, is_secure=False),
)


class Victims:
    """A broker with logins, and eight producers that go on for as long as this lives."""

    def __init__(self, folder: Path, timeout_ms: int) -> None:
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        leaf = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
        (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
        (folder / "key.pem").write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        config = {
            "listeners": "SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            "advertised.listeners": "SASL_SSL://localhost:0",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "ssl.keystore.location": str(folder / "key.pem"),
            "ssl.handshake.timeout.ms": str(timeout_ms),
            "sasl.handshake.timeout.ms": str(timeout_ms),
            "flush.policy": "os",
        }
        self.timeout_s = timeout_ms / 1000
        self.broker = EmbeddedBroker(folder / "data", config=config)
        self._folder = folder
        self._stack = ExitStack()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.record_counts = [0] * PRODUCERS
        self.failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self._stack.enter_context(self.broker)
        listeners = self.broker._config_texts["listeners"].split(",")
        self.ports = [int(listener.rpartition(":")[2]) for listener in listeners]
        self.process = psutil.Process(self.broker.pid)
        self._threads = [
            threading.Thread(target=self._produce, args=(number,), daemon=True) for number in range(PRODUCERS)
        ]
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.failures or all(self.record_counts), 60)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._stack.close()

    @property
    def rss_mib(self) -> float:
        return self.process.memory_info().rss / MIB

    def connect(self) -> Producer:
        """Return a producer that logs in over TLS."""
        return Producer(
            {
                "bootstrap.servers": f"localhost:{self.ports[0]}",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": "wonder",
                "ssl.truststore.location": str(self._folder / "ca.pem"),
                "linger.ms": 0,
            }
        )

    def _produce(self, number: int) -> None:
        try:
            with self.connect() as producer:
                while not self._over.wait(PAUSE_S):
                    producer.send("worked", b"v").result(60)
                    self.record_counts[number] += 1
        except BaseException as exc:
            self.failures.append(exc)


def wait_until(holds: Callable[[], object], seconds: float) -> None:
    """Look again and again. Raises: TimeoutError."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.02)


@dataclass
class Crowd:
    """Connections that stopped at some point."""

    victims: Victims
    sockets: list[socket.socket] = field(default_factory=list)
    refusals: int = 0

    def __post_init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._numbers = count()

    def add(self, point: Point) -> None:
        """Open a connection from the next address, up to this point."""
        source = ADDRESSES[next(self._numbers) % len(ADDRESSES)]
        port = self.victims.ports[0 if point.is_secure else 1]
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
            if point.tls is None:
                connection.sendall(point.plain)
            else:
                connection = self._context.wrap_socket(connection)
                connection.sendall(point.tls)
        except OSError:
            self.refusals += 1
            return
        connection.setblocking(False)
        self.sockets.append(connection)

    def drop_ended(self) -> int:
        """Close those that the broker has ended, and return how many are left."""
        poll = select.poll()
        by_number = {each.fileno(): each for each in self.sockets}
        for number in by_number:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(0):
            if _is_ended(by_number[number]):
                by_number.pop(number).close()
        self.sockets = list(by_number.values())
        return len(self.sockets)


def _is_ended(connection: socket.socket) -> bool:
    """Read what there is, and return whether the end of it was reached."""
    while True:
        try:
            if not connection.recv(65_536):
                return True
        except (ssl.SSLWantReadError, BlockingIOError):
            return False
        except OSError:
            return True


@dataclass(frozen=True)
class HalfOpenOutcome:
    """What one crowd came to. `sent` counts the producers' acknowledged records while it was there."""

    name: str
    connections: int
    survivors: int
    grown_mib: float
    rss_mib: float
    records: int
    newcomer_s: float
    remaining: int


def run_crowd(victims: Victims, points: Sequence[Point], connections: int) -> HalfOpenOutcome:
    """Open connections that stop at these points in turn, and stay until the broker has ended them.

    Raises:
        RuntimeError: a producer failed.
    """
    before_mib, before_sent = victims.rss_mib, sum(victims.record_counts)
    rss_mib = before_mib
    crowd = Crowd(victims)
    for number in range(connections):
        crowd.add(points[number % len(points)])
        if number % 200 == 0:
            rss_mib = max(rss_mib, victims.rss_mib)
    began = time.monotonic()
    with victims.connect() as newcomer:
        newcomer.send("worked", b"v").result(60)
    newcomer_s = time.monotonic() - began
    survivors = crowd.drop_ended()
    rss_mib = max(rss_mib, victims.rss_mib)
    wait_until(lambda: not crowd.drop_ended(), victims.timeout_s + SLACK_S)
    sent_then = list(victims.record_counts)
    wait_until(
        lambda: (
            victims.failures
            or all(now > then for now, then in zip(victims.record_counts, sent_then, strict=True))
        ),
        60,
    )
    if victims.failures:
        raise RuntimeError(f"{points[0].name}: a producer failed") from victims.failures[0]
    name = points[0].name if len(points) == 1 else "all of them mixed"
    return HalfOpenOutcome(
        name,
        connections - crowd.refusals,
        survivors,
        rss_mib - before_mib,
        rss_mib,
        sum(victims.record_counts) - before_sent,
        newcomer_s,
        len(crowd.sockets),
    )


def raise_descriptor_limit(connections: int) -> None:
    """Allow this process as many sockets; the broker, its child, gets the same limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = connections + 1_000
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard), hard))


def format_table(outcomes: Sequence[HalfOpenOutcome]) -> str:
    """Return the outcomes as a Markdown table."""
    rows = [
        "| where they stop | opened | held | RSS grows by, MiB | RSS, MiB | records | another gets in, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        rows.append(
            f"| {o.name} | {o.connections} | {o.survivors} | {o.grown_mib:.0f} | {o.rss_mib:.0f} "
            f"| {o.records} | {o.newcomer_s * 1000:.0f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--timeout-ms", type=int, default=60_000, help="of a handshake and of a login")
    parser.add_argument("--point", type=int, action="append", default=[], help="only this one, from 0")
    parser.add_argument("--mixed", action="store_true", help="one crowd that stops at all points in turn")
    parser.add_argument("--write", action="store_true", help=f"write the table into {DOCUMENT.name}")
    options = parser.parse_args()
    if options.write and options.point:
        parser.error("the table holds all points: --write goes without --point")
    crowds = [(point,) for number, point in enumerate(POINTS) if not options.point or number in options.point]
    raise_descriptor_limit(options.connections)
    outcomes = []
    for points in [POINTS] if options.mixed else crowds:
        # A broker for each: memory that one crowd freed would hide what the next one takes.
        with (
            tempfile.TemporaryDirectory(prefix="half-open-") as folder,
            Victims(Path(folder), options.timeout_ms) as victims,
        ):
            outcomes.append(run_crowd(victims, points, options.connections))
        print(format_table(outcomes).splitlines()[-1], flush=True)
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{format_table(outcomes)}\n{END}{after}")
    print(f"RSS grows by {max(o.grown_mib for o in outcomes):.0f} MiB at most, goal {RSS_MIB_GOAL}")


if __name__ == "__main__":
    main()
