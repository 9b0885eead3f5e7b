"""Atomic consumption from Kafka into a database: rows and the offsets they came from, in one transaction.

KIP-939's other recipe: "the database tracks the consumption state atomically with the data update". The
offset in the database is authoritative. After every assignment, failure or unknown outcome the consumer seeks
to it. A transaction may move it only if it is still where this reader began [DW-4], so a reader that has lost
a partition without knowing it cannot write.

Only committed records are read: aborted records must leave no rows. `auto.offset.reset` never moves a
partition that has an offset in the database: if the log does not contain that offset, records are lost, which
is an error, or is skipped on request [DW-25].
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, TypeVar

from tallystick.client.aio.consumer import Consumer
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.rebalance import RebalanceListener
from tallystick.client.errors import PositionUnknown
from tallystick.dualwrite import tracing
from tallystick.dualwrite.block.offsets import PolledBatch, first_offsets
from tallystick.dualwrite.block.steps import AsyncStepRunner, Watch
from tallystick.dualwrite.block.transaction import DatabaseSide, flush_rows_async
from tallystick.dualwrite.errors import CommitUnknown, DataLoss, NotCommitted
from tallystick.dualwrite.stores.base import AsyncOffsetStore, AsyncOffsetTransaction, OffsetAdvance
from tallystick.kernel.check import require
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger("tallystick.dualwrite")

OnDataLoss = Literal["fail", "skip"]
X = TypeVar("X", bound=AsyncOffsetTransaction)


class AsyncConsumeRecipe(Generic[X]):
    """A consumer's positions together with the database's offsets."""

    def __init__(
        self,
        store: AsyncOffsetStore[X],
        consumer: Consumer[Any, Any],
        steps: AsyncStepRunner,
        group: str | None,
        on_data_loss: OnDataLoss = "fail",
    ) -> None:
        if on_data_loss not in ("fail", "skip"):
            raise ValueError(f'on_data_loss is "fail" or "skip", not {on_data_loss!r}')
        consumer.read_committed()
        self._skips_data_loss = on_data_loss == "skip"
        self.group = group or consumer.group_metadata().group_id
        self._store = store
        self._consumer = consumer
        self._steps = steps
        self._stored_offsets: dict[TopicPartition, int] = {}
        self._is_unsynced = True
        self._transaction: X | None = None
        self._has_uncommitted = False
        """Whether a poll may have returned records that are not committed. Set before it [DW-4]."""

    def mark_unsynced(self) -> None:
        """Mark the consumer's assignment or positions as possibly different from the database's offsets."""
        self._is_unsynced = True

    async def poll(self, timeout_s: float, most: int | None) -> PolledBatch:
        """Return records that follow the database's offsets; none if `timeout_s` has passed.

        An interrupt, such as an exception from a signal handler, may have ended the batch before anywhere,
        with its records in nobody's hands.
        """
        if self._has_uncommitted:
            await self._roll_back_open()
            self._consumer.rewind()  # partitions without an offset in the database
            await self._seek_to_stored(())
        self._has_uncommitted = True
        records = await self._poll_once(timeout_s, most)
        if self._is_unsynced:  # an assignment may have come with these records: their offsets may be wrong
            await self._seek_to_stored(records)
            records = await self._poll_once(timeout_s, most)
            if self._is_unsynced:
                await self._seek_to_stored(records)
                records = []
        moves = {}
        try:
            for at in first_offsets(records):
                after = await self._steps.run("position", str(at), self._consumer.position, at)
                moves[at] = OffsetAdvance(before=self._stored_offsets.get(at), after=after)
        except BaseException:
            self._rewind_to(records)
            raise
        return PolledBatch(tuple(records), moves)

    async def _poll_once(self, timeout_s: float, most: int | None) -> list[ConsumerRecord[Any, Any]]:
        """Poll once. Raises: DataLoss if the log does not contain the database's offset."""
        try:
            records = await self._steps.run("poll", self.group, self._consumer.poll, timeout_s, most)
        except PositionUnknown as exc:
            at = TopicPartition(exc.topic, exc.partition)
            if self._is_unsynced:  # the position may not come from the database
                await self._seek_to_stored(())
                if at in self._stored_offsets:
                    return []
            if at not in self._stored_offsets:
                raise
            await self._handle_data_loss(at, exc)
            return []
        return records

    async def _handle_data_loss(self, at: TopicPartition, why: PositionUnknown) -> None:
        """Raise DataLoss, or seek to where the log continues, never before the database's offset."""
        begins = await self._steps.run("position", str(at), self._consumer.beginning_offsets, [at])
        ends = await self._steps.run("position", str(at), self._consumer.end_offsets, [at])
        loss = DataLoss(self.group, str(at), self._stored_offsets[at], begins[at], ends[at])
        if not self._skips_data_loss:
            raise loss from why
        place = begins[at] if loss.offset < begins[at] else ends[at]
        _log.warning("%s; going on at %d", loss, place)
        self._consumer.seek(at, place)

    async def _seek_to_stored(self, records: Iterable[ConsumerRecord[Any, Any]]) -> None:
        """Seek to the database's offsets; partitions without one go back to the start of `records`."""
        self._is_unsynced = False
        try:
            stored_offsets = await self._steps.run(
                "read offsets", self.group, self._store.read_offsets, self.group
            )
        except BaseException:
            self._rewind_to(records)
            raise
        assigned = self._consumer.assignment
        self._stored_offsets = {at: offset for at, offset in stored_offsets.items() if at in assigned}
        self._consumer.pin(self._stored_offsets)
        self._seek_assigned({**first_offsets(records), **self._stored_offsets})

    def _rewind_to(self, records: Iterable[ConsumerRecord[Any, Any]]) -> None:
        """Seek back so that `records` are returned again, unless the database already has them."""
        self._is_unsynced = True
        self._seek_assigned(first_offsets(records))

    def _seek_assigned(self, places: Mapping[TopicPartition, int]) -> None:
        assigned = self._consumer.assignment
        for at, offset in places.items():
            if at in assigned:
                self._consumer.seek(at, offset)

    async def begin(self) -> X:
        """Begin the transaction for the rows. Whatever happens from then on, `rollback` ends it."""
        return await self._steps.run("begin database", self.group, self._open)

    async def _open(self) -> X:
        """Begin in the database, and keep the transaction before any interrupt so that it is released."""
        self._transaction = txn = await self._store.begin()
        return txn

    async def commit(self, polled: PolledBatch) -> None:
        """Commit rows and offsets. Raises: WriterFenced if another reader moved a partition; InDoubt."""
        txn = require(self._transaction, "a batch was begun")
        self._is_unsynced = True
        try:
            await flush_rows_async(txn)
            if polled.offset_moves:
                await self._steps.run(
                    "move offsets", self.group, txn.move_offsets, self.group, polled.offset_moves
                )
            await self._steps.run("commit database", self.group, txn.commit)
        except BaseException as exc:
            await self.rollback(polled)
            if isinstance(exc, NotCommitted):
                raise exc.cause from exc
            if isinstance(exc, CommitUnknown):
                raise InDoubt(
                    f"{self.group}: whether the database committed is not known: {exc}; the next batch "
                    "begins where it says"
                ) from exc
            raise
        self._transaction = None
        new = [
            at
            for at in polled.offset_moves
            if at not in self._stored_offsets and at in self._consumer.assignment
        ]
        self._stored_offsets |= {at: each.after for at, each in polled.offset_moves.items()}
        self._is_unsynced = False
        if new:
            self._consumer.pin(new)
        self._has_uncommitted = False

    async def rollback(self, polled: PolledBatch) -> None:
        """Roll back the rows and rewind to `polled`; the next poll checks the database's offsets."""
        self._rewind_to(polled.records)
        await self._roll_back_open()

    async def _roll_back_open(self) -> None:
        if self._transaction is None:
            return
        try:
            await self._steps.run("roll back", self.group, self._transaction.rollback)
        except Exception as exc:  # must not hide the original error
            _log.warning("%s: the database's transaction could not be rolled back: %s", self.group, exc)
            return
        self._transaction = None


class AsyncConsumedBatch(DatabaseSide[X]):
    """A batch of records and the database transaction for their rows: `session`, `connection`."""

    def __init__(self, database: X, records: tuple[ConsumerRecord[Any, Any], ...]) -> None:
        super().__init__(database)
        self.records = records


class _AsyncUnsyncOnRebalance(RebalanceListener):
    def __init__(self, recipe: AsyncConsumeRecipe[X]) -> None:
        self._recipe = recipe

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._recipe.mark_unsynced()

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Do nothing: the database already has the offsets."""

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Do nothing: the database refuses later writes for these partitions."""


class AsyncConsumerLoop(Generic[X]):
    """A consumer whose offsets are stored in a database. Created by `consume_into`; used by one task."""

    def __init__(self, recipe: AsyncConsumeRecipe[X]) -> None:
        self._recipe = recipe

    @asynccontextmanager
    async def batch(
        self, timeout_s: float = 1.0, most: int | None = None
    ) -> AsyncIterator[AsyncConsumedBatch[X]]:
        """Yield records and a transaction; commit rows and offsets together when the block ends.

        If the block raises, neither is committed, and the records are returned again.

        Args:
            timeout_s: seconds to wait for records; the batch is empty if none arrive.
            most: maximum number of records; `max.poll.records` by default.
        Raises: DataLoss when records are missing from the log, and again with every batch. WriterFenced when
            another reader has moved a partition, InDoubt when the outcome is unknown; after either, continue
            with the next batch, which begins at the database's offsets.
        """
        recipe = self._recipe
        polled = await recipe.poll(timeout_s, most)
        with tracing.trace_consumed(recipe.group, polled.records):
            batch: AsyncConsumedBatch[X] | None = None
            try:
                batch = AsyncConsumedBatch(await recipe.begin(), polled.records)
                yield batch
            except BaseException:
                if batch is not None:
                    batch.mark_ended()
                await recipe.rollback(polled)
                raise
            batch.mark_ended()
            await recipe.commit(polled)


def consume_into(
    store: AsyncOffsetStore[X],
    consumer: Consumer[Any, Any],
    topics: Iterable[str] = (),
    *,
    partitions: Iterable[TopicPartition] = (),
    group: str | None = None,
    on_data_loss: OnDataLoss = "fail",
    watch: Watch | None = None,
) -> AsyncConsumerLoop[X]:
    """Read topics into a database, each record exactly once.

        reading = consume_into(store, consumer, ["payments"])
        while True:
            async with reading.batch() as batch:
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
    steps = AsyncStepRunner(watch, tracing.get_database_system(store))
    recipe = AsyncConsumeRecipe(store, consumer, steps, group, on_data_loss)
    if partitions:
        consumer.assign(partitions)
    else:
        consumer.subscribe(list(topics), _AsyncUnsyncOnRebalance(recipe))
    return AsyncConsumerLoop(recipe)
