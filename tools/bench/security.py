"""What TLS, a login and an authorizer cost, and how both brokers do with them.

One client, librdkafka, with the same settings everywhere. On each broker every row is measured at its plain
listener and at its SASL_SSL one, so that the cost is a ratio of one run, as is our rate over Kafka's.
"""

import json
import os
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from tools.bench.authorization import measure_cost
from tools.bench.brokers import KAFKA, NAMES, OURS, create_topic, delete_topic, run_child
from tools.bench.report import describe_machine, format_ratio, format_table, replace_section
from tools.bench.rows import shuffle
from tools.bench.secured import SecuredBroker, run_secured

BEGIN: Final = "<!-- security: begin (written by `make bench`) -->"
END: Final = "<!-- security: end -->"
LISTENERS: Final = ("PLAINTEXT", "SASL_SSL")
RATIO_MIN: Final = 1.0
COMMIT_COST_MAX: Final = 0.25
AUTHORIZATION_COST_MAX: Final = 0.03


@dataclass(frozen=True, slots=True)
class SecurityRow:
    """A load: `produce`, `consume` or `commit`, the last with a number of producers."""

    mode: str
    producers: int = 1

    def __str__(self) -> str:
        if self.mode != "commit":
            return f"{self.mode}, 100 B, messages a second"
        return f"commits a second, {self.producers} producer{'s'[: self.producers > 1]}"


ROWS: Final = (
    SecurityRow("produce"),
    SecurityRow("consume"),
    SecurityRow("commit"),
    SecurityRow("commit", 16),
)


@dataclass
class SecurityResults:
    """Rates by row, broker and listener, and the cost of authorization as a share of a Produce request."""

    command: str
    rates: dict[tuple[SecurityRow, str, str], list[float]] = field(default_factory=dict)
    authorization_costs: list[float] = field(default_factory=list)

    def compute_median(self, row: SecurityRow, broker: str, listener: str) -> float:
        return statistics.median(self.rates[row, broker, listener])


def measure(results: SecurityResults, say: Console, *, quick: bool) -> None:
    """Measure one round: both brokers running and warm, every row at every listener, in shuffled order."""
    messages, seconds = (200_000, 3) if quick else (1_000_000, 10)
    results.authorization_costs.append(measure_cost())
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(run_secured(name)) for name in shuffle(NAMES)}
        for name, broker in brokers.items():
            for listener in LISTENERS:
                for mode in ("produce", "commit"):
                    run_row(broker, listener, SecurityRow(mode), f"bench-warm-{mode}", messages // 4, 2)
            say.print(f"warm   {name}", style="dim")
        for row in shuffle(ROWS):
            for listener in shuffle(LISTENERS):
                for name in shuffle(NAMES):
                    os.sync()  # so that writing back the previous run's data does not count for this one
                    topic = f"bench-{ROWS.index(row)}-{listener.lower()}"
                    rate = run_row(brokers[name], listener, row, topic, messages, seconds)
                    results.rates.setdefault((row, name, listener), []).append(rate)
                    say.print(f"{listener:10}{name:14}{rate:12,.0f} /s  {row}", style="dim")


def run_row(
    broker: SecuredBroker, listener: str, row: SecurityRow, topic: str, messages: int, seconds: float
) -> float:
    """Run a load on a topic of its own, and return its rate per second."""
    create_topic(broker.process, topic, 1)
    load = {
        "mode": row.mode,
        "topic": topic,
        "messages": messages,
        "seconds": seconds,
        "producers": row.producers,
        "config": dict(broker.clients[listener]),
    }
    if row.mode == "consume":
        run_child("loads.secured", json.dumps({**load, "mode": "produce", "messages": 2 * messages}))
    figures = run_child("loads.secured", json.dumps(load))
    delete_topic(broker.process, topic)
    return figures["count"] / figures["seconds"]


def write(results: SecurityResults) -> str:
    """Write the table into the page, and return it."""
    head = [
        "load",
        f"{OURS}, plain",
        f"{OURS}, SASL_SSL",
        "cost",
        f"{KAFKA}, plain",
        f"{KAFKA}, SASL_SSL",
        "cost",
    ]
    lines = [_format_line(results, row) for row in ROWS]
    cost = statistics.median(results.authorization_costs)
    miss = "" if cost <= AUTHORIZATION_COST_MAX else f" (goal {AUTHORIZATION_COST_MAX:.0%}: missed)"
    repeats = min(len(rates) for rates in results.rates.values())
    setting = (
        "librdkafka over loopback; TLS 1.3, a P-256 key, SASL PLAIN, StandardAuthorizer with four prefixed "
        "ACLs. `cost` is what the SASL_SSL listener loses against the plain one. "
        f"Medians of {repeats}."
    )
    parts = (
        f"{describe_machine()}\n\nCommand: `{results.command}`",
        setting,
        format_table([*head, "over SASL_SSL, ours to Kafka's"], lines),
        f"An authorizer with 1,000 ACLs adds {cost:.0%} to the processor time of a Produce request{miss}.",
    )
    return replace_section("\n\n".join(parts), BEGIN, END)


def _format_line(results: SecurityResults, row: SecurityRow) -> list[str]:
    line = [str(row)]
    for name in NAMES:
        plain, secure = (results.compute_median(row, name, listener) for listener in LISTENERS)
        cost = 1 - secure / plain
        text = f"{cost:.0%}"
        if name == OURS and row.mode == "commit" and cost > COMMIT_COST_MAX:
            text = f"**{text} (goal {COMMIT_COST_MAX:.0%})**"
        line += [f"{plain:,.0f}", f"{secure:,.0f}", text]
    ratio = results.compute_median(row, OURS, "SASL_SSL") / results.compute_median(row, KAFKA, "SASL_SSL")
    return [*line, format_ratio(ratio, RATIO_MIN, at_least=True)]
