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

from tallystick.broker.txn.machine.commands import Answer, MarkersWritten, SendMarkers
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Identity, Offset, TopicPartition, TransactionalId

_log = logging.getLogger("tallystick.transactions")

# About a millisecond of work; in between, the loop serves other requests.
MARKERS_PER_TURN: Final = 32
BACKOFF_MS: Final = 50
BACKOFF_DOUBLINGS: Final = 8
BACKOFF_MAX_MS: Final = 10_000

# Offset of the marker; None: the partition is gone, or has nothing of the transaction; Reject: not yet.
Marked = Offset | None | Reject


class MarkerSink(Protocol):
    """Destination of markers."""

    def write(
        self, send: SendMarkers, partition: TopicPartition, coordinator_epoch: int
    ) -> Marked | Awaitable[Marked]:
        """Write one marker; done when it survives a power loss, as far as `flush.policy` promises that.

        Returns the result itself where nothing has to be waited for.
        """
        ...


class Owner(Protocol):
    """The coordinator, which owns the markers."""

    def markers_written(
        self, transactional_id: TransactionalId, command: MarkersWritten
    ) -> "asyncio.Future[Answer]": ...

    def is_decided(self, transactional_id: TransactionalId, marker: Identity) -> bool:
        """Return whether the id still waits for these markers."""
        ...

    def losses(self, transactional_id: TransactionalId) -> int:
        """Return how often the id's state was lost: markers sent before a loss are sent again."""
        ...

    def wake_at(self, at_ms: int) -> None:
        """Call `retry_due` at this monotonic time."""
        ...


@dataclass(slots=True, eq=False)
class _Delivery:
    """The markers of one transaction."""

    transactional_id: TransactionalId
    send: SendMarkers
    coordinator_epoch: int
    losses: int
    to_write: deque[TopicPartition]
    refused: list[TopicPartition] = field(default_factory=list)
    untold: dict[TopicPartition, Offset | None] = field(default_factory=dict)
    failures: int = 0
    is_queued: bool = False
    is_put_off: bool = False


class MarkerSender:
    """All markers in flight. Lives on the loop, owned by the transaction coordinator."""

    def __init__(self, sink: MarkerSink, owner: Owner, clock: Clock) -> None:
        self._sink = sink
        self._owner = owner
        self._clock = clock
        self._queue: deque[_Delivery] = deque()
        self._put_off: list[tuple[int, int, _Delivery]] = []
        self._numbers = count()
        self._waiting: set[asyncio.Future[Marked]] = set()
        self._turn: asyncio.Handle | None = None
        self._stopped = False

    def send(self, transactional_id: TransactionalId, send: SendMarkers, coordinator_epoch: int) -> None:
        """Begin to write markers. The first is written in the next turn of the loop, after the answer."""
        losses, to_write = self._owner.losses(transactional_id), deque(sorted(send.partitions))
        self._enqueue(_Delivery(transactional_id, send, coordinator_epoch, losses, to_write))

    def stop(self) -> None:
        """Drop all deliveries; the next start begins them again."""
        self._stopped = True
        if self._turn is not None:
            self._turn.cancel()
        for future in self._waiting:
            future.cancel()
        self._queue.clear()
        self._put_off.clear()

    def retry_due(self, now_ms: int) -> None:
        """Retry the deliveries whose backoff has passed."""
        while self._put_off and self._put_off[0][0] <= now_ms:
            _, _, delivery = heapq.heappop(self._put_off)
            delivery.is_put_off = False
            delivery.to_write.extend(delivery.refused)
            delivery.refused.clear()
            self._enqueue(delivery)
        if self._put_off:
            self._owner.wake_at(self._put_off[0][0])

    def _enqueue(self, delivery: _Delivery) -> None:
        if self._stopped or delivery.is_queued:
            return
        delivery.is_queued = True
        self._queue.append(delivery)
        self._go_on()

    def _go_on(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._turn = None
        room = MARKERS_PER_TURN
        while self._queue and room > 0:
            delivery = self._queue.popleft()
            delivery.is_queued = False
            if not self._is_wanted(delivery):
                continue  # its partition of __transaction_state was lost: the state read back decides
            room -= self._write_some(delivery, room)
            self._tell(delivery)
        if self._queue:
            self._go_on()

    def _is_wanted(self, delivery: _Delivery) -> bool:
        name = delivery.transactional_id
        is_decided = self._owner.is_decided(name, delivery.send.marker)
        return is_decided and delivery.losses == self._owner.losses(name)

    def _write_some(self, delivery: _Delivery, most: int) -> int:
        written = min(most, len(delivery.to_write))
        for _ in range(written):
            partition = delivery.to_write.popleft()
            try:
                marked = self._sink.write(delivery.send, partition, delivery.coordinator_epoch)
            except Exception as exc:
                self._refused(delivery, partition, repr(exc))
                continue
            if isinstance(marked, Awaitable):
                self._await(delivery, partition, marked)
            else:
                self._note(delivery, partition, marked)
        if delivery.to_write:
            self._enqueue(delivery)
        return max(written, 1)

    def _await(self, delivery: _Delivery, partition: TopicPartition, marked: Awaitable[Marked]) -> None:
        def done(future: "asyncio.Future[Marked]") -> None:
            self._waiting.discard(future)
            if future.cancelled():
                return
            exc = future.exception()
            if exc is not None:
                self._refused(delivery, partition, repr(exc))
            else:
                self._note(delivery, partition, future.result())
                # Reported in the next turn, together with the transaction's other markers of the same sync.
                self._enqueue(delivery)

        future = asyncio.ensure_future(marked)
        self._waiting.add(future)
        future.add_done_callback(done)

    def _note(self, delivery: _Delivery, partition: TopicPartition, marked: Marked) -> None:
        if isinstance(marked, Reject):
            self._refused(delivery, partition, marked.reason)
        else:
            delivery.untold[partition] = marked

    def _tell(self, delivery: _Delivery) -> None:
        """Report to the coordinator all markers written since the last report."""
        told, delivery.untold = delivery.untold, {}
        if not told:
            return

        def done(answer: "asyncio.Future[Answer]") -> None:
            result = answer.result()
            if isinstance(result, Reject):
                # Nothing changed: the record of the completion could not be written.
                delivery.untold = told | delivery.untold
                self._put_off_delivery(delivery, result.reason)

        answer = self._owner.markers_written(
            delivery.transactional_id, MarkersWritten(marker=delivery.send.marker, offsets=told)
        )
        if answer.done():
            done(answer)
        else:
            answer.add_done_callback(done)

    def _refused(self, delivery: _Delivery, partition: TopicPartition, why: str) -> None:
        delivery.refused.append(partition)
        self._put_off_delivery(delivery, f"{partition} does not take the marker: {why}")

    def _put_off_delivery(self, delivery: _Delivery, why: str) -> None:
        """Schedule a retry; partitions that refuse until then join it."""
        if self._stopped or delivery.is_put_off:
            return
        if not delivery.failures:
            _log.warning("transaction of %r goes on: %s", delivery.transactional_id, why)
        wait_ms = min(BACKOFF_MS << min(delivery.failures, BACKOFF_DOUBLINGS), BACKOFF_MAX_MS)
        delivery.failures += 1
        delivery.is_put_off = True
        at_ms = self._clock.monotonic_ms() + wait_ms
        heapq.heappush(self._put_off, (at_ms, next(self._numbers), delivery))
        self._owner.wake_at(at_ms)
