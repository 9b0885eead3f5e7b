"""The text that a scraper reads, written by prometheus_client: format 0.0.4, which every scraper takes."""

from collections.abc import Iterable, Sequence
from types import ModuleType

from tallystick import _lazy
from tallystick.broker.metrics.registry import MetricFamily, MetricType, Sample


class PrometheusText:
    """Formats readings. Loads the library when it is created."""

    def __init__(self) -> None:
        """Load prometheus_client. Raises: MissingLibrary."""
        self._exposition: ModuleType = _lazy.load("prometheus_client.exposition")
        core: ModuleType = _lazy.load("prometheus_client.core")
        self._family_types = {
            MetricType.GAUGE: core.GaugeMetricFamily,
            MetricType.COUNTER: core.CounterMetricFamily,
        }
        self.content_type: str = self._exposition.CONTENT_TYPE_PLAIN_0_0_4

    def format(self, readings: Iterable[tuple[MetricFamily, Sequence[Sample]]]) -> bytes:
        """Return the text of all readings. Cost: some 10 µs a sample, so it belongs in a thread."""
        snapshot = _Snapshot([self._convert(family, samples) for family, samples in readings])
        text: bytes = self._exposition.generate_latest(snapshot)
        return text

    def _convert(self, family: MetricFamily, samples: Sequence[Sample]) -> object:
        described = f"{family.help} MBean {family.mbean}" if family.mbean else family.help
        converted = self._family_types[family.type](family.name, described, labels=family.labels)
        for values, value in samples:
            converted.add_metric(values, value)
        return converted


class _Snapshot:
    """A `Collector` of prometheus_client's whose metrics have been read already."""

    def __init__(self, metrics: Sequence[object]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[object]:
        return self._metrics
