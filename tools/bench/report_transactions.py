"""Formats the transactional measurements as Markdown, between markers of their own in docs/benchmarks.md."""

import statistics
from collections.abc import Sequence
from typing import Final

from tools.bench.brokers import KAFKA, NAMES, OURS
from tools.bench.report import describe_machine, format_ratio, format_settings, format_table, replace_section
from tools.bench.rows import OS, Durability
from tools.bench.transactions import (
    LIBRDKAFKA,
    MESSAGE_BYTES,
    OPEN_PARTITIONS,
    PARTITIONS,
    PYTHON,
    ROWS,
    TxnResults,
    TxnRow,
)

BEGIN: Final = "<!-- transactions: begin (written by `make bench`) -->"
END: Final = "<!-- transactions: end -->"

SEQUENTIAL_RATIO_MIN: Final = 1.0
# Goals for our client on our broker under `os`.
PYTHON_COMMITS_MIN: Final = 10_000
PYTHON_RATIO_MIN: Final = 5.0
SEQUENTIAL_P99_RATIO_MAX: Final = 1.0
CONCURRENT_RATIO_MIN: Final = 1.5
RESTART_S_MAX: Final = 3.0


def format_commits(results: TxnResults, durability: Durability) -> str:
    """Return the table of commits per second and their latency under one durability."""
    head = ["producers"]
    for name in NAMES:
        head += [f"{name}: commits/s", "p50", "p99", "broker CPU"]
    head += ["commits ratio", "p99 ratio"]
    lines = [_format_commit_line(results, durability.name, row) for row in ROWS]
    repeats = min(len(runs) for key, runs in results.commits.items() if key[0] == durability.name)
    return (
        f"### Transactions, durability `{durability.name}`: {durability.promise}\n\n"
        f"tallystick `{format_settings(durability.ours)}`; Kafka `{format_settings(durability.kafka)}`. "
        f"One message of {MESSAGE_BYTES} B a transaction, {PARTITIONS} partitions. Medians of {repeats}.\n\n"
        f"{format_table(head, lines)}"
    )


def _format_commit_line(results: TxnResults, durability: str, row: TxnRow) -> list[str]:
    line = [str(row)]
    for name in NAMES:
        key = (durability, row, name)
        line += [
            f"{results.compute_median(key, 'per_s'):,.0f}",
            f"{results.compute_median(key, 'p50_ms'):.2f} ms",
            f"{results.compute_median(key, 'p99_ms'):.2f} ms",
            f"{results.compute_median(key, 'broker_cpu'):.0%}",
        ]
    alone = row.producers == 1
    goal = SEQUENTIAL_RATIO_MIN if alone else CONCURRENT_RATIO_MIN
    p99 = results.compute_ratio(durability, row, "p99_ms")
    return [
        *line,
        format_ratio(results.compute_ratio(durability, row, "per_s"), goal, at_least=True),
        format_ratio(p99, SEQUENTIAL_P99_RATIO_MAX, at_least=False) if alone else f"{p99:.2f}x",
    ]


def format_python(results: TxnResults) -> str:
    """Return the table of our client beside confluent-kafka, on our broker, one transaction after another."""
    ours, theirs = (
        results.compute_median((OS.name, TxnRow(client=client, producers=1), OURS), "per_s")
        for client in (PYTHON, LIBRDKAFKA)
    )
    enough = "" if ours >= PYTHON_COMMITS_MIN else ", missed"
    return (
        f"From Python, one after another, on tallystick under `{OS.name}`: our client {ours:,.0f}/s "
        f"(goal {PYTHON_COMMITS_MIN:,}/s{enough}), confluent-kafka {theirs:,.0f}/s: "
        f"{format_ratio(ours / theirs, PYTHON_RATIO_MIN, at_least=True)}."
    )


def format_many(results: TxnResults) -> str:
    """Return the tables of many open transactions and many transactional ids."""
    loads, restarts = results.open, results.restarts
    count, ids = loads[OURS][0].count, restarts[OURS][0].count

    def format_line(
        what: str, unit: str, values: dict[str, list[float]], goal: float | None = None
    ) -> list[str]:
        medians = {name: statistics.median(values[name]) for name in NAMES}
        cells = [f"{medians[name]:,.{0 if medians[name] >= 100 else 2}f} {unit}" for name in NAMES]
        is_missed = goal is not None and medians[OURS] > goal
        return [
            what,
            *cells,
            "" if goal is None else f"<= {goal:g} {unit}{' (missed)' if is_missed else ''}",
        ]

    lines = [
        format_line(
            "memory (RSS) per open transaction", "B", {n: [h.bytes_each for h in loads[n]] for n in NAMES}
        ),
        format_line("ListTransactions, median of 7", "ms", {n: [h.list_ms for h in loads[n]] for n in NAMES}),
        format_line(
            "opened (InitProducerId, Produce)", "/s", {n: [h.opened_per_s for h in loads[n]] for n in NAMES}
        ),
        format_line(
            f"restart until {ids:,} ids are listed, clean stop",
            "s",
            {n: [r.clean_s for r in restarts[n]] for n in NAMES},
            RESTART_S_MAX,
        ),
        format_line(
            "the same after `kill -9`",
            "s",
            {n: [r.killed_s for r in restarts[n]] for n in NAMES},
            RESTART_S_MAX,
        ),
    ]
    return (
        f"### {count:,} open transactions on {OPEN_PARTITIONS} partitions; {ids:,} transactional ids\n\n"
        f"Durability `os`. {KAFKA}'s memory is a heap that the JVM had taken before.\n\n"
        f"{format_table(['', *NAMES, 'our goal'], lines)}"
    )


def write(results: TxnResults, durabilities: Sequence[Durability]) -> str:
    """Write the tables into the page, and return them."""
    parts = [f"{describe_machine()}\n\nCommand: `{results.command}`"]
    parts += [format_commits(results, durability) for durability in durabilities]
    parts += [format_python(results), format_many(results)]
    return replace_section("\n\n".join(parts), BEGIN, END)
