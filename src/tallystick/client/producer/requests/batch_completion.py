"""Ends and retries of batches, applied to their partition, their outcome and the memory they hold.

Effects. The error of a batch reports the worst effect of all its attempts [CLI-1].
"""

from collections.abc import Callable

from tallystick.client.errors import ClientError
from tallystick.client.net.backoff import compute_backoff_ms, uniform
from tallystick.client.producer.batches.accumulator import PartitionQueue
from tallystick.client.producer.batches.buffer_pool import BufferPool
from tallystick.client.producer.batches.producer_batch import InFlightBatch, SealedBatch
from tallystick.client.producer.requests.metrics import ProducerMetrics
from tallystick.client.producer.sequences.in_flight import PartitionInFlight
from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data.produce import PartitionProduceResponse


class PartitionSendState:
    """Send state of one partition.

    node_id          broker that has its batches in flight
    next_attempt_ms  earliest time of the next attempt
    failure_count    consecutive failed attempts
    last_error       error of the last failed attempt
    removed_error    why nothing is sent there again: the topic was recreated without this partition
    """

    __slots__ = (
        "failure_count",
        "in_flight",
        "last_error",
        "next_attempt_ms",
        "node_id",
        "queue",
        "removed_error",
        "tp",
    )

    def __init__(self, queue: PartitionQueue) -> None:
        self.queue, self.tp = queue, queue.tp
        self.in_flight: PartitionInFlight[InFlightBatch] = PartitionInFlight()
        self.node_id: int | None = None
        self.next_attempt_ms = 0
        self.failure_count = 0
        self.last_error: ClientError | None = None
        self.removed_error: ClientError | None = None


class SenderHooks:
    """Callbacks from a Sender to its engine."""

    def __init__(self, on_change: Callable[[], None], request_metadata: Callable[[str], None]) -> None:
        self.on_change, self.request_metadata = on_change, request_metadata


class BatchCompletion:
    """Ends batches, or sends them again. Owned by a Sender.

    note_failure  called for each batch that failed for good, right before its outcome is settled, and told
                  whether the batch had sequence numbers
    """

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        metrics: ProducerMetrics,
        *,
        clock: Clock,
        hooks: SenderHooks,
        note_failure: Callable[[TopicPartition, ClientError, bool], None],
    ) -> None:
        self._config, self._pool, self._metrics = config, pool, metrics
        self._clock, self._hooks, self._note_failure = clock, hooks, note_failure

    def complete(
        self, partition: PartitionSendState, batch: InFlightBatch, part: PartitionProduceResponse | None
    ) -> None:
        """End a batch that is written, and those that it proves written; `part` has its offset, if known."""
        partition.failure_count, partition.last_error = 0, None
        partition.in_flight.remove(batch, failed=False)
        outcome = batch.content.outcome
        if part is not None:
            outcome.base_offset = part.base_offset if part.base_offset >= 0 else None
            outcome.log_append_time_ms = part.log_append_time_ms if part.log_append_time_ms >= 0 else None
        self._finish(batch.content, None)
        for earlier in partition.in_flight.find_proved_written():
            partition.in_flight.remove(earlier, failed=False)
            self._finish(earlier.content, None)

    def retry(
        self,
        partition: PartitionSendState,
        batch: InFlightBatch,
        error: ClientError,
        *,
        at_once: bool = False,
    ) -> None:
        """Queue the batch to be sent again, unless its time or its retries are used up.

        `at_once`: the cause is known and mended, so there is no backoff.
        """
        if batch.content.outcome.is_complete or batch.attempts > self._config.retries:
            self.fail(partition, batch, error)
            return
        if partition.removed_error is not None:
            self.fail(partition, batch, copy_error(partition.removed_error))
            return
        partition.in_flight.retry(batch)
        partition.last_error = error
        if at_once:
            partition.next_attempt_ms = 0
            return
        client = self._config.client
        wait_ms = compute_backoff_ms(
            partition.failure_count, client.retry_backoff_ms, client.retry_backoff_max_ms, uniform()
        )
        partition.failure_count += 1
        partition.next_attempt_ms = self._clock.monotonic_ms() + wait_ms
        if error.remedy is Remedy.REFRESH:
            self._hooks.request_metadata(partition.tp.topic)

    def fail(self, partition: PartitionSendState, batch: InFlightBatch, error: ClientError) -> None:
        """End a batch that has failed for good."""
        partition.in_flight.remove(batch, failed=True)
        self._finish(
            batch.content,
            error.after(Effect.UNKNOWN if batch.maybe_sent else Effect.NONE),
            is_numbered=batch.sequence.identity is not None,
        )

    def fail_unsent(self, batch: SealedBatch, error: ClientError) -> None:
        """End a batch that was never sent."""
        self._finish(batch, error)

    def abandon(self, batch: InFlightBatch, error: ClientError) -> None:
        """Settle the outcome of a batch in flight with an unknown effect.

        It stays in flight: a later response matters to its partition only, and frees its memory.
        """
        if not batch.content.outcome.is_complete:
            batch.maybe_sent = True
            is_numbered = batch.sequence.identity is not None
            self._settle(batch.content, error.after(Effect.UNKNOWN), is_numbered=is_numbered)

    def _finish(self, batch: SealedBatch, error: ClientError | None, *, is_numbered: bool = False) -> None:
        """Free the memory of a batch and settle its outcome, unless that happened in time."""
        self._pool.release(batch.size)
        self._hooks.on_change()
        if not batch.outcome.is_complete:
            self._settle(batch, error, is_numbered=is_numbered)

    def _settle(self, batch: SealedBatch, error: ClientError | None, *, is_numbered: bool) -> None:
        if error is None:
            self._metrics.records_sent += batch.count
        else:
            self._metrics.record_errors += batch.count
            self._note_failure(batch.tp, error, is_numbered)
        batch.outcome.complete(error)


def copy_error(error: ClientError) -> ClientError:
    """Copy an error: each batch has its own, since each has its own worst effect."""
    return type(error)(*error.args).after(error.effect)
