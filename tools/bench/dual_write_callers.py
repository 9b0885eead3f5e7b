"""Measure the dual writes of concurrent callers beside an outbox: units that share dual writes, by callers.

Every caller is a thread that pays one unit after the other: a row of PostgreSQL and a record. The outbox's
callers write both rows in a transaction of their own, and one relay sends the records. Nothing is tuned for
one number of callers: the pool has one writer, and each way has the same settings in all its rows.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from sqlalchemy import Engine, create_engine, text
from tests.support.servers import PostgreSQL
from tools.bench.brokers import create_topic
from tools.bench.dual_write import PAYMENT, RELAY_S, Reader, create_tables, find_quantile, relay_outbox
from tools.bench.report import format_table, replace_section
from tools.servers.broker_process import BrokerProcess

from tallystick.dualwrite import SqlStore, WriterPool
from tallystick.dualwrite.recipes import RecipeStep

BEGIN: Final = "<!-- concurrent dual writes: begin (written by `make bench`) -->"
END: Final = "<!-- concurrent dual writes: end -->"
BATCHED, OUTBOX = "dual writes in batches", f"outbox, relayed every {round(1000 * RELAY_S)} ms"
WAYS: Final = (BATCHED, OUTBOX)
CALLERS: Final = (1, 4, 16, 64)
RATIO_MIN: Final = {16: 0.8, 64: 1.0}
VISIBLE_RATIO_MAX: Final = 0.1
WARM_UP: Final = 20  # units of each caller

# Does one unit with message number `n`, and returns when both its rows and its decision are committed.
Pay = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class CallersRun:
    """One way with one number of callers; times in ms. `seen`: from the database's commit to the read."""

    per_s: float
    unit_p99_ms: float
    seen_p50_ms: float
    seen_p99_ms: float


@dataclass
class CallersResults:
    command: str
    runs: dict[tuple[str, int], list[CallersRun]] = field(default_factory=dict)

    def compute_median(self, way: str, callers: int, what: str) -> float:
        return statistics.median(getattr(run, what) for run in self.runs[way, callers])


class CommitTimes:
    """When the database had committed each unit, in ns."""

    def __init__(self) -> None:
        self.at_ns: dict[int, int] = {}
        self._pending: list[int] = []

    def add(self, n: int) -> None:
        """Note a unit of the transaction that is open."""
        self._pending.append(n)

    def watch(self, _: int, step: RecipeStep, is_done: bool) -> None:
        """Note when the units of the open transaction are committed: the pool has one writer."""
        if is_done and step.name == "commit database":
            units, self._pending = self._pending, []
            self.at_ns.update(dict.fromkeys(units, time.monotonic_ns()))


@contextmanager
def pay_in_batches(engine: Engine, bootstrap: str, topic: str, times: CommitTimes) -> Iterator[Pay]:
    config = {"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 0}
    with WriterPool(SqlStore(engine), config, size=1, watch=times.watch) as pool:
        pool.recover()

        def pay(n: int) -> None:
            def work(unit: Any) -> None:
                times.add(n)
                unit.connection.execute(PAYMENT, {"what": str(n)})
                unit.send(topic, str(n).encode())

            pool.run_batched(work)

        yield pay


@contextmanager
def pay_with_outbox(engine: Engine, bootstrap: str, topic: str, times: CommitTimes) -> Iterator[Pay]:
    stopping = threading.Event()
    relay = threading.Thread(target=relay_outbox, args=(engine, bootstrap, topic, stopping), daemon=True)
    relay.start()
    insert = text("INSERT INTO outbox (value) VALUES (:value)")

    def pay(n: int) -> None:
        with engine.begin() as connection:
            connection.execute(PAYMENT, {"what": str(n)})
            connection.execute(insert, {"value": str(n)})
        times.at_ns[n] = time.monotonic_ns()

    yield pay
    stopping.set()
    relay.join()


PAYING: Final = {BATCHED: pay_in_batches, OUTBOX: pay_with_outbox}


def measure(
    results: CallersResults, say: Console, server: PostgreSQL, broker: BrokerProcess, *, quick: bool
) -> None:
    """Measure one round on servers that run: each number of callers, each way."""
    for callers in CALLERS:
        for way in WAYS:
            run = measure_run(server, broker, way, callers, units=500 if quick else 4000)
            results.runs.setdefault((way, callers), []).append(run)
            say.print(
                f"dual   {way:30}{callers:3} callers{run.per_s:8,.0f} /s  seen p99 {run.seen_p99_ms:.1f} ms",
                style="dim",
            )


def measure_run(server: PostgreSQL, broker: BrokerProcess, way: str, callers: int, units: int) -> CallersRun:
    """Measure one way in a database and a topic of its own."""
    name = server.new_database()
    url = server.url(name).replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url, pool_size=callers + 4)
    create_tables(engine)
    topic = f"{name}-{callers}"
    create_topic(broker, topic, 1)
    reader = Reader(broker.bootstrap, topic)
    times = CommitTimes()
    with PAYING[way](engine, broker.bootstrap, topic, times) as pay:
        pay_concurrently(pay, callers, range(-WARM_UP * callers, 0))
        began = time.monotonic()
        took_ms = pay_concurrently(pay, callers, range(units))
        took = time.monotonic() - began
        reader.wait(units + WARM_UP * callers)
    engine.dispose()
    reader.stop()
    latencies_ms = [(reader.arrived_at_ns[n] - times.at_ns[n]) / 1e6 for n in range(units)]
    return CallersRun(
        per_s=units / took,
        unit_p99_ms=find_quantile(took_ms, 0.99),
        seen_p50_ms=find_quantile(latencies_ms, 0.5),
        seen_p99_ms=find_quantile(latencies_ms, 0.99),
    )


def pay_concurrently(pay: Pay, callers: int, numbers: range) -> list[float]:
    """Let every caller pay its share, and return how long each unit took, in ms."""

    def pay_share(share: range) -> list[float]:
        took_ms = []
        for n in share:
            before = time.perf_counter()
            pay(n)
            took_ms.append(1000 * (time.perf_counter() - before))
        return took_ms

    with ThreadPoolExecutor(callers) as executor:
        shares = executor.map(pay_share, [numbers[caller::callers] for caller in range(callers)])
        return [each for share in shares for each in share]


def write(results: CallersResults) -> str:
    """Write the table into the page, with whether the targets are met, and return it."""
    head = ["callers", "", "units/s", "beside the outbox", "unit p99", "commit to visible p50", "p99"]
    lines, verdicts = [], []
    for callers in CALLERS:
        per_s = {way: results.compute_median(way, callers, "per_s") for way in WAYS}
        latencies_ms = {way: results.compute_median(way, callers, "seen_p99_ms") for way in WAYS}
        ratio, seen_ratio = per_s[BATCHED] / per_s[OUTBOX], latencies_ms[BATCHED] / latencies_ms[OUTBOX]
        for way in WAYS:
            numbers = [
                f"{results.compute_median(way, callers, what):.1f} ms"
                for what in ("unit_p99_ms", "seen_p50_ms", "seen_p99_ms")
            ]
            beside = f"{ratio:.2f}x" if way == BATCHED else ""
            lines.append([str(callers), way, f"{per_s[way]:,.0f}", beside, *numbers])
        if callers in RATIO_MIN:
            verdict = "met" if ratio >= RATIO_MIN[callers] else "missed"
            visible_verdict = "met" if seen_ratio <= VISIBLE_RATIO_MAX else "missed"
            verdicts.append(
                f"{callers} callers: {ratio:.2f}x of the outbox's units, the target of "
                f"{RATIO_MIN[callers]}x is {verdict}; commit to visible p99 {seen_ratio:.2f} of the "
                f"outbox's, the target of {VISIBLE_RATIO_MAX} is {visible_verdict}."
            )
    rounds = len(results.runs[BATCHED, CALLERS[0]])
    return replace_section(
        "### Dual writes of concurrent callers\n\n"
        "The same servers; every caller is a thread that pays one unit after the other, as fast as it can. "
        "In batches: `WriterPool.run_batched` with one writer. The reader is librdkafka, of committed "
        "records. "
        f"Medians of {rounds} (`{results.command}`).\n\n"
        f"{format_table(head, lines)}\n\n" + "\n".join(verdicts) + "\n",
        BEGIN,
        END,
    )
