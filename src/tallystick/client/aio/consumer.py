"""Asynchronous consumer, `tallystick.aio.Consumer`: reads alone or in a group, on the caller's own loop."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, cast
from uuid import UUID

from tallystick.client import tracing
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.deserializers import (
    build_record_deserializer,
    find_first_offsets,
    refuse_columns,
)
from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.consumer.rebalance import RebalanceListener
from tallystick.client.errors import ClientError
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, Offsets
from tallystick.client.serializers import K, V
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("tallystick.consumer")

CLOSE_TIMEOUT_S: Final = 30.0
# An endless `async for` checks this often whether it has to end.
_POLL_INTERVAL_S: Final = 1.0


class Consumer(Generic[K, V]):
    """Reads records. Made, used and closed on one loop; one task at a time, except for `wakeup`.

    `tallystick.Consumer` documents the methods; here those that wait are awaited. Deserializers run on the
    loop; records with a schema id that is new in their topic are deserialized in a thread, where it may wait.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Read the configuration, without connecting. Raises: BadConfig with all problems."""
        self.config = ConsumerConfig.parse(config)
        for note in self.config.notes:
            _log.warning("%s", note)
        self._engine = ConsumerEngine(self.config)
        tracing.CONSUMERS[self] = self.config.client.client_id
        self._deserializer = build_record_deserializer(self.config.functions)

    # ------------------------------------------------------------------------ subscription

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group."""
        self._engine.subscribe(topics, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of group management."""
        self._engine.assign(partitions)

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group."""
        await self._engine.unsubscribe()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions that are read."""
        return self._engine.assignment

    @property
    def subscription(self) -> frozenset[str]:
        """Topics that are shared with the group."""
        return self._engine.subscription

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Partitions of which no records are returned for now."""
        return self._engine.positions.paused

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        self._engine.positions.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        self._engine.positions.resume(partitions)

    # --------------------------------------------------------------------------- positions

    def seek(
        self,
        partition: TopicPartition,
        offset: int,
        leader_epoch: int | None = None,
        *,
        until: int | None = None,
        topic_id: UUID | None = None,
    ) -> None:
        """Continue with the record at `offset`, or the first one after it."""
        self._engine.positions.seek(partition, offset, leader_epoch, until=until, topic_id=topic_id)

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Return records from `offset` on again; records returned before it may still be committed."""
        self._engine.positions.go_back(partition, offset)

    def rewind(self) -> None:
        """From the next `poll` on, return records again that were returned and never committed."""
        self._engine.positions.rewind()

    def note_committed(self, offsets: Offsets) -> None:
        """Record offsets that a transaction committed for the group, for `rewind` to stop at."""
        self._engine.positions.note_committed(offsets)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek to the first available record; in all assigned partitions if none are given."""
        self._engine.positions.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek past the last record."""
        self._engine.positions.seek_to_end(partitions)

    def pin(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise PositionUnknown for a position outside the log, whatever `auto.offset.reset` says."""
        self._engine.positions.pin(partitions)

    def read_committed(self) -> None:
        """Read committed records only from now on."""
        self._engine.read_committed()

    async def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Return the offset of the next record that `poll` would return."""
        return await self._engine.positions.position(partition, to_ms(timeout_s))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return await self._engine.log_offsets.beginning_offsets(partitions, to_ms(timeout_s))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the end of each log under this consumer's isolation level."""
        return await self._engine.log_offsets.end_offsets(partitions, to_ms(timeout_s))

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each time or later."""
        return await self._engine.log_offsets.offsets_for_times(times_ms, to_ms(timeout_s))

    # ------------------------------------------------------------------------------ reading

    async def poll(self, timeout_s: float, most: int | None = None) -> list[ConsumerRecord[K, V]]:
        """Return records as soon as there are any; an empty list after `timeout_s`."""
        poll = self._engine.poll(int(timeout_s * 1000), most)
        tracer, config = tracing.tracer, self.config
        if tracer is not None:
            poll = tracer.trace_poll(config.client.client_id, config.group_id, poll)
        records = await poll
        if self._deserializer is None or not records:
            return cast("list[ConsumerRecord[K, V]]", records)
        try:
            if self._deserializer.has_first_use(records):
                result = await asyncio.to_thread(self._deserializer.deserialize, records)
            else:
                result = self._deserializer.deserialize(records)
        except BaseException:  # cancelled: none of them was returned
            go_back(self, find_first_offsets(records))
            raise
        go_back(self, result.first_offsets)
        if result.failure is not None and not result.records:
            raise result.failure
        return result.records

    async def poll_arrow(self, timeout_s: float, most: int | None = None) -> "RecordBatch":
        """Poll like `poll`, and return one Arrow batch; it may have no rows."""
        refuse_columns(self._deserializer)
        return await self._engine.poll_arrow(int(timeout_s * 1000), most)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        """Yield records one by one, without end."""
        while True:
            for record in await self.poll(_POLL_INTERVAL_S):
                yield record

    def wakeup(self) -> None:
        """End the wait of the current `poll`, or of the next one, with WokenUp."""
        self._engine.wakeup()

    # ------------------------------------------------------------------------------ commits

    async def commit(self, offsets: Offsets | None = None, timeout_s: float | None = None) -> None:
        """Commit these offsets for the group; all positions if none are given."""
        commit = self._engine.commit(offsets, to_ms(timeout_s))
        tracer, config = tracing.tracer, self.config
        if tracer is not None:
            commit = tracer.trace_commit(config.client.client_id, config.group_id, commit)
        await commit

    def commit_soon(self, offsets: Offsets | None = None) -> "asyncio.Task[None]":
        """Start a `commit` without waiting for it."""
        return self._engine.commit_soon(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets."""
        return await self._engine.committed(partitions, to_ms(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata for `Producer.send_offsets_to_transaction` (KIP-447)."""
        return self._engine.group_metadata()

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names."""
        return self._engine.metrics()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if auto-commit is on, leave the group, close the connections.

        Commits of `commit_soon` are finished first, in half of the time at most.
        """
        await self._engine.close(int(timeout_s * 1000))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def go_back(consumer: Consumer[Any, Any], first_offsets: Mapping[TopicPartition, int]) -> None:
    """Return records again that the caller has never had, so that no commit passes them [CLI-67]."""
    with suppress(ClientError):  # closed, or assigned to another member by now
        for at, offset in first_offsets.items():
            if at in consumer.assignment:
                consumer.go_back(at, offset)


def to_ms(timeout_s: float | None) -> int | None:
    """Convert seconds to milliseconds; None, which stands for the setting's own limit, stays None."""
    return None if timeout_s is None else int(timeout_s * 1000)
