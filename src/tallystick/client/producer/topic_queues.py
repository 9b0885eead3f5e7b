"""Queues of batches by topic and partition, and the choice of the partition for a record.

Source: Kafka BuiltInPartitioner; KIP-794.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.producer.partitioner import choose_sticky_partition, hash_key_to_partition
from tallystick.client.producer.producer_batch import OpenBatch, SealedBatch
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition


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

    def add_sealed(self, batch: SealedBatch) -> None:
        """Add a batch behind the sealed ones."""
        self.sealed_batches.append(batch)
        self.topic_queues.sticky_bytes += batch.size

    def roll_open_batch(self, now_ms: int) -> SealedBatch | None:
        """Seal the open batch, open the next one, and return the sealed one unless it has no record."""
        batch = self.open_batch
        self.open_batch = OpenBatch(self.tp, self._batch_capacity)
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


def build_unknown_partition_error(topic: str, partition: int, partitions: int) -> ClientError:
    text = f"the topic has partitions 0 to {partitions - 1}"
    where = TopicPartition(topic, partition)
    return build_broker_error("Produce", where, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
