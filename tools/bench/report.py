"""Formats the measurements as Markdown, between two markers of docs/benchmarks.md."""

import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tools.bench import librdkafka
from tools.bench.brokers import KAFKA, NAMES, OURS, Load
from tools.bench.rows import LATENCY_RATE, MEMORY_MESSAGES, Durability, Row
from tools.servers.apache_kafka import VERSION

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- bench: begin (written by `make bench`) -->"
END: Final = "<!-- bench: end -->"

MODES: Final = ("produce", "consume")
RATIO_ROW_MIN: Final = 1.0
RATIO_MEAN_MIN: Final = 1.5
LATENCY_RATIO_MAX: Final = 0.5
START_MS_MAX: Final = 150
IDLE_MIB_MAX: Final = 64
LOADED_MIB_MAX: Final = 96

Key = tuple[str, str, Row, str]  # durability, mode, row, broker


@dataclass
class Results:
    """The measurements of one run of the bench."""

    command: str
    loads: dict[Key, list[tuple[Load, int]]] = field(default_factory=dict)
    latency: dict[tuple[str, str], list[Mapping[str, float]]] = field(default_factory=dict)
    start_s: dict[str, list[float]] = field(default_factory=dict)
    idle_mib: dict[str, list[float]] = field(default_factory=dict)
    loaded_mib: dict[str, list[float]] = field(default_factory=dict)

    def compute_rate(self, key: Key) -> float:
        """Return the median messages per second."""
        return statistics.median(messages / load.seconds for load, messages in self.loads[key])

    def compute_ratio(self, durability: str, mode: str, row: Row) -> float:
        """Return the ratio of our median rate to Kafka's."""
        return self.compute_rate((durability, mode, row, OURS)) / self.compute_rate(
            (durability, mode, row, KAFKA)
        )

    def compute_cpu(self, key: Key) -> float:
        """Return the median share of one core that the broker used."""
        return statistics.median(load.broker_cpu for load, _ in self.loads[key])


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with numbers aligned right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_ratio(ratio: float, goal: float, *, at_least: bool) -> str:
    """Format a ratio, with a mark when it misses its goal."""
    is_met = ratio >= goal if at_least else ratio <= goal
    return f"{ratio:.2f}x" if is_met else f"**{ratio:.2f}x (goal {goal:g}x)**"


def format_throughput(results: Results, durability: Durability, rows: Sequence[Row]) -> str:
    """Return the table of one durability, with its geometric mean."""
    head = ["load"]
    for mode in MODES:
        head += [f"{mode}: {OURS}", "broker CPU", KAFKA, "broker CPU", "ratio"]
    lines, ratios = [], []
    for row in rows:
        line = [str(row)]
        for mode in MODES:
            for name in NAMES:
                key = (durability.name, mode, row, name)
                line += [f"{results.compute_rate(key) / 1000:,.0f} k/s", f"{results.compute_cpu(key):.0%}"]
            ratios.append(results.compute_ratio(durability.name, mode, row))
            line.append(format_ratio(ratios[-1], RATIO_ROW_MIN, at_least=True))
        lines.append(line)
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    repeats = min(len(runs) for key, runs in results.loads.items() if key[0] == durability.name)
    return (
        f"### Durability `{durability.name}`: {durability.promise}\n\n"
        f"tallystick `{format_settings(durability.ours)}`; Kafka `{format_settings(durability.kafka)}`. "
        f"Medians of {repeats}.\n\n{format_table(head, lines)}\n\n"
        f"Geometric mean of the ratios: {format_ratio(mean, RATIO_MEAN_MIN, at_least=True)}."
    )


def format_settings(of: Mapping[str, str]) -> str:
    """Format settings as name=value, separated by commas."""
    return ", ".join(f"{k}={v}" for k, v in of.items()) or "defaults"


def format_latency(results: Results) -> str:
    """Return the table of end-to-end latency by durability."""
    lines = []
    for durability in dict.fromkeys(key[0] for key in results.latency):
        medians = {
            name: {q: statistics.median(r[q] for r in results.latency[durability, name]) for q in QUANTILES}
            for name in NAMES
        }
        cells = [f"{medians[name][q]:.2f} ms" for q in QUANTILES for name in NAMES]
        ratio = medians[OURS]["p99"] / medians[KAFKA]["p99"]
        lines.append([f"`{durability}`", *cells, format_ratio(ratio, LATENCY_RATIO_MAX, at_least=False)])
    head = ["durability", *(f"{q}: {name}" for q in QUANTILES for name in NAMES), "p99 ratio"]
    title = f"End-to-end latency at {LATENCY_RATE:,} messages/s (100 B, acks=all)"
    return f"### {title}\n\n{format_table(head, lines)}"


QUANTILES: Final = ("p50", "p99", "p999")


def format_footprint(results: Results) -> str:
    """Return the table of start-up time and memory, against their goals."""
    facts = (
        ("start until ApiVersions is answered", results.start_s, "ms", 1000.0, START_MS_MAX),
        ("RSS, idle", results.idle_mib, "MiB", 1.0, IDLE_MIB_MAX),
        (
            f"RSS after {MEMORY_MESSAGES:,} messages in and out",
            results.loaded_mib,
            "MiB",
            1.0,
            LOADED_MIB_MAX,
        ),
    )
    lines = []
    for name, values, unit, factor, goal in facts:
        ours, kafka = (statistics.median(values[broker]) * factor for broker in NAMES)
        miss = "" if ours <= goal else " (missed)"
        lines.append([name, f"{ours:,.0f} {unit}", f"{kafka:,.0f} {unit}", f"<= {goal} {unit}{miss}"])
    return f"### Start and memory\n\n{format_table(['', *NAMES, 'our goal'], lines)}"


def describe_machine() -> str:
    """Describe the machine and the versions of the software."""
    cpu = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} CPUs ({cpu}), {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}; CPython {platform.python_version()}, "
        f"tallystick {version('tallystick')}, Apache Kafka {VERSION}, "
        f"librdkafka {librdkafka.read_version()}. Clients and broker share the machine over loopback."
    )


def write(results: Results, durabilities: Sequence[Durability], rows: Sequence[Row]) -> str:
    """Write the tables into the page, and return them."""
    parts = [f"{describe_machine()}\n\nCommand: `{results.command}`", format_footprint(results)]
    parts += [format_throughput(results, durability, rows) for durability in durabilities]
    parts.append(format_latency(results))
    return replace_section("\n\n".join(parts), BEGIN, END)


def replace_section(body: str, begin: str, end: str) -> str:
    """Replace the text between two marks of the page, and return the new text."""
    before, rest = PAGE.read_text().split(begin)
    after = rest.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n\n{body}\n\n{end}{after}")
    return body
