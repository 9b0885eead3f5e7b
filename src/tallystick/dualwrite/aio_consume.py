"""Atomic consumption from Kafka into a database for asyncio: `tallystick.dualwrite.consume_into`, awaited."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from tallystick.client.aio.consumer import Consumer
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.rebalance import RebalanceListener
from tallystick.dualwrite.consume_recipe import ConsumeRecipe, OnDataLoss
from tallystick.dualwrite.recipes import AsyncRecipeRunner, StepCallback
from tallystick.dualwrite.stores.base import AsyncOffsetStore, AsyncOffsetTransaction
from tallystick.dualwrite.transaction import DatabaseHalf
from tallystick.kernel.ids import TopicPartition

X = TypeVar("X", bound=AsyncOffsetTransaction)


class AsyncConsumedBatch(DatabaseHalf[X]):
    """A batch of records and the database transaction that takes their rows."""

    def __init__(self, database: X, records: tuple[ConsumerRecord, ...]) -> None:
        super().__init__(database)
        self.records = records


class _AsyncUnsyncOnRebalance(RebalanceListener):
    def __init__(self, reading: ConsumeRecipe[X]) -> None:
        self._recipe = reading

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._recipe.mark_unsynced()

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None: ...
    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None: ...


class AsyncConsumerLoop(Generic[X]):
    """A consumer whose offsets are stored in a database. Created by `consume_into`; used by one task."""

    def __init__(self, reading: ConsumeRecipe[X], watch: StepCallback | None) -> None:
        self._recipe = reading
        self._driver = AsyncRecipeRunner(watch)

    @asynccontextmanager
    async def batch(
        self, timeout_s: float = 1.0, most: int | None = None
    ) -> AsyncIterator[AsyncConsumedBatch[X]]:
        """Yield records and a transaction; commit rows and offsets together when the block ends."""
        driver, reading = self._driver, self._recipe
        took = await driver.run_async(reading.poll(timeout_s, most))
        database = await driver.run_async(reading.begin(took))
        batch = AsyncConsumedBatch(database, took.records)
        try:
            yield batch
        except BaseException:
            batch.mark_ended()
            await driver.run_async(reading.rollback(database, took))
            raise
        batch.mark_ended()
        await driver.run_async(reading.commit(database, took))


def consume_into(
    store: AsyncOffsetStore[X],
    consumer: Consumer,
    topics: Iterable[str] = (),
    *,
    partitions: Iterable[TopicPartition] = (),
    group: str | None = None,
    on_data_loss: OnDataLoss = "fail",
    watch: StepCallback | None = None,
) -> AsyncConsumerLoop[X]:
    """Read topics into a database, each record exactly once."""
    reading: ConsumeRecipe[X] = ConsumeRecipe(store, consumer, group, on_data_loss)
    if partitions:
        consumer.assign(partitions)
    else:
        consumer.subscribe(list(topics), _AsyncUnsyncOnRebalance(reading))
    return AsyncConsumerLoop(reading, watch)
