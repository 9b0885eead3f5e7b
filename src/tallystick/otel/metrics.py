"""The clients' metrics as OpenTelemetry's instruments, and those of dual writes.

The clients' are observed: the program's reader asks for them when it collects, and `metrics()` of each client
that is alive is read then. Names are Kafka's with underscores, below `kafka.producer.` and `kafka.consumer.`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from tallystick.client import tracing
from tallystick.client.net.network import NetworkMetrics
from tallystick.client.producer.requests.metrics import ProducerMetrics
from tallystick.client.tracing import MeteredClient
from tallystick.metrics.families.applications import RECORDS_LAG
from tallystick.otel.conventions import CLIENT_ID, DESTINATION, FINDING, OUTCOME, PARTITION, TraceOutcome

_LAG_PREFIX = "records-lag."
_TXN_CALLS = ("init", "begin", "send-offsets", "prepare", "commit", "abort")
_PRODUCER_GAUGES = ("requests-in-flight", "buffer-total-bytes", "buffer-available-bytes", "waiting-threads")


def list_producer_names() -> list[str]:
    """Return the names of a producer's metrics, by Kafka's names."""
    own = [*NetworkMetrics().as_metrics(), *ProducerMetrics().as_metrics(), *_PRODUCER_GAUGES]
    return [*own, *(f"txn-{call}-time-ns-total" for call in _TXN_CALLS)]


class ClientInstruments:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        """Create the instruments, which read every client of the process."""
        self._is_stopped = False
        for name in list_producer_names():
            self._create(meter, "kafka.producer.", name, self._observe_with(name, tracing.PRODUCERS))
        for name in NetworkMetrics().as_metrics():
            self._create(meter, "kafka.consumer.", name, self._observe_with(name, tracing.CONSUMERS))
        meter.create_observable_gauge(
            "kafka.consumer.records_lag",
            [self._observe_lags],
            "{record}",
            RECORDS_LAG.help,
        )
        self._durations = meter.create_histogram(
            "tallystick.dual_write.duration",
            "s",
            "Duration of dual writes, from begin to outcome.",
        )
        self._recoveries = meter.create_counter(
            "tallystick.dual_write.recovered", "{transaction}", "Transactional ids that were recovered."
        )

    def stop(self) -> None:
        """Stop observing: an instrument cannot be removed from its meter."""
        self._is_stopped = True

    def count_write(self, duration_s: float, outcome: TraceOutcome) -> None:
        """Count a dual write."""
        self._durations.record(duration_s, {OUTCOME: outcome.value})

    def count_recovery(self, finding: str) -> None:
        """Count a transactional id that was recovered."""
        self._recoveries.add(1, {FINDING: finding})

    def _create(
        self,
        meter: Meter,
        prefix: str,
        name: str,
        observe: Callable[[CallbackOptions], Iterable[Observation]],
    ) -> None:
        create = meter.create_observable_counter if name.endswith("-total") else meter.create_observable_gauge
        create(prefix + name.replace("-", "_"), [observe], _find_unit(name), f"Kafka's `{name}`.")

    def _observe_with(
        self, name: str, clients: Mapping[MeteredClient, str]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        combine = sum if name.endswith(("-total", "in-flight", "-bytes", "-threads")) else max

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            values: dict[str, list[float]] = {}
            for client_id, read in self._read(clients):
                if name in read:
                    values.setdefault(client_id, []).append(read[name])
            # Clients may share an id, and one series has one value.
            for client_id, each in values.items():
                yield Observation(combine(each), {CLIENT_ID: client_id})

        return observe

    def _observe_lags(self, _: CallbackOptions) -> Iterator[Observation]:
        for client_id, read in self._read(tracing.CONSUMERS):
            for name, lag in read.items():
                if name.startswith(_LAG_PREFIX):
                    topic, partition = name.removeprefix(_LAG_PREFIX).rsplit("-", 1)
                    yield Observation(lag, {CLIENT_ID: client_id, DESTINATION: topic, PARTITION: partition})

    def _read(self, clients: Mapping[MeteredClient, str]) -> Iterator[tuple[str, dict[str, float]]]:
        # A client may be opened, or its loop change what is read, meanwhile: the next collection sees it.
        known: list[tuple[MeteredClient, str]] = []
        with suppress(RuntimeError):
            known += [] if self._is_stopped else clients.items()
        for client, client_id in known:
            with suppress(RuntimeError):
                yield client_id, client.metrics()


def _find_unit(name: str) -> str:
    if "-ns-" in name:
        return "ns"
    if "bytes" in name or name.startswith(("batch-size", "request-size")):
        return "By"
    return "ms" if "time" in name or "latency" in name else "1"
