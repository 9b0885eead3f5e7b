"""Synchronous consumer, `tallystick.Consumer`: reads alone or in a group, without an event loop.

It is the asynchronous consumer on the engine thread of the process, which maintains the membership and
fetches between polls. The callbacks of a rebalance run in the thread that polls.
"""

import asyncio
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self
from uuid import UUID

from tallystick.client.aio import consumer as aio
from tallystick.client.aio.consumer import CLOSE_TIMEOUT_S, go_back
from tallystick.client.blocking.thread import SingleUserCalls, engine_thread, run_in_caller
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.deserializers import (
    build_record_deserializer,
    find_first_offsets,
    refuse_columns,
)
from tallystick.client.consumer.rebalance import RebalanceListener as ListenerOnLoop
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, Offsets
from tallystick.client.serializers import K, V
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# An endless `for` checks this often whether it has to end.
_POLL_INTERVAL_S: Final = 1.0

Partitions = frozenset[TopicPartition]
CommitCallback = Callable[[BaseException | None], object]


class RebalanceListener:
    """Callbacks about changes of the assignment, run in the thread that polls, unsubscribes or closes.

    Revoked partitions may still be committed in the callback; lost ones may already be assigned to other
    members. A callback about assigned partitions comes after the assignment, also if it is empty. Inherit,
    and override what is needed.
    """

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Handle partitions that are read from now on, in addition to earlier ones."""

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Handle partitions that go to other members when this returns."""

    def on_partitions_lost(self, partitions: Partitions) -> None:
        """Handle partitions that went to other members without a revocation."""


class Consumer(Generic[K, V]):
    """Reads records, alone (`assign`) or with a group (`subscribe`).

        with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                ...

    With `key.deserializer` or `value.deserializer`, functions as confluent-kafka has them, records have the
    objects that they return: `Consumer[str, Order]({...})` to a type checker. They run in the thread that
    polls.

    Life cycle: made, used, closed; `with` closes it. For one thread at a time, as in Kafka: a second one is
    refused; only `wakeup` may be called by any. It does not survive a fork: the child opens its own.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Read the configuration, without connecting.

        Args:
            config: Kafka's dotted names and their values, as texts, numbers or booleans: docs/config.md.
        Raises: BadConfig with all problems at once.
        """
        self._is_open = False
        self._thread = engine_thread()
        functions = ConsumerConfig.parse(config).functions
        # Deserializers may wait, and the engine thread must not: they run in the thread that polls.
        plain_config = {name: value for name, value in config.items() if name not in functions}
        self._async_consumer: aio.Consumer[Any, Any] = self._thread.call(
            lambda: aio.Consumer(plain_config), "Consumer"
        )
        self._deserializer = build_record_deserializer(functions)
        self._is_open = True
        self._api_timeout_s = self._async_consumer.config.default_api_timeout_ms / 1000
        self._calls = SingleUserCalls(self._thread, self._api_timeout_s)
        self._thread.register(self)

    # ------------------------------------------------------------------------ subscription

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group; the partitions are assigned while polling.

        Args:
            topics: names; or a pattern, matched against the whole name of every topic, now and later.
        Raises: IllegalState without `group.id` or after `assign`.
        """
        loop_listener = None if listener is None else _ListenerInCallerThread(listener)
        self._calls.call(partial(self._async_consumer.subscribe, topics, loop_listener), "subscribe")

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of group management. Known positions are kept.

        Raises: IllegalState while subscribed.
        """
        self._calls.call(partial(self._async_consumer.assign, list(partitions)), "assign")

    def unsubscribe(self) -> None:
        """Stop reading and leave the group. Callbacks run; positions are not committed."""
        self._calls.run(self._async_consumer.unsubscribe(), None, "unsubscribe")

    @property
    def assignment(self) -> Partitions:
        """Partitions that are read."""
        return self._calls.call(lambda: self._async_consumer.assignment, "assignment")

    @property
    def subscription(self) -> frozenset[str]:
        """Topics that are shared with the group."""
        return self._calls.call(lambda: self._async_consumer.subscription, "subscription")

    @property
    def paused(self) -> Partitions:
        """Partitions of which no records are returned for now."""
        return self._calls.call(lambda: self._async_consumer.paused, "paused")

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; fetched data is kept."""
        self._calls.call(partial(self._async_consumer.pause, list(partitions)), "pause")

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        self._calls.call(partial(self._async_consumer.resume, list(partitions)), "resume")

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
        seek = partial(
            self._async_consumer.seek, partition, offset, leader_epoch, until=until, topic_id=topic_id
        )
        self._calls.call(seek, "seek")

    def rewind(self) -> None:
        """From the next `poll` on, return records again that were returned and never committed.

        These are the records returned since the last `commit` or `note_committed`, or else since reading
        began here or the last `seek`. Positions stay until then: records the caller still holds may be
        processed again, and committed. A dual write that fails calls it for the consumer of its
        `send_offsets`.
        """
        self._calls.call(self._async_consumer.rewind, "rewind")

    def note_committed(self, offsets: Offsets) -> None:
        """Record offsets that a transaction committed for the group: `rewind` does not go back before them.

        For programs that call `Producer.send_offsets_to_transaction`; `commit` and dual writes note it.
        """
        self._calls.call(partial(self._async_consumer.note_committed, offsets), "note_committed")

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek to the first available record; in all assigned partitions if none are given."""
        self._calls.call(
            partial(self._async_consumer.seek_to_beginning, list(partitions)), "seek_to_beginning"
        )

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek past the last record; under `read_committed`, to the last stable offset."""
        self._calls.call(partial(self._async_consumer.seek_to_end, list(partitions)), "seek_to_end")

    def pin(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise PositionUnknown for a position outside the log, whatever `auto.offset.reset` says.

        The error is raised by `poll`; this holds until the partition is assigned anew. For programs that
        store positions elsewhere, and for which deleted records are a loss.
        """
        self._calls.call(partial(self._async_consumer.pin, list(partitions)), "pin")

    def read_committed(self) -> None:
        """Read committed records only, as with `isolation.level`; call it before anything is read."""
        self._calls.call(self._async_consumer.read_committed, "read_committed")

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Return the offset of the next record `poll` would return. Raises: TimedOut, PositionUnknown."""
        return self._calls.run(self._async_consumer.position(partition, timeout_s), timeout_s, "position")

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition. Raises: TimedOut, BrokerRefused."""
        lookup = self._async_consumer.beginning_offsets(list(partitions), timeout_s)
        return self._calls.run(lookup, timeout_s, "beginning_offsets")

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition; under `read_committed`, the last stable offset."""
        lookup = self._async_consumer.end_offsets(list(partitions), timeout_s)
        return self._calls.run(lookup, timeout_s, "end_offsets")

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each time (milliseconds since the epoch) or later; None for none."""
        lookup = self._async_consumer.offsets_for_times(dict(times_ms), timeout_s)
        return self._calls.run(lookup, timeout_s, "offsets_for_times")

    # ------------------------------------------------------------------------------ reading

    def poll(self, timeout_s: float, most: int | None = None) -> list[ConsumerRecord[K, V]]:
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
        coroutine = self._async_consumer.poll(timeout_s, most)
        waited_s = timeout_s + self._api_timeout_s

        def give_back(records: list[ConsumerRecord[Any, Any]]) -> None:
            self._seek_back(find_first_offsets(records))

        if self._deserializer is None:  # the result passes no call in which an interrupt could lose it
            return self._calls.run(coroutine, waited_s, "poll", give_back)
        records: list[ConsumerRecord[Any, Any]] = []
        try:
            records = self._calls.run(coroutine, waited_s, "poll", give_back)
            result = self._deserializer.deserialize(records)
        except BaseException:  # interrupted: none of them was returned
            give_back(records)
            raise
        if result.failure is not None:
            self._seek_back(result.first_offsets)
            if not result.records:
                raise result.failure
        return result.records

    def poll_arrow(self, timeout_s: float, most: int | None = None) -> "RecordBatch":
        """Poll like `poll`, and return one Arrow batch; it may have no rows. Needs pyarrow (extra `arrow`).

        Returns: a row for each record, with the columns of Spark's Kafka source: docs in
            `client.consumer.arrow`.
        Raises: as `poll`; NotSupported without pyarrow; IllegalState with deserializers.
        """
        refuse_columns(self._deserializer)
        waited_s = timeout_s + self._api_timeout_s
        coroutine = self._async_consumer.poll_arrow(timeout_s, most)
        return self._calls.run(
            coroutine, waited_s, "poll_arrow", lambda batch: self._seek_back(_find_first_row_offsets(batch))
        )

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Yield records one by one, without end."""
        while True:
            yield from self.poll(_POLL_INTERVAL_S)

    def wakeup(self) -> None:
        """End the wait of this `poll`, or the next, with WokenUp. For any thread, and signal handlers."""
        self._thread.check_process("wakeup")
        self._thread.call_soon(self._async_consumer.wakeup)

    # ------------------------------------------------------------------------------ commits

    def commit(self, offsets: Offsets | None = None, timeout_s: float | None = None) -> None:
        """Commit these offsets for the group; the positions of all partitions if none are given.

        Args:
            offsets: the next offset to read of each partition, or OffsetAndMetadata.
        Raises: CommitRefused when the partitions belong to other members by now; BrokerRefused, TimedOut.
        """
        self._calls.run(self._async_consumer.commit(offsets, timeout_s), timeout_s, "commit")

    def commit_soon(self, offsets: Offsets | None = None, on_done: CommitCallback | None = None) -> None:
        """Start a `commit` without waiting for it. Commits are made in the order of these calls.

        Args:
            on_done: called with None or the error, on the engine thread. A failure is logged, too.
        """

        def begin() -> None:
            task = self._async_consumer.commit_soon(offsets)
            if on_done is not None:
                task.add_done_callback(partial(_report_commit, on_done))

        self._calls.call(begin, "commit_soon")

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for none. Raises: TimedOut, BrokerRefused."""
        lookup = self._async_consumer.committed(list(partitions), timeout_s)
        return self._calls.run(lookup, timeout_s, "committed")

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata a producer needs to commit offsets in its transaction (KIP-447)."""
        return self._calls.call(self._async_consumer.group_metadata, "group_metadata")

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Return metrics by Kafka's names: those of the network, and the lag of each partition."""
        return self._calls.call(self._async_consumer.metrics, "metrics")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if auto-commit is on, leave the group, close the connections; harmless if repeated.

        Commits of `commit_soon` are finished first, in half of the time at most.

        Args:
            timeout_s: maximum time in seconds, not counting callbacks.
        Raises: any error of a callback, when everything is closed.
        """
        if self._is_open:
            try:
                self._calls.run(self._async_consumer.close(timeout_s), timeout_s, "close")
            finally:
                self._is_open = False
                self._thread.unregister(self)

    def mark_forked(self) -> None:
        """Mark the consumer as closed, in a forked child. Called by the engine thread's fork hook."""
        self._is_open = False

    def _seek_back(self, first_offsets: Mapping[TopicPartition, int]) -> None:
        """Read records again that were never returned, so that no commit passes them [CLI-67].

        Takes effect before any later call, `close` included.
        """
        self._thread.call_soon(partial(go_back, self._async_consumer, first_offsets))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            self._thread.abandon(self._async_consumer.close)

    def __repr__(self) -> str:
        config = self._async_consumer.config
        group = "" if config.group_id is None else f" in {config.group_id!r}"
        return f"<Consumer {config.client.client_id!r}{group}{'' if self._is_open else ', closed'}>"


def _find_first_row_offsets(batch: "RecordBatch") -> dict[TopicPartition, int]:
    columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    first_offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in zip(*columns, strict=True):
        first_offsets.setdefault(TopicPartition(topic, partition), offset)
    return first_offsets


class _ListenerInCallerThread(ListenerOnLoop):
    """A listener whose callbacks run in the thread that waits for `poll`, `unsubscribe` or `close`."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        await run_in_caller(partial(self._listener.on_partitions_assigned, partitions))

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        await run_in_caller(partial(self._listener.on_partitions_revoked, partitions))

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        await run_in_caller(partial(self._listener.on_partitions_lost, partitions))


def _report_commit(on_done: CommitCallback, task: "asyncio.Task[None]") -> None:
    on_done(asyncio.CancelledError() if task.cancelled() else task.exception())
