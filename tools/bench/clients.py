"""Python clients beside each other: the same messages, sent by each, to both brokers."""

import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from tools.bench.brokers import create_topic, delete_topic, fresh, run_client
from tools.bench.load_client import CLIENTS, NEEDS, Load
from tools.bench.report import machine, mark, put, table
from tools.bench.rows import OS, shuffled
from tools.broker_process import BrokerProcess

BEGIN: Final = "<!-- clients: begin (written by `make bench`) -->"
END: Final = "<!-- clients: end -->"

OURS: Final = "tallystick"
THEIRS: Final = "confluent-kafka"
# Clients in pure Python get less to do, in proportion to what they can.
SLOW: Final = frozenset({"kafka-python", "aiokafka"})
WARM_UP: Final = 100_000


@dataclass(frozen=True, slots=True)
class ClientRow:
    """Messages of one size and codec."""

    size: int
    codec: str

    def __str__(self) -> str:
        return f"{self.size} B, {self.codec}"

    def messages(self, client: str, *, quick: bool) -> int:
        full = 2_000_000 if self.size <= 100 else 400_000
        return full // (10 if client in SLOW else 1) // (5 if quick else 1)


ROWS: Final = tuple(ClientRow(size, codec) for size, codec in product((100, 1000), ("none", "lz4")))

# Ours over confluent-kafka's per-message rate.
GOALS: Final = {
    (OURS, 100): 1.0,
    ("tallystick, Arrow", 100): 4.0,
}


@dataclass(slots=True)
class ClientResults:
    """Messages a second, and nanoseconds of the client's CPU a message."""

    command: str
    rates: dict[tuple[str, str, ClientRow], list[float]] = field(default_factory=dict)
    cpu_ns: dict[tuple[str, str, ClientRow], list[float]] = field(default_factory=dict)


def available() -> list[str]:
    """The clients that are installed."""
    return [client for client in CLIENTS if client not in NEEDS or find_spec(NEEDS[client])]


def measure(results: ClientResults, say: Console, brokers: Sequence[str], *, quick: bool) -> None:
    """One round: every row by every client on each broker, in an order of its own."""
    with ExitStack() as stack:
        running = {name: stack.enter_context(fresh(name, OS)) for name in shuffled(brokers)}
        for name, process in running.items():
            one(process, "warm", OURS, ROWS[0], WARM_UP)
            for row, client in shuffled(list(product(ROWS, available()))):
                messages = row.messages(client, quick=quick)
                os.sync()
                taken = one(process, f"load-{ROWS.index(row)}-{len(client)}", client, row, messages)
                key = (name, client, row)
                results.rates.setdefault(key, []).append(messages / taken["seconds"])
                results.cpu_ns.setdefault(key, []).append(taken["cpu_seconds"] / messages * 1e9)
                rate = results.rates[key][-1] / 1000
                say.print(f"{name:14}{client:18}{rate:8,.0f} k/s  {row}", style="dim")


def one(process: BrokerProcess, topic: str, client: str, row: ClientRow, messages: int) -> dict[str, float]:
    """Send to a new topic, see that all of it is there, delete it."""
    create_topic(process, topic, 1)
    load = Load(
        client=client,
        bootstrap=process.bootstrap,
        topic=topic,
        messages=messages,
        size=row.size,
        codec=row.codec,
    )
    taken = run_client(load)
    consumer = Consumer({"bootstrap.servers": process.bootstrap, "group.id": "bench"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    finally:
        consumer.close()
    if end != messages + 1:
        raise RuntimeError(f"{client}: {messages} messages and a first one sent, the broker shows {end}")
    delete_topic(process, topic)
    return taken


def write(results: ClientResults) -> str:
    """Put the tables into the page; what was put there."""
    parts = [f"{machine()}\n\nCommand: `{results.command}`"]
    parts += [_of_broker(results, name) for name in dict.fromkeys(name for name, _, _ in results.rates)]
    return put("\n\n".join(parts), BEGIN, END)


def _of_broker(results: ClientResults, broker: str) -> str:
    clients = [client for client in CLIENTS if any(key[:2] == (broker, client) for key in results.rates)]
    head = ["client"]
    for row in ROWS:
        head += [str(row), "CPU a message", f"over {THEIRS}"]
    lines = []
    for client in clients:
        line = [client]
        for row in ROWS:
            rate = statistics.median(results.rates[broker, client, row])
            cpu_ns = statistics.median(results.cpu_ns[broker, client, row])
            line += [f"{rate / 1000:,.0f} k/s", f"{cpu_ns:,.0f} ns"]
            line.append(_ratio(results, broker, client, row, rate))
        lines.append(line)
    repeats = min(len(taken) for key, taken in results.rates.items() if key[0] == broker)
    return f"### Produce from Python to {broker}\n\nMedians of {repeats}.\n\n{table(head, lines)}"


def _ratio(results: ClientResults, broker: str, client: str, row: ClientRow, rate: float) -> str:
    theirs = results.rates.get((broker, THEIRS, row))
    if theirs is None or client == THEIRS:
        return ""
    ratio = rate / statistics.median(theirs)
    goal = GOALS.get((client, row.size)) if row.codec == "none" else None
    return f"{ratio:.2f}x" if goal is None else mark(ratio, goal, at_least=True)
