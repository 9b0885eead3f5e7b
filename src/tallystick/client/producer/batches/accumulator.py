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

`producer_batch` has the batches, and `buffer_pool` the memory they take.

Source: Kafka RecordAccumulator, BuiltInPartitioner; KIP-794.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import index
from typing import Final, SupportsIndex, cast

from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.producer.batches.buffer_pool import BufferPool
from tallystick.client.producer.batches.delivery import BatchOutcome, Delivery, DeliveryCallback
from tallystick.client.producer.batches.partitioner import choose_sticky_partition, hash_key_to_partition
from tallystick.client.producer.batches.producer_batch import OpenBatch, SealedBatch
from tallystick.client.producer.batches.rows import (
    RECORD_OVERHEAD,
    Rows,
    estimate_headers_size,
    split_rows,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT64_MAX, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.records import HEADER_SIZE, Headers

_new_object: Final = object.__new__

PlacedOutcomes = list[tuple[BatchOutcome, Sequence[int]]]
"""Outcomes of batches, each with the places of its records in the caller's input."""


class BufferFullOrUnknownTopic(Exception):
    """The record was not taken: the topic is not known yet, or (`is_buffer_full`) the memory is full."""

    def __init__(self, topic: str, full: bool) -> None:
        super().__init__(topic, full)
        self.topic, self.is_buffer_full = topic, full


class AccumulatorLimits(Value, kw_only=True):
    """Limits on what a producer buffers."""

    batch_bytes: int
    linger_ms: int
    buffer_bytes: int
    record_bytes_max: int


class AccumulatorEnv(Value, kw_only=True):
    """Clock, noise, lock and wake-up, passed in instead of taken from the system.

    now      seconds since the epoch, for the records' timestamps
    uniform  between 0 and 1, both exclusive, drawn anew at every call
    lock     for operations that happen once per batch
    wake     called from any thread when the engine has something to do
    """

    now: Callable[[], float]
    monotonic_ms: Callable[[], int]
    uniform: Callable[[], float]
    lock: AbstractContextManager[object]
    wake: Callable[[], None]


class PartitionQueue:
    """Batches that wait for one partition: sealed ones in order, then the open one.

    Changes only under the accumulator's lock, except for the records in the open batch.
    """

    __slots__ = ("_batch_capacity", "open_batch", "sealed_batches", "topic_queues", "tp")

    def __init__(self, topic: "TopicQueues", partition: int, batch_capacity: int) -> None:
        self.topic_queues = topic
        self.tp = TopicPartition(topic.name, partition)
        self.sealed_batches: deque[SealedBatch] = deque()
        self.open_batch = OpenBatch(self.tp, batch_capacity)
        self._batch_capacity = batch_capacity

    @property
    def is_empty(self) -> bool:
        return not self.sealed_batches and self.open_batch.opened_ms is None

    def find_due_ms(self, linger_ms: int) -> int | None:
        """Return when the first batch should be sent; None if no record waits."""
        if self.sealed_batches:
            return self.sealed_batches[0].opened_ms
        opened_ms = self.open_batch.opened_ms
        return None if opened_ms is None else opened_ms + linger_ms

    def has_last(self, outcome: BatchOutcome) -> bool:
        """Return whether the batch with this outcome is the last sealed one."""
        return bool(self.sealed_batches) and self.sealed_batches[-1].outcome is outcome

    def add_sealed(self, batch: SealedBatch) -> None:
        """Add a batch behind the sealed ones."""
        self.sealed_batches.append(batch)
        self.topic_queues.sticky_bytes += batch.size

    def roll_open_batch(self, batch: OpenBatch, now_ms: int) -> SealedBatch | None:
        """Seal the open batch, open the next one, and return the sealed one unless it has no record.

        After an interrupt it is called again, for the same batch.
        """
        if self.open_batch is batch:
            self.open_batch = OpenBatch(self.tp, self._batch_capacity)
        if self.has_last(batch.outcome):
            return self.sealed_batches[-1]
        return self._seal(batch, now_ms)

    def close(self, now_ms: int) -> SealedBatch | None:
        """Seal the open batch and leave a sealed one in its place for senders that still hold the queue.

        Order: the mark first [CLI-24]. A record stored before the mark has opened its batch, so it is seen.
        """
        batch = self.open_batch
        batch.is_sealed = True
        sealed_placeholder = OpenBatch(self.tp, self._batch_capacity)
        sealed_placeholder.is_sealed = True
        self.open_batch = sealed_placeholder
        return None if batch.opened_ms is None else self._seal(batch, now_ms)

    def _seal(self, batch: OpenBatch, now_ms: int) -> SealedBatch | None:
        sealed_batch = batch.seal(now_ms)
        if sealed_batch is not None:
            self.add_sealed(sealed_batch)
        return sealed_batch

    def remove_sealed(self) -> list[SealedBatch]:
        """Remove and return all sealed batches."""
        batches = list(self.sealed_batches)
        self.sealed_batches.clear()
        return batches


class TopicQueues:
    """Queues of one topic, and the partition its unkeyed records stick to.

    candidate_partitions  partitions that unkeyed records may go to
    sticky_bytes          bytes sealed since the sticky partition was chosen
    """

    __slots__ = ("candidate_partitions", "name", "partitions", "sticky_bytes", "sticky_partition")

    def __init__(self, name: str) -> None:
        self.name = name
        self.partitions: list[PartitionQueue] = []
        self.candidate_partitions: Sequence[int] = ()
        self.sticky_partition = 0
        self.sticky_bytes = 0

    def select_queue(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        """Return the queue for a record: of the partition it names, of its key, or of the sticky partition.

        In any thread. Raises: UnknownTopic if it names a partition that the topic does not have.
        """
        partitions = self.partitions
        if partition is not None:
            if not 0 <= partition < len(partitions):
                raise build_unknown_partition_error(self.name, partition, len(partitions))
            return partitions[partition]
        if key is not None:
            return partitions[hash_key_to_partition(key, len(partitions))]
        return partitions[self.sticky_partition]

    def grow(self, partitions: int, batch_capacity: int) -> None:
        """Add queues up to this number of partitions."""
        for partition in range(len(self.partitions), partitions):
            self.partitions.append(PartitionQueue(self, partition, batch_capacity))

    def cut(self, partitions: int) -> list[PartitionQueue]:
        """Remove and return the queues beyond this number of partitions."""
        queues = self.partitions[partitions:]
        if queues:
            if self.sticky_partition >= partitions:
                self.sticky_partition = 0  # before the cut: a sender reads the partitions first
            self.partitions = self.partitions[:partitions]
            self.candidate_partitions = ()
        return queues

    def choose_sticky_partition(self, batch_bytes: int, uniform: Callable[[], float]) -> None:
        """Choose the partition for unkeyed records; it changes after about a batch's worth (KIP-794)."""
        if self.sticky_bytes * 2 >= batch_bytes and self.candidate_partitions:
            queue_sizes = [len(self.partitions[p].sealed_batches) for p in self.candidate_partitions]
            self.sticky_partition = choose_sticky_partition(self.candidate_partitions, queue_sizes, uniform())
            self.sticky_bytes = 0


class RecordAccumulator:
    """All records that were accepted and not yet taken by the engine.

    `append` and `extend` may be called by any thread, the rest by the engine alone.
    """

    def __init__(self, limits: AccumulatorLimits, ambient: AccumulatorEnv) -> None:
        self.limits = limits
        self.pool = BufferPool(limits.buffer_bytes)
        self.active_queues: dict[PartitionQueue, None] = {}
        self._env = ambient
        self._lock = ambient.lock
        self._now = ambient.now
        self._batch_capacity = max(min(limits.batch_bytes, limits.record_bytes_max) - HEADER_SIZE, 0)
        self._topic_queues: dict[str, TopicQueues] = {}
        # The open batch for a topic's unkeyed records: the only look-up of the common case.
        self._sticky_batches: dict[str, OpenBatch] = {}
        self._gate_error: Callable[[], Exception] | None = None

    # -------------------------------------------------------------------- in any thread

    def append_value(self, topic: str, value: object) -> Delivery | None:
        """Append a record that has only a value, if its batch is open and has room; else return None.

        The caller then uses `append`, which would take 1.6 to 2.5 times as long to produce a record
        (docs/notes/performance.md).
        Cost: about 0.3 us.
        """
        batch = self._sticky_batches.get(topic)
        if type(value) is bytes and batch is not None:
            bytes_left = batch.free_bytes - len(value) - RECORD_OVERHEAD
            if bytes_left >= 0:
                ticket = batch.ticket()
                if not batch.millisecond_start <= (now := self._now()) < batch.millisecond_end:
                    self._note_millisecond(batch, ticket, now)
                batch.values[ticket] = value
                batch.free_bytes = bytes_left
                if not batch.is_sealed or self._is_in_sealed(batch, ticket):
                    # Takes half the time of calling the class, which would be a sixth of this method.
                    delivery = _new_object(Delivery)
                    delivery.outcome, delivery.ticket = batch.outcome, ticket
                    return delivery
        return None

    def append(
        self,
        topic: str,
        value: object,
        key: object = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Append one record.

        Raises: BufferFullOrUnknownTopic when the caller has to wait first; TooLarge; TypeError; the gate's
            error.
        Cost: about 0.3 us.
        """
        value_bytes, key_bytes, pairs = _to_bytes(value), _to_bytes(key), to_headers(headers)
        if timestamp_ms is not None:
            timestamp_ms = to_timestamp(timestamp_ms)
        size = (
            RECORD_OVERHEAD + len(value_bytes or b"") + len(key_bytes or b"") + estimate_headers_size(pairs)
        )
        batch, ticket = self._append_record(
            topic, (value_bytes, key_bytes, pairs, timestamp_ms), partition, size
        )
        if on_delivery is not None:
            batch.outcome.add_callback(on_delivery, ticket)
        return Delivery(batch.outcome, ticket)

    def extend(self, topic: str, rows: Rows, partition: int | None) -> PlacedOutcomes:
        """Append many records; return the outcomes of their batches, with the places of their records.

        Records without a key stay together, in batches of one partition each; keyed records keep their order
        within a partition.

        Args:
            partition: for all of them; None to choose by their keys.
        Raises: as `append`; then none is taken.
        Cost: 0.01 us per Arrow record without a key, 0.1 us with one; several times that without the
            extension.
        """
        queues = self._find_topic_queues(topic)
        if self.pool.is_full:
            raise BufferFullOrUnknownTopic(topic, full=True)
        count = len(queues.partitions)
        if partition is not None or not rows.has_keys:
            where = None if partition is None else queues.select_queue(None, partition).tp.partition
            groups = [(where, rows, cast(Sequence[int], range(rows.count)))]
        else:
            places = rows.group_by_partition(count)
            groups = [
                (p, rows.select_rows(of_p, with_keys=p is not None), of_p) for p, of_p in places.items()
            ]
        pieces = []
        for where, group, of_group in groups:
            begin = 0
            for piece, size in split_rows(group, max(self._batch_capacity, 1)):
                if size > self.limits.record_bytes_max and piece.count == 1:
                    raise build_too_large_error(topic, where, size, self.limits.record_bytes_max)
                pieces.append((where, piece, size, of_group[begin : begin + piece.count]))
                begin += piece.count
        outcomes: PlacedOutcomes = []
        with self._lock:
            self._check_gate()
            cut_meanwhile = len(queues.partitions) < count
            if not cut_meanwhile:
                outcomes = [
                    (self._add_sealed_batch(queues, p, piece, size), of) for p, piece, size, of in pieces
                ]
        if cut_meanwhile:
            return self.extend(topic, rows, partition)
        self._env.wake()
        return outcomes

    def _append_record(
        self,
        topic: str,
        record: tuple[bytes | None, bytes | None, Headers, int | None],
        partition: int | None,
        size: int,
    ) -> tuple[OpenBatch, int]:
        value, key, headers, timestamp_ms = record
        if size > self.limits.record_bytes_max:
            raise build_too_large_error(topic, partition, size, self.limits.record_bytes_max)
        while True:
            queue = self._find_topic_queues(topic).select_queue(key, partition)
            batch = queue.open_batch
            if size > batch.free_bytes and batch.opened_ms is not None:
                self._roll_batch(queue, batch)
                continue
            ticket = batch.ticket()
            if not batch.millisecond_start <= (now := self._now()) < batch.millisecond_end:
                self._note_millisecond(batch, ticket, now)
            if timestamp_ms is not None:
                batch.explicit_timestamps[ticket] = timestamp_ms
            if key is not None:
                batch.keys[ticket] = key
            if headers:
                batch.headers[ticket] = headers
            batch.values[ticket] = value
            batch.free_bytes -= size
            if not batch.is_sealed or self._is_in_sealed(batch, ticket):
                return batch, ticket

    def _find_topic_queues(self, topic: str) -> TopicQueues:
        self._check_gate()
        queues = self._topic_queues.get(topic)
        if queues is None:
            raise BufferFullOrUnknownTopic(topic, full=False)
        return queues

    def _check_gate(self) -> None:
        if self._gate_error is not None:
            raise self._gate_error()

    def _note_millisecond(self, batch: OpenBatch, ticket: int, now: float) -> None:
        """Record a new millisecond for a batch. The first of a batch opens it."""
        if batch.opened_ms is None and not batch.is_sealed:
            if self.pool.is_full:
                raise BufferFullOrUnknownTopic(batch.tp.topic, full=True)
            self._check_gate()
            try:
                self._activate(batch)
            except BaseException:  # see `_seal_open_batch`; half-way, the batch would never be sent
                self._activate(batch)
                raise
        batch.note_millisecond(ticket, now)

    def _activate(self, batch: OpenBatch) -> None:
        batch.opened_ms = self._env.monotonic_ms()
        partitions = self._topic_queues[batch.tp.topic].partitions
        if batch.tp.partition < len(partitions):  # else the partition was cut, after the batch was sealed
            self.active_queues[partitions[batch.tp.partition]] = None
        self._env.wake()

    def _is_in_sealed(self, batch: OpenBatch, ticket: int) -> bool:
        """Return whether a record stored while its batch was sealed is among the sealed ones [CLI-24]."""
        with self._lock:
            return batch.has_ticket(ticket)

    def _roll_batch(self, queue: PartitionQueue, full: OpenBatch) -> None:
        """Seal a full batch and open the next, unless another thread did."""
        with self._lock:
            if queue.open_batch is not full or full.is_sealed:
                return
            if self.pool.is_full:
                raise BufferFullOrUnknownTopic(queue.tp.topic, full=True)
            self._seal_open_batch(queue)
        self._env.wake()

    # ------------------------------------------------------------------- under the lock

    def _seal_open_batch(self, queue: PartitionQueue) -> None:
        """Seal the open batch of a queue, and open the next.

        An interrupt (Ctrl-C, an exception of a signal handler) may come anywhere in the thread that sends.
        It ends the call when the batch is sealed: else records that were taken before would never be sent,
        and their transaction be committed without them [CLI-67].
        """
        batch = queue.open_batch
        try:
            self._seal(queue, batch)
        except BaseException:
            self._seal(queue, batch)
            self._env.wake()
            raise

    def _seal(self, queue: PartitionQueue, batch: OpenBatch) -> None:
        sealed_batch = queue.roll_open_batch(batch, self._env.monotonic_ms())
        if sealed_batch is not None:
            self._count_sealed(queue, sealed_batch)
        if queue.topic_queues.sticky_partition == queue.tp.partition:
            self._update_sticky_batch(queue.topic_queues)

    def _count_sealed(self, queue: PartitionQueue, batch: SealedBatch) -> None:
        self.active_queues[queue] = None
        if not batch.is_counted:  # marked first: counted twice, memory would be missing for ever
            batch.is_counted = True
            self.pool.take(batch.size)

    def _add_sealed_batch(
        self, queues: TopicQueues, where: int | None, rows: Rows, size: int
    ) -> BatchOutcome:
        queue = queues.partitions[queues.sticky_partition if where is None else where]
        if queue.open_batch.opened_ms is not None:
            self._seal_open_batch(queue)
        outcome = BatchOutcome(queue.tp.topic, queue.tp.partition)
        now_ms = self._env.monotonic_ms()
        batch = SealedBatch(queue.tp, outcome, rows, size=HEADER_SIZE + size, opened_ms=now_ms)
        try:
            self._enqueue(queue, batch)
        except BaseException:  # see `_seal_open_batch`; half-way, it would go out with another transaction
            self._enqueue(queue, batch)
            self._env.wake()
            raise
        if where is None:
            self._update_sticky_batch(queues)
        return outcome

    def _enqueue(self, queue: PartitionQueue, batch: SealedBatch) -> None:
        if not queue.has_last(batch.outcome):
            queue.add_sealed(batch)
        self._count_sealed(queue, batch)

    def _update_sticky_batch(self, queues: TopicQueues) -> None:
        """Send unkeyed records to the open batch of the sticky partition, which may change (KIP-794)."""
        queues.choose_sticky_partition(self.limits.batch_bytes, self._env.uniform)
        if self._gate_error is None:
            self._sticky_batches[queues.name] = queues.partitions[queues.sticky_partition].open_batch

    # --------------------------------------------------------------------- by the engine

    def update_topic(self, topic: str, partitions: int, led_partitions: Sequence[int]) -> None:
        """Set the number of a topic's partitions, and which have a leader (`led_partitions`)."""
        with self._lock:
            queues = self._topic_queues.setdefault(topic, TopicQueues(topic))
            queues.grow(partitions, self._batch_capacity)
            candidates = led_partitions or range(partitions)
            if queues.candidate_partitions != candidates:
                queues.candidate_partitions = candidates
                if queues.sticky_partition not in candidates or topic not in self._sticky_batches:
                    queues.sticky_bytes = max(self.limits.batch_bytes, 1)
            self._update_sticky_batch(queues)

    def drop_partitions(self, topic: str, partitions: int) -> list[SealedBatch]:
        """Drop the queues of partitions that a recreated topic no longer has; return their waiting batches.

        A sender that still holds one of them sees that its batch is sealed, and chooses again [CLI-24].
        """
        batches: list[SealedBatch] = []
        with self._lock:
            queues = self._topic_queues.get(topic)
            removed_queues = [] if queues is None else queues.cut(partitions)
            if (
                removed_queues
                and (sticky := self._sticky_batches.get(topic))
                and sticky.tp.partition >= partitions
            ):
                del self._sticky_batches[topic]
            for queue in removed_queues:
                batch = queue.close(self._env.monotonic_ms())
                if batch is not None:
                    self.pool.take(batch.size)
                batches += queue.remove_sealed()
                self.active_queues.pop(queue, None)
        return batches

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(self._topic_queues)

    def take_batch(self, queue: PartitionQueue, now_ms: int, *, linger: bool = True) -> SealedBatch | None:
        """Return the next batch of a queue if it is full, has waited for linger.ms, or must not wait."""
        with self._lock:
            if not queue.sealed_batches:
                due_ms = queue.find_due_ms(self.limits.linger_ms)
                if due_ms is not None and (due_ms <= now_ms or not linger):
                    self._seal_open_batch(queue)
            return queue.sealed_batches.popleft() if queue.sealed_batches else None

    def deactivate_if_empty(self, queue: PartitionQueue) -> None:
        """Remove a queue without records from the list of active ones."""
        self.active_queues.pop(queue, None)
        if not queue.is_empty:  # checked after the removal: a sender adds the queue again before it stores
            self.active_queues[queue] = None

    def seal_open_batches(self) -> list[BatchOutcome]:
        """Seal all open batches without waiting for linger.ms; return the outcomes of all sealed ones."""
        with self._lock:
            for queue in list(self.active_queues):
                if queue.open_batch.opened_ms is not None:
                    self._seal_open_batch(queue)
            return [batch.outcome for queue in list(self.active_queues) for batch in queue.sealed_batches]

    def reenqueue(self, queue: PartitionQueue, batches: Iterable[SealedBatch]) -> None:
        """Put the pieces of a divided batch before everything else of their partition."""
        with self._lock:
            for batch in reversed(list(batches)):
                queue.sealed_batches.appendleft(batch)
            self.active_queues[queue] = None

    def close_gate(self, why: Callable[[], Exception]) -> None:
        """Refuse records from now on, with the error that `why` makes [CLI-25].

        Records taken before are in sealed batches afterwards; a sender that is halfway through sees that its
        batch was sealed, and comes back to the gate.
        """
        with self._lock:
            self._gate_error = why
            self._sticky_batches.clear()
            for queues in self._topic_queues.values():
                for queue in queues.partitions:
                    # Even a batch without records: a sender past the gate may be about to open it.
                    self._seal_open_batch(queue)

    def refuse_forever(self, why: Callable[[], Exception]) -> None:
        """Refuse records from now on, with the error that `why` makes; what was taken is sent no more.

        In a forked child [CLI-61], where the thread that holds the lock may not exist, and without a loop.
        """
        self._gate_error = why
        self._sticky_batches = {}

    def open_gate(self) -> None:
        """Accept records again."""
        with self._lock:
            self._gate_error = None
            for queues in self._topic_queues.values():
                self._update_sticky_batch(queues)

    def drain(self) -> list[SealedBatch]:
        """Remove and return all waiting batches; they will not be sent."""
        batches: list[SealedBatch] = []
        with self._lock:
            for queue in list(self.active_queues):
                if queue.open_batch.opened_ms is not None:
                    self._seal_open_batch(queue)
                batches += queue.remove_sealed()
                del self.active_queues[queue]
        return batches


# ---------------------------------------------------------------------------------- records


def build_unknown_partition_error(topic: str, partition: int, partitions: int) -> ClientError:
    text = f"the topic has partitions 0 to {partitions - 1}"
    where = TopicPartition(topic, partition)
    return build_broker_error("Produce", where, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)


def build_too_large_error(topic: str, partition: int | None, size: int, limit: int) -> ClientError:
    """Return the error for a record that no request can carry. Nothing was sent."""
    where = topic if partition is None else TopicPartition(topic, partition)
    text = f"a record of up to {size} bytes, above max.request.size = {limit}"
    return build_broker_error("Produce", where, ErrorCode.MESSAGE_TOO_LARGE, text)


def _to_bytes(content: object) -> bytes | None:
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise TypeError(
        f"keys and values, of headers too, are bytes, not {type(content).__name__}: encode them first"
    )


def to_bytes_list(contents: Sequence[bytes | None]) -> list[bytes | None]:
    """Return the contents as a list of bytes. Raise TypeError for anything else."""
    if set(map(type, contents)) <= {bytes, type(None)}:
        return list(contents)
    return [_to_bytes(content) for content in contents]


def to_headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return the headers of a record, a tuple as it is. Raises: TypeError for values that are not bytes."""
    pairs = tuple(headers)
    if all(content is None or type(content) is bytes for _, content in pairs):
        return pairs
    return tuple([(name, _to_bytes(content)) for name, content in pairs])


def to_timestamp(timestamp_ms: object) -> int:
    """Return a record's timestamp as a whole number of 64 bits. Raises: TypeError, ValueError."""
    try:
        number = index(cast(SupportsIndex, timestamp_ms))
    except TypeError:
        raise TypeError(
            "timestamp_ms is a whole number of milliseconds since the epoch, not "
            f"{type(timestamp_ms).__name__}: nothing was sent"
        ) from None
    if not -INT64_MAX <= number <= INT64_MAX:
        raise ValueError(f"timestamp_ms={number} is beyond 64 bits: nothing was sent")
    return number
