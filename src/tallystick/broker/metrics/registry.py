"""Counters and gauges of one broker.

A gauge is read at each scrape. A counter is a number that is incremented where the event happens. Both are
registered in one `MetricsRegistry`, which is read in steps: the loop does other work between two of them, so
that a scrape of a broker with many partitions takes longer and blocks nothing. A broker without
`metrics.listener` counts too. `tallystick.metrics.model` says how metrics are named; see
docs/notes/performance.md.
"""

from collections.abc import Callable, Iterator

from tallystick.metrics.model import MetricFamily, MetricReading, Sample


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
