"""Measure our Spark source and sink beside Spark's own connector: one session, one broker, the same rows."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import product
from typing import Final, NotRequired, TypedDict

from rich.console import Console
from tools.bench.brokers import OURS, create_topic, run_fresh
from tools.bench.report import describe_machine, format_ratio, format_table, replace_section
from tools.bench.rows import OS, Durability, Row, shuffle
from tools.servers import spark_kafka
from tools.servers.broker_process import BrokerProcess

from tallystick.admin import Admin

BEGIN: Final = "<!-- spark: begin (written by `make bench`) -->"
END: Final = "<!-- spark: end -->"

KAFKA: Final = "kafka"
"""Spark's own connector, by its name in `format()`. Ours has the name of our broker."""

CONNECTORS: Final = (OURS, KAFKA)
NAMES: Final = {OURS: "tallystick", KAFKA: "Spark's own"}
BROKER: Final = Durability(
    name="os",
    promise=OS.promise,
    ours={**OS.ours, "transaction.two.phase.commit.enable": "true"},
    kafka={},
)

ROWS: Final = tuple(
    Row(size=size, partitions=partitions, codec=codec)
    for size, codec, partitions in product((100, 1000), ("none", "lz4"), (1, 4))
)
STREAM_ROWS: Final = tuple(row for row in ROWS if row.partitions == 4 and row.codec == "none")
GROWTH_ROW: Final = STREAM_ROWS[0]
PARTS_ROW: Final = Row(size=100, partitions=2, codec="none")
WARM_UP: Final = Row(size=100, partitions=4, codec="lz4")
WARM_UP_ROWS: Final = 20_000

# The same as in loads/spark.py.
BATCH_ROWS: Final = 10
MANY_BATCHES: Final = 1_000
QUICK_BATCHES: Final = 50
RATIO_MIN: Final = 1.0
ADDED_MS_MAX: Final = 100.0
# The parts that a micro-batch waits for, in order.
PHASES: Final = {
    "begin: claim, read decisions, sweep": "begin",
    "task: look at the lease, twice": "look at the lease",
    "task: initialise": "initialise",
    "task: prepare": "prepare",
    "commit, all of it": "commit",
    "commit: read decisions": "read decisions",
    "commit: describe the transactions": "describe",
    "commit: decision": "decision",
    "commit: complete": "complete",
    "commit: note that it is complete": "note",
}
# A lease is checked twice, and tasks run in parallel.
SUMMED: Final = ("begin", "look at the lease", "look at the lease", "initialise", "prepare", "commit")

CORES: Final = ("local[2]", "local[1]")
STOP_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of one connector; see `loads.spark.Run` for its kinds."""

    kind: str
    connector: str
    row: Row
    messages: int
    master: str = CORES[0]
    is_counted: bool = True

    @property
    def topic(self) -> str:
        """Topic the run writes to, which is its own."""
        use = self.kind if self.is_counted else f"warm-{self.kind}"
        row = self.row
        return f"{use}-{self.connector}-{row.size}-{row.codec}-{row.partitions}-{self.master[6]}"

    @property
    def source(self) -> str:
        """Topic the run reads: the same for both connectors, without transactions, written by Spark's own."""
        return replace(
            self, kind="sink", connector=KAFKA, is_counted=self.is_counted and self.kind != "parts"
        ).topic

    def run(self) -> dict[str, object]:
        """Return the run in the form of `loads.spark.Run`."""
        return {
            "kind": self.kind,
            "connector": self.connector,
            "topic": self.topic,
            "source": self.source,
            "messages": self.messages,
            "size": self.row.size,
            "codec": self.row.codec,
        }


class RunTiming(TypedDict):
    """The same as `loads.spark.Taken`, without loading Spark here."""

    seconds: float
    cpu_seconds: float
    parts_ms: NotRequired[dict[str, float]]


@dataclass(slots=True)
class SparkResults:
    """Every run by its case; and how many transactional ids the batches of `parts` left."""

    command: str
    timings: dict[Case, list[RunTiming]] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)

    def compute_rate(self, case: Case) -> float:
        """Return the median rows per second."""
        return statistics.median(case.messages / timing["seconds"] for timing in self.timings[case])

    def compute_cpu_us(self, case: Case) -> float:
        """Return the median microseconds of processor time per row."""
        return statistics.median(timing["cpu_seconds"] / case.messages * 1e6 for timing in self.timings[case])

    def compute_part_ms(self, case: Case, name: str) -> float:
        """Return the median over the rounds of the median over the batches."""
        return statistics.median(timing["parts_ms"][name] for timing in self.timings[case])

    def find_cases(self, kind: str, master: str = CORES[0]) -> list[Case]:
        """Return the measured cases of one kind, ours before the other's, in the order of the rows."""
        measurements = [case for case in self.timings if case.kind == kind and case.master == master]
        return sorted(
            measurements,
            key=lambda case: (
                case.row.size,
                case.row.codec != "none",
                case.row.partitions,
                CONNECTORS.index(case.connector),
            ),
        )


def make_cases(master: str, *, quick: bool) -> list[Case]:
    """Return the cases of one driver in shuffled order; a source follows the run that fills its topic."""

    def make_kind(kind: str, rows: Sequence[Row]) -> list[Case]:
        return [
            Case(
                kind=kind,
                connector=connector,
                row=row,
                messages=row.choose_count(quick=False) // (10 if quick else 1),
                master=master,
            )
            for row in shuffle(rows)
            for connector in shuffle(CONNECTORS)
        ]

    # Spark starts Python for each kind of call at its first use; this does it before the measurement.
    kinds = ("sink", "source", "stream") if master == CORES[0] else ("sink", "source")
    warm = [
        Case(kind=kind, connector=name, row=WARM_UP, messages=WARM_UP_ROWS, master=master, is_counted=False)
        for kind, name in product(kinds, (KAFKA, OURS))
    ]
    if master != CORES[0]:
        return [*warm, *make_kind("sink", [GROWTH_ROW]), *make_kind("source", [GROWTH_ROW])]
    batches = QUICK_BATCHES if quick else MANY_BATCHES
    few = [
        Case(kind="parts", connector=connector, row=PARTS_ROW, messages=batches * BATCH_ROWS)
        for connector in shuffle(CONNECTORS)
    ]
    fill = replace(few[0], kind="sink", connector=KAFKA, is_counted=False)
    cases_of_rows = [
        *make_kind("sink", ROWS),
        *make_kind("source", ROWS),
        *make_kind("stream", STREAM_ROWS),
    ]
    return [*warm, *cases_of_rows, fill, *few]


def measure(results: SparkResults, say: Console, jars: str, *, quick: bool) -> None:
    """Measure one round: a fresh broker, a driver with two cores for all, and one with a single core."""
    with run_fresh(OURS, BROKER) as process:
        for master in CORES:
            for case, timing in run_cases(process, jars, make_cases(master, quick=quick)):
                if case.is_counted:
                    results.timings.setdefault(case, []).append(timing)
                    rate, cpu_us = (
                        case.messages / timing["seconds"],
                        timing["cpu_seconds"] / case.messages * 1e6,
                    )
                    say.print(f"{rate:12,.0f}/s {cpu_us:10.2f} us  {case.topic}", style="dim")
        with Admin({"bootstrap.servers": process.bootstrap}) as admin:
            transactions = admin.list_transactions(transactional_id_pattern=f"bench/parts-{OURS}.*").all()
        results.ids.append(sum(map(len, transactions.values())))


def run_cases(process: BrokerProcess, jars: str, cases: Sequence[Case]) -> Iterator[tuple[Case, RunTiming]]:
    """Run a driver's cases in a separate process, on topics of their own, and yield the results."""
    for case in cases:
        if case.kind != "source":
            create_topic(process, case.topic, case.row.partitions)
    plan = {
        "master": cases[0].master,
        "bootstrap": process.bootstrap,
        "jars": jars,
        "runs": [case.run() for case in cases],
    }
    command = [sys.executable, "-m", "tools.bench.loads.spark", json.dumps(plan)]
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as driver,
    ):
        assert driver.stdout is not None
        try:
            for case, line in zip(cases, driver.stdout, strict=False):
                yield case, json.loads(line)
            code = driver.wait(STOP_SECONDS_MAX)
        finally:
            driver.terminate()
        if code:
            stderr.seek(0)
            raise RuntimeError(f"loads.spark failed:\n{stderr.read()[-3000:]}")


def write(results: SparkResults) -> str:
    """Write the tables into the page, and return them."""
    first = f"{describe_machine()} PySpark {version('pyspark')}, Spark's own connector {spark_kafka.VERSION}."
    repeats = min(map(len, results.timings.values()))
    parts = [
        f"{first}\n\nCommand: `{results.command}`. Medians of {repeats}.",
        _format_comparison("Sink: ours exactly once, Spark's own at least once", results, "sink"),
        _format_comparison("Source, to Spark's `noop`", results, "source"),
        _format_comparison("Topic to topic, a query with AvailableNow", results, "stream"),
        _format_growth(results),
        _format_phases(results),
    ]
    return replace_section("\n\n".join(parts), BEGIN, END)


def _format_comparison(title: str, results: SparkResults, kind: str) -> str:
    head = ["rows", "tallystick", "CPU a row", "Spark's own", "CPU a row", "ratio", "CPU ratio"]
    lines = []
    cases = results.find_cases(kind)
    for ours, theirs in zip(cases[::2], cases[1::2], strict=True):
        line = [str(ours.row)]
        for case in (ours, theirs):
            line += [
                f"{results.compute_rate(case) / 1000:,.0f} k/s",
                f"{results.compute_cpu_us(case):.2f} us",
            ]
        line.append(
            format_ratio(results.compute_rate(ours) / results.compute_rate(theirs), RATIO_MIN, at_least=True)
        )
        line.append(f"{results.compute_cpu_us(ours) / results.compute_cpu_us(theirs):.2f}x")
        lines.append(line)
    return f"### {title}\n\n{format_table(head, lines)}"


def _format_growth(results: SparkResults) -> str:
    lines = []
    for case in [case for kind in ("sink", "source") for case in results.find_cases(kind, CORES[1])]:
        one, two = results.compute_rate(case), results.compute_rate(replace(case, master=CORES[0]))
        lines.append(
            [f"{case.kind}, {NAMES[case.connector]}", f"{one:,.0f}/s", f"{two:,.0f}/s", f"{two / one:.2f}x"]
        )
    return f"### From one core to two ({GROWTH_ROW})\n\n{format_table(['', *CORES[::-1], 'growth'], lines)}"


def _format_phases(results: SparkResults) -> str:
    ours, theirs = results.find_cases("parts")
    lines = [[text, f"{results.compute_part_ms(ours, name):.1f} ms"] for text, name in PHASES.items()]
    phases = sum(results.compute_part_ms(ours, name) for name in SUMMED)
    whole, plain = results.compute_part_ms(ours, "addBatch"), results.compute_part_ms(theirs, "addBatch")
    miss = "" if phases <= ADDED_MS_MAX else " (missed)"
    lines += [
        ["both phases, one after the other", f"{phases:.0f} ms (goal <= {ADDED_MS_MAX:g} ms){miss}"],
        ["Spark's addBatch with our sink", f"{whole:.0f} ms"],
        ["Spark's addBatch with its own", f"{plain:.0f} ms"],
        ["difference, workers in Python included", f"{whole - plain:.0f} ms"],
        ["transactional ids left", f"{statistics.median(results.ids):,.0f}"],
    ]
    title = f"A micro-batch of {BATCH_ROWS} rows and 2 tasks, p50 of {ours.messages // BATCH_ROWS:,} batches"
    return f"### {title}\n\n{format_table(['', ''], lines)}"
