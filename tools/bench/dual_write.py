"""Measure dual writes beside their alternatives: the database's commit alone, and a polling outbox.

All three write the same row of PostgreSQL with the same SQLAlchemy; the outbox is relayed every 100 ms with
the same producer. The reader is librdkafka, of committed records only. Each way is measured at full speed,
and at a steady rate, for the time from the database's commit until the reader has the record.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from sqlalchemy import Engine, create_engine, text
from tests.support.servers import PostgreSQL
from tools.bench.brokers import OURS, create_topic, run_fresh
from tools.bench.report import format_table, replace_section
from tools.bench.rows import SYNC, Durability
from tools.servers.broker_process import BrokerProcess

from tallystick import Producer
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.dualwrite.block.steps import RecipeStep, Wait

BEGIN: Final = "<!-- dual write: begin (written by `make bench`) -->"
END: Final = "<!-- dual write: end -->"
ALONE, DUAL, OUTBOX = "database commit alone", "dual write", "outbox, relayed every 100 ms"
DECIDED: Final = 'dual write, `wait="decided"`'
WAYS: Final = (ALONE, DUAL, DECIDED, OUTBOX)
TWO_PHASE: Final = Durability(
    name=SYNC.name,
    promise=SYNC.promise,
    ours={**SYNC.ours, "transaction.two.phase.commit.enable": "true"},
    kafka={},
)
RELAY_S: Final = 0.1
RATE: Final = 20  # transactions per second while visibility latency is measured
VISIBLE_RATIO_MAX: Final = 0.1
PAYMENT: Final = text("INSERT INTO payments (what) VALUES (:what)")
SECONDS_MAX: Final = 120
PLACE: Final = Path(tempfile.gettempdir())


@dataclass(frozen=True, kw_only=True)
class DualRun:
    """One run of one way; times in ms. `changed`: our own rows inserted, updated, deleted per message."""

    per_s: float
    p50_ms: float
    p99_ms: float
    seen_p50_ms: float | None = None
    seen_p99_ms: float | None = None
    changes: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass
class DualResults:
    command: str
    runs: dict[str, list[DualRun]] = field(default_factory=dict)

    def compute_median(self, way: str, what: str) -> float | None:
        values = [getattr(each, what) for each in self.runs[way]]
        return None if None in values else statistics.median(values)


class Reader(threading.Thread):
    """A consumer that notes when each message arrived, by its number."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.arrived_at_ns: dict[int, int] = {}
        self.enough = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "dual-write",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 2,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.start()

    def run(self) -> None:
        while not self.enough.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.arrived_at_ns.setdefault(int(message.value() or b""), time.monotonic_ns())
        self._consumer.close()

    def wait(self, count: int) -> None:
        give_up_at = time.monotonic() + SECONDS_MAX
        while len(self.arrived_at_ns) < count:
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"{len(self.arrived_at_ns)} of {count} messages were seen")
            time.sleep(0.01)

    def stop(self) -> None:
        self.enough.set()
        self.join()


# Does one transaction with message number `n`; returns when the database had committed it, in ns.
Pay = Callable[[int], int]


@contextmanager
def pay_alone(engine: Engine, _bootstrap: str) -> Iterator[Pay]:
    def pay(n: int) -> int:
        with engine.begin() as connection:
            connection.execute(PAYMENT, {"what": str(n)})
        return time.monotonic_ns()

    yield pay


@contextmanager
def pay_dual(engine: Engine, bootstrap: str, way: str = DUAL) -> Iterator[Pay]:
    committed_at_ns = 0

    def watch(_: int, step: RecipeStep, is_done: bool) -> None:
        nonlocal committed_at_ns
        if is_done and step.name == "commit database":
            committed_at_ns = time.monotonic_ns()

    config = {"bootstrap.servers": bootstrap, "transactional.id": TOPICS[way], "linger.ms": 0}
    wait: Wait = "decided" if way == DECIDED else "committed"
    with DualWriter(SqlStore(engine), config, wait=wait, watch=watch) as writer:
        writer.recover()

        def pay(n: int) -> int:
            with writer.transaction() as txn:
                txn.connection.execute(PAYMENT, {"what": str(n)})
                txn.send(TOPICS[way], str(n).encode())
            return committed_at_ns

        yield pay


@contextmanager
def pay_outbox(engine: Engine, bootstrap: str) -> Iterator[Pay]:
    stopping = threading.Event()
    arguments = (engine, bootstrap, TOPICS[OUTBOX], stopping)
    relay = threading.Thread(target=relay_outbox, args=arguments, daemon=True)
    relay.start()

    def pay(n: int) -> int:
        with engine.begin() as connection:
            connection.execute(PAYMENT, {"what": str(n)})
            connection.execute(text("INSERT INTO outbox (value) VALUES (:value)"), {"value": str(n)})
        return time.monotonic_ns()

    yield pay
    stopping.set()
    relay.join()


def relay_outbox(engine: Engine, bootstrap: str, topic: str, stopping: threading.Event) -> None:
    """Relay the outbox at least once: send its rows, wait for the broker, delete them."""
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}) as producer:
        while not stopping.wait(RELAY_S):
            with engine.begin() as connection:
                rows = connection.execute(text("SELECT id, value FROM outbox ORDER BY id")).all()
                for each in rows:
                    producer.send(topic, each.value.encode())
                producer.flush()
                if rows:
                    # Not all up to the last id: a row with a smaller one may be committed by now, unsent.
                    parameters = {"sent": [each.id for each in rows]}
                    connection.execute(text("DELETE FROM outbox WHERE id = ANY(:sent)"), parameters)


MAKE: Final = {
    ALONE: pay_alone,
    DUAL: pay_dual,
    DECIDED: partial(pay_dual, way=DECIDED),
    OUTBOX: pay_outbox,
}
TOPICS: Final = {DUAL: "dual", DECIDED: "decided", OUTBOX: "outbox"}


@contextmanager
def start_servers() -> Iterator[tuple[PostgreSQL, BrokerProcess]]:
    """Start a database and a broker, both on the disk: a database in memory would not be comparable."""
    with run_fresh(OURS, TWO_PHASE) as broker, PostgreSQL(PLACE) as server:
        yield server, broker


def measure(
    results: DualResults, say: Console, server: PostgreSQL, broker: BrokerProcess, *, quick: bool
) -> None:
    """Measure one round: every way on the same servers, one after the other."""
    count, seconds = (300, 5) if quick else (3000, 20)
    for way in WAYS:
        run = _measure(server, broker, way, count, seconds)
        results.runs.setdefault(way, []).append(run)
        say.print(f"dual   {way:30}{run.per_s:8,.0f} /s  p99 {run.p99_ms:.2f} ms", style="dim")


def _measure(server: PostgreSQL, broker: BrokerProcess, way: str, count: int, seconds: int) -> DualRun:
    name = server.new_database()
    engine = create_engine(server.url(name).replace("postgresql:", "postgresql+psycopg:"))
    create_tables(engine)
    reader = None
    if way in TOPICS:
        create_topic(broker, TOPICS[way], 1)
        reader = Reader(broker.bootstrap, TOPICS[way])
    total = count + RATE * seconds
    with MAKE[way](engine, broker.bootstrap) as pay:
        for n in range(-20, 0):  # warm-up
            pay(n)
        began, times = time.monotonic(), []
        for n in range(count):
            before = time.perf_counter()
            pay(n)
            times.append(1000 * (time.perf_counter() - before))
        took = time.monotonic() - began
        commit_times_ns = _pay_at_rate(pay, range(count, total)) if reader else {}
        if reader is not None:
            reader.wait(total + 20)
    engine.dispose()
    latencies_ms: list[float] = []
    if reader is not None:
        reader.stop()
        latencies_ms = [(reader.arrived_at_ns[n] - at) / 1e6 for n, at in commit_times_ns.items()]
    return DualRun(
        per_s=count / took,
        p50_ms=find_quantile(times, 0.5),
        p99_ms=find_quantile(times, 0.99),
        seen_p50_ms=find_quantile(latencies_ms, 0.5) if latencies_ms else None,
        seen_p99_ms=find_quantile(latencies_ms, 0.99) if latencies_ms else None,
        changes=_count_changes(server.url(name), total + 20),
    )


def create_tables(engine: Engine) -> None:
    """Create the tables of payments, of the outbox, and ours."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (id bigserial PRIMARY KEY, what text)"))
        connection.execute(text("CREATE TABLE outbox (id bigserial PRIMARY KEY, value text)"))
    SqlStore(engine).create()


def _pay_at_rate(pay: Pay, numbers: range) -> dict[int, int]:
    commit_times_ns, began = {}, time.monotonic()
    for at, n in enumerate(numbers):
        time.sleep(max(0.0, began + at / RATE - time.monotonic()))
        commit_times_ns[n] = pay(n)
    return commit_times_ns


def find_quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def _count_changes(url: str, messages: int) -> tuple[float, float, float]:
    """Return our rows inserted, updated and deleted per message.

    PostgreSQL counts them only when the sessions that wrote them have ended.
    """
    query = "SELECT sum(n_tup_ins), sum(n_tup_upd), sum(n_tup_del) FROM pg_stat_user_tables"
    query += " WHERE relname <> 'payments'"
    counts = (0, 0, 0)
    for _ in range(20):
        time.sleep(0.1)
        with psycopg.connect(url) as connection:
            fresh_counts = connection.execute(query).fetchone()
        if fresh_counts == counts and any(counts):
            break
        counts = fresh_counts or counts
    inserts, updates, deletes = (float(each or 0) / messages for each in counts)
    return inserts, updates, deletes


def write(results: DualResults) -> str:
    """Write the table into the page, with whether the target is met, and return it."""
    head = ["", "transactions/s", "p50", "p99", "commit to visible p50", "p99"]
    head.append("rows inserted, updated, deleted per message")
    lines = []
    for way in WAYS:
        numbers = [
            results.compute_median(way, each) for each in ("p50_ms", "p99_ms", "seen_p50_ms", "seen_p99_ms")
        ]
        changes = ", ".join(f"{each:.2f}" for each in results.runs[way][-1].changes)
        times = ["" if each is None else f"{each:.2f} ms" for each in numbers]
        lines.append(
            [way, f"{results.compute_median(way, 'per_s'):,.0f}", *times, "" if way == ALONE else changes]
        )
    latencies_ms = {way: results.compute_median(way, "seen_p99_ms") or 0.0 for way in (DUAL, OUTBOX)}
    ratio = latencies_ms[DUAL] / latencies_ms[OUTBOX]
    verdict = "met" if ratio <= VISIBLE_RATIO_MAX else "missed"
    text_ = (
        "### Dual writes\n\n"
        f"PostgreSQL and tallystick, both on the disk before they acknowledge; one writer, one row and one "
        f"record a transaction; at {RATE} a second for the time until it is seen. "
        f"Medians of {len(results.runs[DUAL])} (`{results.command}`).\n\n"
        f"{format_table(head, lines)}\n\n"
        f"Commit to visible, p99: {ratio:.2f} of the outbox's; "
        f"the target of {VISIBLE_RATIO_MAX} is {verdict}.\n"
    )
    return replace_section(text_, BEGIN, END)
