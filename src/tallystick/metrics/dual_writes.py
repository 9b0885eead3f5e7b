"""Events of dual writes for observers, and the observer that counts and times them for Prometheus.

    pool = WriterPool(store, config, size=8, watch=metrics.watch_writes("payments"))

An observer is given as `watch` and costs nothing where there is none. It hears of every step of the recipe,
and of what is no step: how a write ended, recoveries, repetitions, leases. It is called in the
threads that write, so it must be quick and may not raise.
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from time import perf_counter
from typing import Any, Final, Protocol

from tallystick.metrics.exposition import PrometheusText
from tallystick.metrics.families import applications as families
from tallystick.metrics.model import MetricReading


class WriteEvent(Enum):
    """Events of dual writes, besides the steps of the recipe."""

    COMMITTED = "committed"  # by the database, which decides both sides
    ROLLED_BACK = "rolled_back"
    IN_DOUBT = "in_doubt"  # whether the database has committed is not known
    RECOVERED = "recovered"
    RECOVERY_FAILED = "recovery_failed"
    RETRIED = "retried"  # the work runs once more
    LEASE_TAKEN = "lease_taken"
    LEASE_LOST = "lease_lost"  # or its sides contradict each other: the id is given up for another one
    LEASE_EXPIRED = "lease_expired"  # of another process, whose id is recovered for it


class WriteSource(Protocol):
    """A writer or a pool, whose present state is read for each scrape."""

    def metrics(self) -> dict[str, float]: ...


class WriteObserver(Protocol):
    """Interface of an observer, the parameter `watch`."""

    def start_step(self, name: str) -> Callable[[], None]:
        """Record the beginning of a step; return what is called if it succeeds."""

    def note(self, event: WriteEvent, value: float) -> None:
        """Record an event."""

    def attach(self, source: WriteSource) -> None:
        """Record a writer or pool that uses this observer, without keeping it alive."""


OTHER_STEP: Final = "other"
STEPS: Final = frozenset(
    {
        *("begin database", "begin", "send", "send offsets", "prepare", "record"),
        *("commit database", "commit", "start commit", "abort", "roll back"),
        *("claim", "init", "describe", "complete", "settle"),
        *("take lease", "renew leases"),
    }
)
"""Steps with series of their own. All others, which belong to recoveries, are summed up."""

_OUTCOMES: Final = (WriteEvent.COMMITTED, WriteEvent.ROLLED_BACK, WriteEvent.IN_DOUBT)
_RECOVERIES: Final = {WriteEvent.RECOVERED: "recovered", WriteEvent.RECOVERY_FAILED: "failed"}
_LEASES: Final = {
    WriteEvent.LEASE_TAKEN: "taken",
    WriteEvent.LEASE_LOST: "lost",
    WriteEvent.LEASE_EXPIRED: "expired",
}
_GAUGES: Final = {
    "writers": families.WRITERS,
    "writers-in-doubt": families.WRITERS_IN_DOUBT,
    "writers-unsettled": families.WRITERS_UNSETTLED,
    "pool-free": families.POOL_FREE,
    "pool-leases": families.POOL_LEASES,
}


class WriteMeters:
    """Counters and times of all dual writes of a process, by the name of their writer. Thread-safe."""

    def __init__(self) -> None:
        """Create the metrics, which belong to no registry. Raises: MissingLibrary."""
        create = PrometheusText().make_instrument
        self.steps = create(families.STEP_SECONDS)
        self.writes = create(families.WRITES)
        self.recoveries = create(families.RECOVERIES)
        self.retries = create(families.RETRIES)
        self.leases = create(families.LEASES)
        self._meters: dict[str, WriteMeter] = {}
        self._lock = threading.Lock()

    def watch(self, name: str) -> "WriteMeter":
        """Return the observer of one name, the same one for the same name."""
        with self._lock:
            if name not in self._meters:
                self._meters[name] = WriteMeter(self, name)
            return self._meters[name]

    def collect(self) -> Iterator[Any]:
        """Yield what was counted, as prometheus_client's values."""
        for metric in (self.steps, self.writes, self.recoveries, self.retries, self.leases):
            yield from metric.collect()

    def read_gauges(self) -> Iterator[MetricReading]:
        """Yield the present state of writers and pools."""
        with self._lock:
            meters = dict(self._meters)
        sums = {name: meter.sum_sources() for name, meter in meters.items()}
        for key, family in _GAUGES.items():
            yield family, [((name,), values[key]) for name, values in sums.items() if key in values]


class WriteMeter:
    """The observer of the writers of one name."""

    def __init__(self, meters: WriteMeters, name: str) -> None:
        self._retries = meters.retries.labels(name)
        self._outcomes = {each: meters.writes.labels(name, each.value) for each in _OUTCOMES}
        self._recoveries = {each: meters.recoveries.labels(name, text) for each, text in _RECOVERIES.items()}
        self._leases = {each: meters.leases.labels(name, text) for each, text in _LEASES.items()}
        self._steps = {each: meters.steps.labels(name, each) for each in (*STEPS, OTHER_STEP)}
        self._sources: weakref.WeakSet[WriteSource] = weakref.WeakSet()
        self._lock = threading.Lock()

    def start_step(self, name: str) -> Callable[[], None]:
        """Record the beginning of a step; return what is called if it succeeds."""
        times, began = self._steps.get(name) or self._steps[OTHER_STEP], perf_counter()
        return lambda: times.observe(perf_counter() - began)

    def note(self, event: WriteEvent, value: float) -> None:
        """Count an event."""
        if event is WriteEvent.RETRIED:
            self._retries.inc(value)
        else:
            (self._outcomes | self._recoveries | self._leases)[event].inc(value)

    def attach(self, source: WriteSource) -> None:
        """Read a writer or a pool for each scrape, as long as it exists."""
        with self._lock:
            self._sources.add(source)

    def sum_sources(self) -> Counter[str]:
        """Return the sums of what writers and pools show now."""
        with self._lock:
            sources = list(self._sources)
        sums = Counter[str]()
        for each in sources:
            for key, value in each.metrics().items():
                sums[key] += value  # type: ignore[assignment]
        return sums
