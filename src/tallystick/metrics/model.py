"""Metrics as values: their names, types, labels and samples. Pure.

The broker, the console and the collector for clients declare their metrics with it. They are plain values,
and not prometheus_client's own, so that a process that serves none does not load the library; `exposition`
turns them into text.

A metric that Kafka has, or that a KIP describes, keeps Kafka's MBean name as metadata. `to_prometheus_name`
derives its name here, in the way Kafka's metrics are most often exported, so that an alert written for Kafka
works. All other names of ours begin with `tallystick_`.
"""

from collections.abc import Iterable
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
    HISTOGRAM = "histogram"


class MetricFamily(Value, kw_only=True):
    """One metric with all its label values.

    mbean   Kafka's name for it; empty where Kafka has no such metric
    labels  names of the labels, in the order of every sample's values
    bounds  upper bounds of a histogram's buckets
    """

    name: str
    type: MetricType
    help: str
    mbean: str = ""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        legal = self.name.isascii() and self.name.isidentifier() and self.name.islower()
        check(legal, f"{self.name!r} is no name of a metric")
        total = self.name.endswith("_total")
        check(total is (self.type is MetricType.COUNTER), f"{self.name}: counters, and only they, are totals")


MetricReading = tuple[MetricFamily, Iterable[Sample]]


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


def make_histogram(name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> MetricFamily:
    """Return a histogram that Kafka does not have."""
    return MetricFamily(
        name=f"tallystick_{name}", type=MetricType.HISTOGRAM, help=text, labels=labels, bounds=bounds
    )
