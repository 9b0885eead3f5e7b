"""Send the largest request of each shape, of every API, while another client works: python -m tools.hostile.

One client sends these requests; another produces and commits offsets a hundred times a second. The second
client's waiting times and the broker's memory go into docs/hostile-clients.md. The shapes are derived from
the declarations of the messages, so that a new API is covered, too.

Then very many clients behave badly, each conduct against a broker of its own: they leave at once, never read
what they asked for, or fill fetch sessions with partitions that do not exist.
"""

import argparse
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psutil

from tallystick.broker.handlers import HANDLERS
from tallystick.kernel.limits import ARRAY_ELEMENTS_MAX, REQUEST_BYTES_MAX
from tallystick.kernel.value import replace
from tallystick.protocol import DecodeError, decode_prefix, encode
from tallystick.protocol.apis import ApiKey, ApiSpec
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.protocol.wire import BYTES, RECORDS, STRING, ArrayType, FieldSpec, ScalarType, get_struct_spec
from tallystick.protocol.wire import UUID as UUID_KIND
from tallystick.testing import EmbeddedBroker

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "hostile-clients.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
ROWS_MAX: Final = 10
CONDUCTS_BEGIN, CONDUCTS_END = "<!-- conducts -->", "<!-- end of conducts -->"
ANSWER_S_MAX: Final = 30.0
P99_MS_GOAL, RSS_MIB_GOAL = 250, 256
ATTACKED, WORKED = "attacked", "worked"
VICTIM_S: Final = 0.01
# The broker is idle when it took less processor time than this in each of some seconds, although the other
# client works.
IDLE_CPU: Final = 0.15
IDLE_S: Final = 4
CONDUCT_S_MAX: Final = 180.0
SETTINGS: Final = {"max.partitions": "1000", "flush.policy": "os", "group.initial.rebalance.delay.ms": "0"}


@dataclass(frozen=True)
class Shape:
    """How a request is filled: which lists are long, and whether their entries differ."""

    deep: bool  # the inner lists are long instead of the outer ones
    distinct: bool

    def __str__(self) -> str:
        return (
            f"{'inner' if self.deep else 'outer'} lists long, {'distinct' if self.distinct else 'repeated'}"
        )


SHAPES: Final = tuple(Shape(deep, distinct) for deep in (False, True) for distinct in (False, True))


def make_request(spec: ApiSpec, version: int, shape: Shape, entries: int) -> Any:
    """Return a legal request whose long lists have `entries` entries; None if the API has no such list."""
    maker = _Maker(version, shape, entries)
    request = maker.make_struct(spec.request, 0)
    return request if maker.long_lists else None


def make_small_request(spec: ApiSpec, version: int) -> Any:
    """Return a legal request of any API, with one entry in each of its lists."""
    return _Maker(version, Shape(deep=False, distinct=False), 1).make_struct(spec.request, 0)


class _Maker:
    """Builds one request from its declaration."""

    def __init__(self, version: int, shape: Shape, entries: int) -> None:
        self._version, self._shape, self._entries = version, shape, entries
        self._serial = 0
        self.long_lists = 0

    def make_struct(self, cls: type, depth: int) -> Any:
        fields = {
            f.name: self._make_field(f, depth)
            for f in get_struct_spec(cls).fields
            if self._version in f.wire.versions and f.wire.tag is None
        }
        for f in get_struct_spec(cls).fields:
            if f.required:
                fields.setdefault(f.name, _find_zero(f))
        return cls(**fields)

    def _make_field(self, f: FieldSpec, depth: int) -> Any:
        kind = f.wire.kind
        if isinstance(kind, ArrayType):
            return tuple(
                self._make_value_of(kind.element, depth + 1) for _ in range(self._choose_length(kind, depth))
            )
        return self._make_value(f, kind, depth)

    def _choose_length(self, kind: ArrayType, depth: int) -> int:
        has_inner_list = not isinstance(kind.element, ScalarType) and any(
            isinstance(f.wire.kind, ArrayType) and self._version in f.wire.versions
            for f in get_struct_spec(kind.element).fields
        )
        is_long = not has_inner_list if self._shape.deep else depth == 0
        if not is_long:
            return 1
        self.long_lists += 1
        return self._entries

    def _make_value(self, f: FieldSpec, kind: Any, depth: int) -> Any:
        if f.name.endswith("timeout_ms") or f.name == "max_wait_ms":
            return 1000
        if f.name == "acks":
            return -1
        return self._make_value_of(kind, depth)

    def _make_value_of(self, kind: Any, depth: int) -> Any:
        self._serial += 1
        number = self._serial if self._shape.distinct else 0
        if kind == STRING:
            return f"n{number}" if self._shape.distinct else ATTACKED
        if kind in (BYTES, RECORDS):
            return b""
        if kind == UUID_KIND:
            return UUID(int=0)
        if isinstance(kind, ScalarType):
            return kind.zero if kind.format in ("?", "d", "b", "h", "B", "H") else number
        return self.make_struct(kind, depth)


def _find_zero(f: FieldSpec) -> Any:
    return (
        ()
        if isinstance(f.wire.kind, ArrayType)
        else f.wire.kind.zero
        if isinstance(f.wire.kind, ScalarType)
        else None
    )


@dataclass(frozen=True)
class Attack:
    """One request to send."""

    spec: ApiSpec
    shape: Shape
    version: int
    entries: int
    body: bytes


def list_attacks(names: Collection[str] = ()) -> Iterator[tuple[ApiSpec, Shape]]:
    """Yield each API that has a list with each shape of its requests, without duplicates.

    Args:
        names: only these APIs; all by default.
    """
    for key in sorted(HANDLERS):
        spec = HANDLERS[key].spec
        if names and spec.name not in names:
            continue
        version, samples = spec.max_version, set()
        for shape in SHAPES:
            sample = make_request(spec, version, shape, 10)
            if sample is None or encode(sample, version) in samples:
                continue
            samples.add(encode(sample, version))
            yield spec, shape


def make_attack(spec: ApiSpec, shape: Shape, entries_max: int = ARRAY_ELEMENTS_MAX) -> Attack:
    """Return the largest legal request of a shape, with at most `entries_max` entries."""
    version = spec.max_version
    count = min(entries_max, find_legal_entries(spec, version, shape))
    return Attack(spec, shape, version, count, encode(make_request(spec, version, shape, count), version))


def find_legal_entries(spec: ApiSpec, version: int, shape: Shape) -> int:
    """Return the number of entries in the largest request of a shape that the broker decodes."""
    # Each entry costs the same: bytes on the wire, except for its number, and memory.
    few, more = 20, 40
    bodies = [encode(make_request(spec, version, shape, count), version) for count in (few, more)]
    costs = [_find_memory_needed(spec, version, body) for body in bodies]
    each = (costs[1] - costs[0]) / (more - few)
    most = min(
        ARRAY_ELEMENTS_MAX,
        few + int((REQUEST_BYTES_MAX - costs[0]) / each),
        REQUEST_BYTES_MAX // (len(bodies[1]) // more + 4),
    )
    # max.partitions counts every entry of a Produce or a marker, but each partition of a Fetch once.
    is_limited = spec.key in (ApiKey.PRODUCE, ApiKey.WRITE_TXN_MARKERS) or (
        spec.key == ApiKey.FETCH and shape.distinct
    )
    return min(most, int(SETTINGS["max.partitions"])) if is_limited else most


def _find_memory_needed(spec: ApiSpec, version: int, body: bytes) -> int:
    """Return the least `room` in which a request can be decoded."""
    low, high = 0, REQUEST_BYTES_MAX
    while low < high:
        middle = (low + high) // 2
        try:
            decode_prefix(spec.request, body, version, room=middle)
            high = middle
        except DecodeError:
            low = middle + 1
    return low


def make_frame(spec: ApiSpec, version: int, body: bytes, correlation_id: int) -> bytes:
    """Return a request's frame."""
    header = RequestHeader(
        request_api_key=spec.key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id="hostile",
    )
    data = encode(header, spec.get_request_header_version(version)) + body
    return struct.pack(">i", len(data)) + data


def send_and_receive(connection: socket.socket, data: bytes) -> int:
    """Send a request and return the size of its answer.

    Raises:
        EOFError: the broker closed the connection.
        TimeoutError: no answer came in time.
    """
    connection.sendall(data)
    return receive(connection)


def receive(connection: socket.socket) -> int:
    """Read an answer and return its size.

    Raises:
        EOFError: the broker closed the connection.
        TimeoutError: no answer came in time.
    """
    size = int.from_bytes(_receive_exactly(connection, 4), "big")
    _receive_exactly(connection, size)
    return size


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(1 << 20, size - len(data)))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


@dataclass
class Victim:
    """A client that keeps producing and committing, with the milliseconds each request took."""

    address: str
    waits_ms: list[float] = field(default_factory=list)
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="victim", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with connect(self.address) as connection:
                frames = [make_produce(), make_commit()]
                while not self._over.wait(VICTIM_S):
                    began = time.perf_counter()
                    send_and_receive(connection, frames[len(self.waits_ms) % 2])
                    self.waits_ms.append((time.perf_counter() - began) * 1000)
        except (OSError, EOFError) as exc:
            self.failure = exc


def make_produce() -> bytes:
    """Return the frame that produces one record to the working client's topic."""
    record = Record(offset=0, timestamp_ms=int(time.time() * 1000), key=None, value=b"v", headers=())
    part = PartitionProduceData(index=0, records=encode_batch([record], BatchMeta()))
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=(TopicProduceData(name=WORKED, partition_data=(part,)),)
    )
    return make_frame(HANDLERS[ApiKey.PRODUCE].spec, 9, encode(request, 9), 1)


def make_commit() -> bytes:
    """Return the frame that commits one offset for a group without members."""
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="workers",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(OffsetCommitRequestTopic(name=WORKED, partitions=(part,)),),
    )
    return make_frame(HANDLERS[ApiKey.OFFSET_COMMIT].spec, 8, encode(request, 8), 1)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one request. `answer`: bytes of the answer, or why there was none."""

    api: str
    shape: Shape
    entries: int
    request_bytes: int
    answer: int | str
    p99_ms: float
    worst_ms: float
    rss_mib: float


def attack(broker: EmbeddedBroker, requests: Iterable[Attack], seconds: float) -> Iterator[Outcome]:
    """Send each request for `seconds`; raise RuntimeError if the other client was not served."""
    address, process = broker.bootstrap_servers, psutil.Process(broker.pid)
    for each in requests:
        spec, shape, data = each.spec, each.shape, make_frame(each.spec, each.version, each.body, 7)
        victim = Victim(address)
        victim.start()
        answer: int | str = "closed"
        rss = process.memory_info().rss
        until = time.monotonic() + seconds
        while True:
            try:
                with connect(address) as connection:
                    answer = send_and_receive(connection, data)
            except (EOFError, ConnectionError):
                answer = "closed"
            except TimeoutError:
                answer = f"none in {ANSWER_S_MAX:.0f} s"
            rss = max(rss, process.memory_info().rss)
            if time.monotonic() >= until:
                break
        victim.stop()
        if victim.failure is not None:
            raise RuntimeError(f"{spec.name}, {shape}: the other client was not served") from victim.failure
        waits = sorted(victim.waits_ms) or [0.0]
        p99 = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
        yield Outcome(spec.name, shape, each.entries, len(each.body), answer, p99, waits[-1], rss / (1 << 20))


@dataclass(frozen=True)
class Conduct:
    """What many clients do at a time, each with one connection."""

    name: str
    spec: ApiSpec
    frame: bytes
    leaves: bool = False
    reads: bool = False


def list_conducts(entries: int = ARRAY_ELEMENTS_MAX) -> Iterator[Conduct]:
    """Yield each conduct with the largest request for it."""
    outer, inner = Shape(deep=False, distinct=True), Shape(deep=True, distinct=True)
    for key, shape in ((ApiKey.OFFSET_FETCH, inner), (ApiKey.CONSUMER_GROUP_DESCRIBE, outer)):
        attack = make_attack(HANDLERS[key].spec, shape, entries)
        yield Conduct(
            "leave at once", attack.spec, make_frame(attack.spec, attack.version, attack.body, 7), leaves=True
        )
    attack = make_attack(HANDLERS[ApiKey.DELETE_TOPICS].spec, outer, entries)
    yield Conduct(
        "leave at once", attack.spec, make_frame(attack.spec, attack.version, attack.body, 7), leaves=True
    )
    for key, shape in ((ApiKey.OFFSET_FETCH, inner), (ApiKey.DESCRIBE_QUORUM, inner)):
        attack = make_attack(HANDLERS[key].spec, shape, entries)
        yield Conduct("never read", attack.spec, make_frame(attack.spec, attack.version, attack.body, 7))
    yield Conduct("sessions of nothing", *make_session_of_nothing(entries), reads=True)


def make_session_of_nothing(entries: int) -> tuple[ApiSpec, bytes]:
    """Return a Fetch that begins a session with partitions that do not exist."""
    attack = make_attack(HANDLERS[ApiKey.FETCH].spec, Shape(deep=False, distinct=True), entries)
    request: Any = replace(
        decode_prefix(attack.spec.request, attack.body, attack.version)[0],
        session_id=0,
        session_epoch=0,
        max_wait_ms=0,
        forgotten_topics_data=(),
    )
    return attack.spec, make_frame(attack.spec, attack.version, encode(request, attack.version), 7)


def behave(address: str, conduct: Conduct, clients: int) -> list[socket.socket]:
    """Have so many clients behave so; return the connections that are still open."""
    connections = []
    for _ in range(clients):
        connection = connect(address)
        try:
            connection.sendall(conduct.frame)
            if conduct.reads:
                receive(connection)
        except (OSError, EOFError):
            connection.close()  # the broker had enough of it
            continue
        if conduct.leaves:
            connection.close()
        else:
            connections.append(connection)
    return connections


@dataclass(frozen=True)
class ConductOutcome:
    """What a conduct came to. `cpu_s`: processor time of the broker until it was idle again."""

    conduct: Conduct
    clients: int
    cpu_s: float
    p99_ms: float
    worst_ms: float
    rss_mib: float


def try_conduct(conduct: Conduct, clients: int) -> ConductOutcome:
    """Have many clients behave badly until the broker is idle again, while another one works."""
    with EmbeddedBroker(config=SETTINGS) as broker:
        prepare(broker)
        process, rss = psutil.Process(broker.pid), 0
        victim, over = Victim(broker.bootstrap_servers), threading.Event()
        victim.start()
        began = time.monotonic()
        open_connections: list[socket.socket] = []

        def crowd() -> None:
            open_connections.extend(behave(broker.bootstrap_servers, conduct, clients))
            over.set()

        crowding = threading.Thread(target=crowd, name="crowd")
        crowding.start()
        cpu = now = sum(process.cpu_times()[:2])
        idle_s = 0
        while idle_s < IDLE_S and time.monotonic() - began < CONDUCT_S_MAX:
            for _ in range(20):
                time.sleep(0.05)
                rss = max(rss, process.memory_info().rss)
            last, now = now, sum(process.cpu_times()[:2])
            idle_s = idle_s + 1 if over.is_set() and now - last < IDLE_CPU else 0
        victim.stop()
        crowding.join()
        for connection in open_connections:
            connection.close()
        if victim.failure is not None:
            raise RuntimeError(f"{conduct.name}: the other client was not served") from victim.failure
        waits = sorted(victim.waits_ms) or [0.0]
        p99 = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
        return ConductOutcome(conduct, clients, now - cpu, p99, waits[-1], rss / (1 << 20))


def format_conducts(outcomes: Iterable[ConductOutcome]) -> str:
    """Return the outcomes as a Markdown table."""
    rows = [
        "| clients | conduct | API | request, KB | CPU, s | p99 of the other, ms | worst, ms | RSS, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {o.clients} | {o.conduct.name} | {o.conduct.spec.name} | {len(o.conduct.frame) / 1000:.0f} "
        f"| {o.cpu_s:.0f} | {o.p99_ms:.0f} | {o.worst_ms:.0f} | {o.rss_mib:.0f} |"
        for o in outcomes
    ]
    return "\n".join(rows)


def replace_part(text: str, begin: str, end: str, part: str) -> str:
    """Return the page with another table between two marks."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{part}\n{end}{after}"


def format_table(outcomes: list[Outcome]) -> str:
    """Return the outcomes with the longest waits as a Markdown table."""
    rows = [
        "| API | shape | entries | request, KB | answer, KB | p99 of the other, ms | worst, ms | RSS, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for o in sorted(outcomes, key=lambda o: -o.p99_ms)[:ROWS_MAX]:
        answer = f"{o.answer / 1000:.0f}" if isinstance(o.answer, int) else o.answer
        rows.append(
            f"| {o.api} | {o.shape} | {o.entries} | {o.request_bytes / 1000:.0f} | {answer} "
            f"| {o.p99_ms:.0f} | {o.worst_ms:.0f} | {o.rss_mib:.0f} |"
        )
    return "\n".join(rows)


def prepare(broker: EmbeddedBroker) -> None:
    """Create both topics and the group's internal topic, so that no request waits for them later."""
    metadata = HANDLERS[ApiKey.METADATA].spec
    find = HANDLERS[ApiKey.FIND_COORDINATOR].spec
    with connect(broker.bootstrap_servers) as connection:
        for name in (ATTACKED, WORKED):
            shape = Shape(deep=False, distinct=False)
            request = make_request(metadata, 12, shape, 1)
            topic = type(request.topics[0])(name=name)
            body = encode(type(request)(topics=(topic,), allow_auto_topic_creation=True), 12)
            send_and_receive(connection, make_frame(metadata, 12, body, 1))
        body = encode(find.request(key_type=0, coordinator_keys=("workers",)), 4)
        send_and_receive(connection, make_frame(find, 4, body, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=ARRAY_ELEMENTS_MAX, help="no request has more")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--api", action="append", default=[], help="only this one; may be given again")
    parser.add_argument("--clients", type=int, default=100, help="so many behave badly at a time")
    parser.add_argument("--conducts", action="store_true", help="only the bad conduct of many clients")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {DOCUMENT.name}")
    options = parser.parse_args()
    if options.write and options.api:
        parser.error("the table holds all APIs: --write goes without --api")
    if not options.api:
        run_conducts(options)
    if not options.conducts:
        run_attacks(options)


def run_conducts(options: argparse.Namespace) -> None:
    outcomes = []
    for conduct in list_conducts(options.entries):
        outcomes.append(try_conduct(conduct, options.clients))
        print(format_conducts(outcomes).splitlines()[-1], flush=True)
    if options.write:
        text = replace_part(DOCUMENT.read_text(), CONDUCTS_BEGIN, CONDUCTS_END, format_conducts(outcomes))
        DOCUMENT.write_text(text)
    print(f"most memory {max(o.rss_mib for o in outcomes):.0f} MiB, goal {RSS_MIB_GOAL}")


def run_attacks(options: argparse.Namespace) -> None:
    outcomes = []
    with EmbeddedBroker(config=SETTINGS) as broker:
        prepare(broker)
        attacks = (make_attack(*each, options.entries) for each in list_attacks(options.api))
        for outcome in attack(broker, attacks, options.seconds):
            outcomes.append(outcome)
            print(format_table([outcome]).splitlines()[-1], flush=True)
    if options.write:
        DOCUMENT.write_text(replace_part(DOCUMENT.read_text(), BEGIN, END, format_table(outcomes)))
    worst = max(outcomes, key=lambda o: o.p99_ms)
    print(f"worst p99 {worst.p99_ms:.0f} ms ({worst.api}, {worst.shape}), goal {P99_MS_GOAL}")
    print(f"most memory {max(o.rss_mib for o in outcomes):.0f} MiB, goal {RSS_MIB_GOAL}")


if __name__ == "__main__":
    main()
