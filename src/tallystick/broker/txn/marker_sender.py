"""Delivery of end markers, from the decision of a transaction to its last partition.

Every partition is retried until it has the marker or is gone [TXN-9]. One that cannot take it now (its disk
is full, its coordinator is still loading) is retried with exponential backoff; nothing else about a
transaction waits for that, and no marker is given up before the process ends. A restart begins again from the
durable decision.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

from tallystick.broker.coordinator.runtime import CoordinatorRuntime, PendingCommand
from tallystick.broker.txn.machine.apply import TxnEntryTable
from tallystick.broker.txn.machine.commands import MarkerRequest, MarkersWritten, TxnAnswer, TxnCommand
from tallystick.broker.txn.machine.model import DecidedPhase
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, TopicPartition, TransactionalId

_log = logging.getLogger("tallystick.transactions")

# About a millisecond of work; in between, the loop serves other requests.
MARKERS_PER_SLICE: Final = 32
BACKOFF_MS: Final = 50
BACKOFF_DOUBLINGS: Final = 8
BACKOFF_MAX_MS: Final = 10_000

# Offset of the marker; None: the partition is gone, or has nothing of the transaction; Reject: not yet.
MarkerResult = Offset | None | Reject


class MarkerWriter(Protocol):
    """Destination of markers."""

    def write(
        self, send: MarkerRequest, partition: TopicPartition, coordinator_epoch: int
    ) -> MarkerResult | Awaitable[MarkerResult]:
        """Write one marker; done when it survives a power loss, as far as `flush.policy` promises that.

        Returns the result itself where nothing has to be waited for.
        """
        ...


@dataclass(slots=True, eq=False)
class _MarkerDelivery:
    """The markers of one transaction."""

    transactional_id: TransactionalId
    request: MarkerRequest
    coordinator_epoch: int
    loss_count: int
    unwritten: deque[TopicPartition]
    retriable: list[TopicPartition] = field(default_factory=list)
    unreported_offsets: dict[TopicPartition, Offset | None] = field(default_factory=dict)
    failures: int = 0
    is_queued: bool = False
    is_backing_off: bool = False


class MarkerSender:
    """All markers in flight. Lives on the loop, owned by the transaction coordinator."""

    def __init__(
        self,
        writer: MarkerWriter,
        runtime: CoordinatorRuntime[TransactionalId, TxnCommand, TxnAnswer],
        entries: TxnEntryTable,
    ) -> None:
        self._writer = writer
        self._runtime = runtime
        self._entries = entries
        self._queue: deque[_MarkerDelivery] = deque()
        self._retry_heap: list[tuple[int, int, _MarkerDelivery]] = []
        self._heap_sequence = count()
        self._write_futures: set[asyncio.Future[MarkerResult]] = set()
        self._run_handle: asyncio.Handle | None = None
        self._is_stopped = False

    def send(self, transactional_id: TransactionalId, request: MarkerRequest, coordinator_epoch: int) -> None:
        """Begin to write markers. The first is written in the next turn of the loop, after the answer."""
        losses, unwritten = self._count_losses(transactional_id), deque(sorted(request.partitions))
        self._enqueue(_MarkerDelivery(transactional_id, request, coordinator_epoch, losses, unwritten))

    def stop(self) -> None:
        """Drop all deliveries; the next start begins them again."""
        self._is_stopped = True
        if self._run_handle is not None:
            self._run_handle.cancel()
        for future in self._write_futures:
            future.cancel()
        self._queue.clear()
        self._retry_heap.clear()

    def retry_due(self, now_ms: int) -> None:
        """Retry the deliveries whose backoff has passed."""
        while self._retry_heap and self._retry_heap[0][0] <= now_ms:
            _, _, delivery = heapq.heappop(self._retry_heap)
            delivery.is_backing_off = False
            delivery.unwritten.extend(delivery.retriable)
            delivery.retriable.clear()
            self._enqueue(delivery)
        if self._retry_heap:
            self._runtime.timer.arm(self._retry_heap[0][0])

    def _enqueue(self, delivery: _MarkerDelivery) -> None:
        if self._is_stopped or delivery.is_queued:
            return
        delivery.is_queued = True
        self._queue.append(delivery)
        self._schedule_run()

    def _schedule_run(self) -> None:
        if self._run_handle is None:
            self._run_handle = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._run_handle = None
        room = MARKERS_PER_SLICE
        while self._queue and room > 0:
            delivery = self._queue.popleft()
            delivery.is_queued = False
            if not self._is_current(delivery):
                continue  # its partition of __transaction_state was lost: the state read back decides
            room -= self._write_slice(delivery, room)
            self._report_written(delivery)
        if self._queue:
            self._schedule_run()

    def _is_current(self, delivery: _MarkerDelivery) -> bool:
        """Return whether the id still waits for these markers, and its state was not lost since `send`."""
        entry = self._entries.get(delivery.transactional_id)
        return (
            entry is not None
            and isinstance(entry.phase, DecidedPhase)
            and entry.phase.marker_identity == delivery.request.marker_identity
            and delivery.loss_count == self._count_losses(delivery.transactional_id)
        )

    def _count_losses(self, transactional_id: TransactionalId) -> int:
        counts = self._runtime.reloader.loss_counts
        return counts[self._entries.partition_for(transactional_id)] if counts else 0

    def _write_slice(self, delivery: _MarkerDelivery, count_max: int) -> int:
        count = min(count_max, len(delivery.unwritten))
        for _ in range(count):
            partition = delivery.unwritten.popleft()
            try:
                result = self._writer.write(delivery.request, partition, delivery.coordinator_epoch)
            except Exception as exc:
                self._retry_partition(delivery, partition, repr(exc))
                continue
            if isinstance(result, Awaitable):
                self._await_write(delivery, partition, result)
            else:
                self._handle_result(delivery, partition, result)
        if delivery.unwritten:
            self._enqueue(delivery)
        return max(count, 1)

    def _await_write(
        self, delivery: _MarkerDelivery, partition: TopicPartition, result: Awaitable[MarkerResult]
    ) -> None:
        def done(future: "asyncio.Future[MarkerResult]") -> None:
            self._write_futures.discard(future)
            if future.cancelled():
                return
            exc = future.exception()
            if exc is not None:
                self._retry_partition(delivery, partition, repr(exc))
            else:
                self._handle_result(delivery, partition, future.result())
                # Reported in the next turn, together with the transaction's other markers of the same sync.
                self._enqueue(delivery)

        future = asyncio.ensure_future(result)
        self._write_futures.add(future)
        future.add_done_callback(done)

    def _handle_result(
        self, delivery: _MarkerDelivery, partition: TopicPartition, result: MarkerResult
    ) -> None:
        if isinstance(result, Reject):
            self._retry_partition(delivery, partition, result.reason)
        else:
            delivery.unreported_offsets[partition] = result

    def _report_written(self, delivery: _MarkerDelivery) -> None:
        """Report to the coordinator all markers written since the last report."""
        offsets, delivery.unreported_offsets = delivery.unreported_offsets, {}
        if not offsets:
            return

        def done(answer: "asyncio.Future[TxnAnswer]") -> None:
            result = answer.result()
            if isinstance(result, Reject):
                # Nothing changed: the record of the completion could not be written.
                delivery.unreported_offsets = offsets | delivery.unreported_offsets
                self._schedule_retry(delivery, result.reason)

        command = MarkersWritten(marker_identity=delivery.request.marker_identity, offsets=offsets)
        answer: asyncio.Future[TxnAnswer] = asyncio.get_running_loop().create_future()
        # Even while the broker is stopping: a decided transaction may be completed.
        self._runtime.submit_internal(delivery.transactional_id, PendingCommand(command, answer))
        if answer.done():
            done(answer)
        else:
            answer.add_done_callback(done)

    def _retry_partition(self, delivery: _MarkerDelivery, partition: TopicPartition, reason: str) -> None:
        delivery.retriable.append(partition)
        self._schedule_retry(delivery, f"{partition} refused the marker: {reason}")

    def _schedule_retry(self, delivery: _MarkerDelivery, reason: str) -> None:
        """Schedule a retry; partitions that refuse until then join it."""
        if self._is_stopped or delivery.is_backing_off:
            return
        if not delivery.failures:
            _log.warning(
                "the transaction of %r is decided but not complete, its markers are retried: %s",
                delivery.transactional_id,
                reason,
            )
        wait_ms = min(BACKOFF_MS << min(delivery.failures, BACKOFF_DOUBLINGS), BACKOFF_MAX_MS)
        delivery.failures += 1
        delivery.is_backing_off = True
        at_ms = self._runtime.timer.monotonic_ms() + wait_ms
        heapq.heappush(self._retry_heap, (at_ms, next(self._heap_sequence), delivery))
        self._runtime.timer.arm(at_ms)
