"""Atomic consumption from Kafka into a database: rows and consumed offsets in one transaction."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from tallystick.client.blocking.consumer import Consumer, RebalanceListener
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.dualwrite.consume_recipe import ConsumeRecipe, OnDataLoss
from tallystick.dualwrite.recipes import RecipeRunner, StepCallback
from tallystick.dualwrite.stores.base import OffsetStore, OffsetTransaction
from tallystick.dualwrite.transaction import DatabaseHalf
from tallystick.kernel.ids import TopicPartition

X = TypeVar("X", bound=OffsetTransaction)


class ConsumedBatch(DatabaseHalf[X]):
    """A batch of records and the database transaction for their rows: `session`, `connection`."""

    def __init__(self, database: X, records: tuple[ConsumerRecord, ...]) -> None:
        super().__init__(database)
        self.records = records


class _UnsyncOnRebalance(RebalanceListener):
    def __init__(self, reading: ConsumeRecipe[X]) -> None:
        self._recipe = reading

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._recipe.mark_unsynced()

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Do nothing: the database already has the offsets."""

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Do nothing: the database refuses later writes for these partitions."""


class ConsumerLoop(Generic[X]):
    """A consumer whose offsets are stored in a database. Created by `consume_into`; used by one thread."""

    def __init__(self, reading: ConsumeRecipe[X], watch: StepCallback | None) -> None:
        self._recipe = reading
        self._driver = RecipeRunner(watch)

    @contextmanager
    def batch(self, timeout_s: float = 1.0, most: int | None = None) -> Iterator[ConsumedBatch[X]]:
        """Yield records and a transaction; commit rows and offsets together when the block ends.

        If the block raises, neither is committed, and the records are returned again.

        Args:
            timeout_s: seconds to wait for records; the batch is empty if none arrive.
            most: maximum number of records; `max.poll.records` by default.
        Raises: DataLoss when records are missing from the log, and again with every batch. Fenced when
            another reader has moved a partition, InDoubt when the outcome is unknown; after either, continue
            with the next batch, which begins at the database's offsets.
        """
        driver, reading = self._driver, self._recipe
        took = driver.run(reading.poll(timeout_s, most))
        database = driver.run(reading.begin(took))
        batch = ConsumedBatch(database, took.records)
        try:
            yield batch
        except BaseException:
            batch.mark_ended()
            driver.run(reading.rollback(database, took))
            raise
        batch.mark_ended()
        driver.run(reading.commit(database, took))


def consume_into(
    store: OffsetStore[X],
    consumer: Consumer,
    topics: Iterable[str] = (),
    *,
    partitions: Iterable[TopicPartition] = (),
    group: str | None = None,
    on_data_loss: OnDataLoss = "fail",
    watch: StepCallback | None = None,
) -> ConsumerLoop[X]:
    """Read topics into a database, each record exactly once.

        reading = consume_into(store, consumer, ["payments"])
        while True:
            with reading.batch() as batch:
                for record in batch.records:
                    batch.session.add(Payment(...))

    The database's offsets are authoritative. A partition without one begins at the group's committed
    offset in Kafka, or else at `auto.offset.reset`; offsets in Kafka are written only by
    `enable.auto.commit`. Only committed records are read, whatever the consumer's `isolation.level`.

    `auto.offset.reset` never moves a partition that has an offset in the database: if the log no longer
    contains that offset, `batch` raises DataLoss.

    Args:
        topics: topics to subscribe to within the consumer's group.
        partitions: exactly these partitions, instead of `topics`.
        group: name under which the database keeps the offsets; the consumer's `group.id` by default.
        on_data_loss: "skip" logs a warning and continues instead of raising DataLoss: at the log start
            if earlier records are gone, at the log end if the log is shorter than the offset.
    Source: KIP-939 "Motivation", "recipe for atomic consumption from Kafka to a database".
    """
    reading: ConsumeRecipe[X] = ConsumeRecipe(store, consumer, group, on_data_loss)
    if partitions:
        consumer.assign(partitions)
    else:
        consumer.subscribe(list(topics), _UnsyncOnRebalance(reading))
    return ConsumerLoop(reading, watch)
