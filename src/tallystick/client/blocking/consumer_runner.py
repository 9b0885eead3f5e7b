"""Runner of the blocking consumer's calls on the engine thread of the process.

The engine thread maintains the membership and fetches between polls. The callbacks of a rebalance run in the
thread that polls.
"""

import re
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tallystick.client.aio.consumer_runner import AsyncConsumerRunner, CommitCallback, to_ms
from tallystick.client.blocking.thread import SingleUserCalls, engine_thread, run_in_caller
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.deserializers import (
    build_record_deserializer,
    find_first_offsets,
    refuse_columns,
)
from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.consumer.rebalance import RebalanceListener as ListenerOnLoop
from tallystick.client.offsets import Offsets
from tallystick.client.serializers import K, V
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["CommitCallback", "ConsumerRunner", "RebalanceListener", "to_ms"]

T = TypeVar("T")
Partitions = frozenset[TopicPartition]


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


class ConsumerRunner(Generic[K, V]):
    """The asynchronous runner of one consumer, on the engine thread; for one caller at a time."""

    _is_open = False  # in a copy that `__init__` never made, too

    def __init__(self, config: Mapping[str, object]) -> None:
        self._thread = engine_thread()
        functions = ConsumerConfig.parse(config).functions
        # Deserializers may wait, and the engine thread must not: they run in the thread that polls.
        plain_config = {name: value for name, value in config.items() if name not in functions}
        self._runner: AsyncConsumerRunner[Any, Any] = self._thread.call(
            lambda: AsyncConsumerRunner(plain_config), "Consumer"
        )
        self.config = self._runner.config
        self._deserializer = build_record_deserializer(functions)
        self._is_open = True
        self._api_timeout_s = self.config.default_api_timeout_ms / 1000
        self._calls = SingleUserCalls(self._thread, self._api_timeout_s)
        self._thread.register(self)

    def call(self, name: str, function: Callable[[ConsumerEngine], T]) -> T:
        """Call a method that does not wait, on the loop."""
        return self._calls.call(lambda: self._runner.call(name, function), name)

    def run(
        self,
        name: str,
        timeout_s: float | None,
        function: Callable[[ConsumerEngine], Coroutine[object, object, T]],
    ) -> T:
        """Run a method that waits.

        Args:
            timeout_s: limit of the method itself; None for `default.api.timeout.ms`.
        """
        return self._calls.run(self._runner.run(name, timeout_s, function), timeout_s, name)

    def subscribe(self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None) -> None:
        """Share these topics with the group."""
        loop_listener = None if listener is None else _ListenerInCallerThread(listener)
        self._calls.call(partial(self._runner.subscribe, topics, loop_listener), "subscribe")

    def poll(self, timeout_s: float, most: int | None) -> list[ConsumerRecord[K, V]]:
        """Return records, deserialized in this thread."""
        coroutine = self._runner.poll(timeout_s, most)
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

    def poll_arrow(self, timeout_s: float, most: int | None) -> "RecordBatch":
        """Return records as an Arrow batch."""
        refuse_columns(self._deserializer)
        waited_s = timeout_s + self._api_timeout_s
        coroutine = self._runner.poll_arrow(timeout_s, most)
        return self._calls.run(
            coroutine, waited_s, "poll_arrow", lambda batch: self._seek_back(_find_first_row_offsets(batch))
        )

    @property
    def unread(self) -> deque[ConsumerRecord[K, V]]:
        """Records that an iteration has polled, and not yielded yet."""
        return self._runner.unread

    def give_back_unread(self) -> None:
        """Read records again that an iteration has polled and not yielded."""
        if self.unread:
            self._calls.call(self._runner.give_back_unread, "poll_arrow")

    def wakeup(self) -> None:
        """End the wait of a poll, from any thread and any signal handler."""
        self._thread.check_process("wakeup")
        self._thread.call_soon(self._runner.wakeup)

    def commit(self, offsets: Offsets | None, timeout_s: float | None) -> None:
        """Commit offsets for the group."""
        self._calls.run(self._runner.commit(offsets, timeout_s), timeout_s, "commit")

    def commit_soon(self, offsets: Offsets | None, on_done: CommitCallback | None) -> None:
        """Start a commit, and report its end, on the engine thread."""
        self._calls.call(partial(self._runner.commit_soon, offsets, on_done), "commit_soon")

    def close(self, timeout_s: float) -> None:
        """Leave the group, and close the connections; harmless if repeated."""
        if self._is_open:
            try:
                self._calls.run(self._runner.close(timeout_s), timeout_s, "close")
            finally:
                if self._runner.is_closing:  # not refused: by a callback's thread, or while another one polls
                    self._is_open = False
                    self._thread.unregister(self)

    def mark_forked(self) -> None:
        """Mark the consumer as closed, in a forked child. Called by the engine thread's fork hook."""
        self._is_open = False

    def _seek_back(self, first_offsets: Mapping[TopicPartition, int]) -> None:
        """Read records again that were never returned, so that no commit passes them [CLI-67].

        Takes effect before any later call, `close` included.
        """
        self._thread.call_soon(partial(self._runner.go_back, first_offsets))

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            self._thread.abandon(self._runner.close)

    def __repr__(self) -> str:
        return repr(self._runner) if self._is_open else f"{repr(self._runner)[:-1]}, closed>"


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
