"""Record accumulator: buffers records by partition between `send` and a Produce request.

`append` runs in the caller's thread, once per record, and takes no lock: a lock costs as much as all
the rest. Several threads may call it while the engine takes batches away:

    1. A record draws a ticket from its batch's counter and is stored under it. Both are single operations
       of the interpreter, so no two records share a ticket and none is lost.
    2. The thread that seals a batch first marks it sealed and then copies what is stored. The thread that
       stores a record checks the mark after storing. So a record stored too late to be copied is always
       noticed by the thread that stored it, which then puts it into the batch that is open now [CLI-24].
    3. The records of a batch are ordered by ticket. A thread's own records are in the order it sent them.

Sizes are counted without a lock, too: two threads at once may lose a count. A batch may therefore slightly
exceed `batch.size`, and is divided before it is sent if it exceeds `max.request.size`.

Sealing, opening and everything else happens once per batch, under a lock.

Source: Kafka RecordAccumulator; KIP-794.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import count as tickets
from typing import Final, cast

from tallystick.client.errors import ClientError, refused
from tallystick.client.producer.batches import RECORD_OVERHEAD, Columns, Rows, Run, cut, headers_size
from tallystick.client.producer.delivery import Delivery, DeliveryCallback, Outcome
from tallystick.client.producer.partitioner import next_partition, partition_of
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Identity, TopicPartition
from tallystick.kernel.value import frozen
from tallystick.protocol.records import HEADER_SIZE, Headers

_new: Final = object.__new__

Parts = list[tuple[Outcome, Sequence[int]]]
"""Outcomes of batches, each with the places of its records in the caller's input."""


class NotNow(Exception):
    """The record was not taken: the topic is not known yet, or (`full`) the memory is full."""

    def __init__(self, topic: str, full: bool) -> None:
        super().__init__(topic, full)
        self.topic, self.full = topic, full


@frozen(kw_only=True)
class Limits:
    """Limits on what a producer buffers."""

    batch_bytes: int
    linger_ms: int
    buffer_bytes: int
    record_bytes_max: int


@frozen(kw_only=True)
class Ambient:
    """Clock, noise, lock and wake-up, passed in instead of taken from the system.

    now      seconds since the epoch, for the records' timestamps
    noise    between 0 and 1, both exclusive, drawn anew at every call
    lock     for operations that happen once per batch
    wake     called from any thread when the engine has something to do
    """

    now: Callable[[], float]
    monotonic_ms: Callable[[], int]
    noise: Callable[[], float]
    lock: AbstractContextManager[object]
    wake: Callable[[], None]


class Batch:
    """Records for one partition: first open, then sealed, then in flight.

    left        estimated bytes that still fit
    stamps      (ticket, timestamp) of records whose millisecond differs from that of the record before
    rows        the records, once sealed
    payload     the packed record section, once it was sent
    doubtful    an attempt to send it may have had an effect
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "count",
        "doubtful",
        "headers",
        "keys",
        "left",
        "opened_ms",
        "outcome",
        "payload",
        "rows",
        "sealed",
        "serial",
        "signature",
        "size",
        "stamp_end",
        "stamp_start",
        "stamps",
        "ticket",
        "times",
        "tp",
        "values",
    )

    def __init__(self, tp: TopicPartition, room: int) -> None:
        self.tp = tp
        self.outcome = Outcome(tp.topic, tp.partition)
        self.ticket = tickets().__next__
        self.values: dict[int, bytes | None] = {}
        self.keys: dict[int, bytes] = {}
        self.headers: dict[int, Headers] = {}
        self.times: dict[int, int] = {}
        self.stamps: list[tuple[int, int]] = []
        self.stamp_start = self.stamp_end = 0.0
        self.left = room
        self.opened_ms = -1
        self.sealed = False

        self.rows: Rows | None = None
        self.count = self.size = 0

        self.payload: bytes | None = None
        self.signature: Identity | None = None
        self.base_sequence = -1
        self.serial = -1
        self.attempts = 0
        self.doubtful = False

    def holds(self, ticket: int) -> bool:
        """Tell whether the record is among those that were sealed."""
        places = self.outcome.places
        return ticket < self.count if places is None else ticket in places

    def seal(self, room: int) -> None:
        """Close the batch for senders and put its records in columns, by ticket. Under the lock."""
        self.sealed = True  # before anything is copied [CLI-24]
        order = list(self.values)
        values = list(self.values.values())[: len(order)]
        if order != list(range(len(order))):
            stored = dict(zip(order, values, strict=True))
            order.sort()
            values = [stored[ticket] for ticket in order]
            self.outcome.places = {ticket: place for place, ticket in enumerate(order)}
        rows = Columns(
            values=values,
            keys=[self.keys.get(ticket) for ticket in order] if self.keys else None,
            headers=[self.headers.get(ticket, ()) for ticket in order] if self.headers else None,
            runs=self._runs(order),
        )
        self.fill(rows, HEADER_SIZE + room - self.left)

    def fill(self, rows: Rows, size: int) -> None:
        """Set all records of the batch at once."""
        self.sealed, self.rows, self.count, self.size = True, rows, rows.count, size
        self.outcome.runs = rows.runs

    def _runs(self, order: list[int]) -> list[Run]:
        """Return the timestamps by place, as runs of equal ones."""
        stamps = sorted(self.stamps)
        starts = {bisect_left(order, ticket): ms for ticket, ms in stamps}
        # A record may be stored before another thread notes the millisecond that both are in.
        ms = stamps[0][1] if stamps else 0
        runs: list[Run] = []
        for place in range(len(order)) if self.times else sorted({0, *starts}):
            ms = starts.get(place, ms)
            own = self.times.get(order[place], ms) if place < len(order) else ms
            if place < len(order) and (not runs or runs[-1][1] != own):
                runs.append((place, own))
        return runs


class PartitionQueue:
    """Batches that wait for one partition: full ones in order, then the open one."""

    __slots__ = ("open", "sealed", "topic", "tp")

    def __init__(self, topic: "TopicQueues", partition: int, opened: Batch) -> None:
        self.topic = topic
        self.tp = TopicPartition(topic.name, partition)
        self.sealed: deque[Batch] = deque()
        self.open = opened

    @property
    def empty(self) -> bool:
        return not self.sealed and self.open.opened_ms < 0

    def due_ms(self, linger_ms: int) -> int:
        """Return when the first batch should be sent. The queue must not be empty."""
        return self.sealed[0].opened_ms if self.sealed else self.open.opened_ms + linger_ms


class TopicQueues:
    """Queues of one topic, and the partition its unkeyed records stick to."""

    __slots__ = ("candidates", "name", "partitions", "stuck", "stuck_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.partitions: list[PartitionQueue] = []
        self.candidates: Sequence[int] = ()
        self.stuck = 0
        self.stuck_bytes = 0


class Accumulator:
    """All records that were accepted and not yet taken by the engine.

    `append` and `extend` may be called by any thread, the rest by the engine alone.
    """

    def __init__(self, limits: Limits, ambient: Ambient) -> None:
        self.limits = limits
        self.buffered = 0
        self.active: dict[PartitionQueue, None] = {}
        self._ambient = ambient
        self._lock = ambient.lock
        self._now = ambient.now
        self._room = max(min(limits.batch_bytes, limits.record_bytes_max) - HEADER_SIZE, 0)
        self._topics: dict[str, TopicQueues] = {}
        # The open batch for a topic's unkeyed records: the only look-up of the common case.
        self._sticky: dict[str, Batch] = {}
        self._closed: Callable[[], Exception] | None = None

    # -------------------------------------------------------------------- in any thread

    def append_value(self, topic: str, value: bytes | None) -> Delivery | None:
        """Take a record that has only a value, if its batch is open and has room; else return None.

        The caller then uses `append`.
        Cost: about 0.3 us.
        """
        batch = self._sticky.get(topic)
        if type(value) is bytes and batch is not None:
            left = batch.left - len(value) - RECORD_OVERHEAD
            if left >= 0:
                ticket = batch.ticket()
                if not batch.stamp_start <= (now := self._now()) < batch.stamp_end:
                    self._stamp(batch, ticket, now)
                batch.values[ticket] = value
                batch.left = left
                if not batch.sealed or self._kept(batch, ticket):
                    # Takes half the time of calling the class, which would be a sixth of this method.
                    delivery = _new(Delivery)
                    delivery.outcome, delivery.ticket = batch.outcome, ticket
                    return delivery
        return None

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Take one record.

        Raises: NotNow when the caller has to wait first; TooLarge; TypeError; the gate's error.
        Cost: about 0.3 us.
        """
        value, key, headers = _bytes(value), _bytes(key), tuple(headers)
        size = RECORD_OVERHEAD + len(value or b"") + len(key or b"") + headers_size(headers)
        batch, ticket = self._put(topic, (value, key, headers, timestamp_ms), partition, size)
        if on_delivery is not None:
            batch.outcome.watch(on_delivery, ticket)
        return Delivery(batch.outcome, ticket)

    def extend(self, topic: str, rows: Rows, partition: int | None) -> Parts:
        """Take many records at once; return the outcomes of their batches, with the places of their records.

        Records without a key stay together, in batches of one partition each; keyed records keep their order
        within a partition.

        Args:
            partition: for all of them; None to choose by their keys.
        Raises: as `append`; then none is taken.
        Cost: 0.01 us per Arrow record without a key, 0.1 us with one; several times that without the
            extension.
        """
        queues = self._queues(topic)
        if self.buffered >= self.limits.buffer_bytes:
            raise NotNow(topic, full=True)
        count = len(queues.partitions)
        if partition is not None or not rows.keyed:
            where = None if partition is None else self._queue(topic, None, partition).tp.partition
            groups = [(where, rows, cast(Sequence[int], range(rows.count)))]
        else:
            places = rows.by_partition(count)
            groups = [(p, rows.pick(of_p, keyed=p is not None), of_p) for p, of_p in places.items()]
        pieces = []
        for where, group, of_group in groups:
            begin = 0
            for piece, size in cut(group, max(self._room, 1)):
                if size > self.limits.record_bytes_max and piece.count == 1:
                    raise too_large(topic, where, size, self.limits.record_bytes_max)
                pieces.append((where, piece, size, of_group[begin : begin + piece.count]))
                begin += piece.count
        made: Parts = []
        with self._lock:
            self._check_gate()
            cut_meanwhile = len(queues.partitions) < count
            if not cut_meanwhile:
                made = [(self._add_sealed(queues, p, piece, size), of) for p, piece, size, of in pieces]
        if cut_meanwhile:
            return self.extend(topic, rows, partition)
        self._ambient.wake()
        return made

    def _put(
        self,
        topic: str,
        record: tuple[bytes | None, bytes | None, Headers, int | None],
        partition: int | None,
        size: int,
    ) -> tuple[Batch, int]:
        value, key, headers, timestamp_ms = record
        if size > self.limits.record_bytes_max:
            raise too_large(topic, partition, size, self.limits.record_bytes_max)
        while True:
            queue = self._queue(topic, key, partition)
            batch = queue.open
            if size > batch.left and batch.opened_ms >= 0:
                self._roll(queue, batch)
                continue
            ticket = batch.ticket()
            if not batch.stamp_start <= (now := self._now()) < batch.stamp_end:
                self._stamp(batch, ticket, now)
            if timestamp_ms is not None:
                batch.times[ticket] = timestamp_ms
            if key is not None:
                batch.keys[ticket] = key
            if headers:
                batch.headers[ticket] = headers
            batch.values[ticket] = value
            batch.left -= size
            if not batch.sealed or self._kept(batch, ticket):
                return batch, ticket

    def _queue(self, topic: str, key: bytes | None, partition: int | None) -> PartitionQueue:
        queues = self._queues(topic)
        partitions = queues.partitions
        if partition is not None:
            if not 0 <= partition < len(partitions):
                raise unknown_partition(topic, partition, len(partitions))
            return partitions[partition]
        if key is not None:
            return partitions[partition_of(key, len(partitions))]
        return partitions[queues.stuck]

    def _queues(self, topic: str) -> TopicQueues:
        self._check_gate()
        queues = self._topics.get(topic)
        if queues is None:
            raise NotNow(topic, full=False)
        return queues

    def _check_gate(self) -> None:
        if self._closed is not None:
            raise self._closed()

    def _stamp(self, batch: Batch, ticket: int, now: float) -> None:
        """Note a new millisecond for a batch. The first of a batch opens it."""
        if batch.opened_ms < 0 and not batch.sealed:
            if self.buffered >= self.limits.buffer_bytes:
                raise NotNow(batch.tp.topic, full=True)
            self._check_gate()
            batch.opened_ms = self._ambient.monotonic_ms()
            partitions = self._topics[batch.tp.topic].partitions
            if batch.tp.partition < len(partitions):  # else the partition was cut, after the batch was sealed
                self.active[partitions[batch.tp.partition]] = None
            self._ambient.wake()
        ms = int(now * 1000)
        batch.stamps.append((ticket, ms))
        batch.stamp_start, batch.stamp_end = ms / 1000, (ms + 1) / 1000

    def _kept(self, batch: Batch, ticket: int) -> bool:
        """Tell whether a record stored while its batch was being sealed is among the sealed ones [CLI-24]."""
        with self._lock:
            return batch.holds(ticket)

    def _roll(self, queue: PartitionQueue, full: Batch) -> None:
        """Seal a full batch and open the next, unless another thread did."""
        with self._lock:
            if queue.open is not full or full.sealed:
                return
            if self.buffered >= self.limits.buffer_bytes:
                raise NotNow(queue.tp.topic, full=True)
            self._seal_open(queue)
        self._ambient.wake()

    # ------------------------------------------------------------------- under the lock

    def _seal_open(self, queue: PartitionQueue) -> None:
        batch = queue.open
        queue.open = Batch(queue.tp, self._room)
        batch.seal(self._room)
        if batch.count:
            self._queued(queue, batch)
        if queue.topic.stuck == queue.tp.partition:
            self._stick(queue.topic)

    def _close_queue(self, queue: PartitionQueue) -> None:
        """Seal the open batch and leave a sealed one in its place for senders that still hold the queue.

        Order: the mark first [CLI-24]. A record stored before the mark has opened its batch, so it is seen.
        """
        batch = queue.open
        batch.sealed = True
        closed = Batch(queue.tp, self._room)
        closed.sealed = True
        queue.open = closed
        if batch.opened_ms >= 0:
            batch.seal(self._room)
            if batch.count:
                self._queued(queue, batch)

    def _add_sealed(self, queues: TopicQueues, where: int | None, rows: Rows, size: int) -> Outcome:
        queue = queues.partitions[queues.stuck if where is None else where]
        if queue.open.opened_ms >= 0:
            self._seal_open(queue)
        batch = Batch(queue.tp, 0)
        batch.fill(rows, HEADER_SIZE + size)
        batch.opened_ms = self._ambient.monotonic_ms()
        self._queued(queue, batch)
        if where is None:
            self._stick(queues)
        return batch.outcome

    def _queued(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.sealed.append(batch)
        queue.topic.stuck_bytes += batch.size
        self.buffered += batch.size
        self.active[queue] = None

    def _stick(self, queues: TopicQueues) -> None:
        """Choose the partition for unkeyed records; it changes after about a batch's worth (KIP-794)."""
        if queues.stuck_bytes * 2 >= self.limits.batch_bytes and queues.candidates:
            queued = [len(queues.partitions[p].sealed) for p in queues.candidates]
            queues.stuck = next_partition(queues.candidates, queued, self._ambient.noise())
            queues.stuck_bytes = 0
        if self._closed is None:
            self._sticky[queues.name] = queues.partitions[queues.stuck].open

    # --------------------------------------------------------------------- by the engine

    def learn(self, topic: str, partitions: int, led: Sequence[int]) -> None:
        """Set the number of a topic's partitions, and which have a leader (`led`)."""
        with self._lock:
            queues = self._topics.setdefault(topic, TopicQueues(topic))
            for partition in range(len(queues.partitions), partitions):
                tp = TopicPartition(topic, partition)
                queues.partitions.append(PartitionQueue(queues, partition, Batch(tp, self._room)))
            candidates = led or range(partitions)
            if queues.candidates != candidates:
                queues.candidates = candidates
                if queues.stuck not in candidates or topic not in self._sticky:
                    queues.stuck_bytes = max(self.limits.batch_bytes, 1)
            self._stick(queues)

    def cut(self, topic: str, partitions: int) -> list[Batch]:
        """Drop the queues of partitions that a recreated topic no longer has; return their waiting batches.

        A sender that still holds one of them sees that its batch is sealed, and chooses again [CLI-24].
        """
        waiting: list[Batch] = []
        with self._lock:
            queues = self._topics.get(topic)
            gone = [] if queues is None else queues.partitions[partitions:]
            if queues is None or not gone:
                return waiting
            if queues.stuck >= partitions:
                queues.stuck = 0
                self._sticky.pop(topic, None)
            for queue in gone:
                self._close_queue(queue)
                waiting += queue.sealed
                queue.sealed.clear()
                self.active.pop(queue, None)
            queues.partitions = queues.partitions[:partitions]
            queues.candidates = ()
        return waiting

    def forget(self, topic: str) -> None:
        """Drop an idle topic for which no record waits."""
        with self._lock:
            queues = self._topics.get(topic)
            if queues is not None and all(queue.empty for queue in queues.partitions):
                self._sticky.pop(topic, None)
                del self._topics[topic]

    def knows(self, topic: str) -> bool:
        return topic in self._topics

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def waiting(self) -> list[Outcome]:
        """Return the outcomes of all sealed batches."""
        with self._lock:
            return [batch.outcome for queue in list(self.active) for batch in queue.sealed]

    def take(self, queue: PartitionQueue, now_ms: int, *, linger: bool = True) -> Batch | None:
        """Return the next batch of a queue if it is full, has waited for linger.ms, or must not wait."""
        with self._lock:
            if not queue.sealed:
                ripe = queue.open.opened_ms + self.limits.linger_ms <= now_ms
                if queue.open.opened_ms >= 0 and (ripe or not linger):
                    self._seal_open(queue)
            return queue.sealed.popleft() if queue.sealed else None

    def settle_active(self, queue: PartitionQueue) -> None:
        """Remove a queue without records from the list of active ones."""
        self.active.pop(queue, None)
        if not queue.empty:  # checked after the removal: a sender adds the queue again before it stores
            self.active[queue] = None

    def seal_all(self) -> None:
        """Seal all open batches without waiting for linger.ms."""
        with self._lock:
            for queue in list(self.active):
                if queue.open.opened_ms >= 0:
                    self._seal_open(queue)

    def put_back(self, queue: PartitionQueue, batches: Iterable[Batch]) -> None:
        """Put the pieces of a divided batch before everything else of their partition."""
        with self._lock:
            for batch in reversed(list(batches)):
                queue.sealed.appendleft(batch)
            self.active[queue] = None

    def release(self, size: int) -> None:
        """Free the bytes of a batch that has its final answer."""
        with self._lock:
            self.buffered -= size

    def close_gate(self, why: Callable[[], Exception]) -> None:
        """Refuse records from now on, with the error that `why` makes [CLI-25].

        Records taken before are in sealed batches afterwards; a sender that is halfway through sees that its
        batch was sealed, and comes back to the gate.
        """
        with self._lock:
            self._closed = why
            self._sticky.clear()
            for queues in self._topics.values():
                for queue in queues.partitions:
                    # Even a batch without records: a sender past the gate may be about to open it.
                    self._seal_open(queue)

    def open_gate(self) -> None:
        """Take records again."""
        with self._lock:
            self._closed = None
            for queues in self._topics.values():
                self._stick(queues)

    def drain(self) -> list[Batch]:
        """Remove and return all waiting batches; they will not be sent."""
        drained: list[Batch] = []
        with self._lock:
            for queue in list(self.active):
                if queue.open.opened_ms >= 0:
                    self._seal_open(queue)
                drained += queue.sealed
                queue.sealed.clear()
                del self.active[queue]
        return drained


# ---------------------------------------------------------------------------------- records


def too_large(topic: str, partition: int | None, size: int, limit: int) -> ClientError:
    """Return the error for a record that no request can carry. Nothing was sent."""
    where = topic if partition is None else TopicPartition(topic, partition)
    text = f"a record of up to {size} bytes, above max.request.size = {limit}"
    return refused("Produce", where, ErrorCode.MESSAGE_TOO_LARGE, text)


def unknown_partition(topic: str, partition: int, partitions: int) -> ClientError:
    text = f"the topic has partitions 0 to {partitions - 1}"
    where = TopicPartition(topic, partition)
    return refused("Produce", where, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)


def _bytes(content: object) -> bytes | None:
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise TypeError(f"keys and values are bytes, not {type(content).__name__}: encode them first")


def all_bytes(contents: Sequence[bytes | None]) -> list[bytes | None]:
    """Return the contents as a list of bytes. Raise TypeError for anything else."""
    if set(map(type, contents)) <= {bytes, type(None)}:
        return list(contents)
    return [_bytes(content) for content in contents]
