"""Run every measurement against both brokers and rewrite docs/benchmarks.md."""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from rich.console import Console
from tools.bench import (
    clients,
    dual_write,
    report,
    report_transactions,
    spark,
    transactions,
)
from tools.bench.brokers import NAMES, create_topic, delete_topic, prepare, run_fresh, run_latency, run_load
from tools.bench.lake import spark_writes
from tools.bench.report import Results
from tools.bench.rows import (
    DURABILITIES,
    MEMORY_MESSAGES,
    OS,
    QUICK_ROWS,
    ROWS,
    STARTS,
    Durability,
    Row,
    shuffle,
)
from tools.servers.apache_kafka import Unavailable, find_class_path
from tools.servers.broker_process import BrokerProcess
from tools.servers.spark_kafka import find_spark_jars

SETTLE_S = 3.0
WARM_UP = Row(size=100, partitions=6, codec="lz4")
WARM_UP_MESSAGES = 1_000_000
MIB = 2**20


def measure_start(results: Results, say: Console, starts: int) -> None:
    """Measure the time to the first answer, and idle memory, with fresh directories formatted beforehand."""
    for _ in range(starts):
        for name in shuffle(NAMES):
            with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as directory:
                process = prepare(name, OS, Path(directory))
                results.start_s.setdefault(name, []).append(process.start())
                time.sleep(SETTLE_S)
                results.idle_mib.setdefault(name, []).append(process.read_rss_bytes() / MIB)
                process.stop()
            say.print(f"start  {name:14}{results.start_s[name][-1] * 1000:8.0f} ms", style="dim")


def measure_memory(results: Results, say: Console, repeats: int) -> None:
    """Measure a fresh broker's resident memory after millions of messages went in and out."""
    row = Row(size=100, partitions=1, codec="none")
    for _ in range(repeats):
        for name in shuffle(NAMES):
            with run_fresh(name, OS) as process:
                create_topic(process, "memory", 1)
                for mode in report.MODES:
                    run_load(process, mode, "memory", row, MEMORY_MESSAGES)
                results.loaded_mib.setdefault(name, []).append(process.read_rss_bytes() / MIB)
            say.print(f"memory {name:14}{results.loaded_mib[name][-1]:8.0f} MiB", style="dim")


def measure_loads(
    results: Results, say: Console, durability: Durability, rows: Sequence[Row], *, quick: bool
) -> None:
    """Measure one round: both brokers running and warm, every row on each, in shuffled order."""
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(run_fresh(name, durability)) for name in shuffle(NAMES)}
        for name, process in brokers.items():
            # A cold JVM, with its hot paths not compiled yet, is not what a user of Kafka has.
            run_loads(process, f"warm-{name.split()[0]}", WARM_UP, WARM_UP_MESSAGES)
        for row in shuffle(rows):
            for name in shuffle(NAMES):
                messages = row.choose_count(quick)
                loads = run_loads(brokers[name], f"load-{rows.index(row)}", row, messages)
                for mode, load in loads.items():
                    results.loads.setdefault((durability.name, mode, row, name), []).append((load, messages))
                    rate = messages / load.seconds / 1000
                    say.print(f"{durability.name:5}{mode:8}{name:14}{rate:8,.0f} k/s  {row}", style="dim")


def run_loads(process: BrokerProcess, topic: str, row: Row, messages: int) -> dict[str, report.Load]:
    """Produce to a new topic, read it back, and delete it."""
    os.sync()  # so that writing back the previous run's data does not count for this one
    create_topic(process, topic, row.partitions)
    loads = {mode: run_load(process, mode, topic, row, messages) for mode in report.MODES}
    delete_topic(process, topic)
    return loads


def measure_latency(results: Results, say: Console, durability: Durability) -> None:
    """Measure latency once on each broker, fresh and warmed up."""
    for name in shuffle(NAMES):
        with run_fresh(name, durability) as process:
            run_loads(process, "warm", WARM_UP, WARM_UP_MESSAGES // 5)
            os.sync()
            latencies_ms = run_latency(process)
        results.latency.setdefault((durability.name, name), []).append(latencies_ms)
        say.print(f"{durability.name:5}p99     {name:14}{latencies_ms['p99']:8.2f} ms", style="dim")


def raise_interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Exit as after Ctrl-C, so that every broker is stopped."""
    raise KeyboardInterrupt


def measure_messages(say: Console, command: str, repeats: int, *, quick: bool) -> str:
    """Measure everything but transactions, and return the page's new section."""
    rows = QUICK_ROWS if quick else ROWS
    results = Results(command)
    measure_start(results, say, 3 if quick else STARTS)
    measure_memory(results, say, repeats)
    for _ in range(repeats):
        for durability in shuffle(DURABILITIES):
            measure_loads(results, say, durability, rows, quick=quick)
            measure_latency(results, say, durability)
    return report.write(results, DURABILITIES, rows)


def measure_transactions(say: Console, command: str, repeats: int, *, quick: bool) -> str:
    """Measure transactions, and return the page's new section."""
    results = transactions.TxnResults(command)
    scale = transactions.QUICK if quick else transactions.FULL
    for _ in range(repeats):
        for durability in shuffle(DURABILITIES):
            transactions.measure_commits(results, say, durability, scale)
        transactions.measure_ids(results, say, scale)
    return report_transactions.write(results, DURABILITIES)


def measure_clients(say: Console, command: str, repeats: int, *, quick: bool) -> str:
    """Measure the Python clients side by side, and return the page's new section."""
    results = clients.ClientResults(command)
    for _ in range(repeats):
        clients.measure(results, say, NAMES, quick=quick)
    return clients.write(results)


def measure_spark(say: Console, command: str, repeats: int, *, quick: bool) -> str:
    """Measure our Spark source and sink beside Spark's own, and return the page's new section."""
    try:
        jars = find_spark_jars()
    except Unavailable as exc:
        return f"Spark's own connector is not available here: {exc}"
    results = spark.SparkResults(command)
    for _ in range(repeats):
        spark.measure(results, say, jars, quick=quick)
    return spark.write(results)


def measure_lake_writes(say: Console, command: str, repeats: int, *, quick: bool) -> str:
    """Measure Spark's batches into a Delta table beside other writers, and return the page's new section."""
    try:
        jars = find_spark_jars()
    except Unavailable as exc:
        return f"Spark's own connector is not available here: {exc}"
    results = spark_writes.LakeResults(command)
    for _ in range(repeats):
        spark_writes.measure(results, say, jars, quick=quick)
    return spark_writes.write(results)


def measure_dual_writes(say: Console, command: str, repeats: int, *, quick: bool) -> str:
    """Measure dual writes beside a plain commit and an outbox, and return the page's new section."""
    results = dual_write.DualResults(command)
    for _ in range(repeats):
        with dual_write.start_servers() as (server, broker):
            dual_write.measure(results, say, server, broker, quick=quick)
    return dual_write.write(results)


# Rounds whose medians the tables show; one round of Spark is millions of records and hundreds of batches.
ROUNDS = {
    "messages": 5,
    "transactions": 5,
    "client": 3,
    "dualwrite": 5,
    "spark": 1,
    "lake": 1,
}
PARTS = {
    "messages": measure_messages,
    "transactions": measure_transactions,
    "client": measure_clients,
    "dualwrite": measure_dual_writes,
    "spark": measure_spark,
    "lake": measure_lake_writes,
}


def main() -> int:
    """Parse the options, measure, and write the page."""
    signal.signal(signal.SIGTERM, raise_interrupt)
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of fewer, shorter rows")
    parser.add_argument("--only", choices=PARTS, help="one part; the others' tables stay as they are")
    parser.add_argument(
        "--repeats", type=int, default=0, help="rounds; the tables show medians (default: 5 of most parts)"
    )
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(10_000), help="of the order"
    )
    options = parser.parse_args()
    say = Console(stderr=True, highlight=False)
    try:
        find_class_path()
    except Unavailable as exc:
        say.print(f"make bench compares with Apache Kafka, which is not available here: {exc}")
        return 1
    random.seed(options.seed)
    flags = f" --only {options.only}" if options.only else ""
    flags += " --quick" if options.quick else ""
    flags += f" --repeats {options.repeats}" if options.repeats else ""
    command = f"python -m tools.bench{flags} --seed {options.seed}"
    say.print(command)
    for part, measure in PARTS.items():
        if options.only in (None, part):
            rounds = options.repeats or (1 if options.quick else ROUNDS[part])
            print(measure(say, command, rounds, quick=options.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
