"""Asynchronous consumer, `tallystick.aio.Consumer`: reads alone or in a group, on the caller's own loop.

It is written once. The blocking one is generated from it, and differs in its runner: what runs a call.
"""

import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self
from uuid import UUID

from tallystick.client.aio.consumer_runner import AsyncConsumerRunner, CommitCallback, to_ms
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.rebalance import RebalanceListener
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, Offsets
from tallystick.client.serializers import K, V
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CLOSE_TIMEOUT_S: Final = 30.0
# An endless loop over the records checks this often whether it has to end.
_POLL_INTERVAL_S: Final = 1.0

Partitions = frozenset[TopicPartition]


class Consumer(Generic[K, V]):
    """Reads records, alone (`assign`) or with a group (`subscribe`).

        async with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
            consumer.subscribe(["orders"])
            async for record in consumer:
                ...

    With `key.deserializer` or `value.deserializer`, functions as confluent-kafka has them, records have the
    objects that they return: `Consumer[str, Order]({...})` to a type checker. They run
    on the loop, or in a thread while they may wait for a schema.

    Life cycle: made, used, closed; `async with` closes it. It does not survive a fork: the child opens its
    own. It belongs to one loop, and to one task at a time; any may call `wakeup`.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Read the configuration, without connecting.

        Args:
            config: Kafka's dotted names and their values, as texts, numbers or booleans: docs/config.md.
        Raises: BadConfig with all problems at once.
        """
        self._runner: AsyncConsumerRunner[K, V] = AsyncConsumerRunner(config)
        self.config = self._runner.config
        self._unread: deque[ConsumerRecord[K, V]] = self._runner.unread

    # ------------------------------------------------------------------------ subscription

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group; the partitions are assigned while polling.

        Args:
            topics: names; or a pattern, matched against the whole name of every topic, now and later.
        Raises: IllegalState without `group.id` or after `assign`.
        """
        self._runner.subscribe(topics, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of group management. Known positions are kept.

        Raises: IllegalState while subscribed.
        """
        wanted = list(partitions)
        self._runner.call("assign", lambda engine: engine.assign(wanted))

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group. Callbacks run; positions are not committed."""
        await self._runner.run("unsubscribe", None, lambda engine: engine.unsubscribe())

    @property
    def assignment(self) -> Partitions:
        """Partitions that are read."""
        return self._runner.call("assignment", lambda engine: engine.assignment)

    @property
    def subscription(self) -> frozenset[str]:
        """Topics that are shared with the group."""
        return self._runner.call("subscription", lambda engine: engine.subscription)

    @property
    def paused(self) -> Partitions:
        """Partitions of which no records are returned for now."""
        return self._runner.call("paused", lambda engine: engine.positions.paused)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; fetched data is kept."""
        wanted = list(partitions)
        self._runner.call("pause", lambda engine: engine.positions.pause(wanted))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        wanted = list(partitions)
        self._runner.call("resume", lambda engine: engine.positions.resume(wanted))

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
        """Continue with the record at `offset`, or the first one after it.

        Args:
            until: fetch nothing from this offset on. Records fetched together with earlier ones are returned.
            topic_id: the topic that the offset is in. If another one has its name, `poll` raises
                TopicRecreated, whatever `auto.offset.reset` says.
        Raises: IllegalState for a partition that is not assigned.
        """
        self._runner.call(
            "seek",
            lambda engine: engine.positions.seek(
                partition, offset, leader_epoch, until=until, topic_id=topic_id
            ),
        )

    def rewind(self) -> None:
        """From the next `poll` on, return records again that were returned and never committed.

        These are the records returned since the last `commit` or `note_committed`, or else since reading
        began here or the last `seek`. Positions stay until then: records the caller still holds may be
        processed again, and committed. A dual write that fails calls it for the consumer of its
        `send_offsets`.
        """
        self._runner.call("rewind", lambda engine: engine.positions.rewind())

    def note_committed(self, offsets: Offsets) -> None:
        """Record offsets that a transaction committed for the group: `rewind` does not go back before them.

        For programs that call `Producer.send_offsets_to_transaction`; `commit` and dual writes note it.
        """
        self._runner.call("note_committed", lambda engine: engine.positions.note_committed(offsets))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek to the first available record; in all assigned partitions if none are given."""
        wanted = list(partitions)
        self._runner.call("seek_to_beginning", lambda engine: engine.positions.seek_to_beginning(wanted))

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek past the last record; under `read_committed`, to the last stable offset."""
        wanted = list(partitions)
        self._runner.call("seek_to_end", lambda engine: engine.positions.seek_to_end(wanted))

    def pin(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise PositionUnknown for a position outside the log, whatever `auto.offset.reset` says.

        The error is raised by `poll`; this holds until the partition is assigned anew. For programs that
        store positions elsewhere, and for which deleted records are a loss.
        """
        wanted = list(partitions)
        self._runner.call("pin", lambda engine: engine.positions.pin(wanted))

    def read_committed(self) -> None:
        """Read committed records only, as with `isolation.level`; call it before anything is read."""
        self._runner.call("read_committed", lambda engine: engine.read_committed())

    async def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Return the offset of the next record `poll` would return. Raises: TimedOut, PositionUnknown."""
        return await self._runner.run(
            "position", timeout_s, lambda engine: engine.positions.position(partition, to_ms(timeout_s))
        )

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition. Raises: TimedOut, BrokerRefused."""
        wanted = list(partitions)
        return await self._runner.run(
            "beginning_offsets",
            timeout_s,
            lambda engine: engine.log_offsets.beginning_offsets(wanted, to_ms(timeout_s)),
        )

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition; under `read_committed`, the last stable offset."""
        wanted = list(partitions)
        return await self._runner.run(
            "end_offsets",
            timeout_s,
            lambda engine: engine.log_offsets.end_offsets(wanted, to_ms(timeout_s)),
        )

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each time (milliseconds since the epoch) or later; None for none."""
        wanted = dict(times_ms)
        return await self._runner.run(
            "offsets_for_times",
            timeout_s,
            lambda engine: engine.log_offsets.offsets_for_times(wanted, to_ms(timeout_s)),
        )

    # ------------------------------------------------------------------------------ reading

    async def poll(self, timeout_s: float, most: int | None = None) -> list[ConsumerRecord[K, V]]:
        """Return records as soon as there are any; an empty list after `timeout_s`.

        Callbacks of a rebalance run in this call. Polling again declares the records returned before as
        processed: with `enable.auto.commit` they may then be committed.

        Args:
            timeout_s: seconds; 0 returns only buffered records.
            most: maximum number of records; `max.poll.records` by default.
        Raises: WokenUp; BrokerRefused (a grant is missing, a topic is invalid, this member was fenced);
            PositionUnknown, RecordUnreadable; Closed; any error of a callback; DeserializationFailed, by
            every poll until `seek` skips the record. Records before it are returned first.
        """
        if self._unread:
            wanted = self.config.max_poll_records if most is None else most
            return [self._unread.popleft() for _ in range(min(wanted, len(self._unread)))]
        return await self._runner.poll(timeout_s, most)

    async def poll_arrow(self, timeout_s: float, most: int | None = None) -> "RecordBatch":
        """Poll like `poll`, and return one Arrow batch; it may have no rows. Needs pyarrow (extra `arrow`).

        Returns: a row for each record, with the columns of Spark's Kafka source: docs in
            `client.consumer.arrow`.
        Raises: as `poll`; NotSupported without pyarrow; IllegalState with deserializers.
        """
        self._runner.give_back_unread()
        return await self._runner.poll_arrow(timeout_s, most)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        """Yield records one by one, without end.

        What it has polled and not yielded is not consumed: `commit` and `close` do not pass it, and another
        iteration, or `poll`, goes on with it.
        """
        unread = self._unread
        while True:
            while unread:
                yield unread.popleft()
            unread.extend(await self._runner.poll(_POLL_INTERVAL_S, None))

    def wakeup(self) -> None:
        """End the wait of this `poll`, or the next, with WokenUp."""
        self._runner.wakeup()

    # ------------------------------------------------------------------------------ commits

    async def commit(self, offsets: Offsets | None = None, timeout_s: float | None = None) -> None:
        """Commit these offsets for the group; the positions of all partitions if none are given.

        Args:
            offsets: the next offset to read of each partition, or OffsetAndMetadata.
        Raises: CommitRefused when the partitions belong to other members by now; BrokerRefused, TimedOut.
        """
        await self._runner.commit(offsets, timeout_s)

    def commit_soon(self, offsets: Offsets | None = None, on_done: CommitCallback | None = None) -> None:
        """Start a `commit` without waiting for it. Commits are made in the order of these calls.

        Args:
            on_done: called with None or the error, on the loop. A failure is logged, too.
        """
        self._runner.commit_soon(offsets, on_done)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for none. Raises: TimedOut, BrokerRefused."""
        wanted = list(partitions)
        return await self._runner.run(
            "committed", timeout_s, lambda engine: engine.committed(wanted, to_ms(timeout_s))
        )

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata a producer needs to commit offsets in its transaction (KIP-447)."""
        return self._runner.call("group_metadata", lambda engine: engine.group_metadata())

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Return metrics by Kafka's names: those of the network, and the lag of each partition."""
        return self._runner.call("metrics", lambda engine: engine.metrics())

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if auto-commit is on, leave the group, close the connections; harmless if repeated.

        Commits of `commit_soon` are finished first, in half of the time at most.

        Args:
            timeout_s: maximum time in seconds, not counting callbacks.
        Raises: any error of a callback, when everything is closed.
        """
        await self._runner.close(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._runner)
