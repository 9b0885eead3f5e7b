"""Counters of a producer, by Kafka's metric names. Pure."""


class ValueStats:
    """Sum, count and maximum of a series of values."""

    __slots__ = ("count", "max", "sum")

    def __init__(self) -> None:
        self.sum = self.max = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.sum += value
        self.count += 1
        self.max = max(self.max, value)

    @property
    def average(self) -> float:
        return self.sum / self.count if self.count else 0.0


class ProducerMetrics:
    """Counters of one producer, written by its engine alone, readable from any thread.

    Averages are since the start; Kafka's are over its last two windows of 30 s.
    """

    __slots__ = (
        "batch_bytes",
        "batch_records",
        "batch_splits",
        "block_ms",
        "compression_rate",
        "flush_ns",
        "latency_ms",
        "metadata_wait_ns",
        "queue_ms",
        "record_errors",
        "record_retries",
        "records_sent",
        "request_records",
        "throttle_ms",
    )

    def __init__(self) -> None:
        self.records_sent = self.record_errors = self.record_retries = self.batch_splits = 0
        self.flush_ns = self.metadata_wait_ns = 0
        self.batch_bytes, self.batch_records, self.request_records = ValueStats(), ValueStats(), ValueStats()
        self.queue_ms, self.latency_ms, self.throttle_ms = ValueStats(), ValueStats(), ValueStats()
        self.compression_rate, self.block_ms = ValueStats(), ValueStats()

    def as_metrics(self) -> dict[str, float]:
        """Return the counters by the names of Kafka's `producer-metrics`."""
        return {
            "record-send-total": self.records_sent,
            "record-error-total": self.record_errors,
            "record-retry-total": self.record_retries,
            "batch-split-total": self.batch_splits,
            "batch-size-avg": self.batch_bytes.average,
            "batch-size-max": self.batch_bytes.max,
            "records-per-request-avg": self.request_records.average,
            "record-queue-time-avg": self.queue_ms.average,
            "record-queue-time-max": self.queue_ms.max,
            "produce-latency-avg": self.latency_ms.average,
            "produce-latency-max": self.latency_ms.max,
            "produce-throttle-time-avg": self.throttle_ms.average,
            "produce-throttle-time-max": self.throttle_ms.max,
            "compression-rate-avg": self.compression_rate.average,
            "bufferpool-wait-time-ns-total": self.block_ms.sum * 1_000_000,
            "buffer-exhausted-total": self.block_ms.count,
            "flush-time-ns-total": self.flush_ns,
            "metadata-wait-time-ns-total": self.metadata_wait_ns,
        }
