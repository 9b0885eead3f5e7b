"""The transactional part of the bench: both brokers under the same loads, alternating."""

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from tools.bench.brokers import KAFKA, NAMES, OURS, RUN_SECONDS_MAX, create_topic, delete_topic, run_fresh
from tools.bench.loads.transactions import TransactionLoad
from tools.bench.rows import OS, Durability, shuffle
from tools.bench.transactional_ids import OpenTransactions, Restart, measure_restart, open_transactions
from tools.servers.apache_kafka import make_java_command
from tools.servers.broker_process import BrokerProcess

from tallystick.testing import eventually

LIBRDKAFKA: Final = "librdkafka"
JAVA: Final = "Java client"
PYTHON: Final = "tallystick"
CLIENTS: Final = (LIBRDKAFKA, JAVA)
PRODUCERS: Final = (1, 16, 64)
PARTITIONS: Final = 16
MESSAGE_BYTES: Final = 100
OPEN: Final = 10_000
OPEN_PARTITIONS: Final = 100
IDS: Final = 100_000
_SOURCE: Final = Path(__file__).with_name("Transactions.java")
# Options for a small client that keep the optimising compiler: users do not run with C1 alone.
_CLIENT_JVM: Final = ("-XX:+UseSerialGC", "-Xshare:auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnRow:
    """A number of producers of one client library, each committing one message after another."""

    client: str
    producers: int

    def __str__(self) -> str:
        many = f"{self.producers} producers" if self.producers > 1 else "1 producer, sequential"
        return f"{self.client}, {many}"


ROWS: Final = (
    TxnRow(client=PYTHON, producers=1),
    *(TxnRow(client=client, producers=producers) for producers in PRODUCERS for client in CLIENTS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The durations and amounts of a run."""

    warm_up_s: float
    seconds: float
    open: int
    ids: int


FULL: Final = Scale(warm_up_s=3, seconds=10, open=OPEN, ids=IDS)
QUICK: Final = Scale(warm_up_s=3, seconds=5, open=OPEN, ids=IDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """The measurements of one run of one row."""

    per_s: float
    p50_ms: float
    p99_ms: float
    broker_cpu: float


Key = tuple[str, TxnRow, str]  # durability, row, broker


@dataclass
class TxnResults:
    """The measurements of the transactional part."""

    command: str
    commits: dict[Key, list[Commits]] = field(default_factory=dict)
    open: dict[str, list[OpenTransactions]] = field(default_factory=dict)
    restarts: dict[str, list[Restart]] = field(default_factory=dict)

    def compute_median(self, key: Key, of: str) -> float:
        """Return the median of one attribute over all rounds."""
        return statistics.median(getattr(commits, of) for commits in self.commits[key])

    def compute_ratio(self, durability: str, row: TxnRow, of: str) -> float:
        """Return our value over Kafka's."""
        return self.compute_median((durability, row, OURS), of) / self.compute_median(
            (durability, row, KAFKA), of
        )


def measure_commits(results: TxnResults, say: Console, durability: Durability, scale: Scale) -> None:
    """Measure one round: both brokers running and warm, every row on each, in shuffled order."""
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(run_fresh(name, durability)) for name in shuffle(NAMES)}
        for name, process in brokers.items():
            for client in CLIENTS:
                warm = TxnRow(client=client, producers=PARTITIONS)
                run_commits(process, f"warm-{CLIENTS.index(client)}-{NAMES.index(name)}", warm, scale)
        for row in shuffle(ROWS):
            for name in shuffle(NAMES):
                os.sync()  # so that writing back the previous run's data does not count for this one
                commits = run_commits(brokers[name], f"txn-{ROWS.index(row)}", row, scale)
                results.commits.setdefault((durability.name, row, name), []).append(commits)
                say.print(
                    f"{durability.name:5}commits {name:14}{commits.per_s:8,.0f} /s  "
                    f"p50 {commits.p50_ms:6.2f} ms  p99 {commits.p99_ms:7.2f} ms  {row}",
                    style="dim",
                )


def run_commits(process: BrokerProcess, topic: str, row: TxnRow, scale: Scale) -> Commits:
    """Commit to a new topic with clients in a separate process, and check that every commit is in it."""
    create_topic(process, topic, PARTITIONS)
    cpu = process.read_cpu_seconds()
    child = subprocess.run(
        make_command(process, topic, row, scale),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    cpu = process.read_cpu_seconds() - cpu
    if child.returncode:
        raise RuntimeError(f"{row} failed at {process.name}:\n{child.stderr[-3000:]}")
    answer = json.loads(child.stdout)
    # A message and a marker each; markers may be written after the answer.
    eventually(lambda: sum_end_offsets(process, topic) == 2 * answer["committed"], deadline_s=10)
    delete_topic(process, topic)
    times_ms = sorted(answer["taken_ms"])
    return Commits(
        per_s=len(times_ms) / scale.seconds,
        p50_ms=statistics.median(times_ms),
        p99_ms=times_ms[min(len(times_ms) - 1, int(len(times_ms) * 0.99))],
        broker_cpu=cpu / (scale.warm_up_s + scale.seconds),
    )


def sum_end_offsets(process: BrokerProcess, topic: str) -> int:
    """Return the sum of the end offsets of all partitions."""
    consumer = Consumer({"bootstrap.servers": process.bootstrap, "group.id": "bench"})
    try:
        ends = (consumer.get_watermark_offsets(TopicPartition(topic, n))[1] for n in range(PARTITIONS))
        return sum(ends)
    finally:
        consumer.close()


def make_command(process: BrokerProcess, topic: str, row: TxnRow, scale: Scale) -> list[str]:
    """Return the command line of the client."""
    if row.client == JAVA:
        arguments = map(str, (PARTITIONS, row.producers, scale.warm_up_s, scale.seconds, MESSAGE_BYTES))
        return make_java_command(
            str(_SOURCE), process.bootstrap, topic, *arguments, heap_mb=512, jvm=_CLIENT_JVM
        )
    load: TransactionLoad = {
        "client": row.client,
        "bootstrap": process.bootstrap,
        "topic": topic,
        "partitions": PARTITIONS,
        "producers": row.producers,
        "warm_up_s": scale.warm_up_s,
        "seconds": scale.seconds,
        "size": MESSAGE_BYTES,
    }
    return [sys.executable, "-m", "tools.bench.loads.transactions", json.dumps(load)]


def measure_ids(results: TxnResults, say: Console, scale: Scale) -> None:
    """Measure many open transactions and a restart with many ids, on a fresh broker each."""
    for name in shuffle(NAMES):
        with run_fresh(name, OS) as process:
            load = open_transactions(process, scale.open, OPEN_PARTITIONS)
        results.open.setdefault(name, []).append(load)
        say.print(
            f"open    {name:14}{load.bytes_each:8,.0f} B each, {load.list_ms:.0f} ms to list", style="dim"
        )
        with run_fresh(name, OS) as process:
            times = measure_restart(process, scale.ids)
        results.restarts.setdefault(name, []).append(times)
        say.print(f"restart {name:14}{times.clean_s:8.2f} s, killed {times.killed_s:.2f} s", style="dim")
