"""Python clients side by side: each sends the same messages to both brokers."""

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from tools.bench.brokers import create_topic, delete_topic, run_client, run_consumer, run_fresh
from tools.bench.loads.client import CLIENTS, NEEDS, Load
from tools.bench.loads.consumer import CONSUMERS
from tools.bench.report import describe_machine, format_ratio, format_table, replace_section
from tools.bench.rows import OS, shuffle
from tools.servers.broker_process import BrokerProcess

BEGIN: Final = "<!-- clients: begin (written by `make bench`) -->"
END: Final = "<!-- clients: end -->"

OURS: Final = "tallystick"
THEIRS: Final = "confluent-kafka"
# Pure Python clients get fewer messages, in proportion to their speed.
SLOW: Final = frozenset({"kafka-python", "aiokafka"})
WARM_UP: Final = 100_000


@dataclass(frozen=True, slots=True)
class ClientRow:
    """Messages of one size and codec."""

    size: int
    codec: str
    uneven: bool = False

    def __str__(self) -> str:
        size = f"{self.size // 2}-{self.size + self.size // 2}" if self.uneven else str(self.size)
        return f"{size} B, {self.codec}"

    def choose_count(self, client: str, *, quick: bool) -> int:
        full = 2_000_000 if self.size <= 100 else 400_000
        return full // (10 if client in SLOW else 1) // (5 if quick else 1)


ROWS: Final = tuple(ClientRow(size, codec) for size, codec in product((100, 1000), ("none", "lz4")))

READ_ROWS: Final = (ROWS[0], ClientRow(100, "none", uneven=True), ROWS[1], ROWS[2])

# Ratios to confluent-kafka's rate with a call per message.
ARROW: Final = "tallystick, Arrow"
GOALS: Final = {
    (OURS, ROWS[0]): 1.0,
    (ARROW, ROWS[0]): 4.0,
    (ARROW, ROWS[1]): 2.0,
    (ARROW, ROWS[2]): 2.0,
    (ARROW, ROWS[3]): 1.0,
}


@dataclass(slots=True)
class Figures:
    """Messages per second, and nanoseconds of the client's CPU time per message."""

    rates: dict[tuple[str, str, ClientRow], list[float]] = field(default_factory=dict)
    cpu_ns: dict[tuple[str, str, ClientRow], list[float]] = field(default_factory=dict)

    def add(self, key: tuple[str, str, ClientRow], messages: float, timing: dict[str, float]) -> float:
        """Add one run and return its rate."""
        self.rates.setdefault(key, []).append(messages / timing["seconds"])
        self.cpu_ns.setdefault(key, []).append(timing["cpu_seconds"] / messages * 1e9)
        return self.rates[key][-1]


@dataclass(slots=True)
class ClientResults:
    """The figures of sending and of reading."""

    command: str
    sending: Figures = field(default_factory=Figures)
    reading: Figures = field(default_factory=Figures)


def list_clients() -> list[str]:
    """Return the clients that are installed."""
    return [client for client in CLIENTS if client not in NEEDS or find_spec(NEEDS[client])]


def measure(results: ClientResults, say: Console, brokers: Sequence[str], *, quick: bool) -> None:
    """Measure one round: every row by every client on each broker, in shuffled order."""
    with ExitStack() as stack:
        running = {name: stack.enter_context(run_fresh(name, OS)) for name in shuffle(brokers)}
        for name, process in running.items():
            run_sender(process, "warm", OURS, ROWS[0], WARM_UP)
            for row, client in shuffle(list(product(ROWS, list_clients()))):
                messages = row.choose_count(client, quick=quick)
                os.sync()
                timing = run_sender(process, f"load-{ROWS.index(row)}-{len(client)}", client, row, messages)
                rate = results.sending.add((name, client, row), messages, timing)
                say.print(f"{name:14}{client:18}{rate / 1000:8,.0f} k/s  {row}", style="dim")
            for row in shuffle(READ_ROWS):
                measure_reading(results, say, name, process, row, quick=quick)


def measure_reading(
    results: ClientResults, say: Console, name: str, process: BrokerProcess, row: ClientRow, *, quick: bool
) -> None:
    """Fill a topic, read it with each consumer, and delete it. Slow consumers read a tenth of it."""
    topic, messages = f"read-{READ_ROWS.index(row)}", row.choose_count(OURS, quick=quick)
    create_topic(process, topic, 1)
    run_client(_load(process, topic, OURS, row, messages))
    for client in shuffle([client for client in CONSUMERS if client in list_clients()]):
        count = row.choose_count(client, quick=quick)
        reading = {"client": client, "bootstrap": process.bootstrap, "topic": topic, "messages": count}
        timing = run_consumer(reading)
        rate = results.reading.add((name, client, row), timing["counted"], timing)
        say.print(f"{name:14}{client:18}{rate / 1000:8,.0f} k/s  read {row}", style="dim")
    delete_topic(process, topic)


def run_sender(
    process: BrokerProcess, topic: str, client: str, row: ClientRow, messages: int
) -> dict[str, float]:
    """Send to a new topic, check that every message is there, and delete it."""
    create_topic(process, topic, 1)
    timing = run_client(_load(process, topic, client, row, messages))
    consumer = Consumer({"bootstrap.servers": process.bootstrap, "group.id": "bench"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    finally:
        consumer.close()
    if end != messages + 1:
        raise RuntimeError(f"{client}: {messages} messages and a first one sent, the broker shows {end}")
    delete_topic(process, topic)
    return timing


def _load(process: BrokerProcess, topic: str, client: str, row: ClientRow, messages: int) -> Load:
    return Load(
        client=client,
        bootstrap=process.bootstrap,
        topic=topic,
        messages=messages,
        size=row.size,
        codec=row.codec,
        uneven=row.uneven,
    )


def write(results: ClientResults) -> str:
    """Write the tables into the page, and return them."""
    parts = [f"{describe_machine()}\n\nCommand: `{results.command}`"]
    for broker in dict.fromkeys(name for name, _, _ in results.sending.rates):
        parts.append(_format_table(f"Produce from Python to {broker}", results.sending, broker, ROWS, GOALS))
        parts.append(
            _format_table(f"Consume in Python from {broker}", results.reading, broker, READ_ROWS, {})
        )
    return replace_section("\n\n".join(parts), BEGIN, END)


def _format_table(
    title: str,
    figures: Figures,
    broker: str,
    rows: Sequence[ClientRow],
    goals: Mapping[tuple[str, ClientRow], float],
) -> str:
    clients = [client for client in CLIENTS if any(key[:2] == (broker, client) for key in figures.rates)]
    head = ["client"]
    for row in rows:
        head += [str(row), "CPU a message", f"over {THEIRS}"]
    lines = []
    for client in clients:
        line = [client]
        for row in rows:
            rate = statistics.median(figures.rates[broker, client, row])
            cpu_ns = statistics.median(figures.cpu_ns[broker, client, row])
            line += [f"{rate / 1000:,.0f} k/s", f"{cpu_ns:,.0f} ns"]
            theirs = figures.rates.get((broker, THEIRS, row))
            line.append(_format_ratio(client, rate, theirs, goals.get((client, row))))
        lines.append(line)
    repeats = min(len(rates) for key, rates in figures.rates.items() if key[0] == broker)
    return f"### {title}\n\nMedians of {repeats}.\n\n{format_table(head, lines)}"


def _format_ratio(client: str, rate: float, theirs: list[float] | None, goal: float | None) -> str:
    if theirs is None or client == THEIRS:
        return ""
    ratio = rate / statistics.median(theirs)
    return f"{ratio:.2f}x" if goal is None else format_ratio(ratio, goal, at_least=True)
