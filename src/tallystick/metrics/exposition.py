"""Metrics as text for Prometheus, written by prometheus_client, which is loaded for the first object."""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from tallystick import _lazy
from tallystick.metrics.model import MetricFamily, MetricType, Sample


class PrometheusText:
    """Formats readings for a scraper, in the format that its Accept header asks for."""

    def __init__(self) -> None:
        """Load prometheus_client. Raises: MissingLibrary."""
        self._exposition: ModuleType = _lazy.load("prometheus_client.exposition")
        self._library: Any = _lazy.load("prometheus_client")
        core: ModuleType = _lazy.load("prometheus_client.core")
        self._family_types = {
            MetricType.GAUGE: core.GaugeMetricFamily,
            MetricType.COUNTER: core.CounterMetricFamily,
        }
        self.content_type: str = self._exposition.CONTENT_TYPE_PLAIN_0_0_4

    def format(self, readings: Iterable[tuple[MetricFamily, Sequence[Sample]]]) -> bytes:
        """Return the text of all readings in format 0.0.4, which every scraper takes.

        Cost: some 10 µs a sample, so it belongs in a thread.
        """
        text: bytes = self._exposition.generate_latest(self._read(readings))
        return text

    def format_for(
        self, accept: str, readings: Iterable[tuple[MetricFamily, Sequence[Sample]]]
    ) -> tuple[bytes, str]:
        """Return the text of all readings, and its content type: OpenMetrics for those that accept it."""
        encode: Callable[[object], bytes]
        encode, content_type = self._exposition.choose_encoder(accept)
        return encode(self._read(readings)), content_type

    def make_instrument(self, family: MetricFamily) -> Any:
        """Return a counter or histogram of prometheus_client's, which belongs to no registry."""
        if family.type is MetricType.HISTOGRAM:
            return self._library.Histogram(
                family.name, family.help, family.labels, buckets=family.bounds, registry=None
            )
        return self._library.Counter(family.name, family.help, family.labels, registry=None)

    def _read(self, readings: Iterable[tuple[MetricFamily, Sequence[Sample]]]) -> "MetricsRead":
        return MetricsRead([self.convert(family, samples) for family, samples in readings])

    def convert(self, family: MetricFamily, samples: Iterable[Sample]) -> Any:
        """Return a reading as prometheus_client's own value, as a collector of its registry yields it."""
        help_text = f"{family.help} MBean {family.mbean}" if family.mbean else family.help
        metric = self._family_types[family.type](family.name, help_text, labels=family.labels)
        for values, value in samples:
            metric.add_metric([_make_encodable(each) for each in values], value)
        return metric


def _make_encodable(label: str) -> str:
    """Replace lone surrogates, which JSON can write and UTF-8 cannot: one name would end every scrape."""
    return label if label.isascii() else label.encode(errors="replace").decode()


class MetricsRead:
    """A `Collector` of prometheus_client's whose metrics have been read already."""

    def __init__(self, metrics: Sequence[object]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[object]:
        """Return the metrics."""
        return self._metrics
