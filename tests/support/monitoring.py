"""The files in deploy/monitoring as values: alerts, panels, and the metrics that their expressions name."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tallystick.metrics.model import MetricFamily

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy/monitoring"
RULE_FILES: Final = tuple(sorted(FOLDER.glob("*.rules.yml")))
RULE_TESTS: Final = FOLDER / "rules.test.yml"
DASHBOARD: Final = FOLDER / "grafana/tallystick.json"

# Every scrape adds the first two, and histograms the third.
TARGET_LABELS: Final = frozenset({"job", "instance", "le"})

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC: Final = re.compile(r"\b((?:tallystick|kafka)_[a-z0-9_]+)(\{[^}]*\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_LABEL_LIST: Final = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_TEMPLATE_LABEL: Final = re.compile(r"\{\{\s*\$labels\.(\w+)\s*\}\}")
_LEGEND_LABEL: Final = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Selector:
    """A metric in an expression, with its matchers: label, operator, value."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Expression:
    """An expression of an alert or a panel, and the labels that texts beside it show."""

    where: str
    text: str
    shown_labels: frozenset[str]

    @property
    def selectors(self) -> list[Selector]:
        return [
            Selector(name, tuple(_MATCHER.findall(matchers or "")))
            for name, matchers in _METRIC.findall(self.text)
        ]

    @property
    def grouping_labels(self) -> frozenset[str]:
        """Labels in the lists of aggregations and of vector matching."""
        bare = _STRING.sub('""', self.text)
        lists = [each for each in _LABEL_LIST.findall(bare) if each.strip()]
        return frozenset(label.strip() for each in lists for label in each.split(","))


def list_families(table: ModuleType) -> list[MetricFamily]:
    """Return the families of a module of `tallystick.metrics.families`."""
    return [each for each in vars(table).values() if isinstance(each, MetricFamily)]


def list_alerts() -> Iterator[dict[str, Any]]:
    """List the alerts of all rule files."""
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def list_panels() -> Iterator[dict[str, Any]]:
    """List the panels of the dashboard that have queries."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] != "row":
            yield panel


def list_expressions() -> Iterator[Expression]:
    """List the expressions of all alerts and panels."""
    for alert in list_alerts():
        texts = " ".join(alert["annotations"].values())
        labels = frozenset(_TEMPLATE_LABEL.findall(texts))
        yield Expression(alert["alert"], alert["expr"], labels)
    for panel in list_panels():
        for target in panel["targets"]:
            labels = frozenset(_LEGEND_LABEL.findall(target["legendFormat"]))
            yield Expression(panel["title"], target["expr"], labels)


class Exported:
    """What exporters show: labels and label values by the name of a sample."""

    def __init__(self) -> None:
        self.labels: dict[str, set[str]] = {}
        self.values: dict[tuple[str, str], set[str]] = {}
        self.without_samples: set[str] = set()

    def read(self, exposition: str) -> None:
        """Add what an exposition shows."""
        for family in text_string_to_metric_families(exposition):
            if not family.samples:
                self.without_samples.add(family.name)
            for sample in family.samples:
                self.labels.setdefault(sample.name, set()).update(sample.labels)
                for label, value in sample.labels.items():
                    self.values.setdefault((sample.name, label), set()).add(value)

    def find_problems(self, expression: Expression) -> Iterator[str]:
        """Yield what an expression names that is not exported."""
        known = set(TARGET_LABELS)
        for selector in expression.selectors:
            if selector.name not in self.labels:
                yield f"{expression.where}: {selector.name} is not exported"
                continue
            labels = self.labels[selector.name] | TARGET_LABELS
            known |= labels
            for label, operator, value in selector.matchers:
                if label not in labels:
                    yield f"{expression.where}: {selector.name} has no label {label}"
                elif operator in ("=", "=~") and "$" not in value:
                    shown = self.values.get((selector.name, label), set())
                    missing = set(value.split("|") if operator == "=~" else [value]) - shown
                    if missing:
                        yield f"{expression.where}: {label} of {selector.name} is never {sorted(missing)}"
        for label in sorted((expression.grouping_labels | expression.shown_labels) - known):
            yield f"{expression.where}: none of its metrics has the label {label}"
