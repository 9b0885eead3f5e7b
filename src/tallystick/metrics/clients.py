"""`ClientMetrics`: what clients and dual writes have counted, for a registry of prometheus_client.

Clients count by themselves and are read for each scrape. Dual writes are measured where a writer or a pool
was given an observer.
"""

import logging
import weakref
from collections.abc import Iterator
from typing import Any, Final, Protocol

from tallystick.metrics.dual_writes import WriteMeter, WriteMeters
from tallystick.metrics.exposition import PrometheusText
from tallystick.metrics.families.applications import RECORDS_LAG
from tallystick.metrics.model import MetricFamily, Sample, make_kafka_metric

_log = logging.getLogger("tallystick.metrics")

READS_MAX: Final = 3
"""A client in use may change what is read; then it is read again."""

_PARTITION_LAG: Final = "records-lag."
_BY_CLIENT: Final = ("client_id",)


class Client(Protocol):
    """A producer, consumer or admin, blocking or not."""

    def metrics(self) -> dict[str, float]: ...


class ClientMetrics:
    """Metrics of the clients and dual writes of this process, for a registry of prometheus_client.

        metrics = ClientMetrics()
        REGISTRY.register(metrics)
        metrics.add_producer(producer, "orders")
        pool = WriterPool(store, config, size=8, watch=metrics.watch_writes("payments"))

    Clients are not kept alive, and vanish from the metrics when they are deleted; a client takes the place of
    an earlier one of its kind and id. One object serves any number of them, and may be shared by threads. It
    works in one process: prometheus_client's multiprocess mode reads no collectors.
    """

    def __init__(self) -> None:
        """Load prometheus_client. Raises: MissingLibrary."""
        self._text = PrometheusText()
        self._writes = WriteMeters()
        self._clients: dict[tuple[str, str], weakref.ref[Client]] = {}

    def add_producer(self, producer: Client, client_id: str) -> None:
        """Export the metrics of a producer, as `kafka_producer_producer_metrics_…`."""
        self._add(producer, "kafka.producer:type=producer-metrics", client_id)

    def add_consumer(self, consumer: Client, client_id: str) -> None:
        """Export the metrics of a consumer, as `kafka_consumer_consumer_metrics_…`, and its lags."""
        self._add(consumer, "kafka.consumer:type=consumer-metrics", client_id)

    def add_admin(self, admin: Client, client_id: str) -> None:
        """Export the metrics of an admin, as `kafka_admin_client_admin_client_metrics_…`."""
        self._add(admin, "kafka.admin.client:type=admin-client-metrics", client_id)

    def watch_writes(self, name: str) -> WriteMeter:
        """Return what to give as `watch` to a DualWriter or a WriterPool.

        Args:
            name: the label `writer`: best the same for all processes of a service.
        """
        return self._writes.watch(name)

    def _add(self, client: Client, group: str, client_id: str) -> None:
        self._clients[group, client_id] = weakref.ref(client)

    def collect(self) -> Iterator[Any]:
        """Yield every metric; prometheus_client calls it for each scrape."""
        yield from self._writes.collect()
        for family, samples in (*self._writes.read_gauges(), *self._read_clients()):
            yield self._text.convert(family, samples)

    def describe(self) -> Iterator[Any]:
        """Yield nothing: the names depend on the clients, and are checked when they are collected."""
        yield from ()

    def _read_clients(self) -> list[tuple[MetricFamily, list[Sample]]]:
        """Read the clients, and forget those that are deleted."""
        readings: dict[MetricFamily, list[Sample]] = {}
        for (group, client_id), reference in list(self._clients.items()):
            client = reference()
            if client is None:
                self._clients.pop((group, client_id), None)
                continue
            for name, value in _read_client(client, client_id).items():
                family, labels = _name_metric(group, name, client_id)
                readings.setdefault(family, []).append((labels, value))
        return list(readings.items())


def _read_client(client: Client, client_id: str) -> dict[str, float]:
    """Return a client's metrics; none if it cannot be read, as after it was closed."""
    for attempt in range(1, READS_MAX + 1):
        try:
            return client.metrics()
        except Exception as exc:  # a scrape shows all the others
            has_changed = isinstance(exc, RuntimeError)
            if attempt == READS_MAX or not has_changed:
                _log.debug("the metrics of %s were not read: %r", client_id, exc)
                break
    return {}


def _name_metric(group: str, name: str, client_id: str) -> tuple[MetricFamily, tuple[str, ...]]:
    """Return a metric by the name of Kafka's, with the values of its labels."""
    if name.startswith(_PARTITION_LAG):
        topic, _, partition = name.removeprefix(_PARTITION_LAG).rpartition("-")
        return RECORDS_LAG, (client_id, topic, partition)
    kind = group.partition(":")[0].removeprefix("kafka.").replace(".client", "")
    family = make_kafka_metric(f"{group},name={name}", f"{name} of a {kind}.", _BY_CLIENT)
    return family, (client_id,)
