"""consume_into: what is read from Kafka goes into a database together with how far it was read."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from tallystick.client.blocking.consumer import Consumer, RebalanceListener
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.dualwrite.consume_recipe import OnDataLoss, Reading
from tallystick.dualwrite.drivers import Driver, Watch
from tallystick.dualwrite.stores.base import OffsetStore, OffsetTransaction
from tallystick.dualwrite.transaction import Half
from tallystick.kernel.ids import TopicPartition

X = TypeVar("X", bound=OffsetTransaction)


class Batch(Half[X]):
    """Some records, and the database transaction that their rows go into: `session`, `connection`."""

    def __init__(self, database: X, records: tuple[ConsumerRecord, ...]) -> None:
        super().__init__(database)
        self.records = records


class _OnRebalance(RebalanceListener):
    def __init__(self, reading: Reading[X]) -> None:
        self._reading = reading

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._reading.unsync()

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """The database has the offsets already."""

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """The database refuses what is written of them now."""


class Consuming(Generic[X]):
    """A consumer whose offsets are in a database. Made by `consume_into`; for one thread."""

    def __init__(self, reading: Reading[X], watch: Watch | None) -> None:
        self._reading = reading
        self._driver = Driver(watch)

    @contextmanager
    def batch(self, timeout_s: float = 1.0, most: int | None = None) -> Iterator[Batch[X]]:
        """Records and a transaction; when the block ends, rows and offsets are committed together.

        If it raises, neither is, and the records are returned again.

        Args:
            timeout_s: seconds to wait for records; without any the batch has none.
            most: records at once; `max.poll.records` unless given.
        Raises: DataLoss when records are gone, and again with every batch; Fenced when another reader has
            moved a partition, InDoubt when the outcome is unknown: after these two, just go on, since the
            next batch begins where the database says.
        """
        driver, reading = self._driver, self._reading
        took = driver.run(reading.poll(timeout_s, most))
        database = driver.run(reading.begin(took))
        batch = Batch(database, took.records)
        try:
            yield batch
        except BaseException:
            batch.end()
            driver.run(reading.rollback(database, took))
            raise
        batch.end()
        driver.run(reading.commit(database, took))


def consume_into(
    store: OffsetStore[X],
    consumer: Consumer,
    topics: Iterable[str] = (),
    *,
    partitions: Iterable[TopicPartition] = (),
    group: str | None = None,
    on_data_loss: OnDataLoss = "fail",
    watch: Watch | None = None,
) -> Consuming[X]:
    """Read topics into a database, each record once.

        reading = consume_into(store, consumer, ["payments"])
        while True:
            with reading.batch() as batch:
                for record in batch.records:
                    batch.session.add(Payment(...))

    The database's offsets are the ones that count. A partition it has none of begins where the group has
    committed in Kafka, or else where `auto.offset.reset` says; Kafka's own are written only by
    `enable.auto.commit`. Committed records alone are read, whatever the consumer's `isolation.level`.

    A partition that has an offset in the database is never set elsewhere: where the log does not have it any
    longer, `batch` raises DataLoss.

    Args:
        topics: shared with the consumer's group.
        partitions: instead: exactly these.
        group: under which name the database keeps the offsets; the consumer's `group.id` unless given.
        on_data_loss: "skip" goes on where the log goes on, with a warning, instead of DataLoss: at its first
            record if those before it are gone, and at its end if the log is shorter than the offset.
    Source: KIP-939 "Motivation", "recipe for atomic consumption from Kafka to a database".
    """
    reading: Reading[X] = Reading(store, consumer, group, on_data_loss)
    if partitions:
        consumer.assign(partitions)
    else:
        consumer.subscribe(list(topics), _OnRebalance(reading))
    return Consuming(reading, watch)
