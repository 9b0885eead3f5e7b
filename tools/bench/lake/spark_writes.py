"""Measure batches of Spark that go into a Delta table: ours beside `write_deltalake`.

Ours decide once for topic and table, or for the table alone. The others are at least once: a batch that is
repeated after a crash is in the table twice.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from rich.console import Console
from tools.bench.brokers import OURS as OUR_BROKER
from tools.bench.brokers import create_topic, run_fresh
from tools.bench.loads.lake_writers import (
    DELTA_RS,
    KAFKA_AND_DELTA_RS,
    OURS,
    OURS_JOINT,
    OURS_TOPIC,
    Turn,
    name_place,
)
from tools.bench.report import describe_machine, format_ratio, format_table, replace_section
from tools.bench.spark import BROKER
from tools.servers.broker_process import BrokerProcess

BEGIN: Final = "<!-- lake: begin (written by `make bench`) -->"
END: Final = "<!-- lake: end -->"

PARTITIONS: Final = 2
RATIO_MIN: Final = 1.0
ADDED_MS_MAX: Final = 100.0
STOP_SECONDS_MAX: Final = 60.0
SMALL_ROWS: Final = 200
SMALL_WRITERS: Final = (OURS_JOINT, OURS_TOPIC, DELTA_RS)
PAIRS: Final = ((OURS, DELTA_RS), (OURS_JOINT, KAFKA_AND_DELTA_RS))
"""Ours, and what it is compared with: the table alone, and topic and table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The batches of one driver."""

    size: int
    rows: int
    rounds: int
    writers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.rows:,} rows of {self.size} B"


@dataclass(slots=True)
class LakeResults:
    """Every turn by its case."""

    command: str
    turns: dict[Case, list[Turn]] = field(default_factory=dict)

    def list_values(self, case: Case, writer: str, what: str) -> list[float]:
        """Return seconds or processor seconds of a writer's turns, in the order of the rounds."""
        turns = [turn for turn in self.turns[case] if turn["writer"] == writer]
        return [turn["cpu_seconds"] if what == "cpu" else turn["seconds"] for turn in turns]

    def compute_median(self, case: Case, writer: str, what: str = "elapsed") -> float:
        """Return the median of a writer's turns, in seconds."""
        return statistics.median(self.list_values(case, writer, what))

    def compute_ratio(self, case: Case, ours: str, other: str, what: str = "elapsed") -> float:
        """Return the median over the rounds of the other's time to ours: above 1, ours takes less."""
        pairs = zip(self.list_values(case, other, what), self.list_values(case, ours, what), strict=True)
        return statistics.median(theirs / own for theirs, own in pairs)


def make_cases(*, quick: bool) -> list[Case]:
    """Return the cases of one round.

    Batches are of 50 MB: `toArrow` has a batch in Java's memory as a whole, and fails at 200 MB with 1 GiB.
    """
    rounds = 4 if quick else 10
    everything = (OURS, OURS_JOINT, DELTA_RS, KAFKA_AND_DELTA_RS)
    return [
        Case(size=100, rows=500_000, rounds=rounds, writers=everything),
        Case(size=1000, rows=50_000, rounds=rounds, writers=everything),
        Case(size=100, rows=SMALL_ROWS, rounds=10 * rounds, writers=SMALL_WRITERS),
    ]


def measure(results: LakeResults, say: Console, kafka_jars: str, *, quick: bool) -> None:
    """Measure one round of every case, each with a broker and a driver of its own."""
    for case in make_cases(quick=quick):
        with run_fresh(OUR_BROKER, BROKER) as process:
            for turn in run_case(process, case, kafka_jars):
                results.turns.setdefault(case, []).append(turn)
        for writer in case.writers:
            text = format_times(results, case, writer)
            say.print(f"{text:30} {writer}, {case}", style="dim")


def run_case(process: BrokerProcess, case: Case, kafka_jars: str) -> Iterator[Turn]:
    """Run a driver in a separate process, and yield its turns."""
    for writer in case.writers:
        create_topic(process, name_place(writer), PARTITIONS)
    plan = {
        "master": "local[2]",
        "bootstrap": process.bootstrap,
        "settings": {"spark.jars": kafka_jars},
        "writers": case.writers,
        "size": case.size,
        "rows": case.rows,
        "rounds": case.rounds,
        "warm_up": 2,
        "seed": case.size,
    }
    command = [sys.executable, "-m", "tools.bench.loads.lake_writers", json.dumps(plan)]
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as driver,
    ):
        assert driver.stdout is not None
        try:
            for line in driver.stdout:
                yield json.loads(line)
            code = driver.wait(STOP_SECONDS_MAX)
        finally:
            driver.terminate()
        if code:
            stderr.seek(0)
            raise RuntimeError(f"loads.lake_writers failed:\n{stderr.read()[-3000:]}")


def format_times(results: LakeResults, case: Case, writer: str) -> str:
    """Return the median times of a writer's batch."""
    batch_ms, cpu_ms = (results.compute_median(case, writer, what) * 1e3 for what in ("elapsed", "cpu"))
    return f"{batch_ms:,.0f} ms, CPU {cpu_ms:,.0f} ms"


def write(results: LakeResults) -> str:
    """Write the tables into the page, and return them."""
    cases = list(results.turns)
    large = [case for case in cases if KAFKA_AND_DELTA_RS in case.writers]
    count = min(len(results.list_values(case, OURS, "elapsed")) for case in large)
    software = f"PySpark {version('pyspark')}, deltalake {version('deltalake')}"
    parts = [
        f"{describe_machine()} {software}.\n\nCommand: `{results.command}`. Medians of {count} batches.",
        _format_comparison("A batch into a Delta table, `local[2]`", results, large, PAIRS),
    ]
    parts += [_format_common_decision(results, case) for case in cases if case.rows == SMALL_ROWS]
    return replace_section("\n\n".join(parts), BEGIN, END)


def _format_comparison(
    title: str, results: LakeResults, cases: Sequence[Case], pairs: Sequence[tuple[str, str]]
) -> str:
    head = ["batch", "ours", "rows/s", "CPU a row", "beside", "rows/s", "CPU a row", "ratio", "CPU ratio"]
    lines = []
    for case in cases:
        for ours, other in pairs:
            line = [str(case)]
            for writer in (ours, other):
                rate = case.rows / results.compute_median(case, writer)
                cpu_us = results.compute_median(case, writer, "cpu") / case.rows * 1e6
                line += [writer, f"{rate / 1000:,.0f} k/s", f"{cpu_us:.2f} us"]
            line.append(format_ratio(results.compute_ratio(case, ours, other), RATIO_MIN, at_least=True))
            line.append(f"{1 / results.compute_ratio(case, ours, other, 'cpu'):.2f}x")
            lines.append(line)
    return f"### {title}\n\n{format_table(head, lines)}"


def _format_common_decision(results: LakeResults, case: Case) -> str:
    """Return what deciding in the table adds to a batch that is decided in a topic."""
    turns = [turn for turn in results.turns[case] if turn["writer"] == OURS_JOINT]
    claims, decisions = ([turn["commits_ms"][at] for turn in turns] for at in (0, 1))
    both = statistics.median(map(sum, zip(claims, decisions, strict=True)))
    miss = "" if both <= ADDED_MS_MAX else " (missed)"
    lines = [
        ["claim of the table: read, ask the cluster, commit", f"{statistics.median(claims):.1f} ms"],
        ["decision: check the files, read, commit", f"{statistics.median(decisions):.1f} ms"],
        ["both", f"{both:.1f} ms (goal <= {ADDED_MS_MAX:g} ms){miss}"],
    ]
    for writer in case.writers:
        lines.append([f"a batch: {writer}", format_times(results, case, writer)])
    common, alone = (results.list_values(case, writer, "elapsed") for writer in (OURS_JOINT, OURS_TOPIC))
    added_ms = statistics.median(one - other for one, other in zip(common, alone, strict=True)) * 1e3
    miss = "" if added_ms <= ADDED_MS_MAX else " (missed)"
    lines.append(
        ["topic and table over the topic alone", f"{added_ms:.0f} ms (goal <= {ADDED_MS_MAX:g} ms){miss}"]
    )
    title = f"A micro-batch of {case.rows} rows and 2 tasks, p50 of {len(turns)} batches"
    return f"### {title}\n\n{format_table(['', ''], lines)}"
