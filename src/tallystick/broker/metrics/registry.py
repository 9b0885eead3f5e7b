"""Metric values and their names.

A gauge is read at each scrape. A counter is a number that is incremented where the event happens. Both are
registered in one `MetricsRegistry`, which is read in steps: the loop does other work between two of them, so
that a scrape of a broker with many partitions takes longer and blocks nothing. They are plain values, and not
prometheus_client's own, because a broker without `metrics.listener` counts too and does not load the library.

A metric that Kafka has, or that a KIP describes, keeps Kafka's MBean name as metadata. `to_prometheus_name`
derives its name here, in the way Kafka's metrics are most often exported, so that an alert written for Kafka
works. All other names begin with `tallystick_`. See docs/notes/performance.md.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.value import Value

_METERS: Final = ("PerSec", "Rate")
_TOTAL: Final = "-total"

Sample = tuple[tuple[str, ...], float]  # values of the labels, value


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class MetricFamily(Value, kw_only=True):
    """One metric with all its label values.

    mbean   Kafka's name for it; empty where Kafka has no such metric
    labels  names of the labels, in the order of every sample's values
    """

    name: str
    type: MetricType
    help: str
    mbean: str = ""
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        legal = self.name.isascii() and self.name.isidentifier() and self.name.islower()
        check(legal, f"{self.name!r} is no name of a metric")
        total = self.name.endswith("_total")
        check(total is (self.type is MetricType.COUNTER), f"{self.name}: counters, and only they, are totals")


def to_prometheus_name(mbean: str) -> str:
    """Convert an MBean name to a metric name.

    `kafka.server:type=ReplicaManager,name=PartitionCount` is kafka_server_replicamanager_partitioncount. A
    meter of Kafka's is a counter here, whose rate the reader computes: `…PerSec` and `…Rate` become
    `…_total`.
    """
    domain, _, keys = mbean.partition(":")
    name = "_".join([domain, *(pair.partition("=")[2] for pair in keys.split(","))])
    for meter in _METERS:
        if name.endswith(meter):
            name = f"{name.removesuffix(meter)}_total"
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())


def make_kafka_metric(mbean: str, text: str, labels: tuple[str, ...] = ()) -> MetricFamily:
    """Return a metric under Kafka's name; labels are the MBean's keys besides type and name."""
    kind = MetricType.COUNTER if mbean.endswith((*_METERS, _TOTAL)) else MetricType.GAUGE
    return MetricFamily(name=to_prometheus_name(mbean), type=kind, help=text, mbean=mbean, labels=labels)


def make_gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricFamily:
    """Return a gauge that Kafka does not have."""
    return MetricFamily(name=f"tallystick_{name}", type=MetricType.GAUGE, help=text, labels=labels)


def make_counter(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricFamily:
    """Return a counter that Kafka does not have."""
    return MetricFamily(name=f"tallystick_{name}_total", type=MetricType.COUNTER, help=text, labels=labels)


class Counter:
    """A counter, from 0 at the start. Used on the loop."""

    __slots__ = ("_values", "family")

    def __init__(self, family: MetricFamily, *label_values: tuple[str, ...]) -> None:
        """Create a counter. `label_values`: those shown as 0 before anything was counted."""
        self.family = family
        self._values: dict[tuple[str, ...], int] = dict.fromkeys(
            label_values or ([] if family.labels else [()]), 0
        )

    def add(self, *labels: str, by: int = 1) -> None:
        """Count `by` more under these values of the labels."""
        self._values[labels] = self._values.get(labels, 0) + by

    def value(self, *labels: str) -> int:
        return self._values.get(labels, 0)

    def samples(self) -> Iterator[Sample]:
        return iter(list(self._values.items()))


MetricReading = tuple[MetricFamily, Iterable[Sample]]
# Reads gauges. It yields None after some work without a reading, so that the loop can run.
ReadingSource = Callable[[], Iterator[MetricReading | None]]


class MetricsRegistry:
    """Every metric of one broker. Owned by it, used on its loop."""

    def __init__(self) -> None:
        self._counters: list[Counter] = []
        self._sources: list[ReadingSource] = []

    def counter(self, family: MetricFamily, *label_values: tuple[str, ...]) -> Counter:
        """Create a counter, and include it in scrapes."""
        counter = Counter(family, *label_values)
        self._counters.append(counter)
        return counter

    def add_source(self, source: ReadingSource) -> None:
        """Read `source` at every scrape."""
        self._sources.append(source)

    def read(self) -> Iterator[MetricReading | None]:
        """Read every metric in order; None after some of a source's work, so that the loop can run."""
        for each in self._counters:
            yield each.family, each.samples()
        for source in self._sources:
            yield from source()
