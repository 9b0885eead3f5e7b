"""Runner of the asynchronous consumer's calls, on the caller's own loop."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

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
from tallystick.client.net.waits import ProcessCheck, ends_program
from tallystick.client.offsets import Offsets
from tallystick.client.serializers import K, V
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")
CommitCallback = Callable[[BaseException | None], object]

_log = logging.getLogger("tallystick.consumer")


class AsyncConsumerRunner(Generic[K, V]):
    """One consumer's engine, and what lies between it and the caller: deserializers and traces."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = ConsumerConfig.parse(config)
        for note in self.config.notes:
            _log.warning("%s", note)
        self._engine = ConsumerEngine(self.config)
        tracing.CONSUMERS[self._engine] = self.config.client.client_id
        self._deserializer = build_record_deserializer(self.config.functions)
        self._check_process = ProcessCheck()

    def call(self, name: str, function: Callable[[ConsumerEngine], T]) -> T:
        """Call a method that does not wait."""
        self._check_process(name)
        return function(self._engine)

    async def run(
        self, name: str, _timeout_s: float | None, function: Callable[[ConsumerEngine], Awaitable[T]]
    ) -> T:
        """Run a method that waits, by a limit of its own."""
        self._check_process(name)
        return await function(self._engine)

    def subscribe(self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None) -> None:
        """Share these topics with the group."""
        self._check_process("subscribe")
        self._engine.subscribe(topics, listener)

    async def poll(self, timeout_s: float, most: int | None) -> list[ConsumerRecord[K, V]]:
        """Return records, deserialized."""
        self._check_process("poll")
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
            self.go_back(find_first_offsets(records))
            raise
        self.go_back(result.first_offsets)
        if result.failure is not None and not result.records:
            raise result.failure
        return result.records

    async def poll_arrow(self, timeout_s: float, most: int | None) -> "RecordBatch":
        """Return records as an Arrow batch."""
        self._check_process("poll_arrow")
        refuse_columns(self._deserializer)
        return await self._engine.poll_arrow(int(timeout_s * 1000), most)

    @property
    def unread(self) -> deque[ConsumerRecord[K, V]]:
        """Records that an iteration has polled, and not yielded yet."""
        return self._engine.unread

    def give_back_unread(self) -> None:
        """Read records again that an iteration has polled and not yielded."""
        self.go_back(find_first_offsets(self._engine.unread))

    def go_back(self, first_offsets: Mapping[TopicPartition, int]) -> None:
        """Return records again that the caller has never had, so that no commit passes them [CLI-67]."""
        with suppress(ClientError):  # closed, or assigned to another member by now
            for at, offset in first_offsets.items():
                if at in self._engine.assignment:
                    self._engine.positions.go_back(at, offset)

    def wakeup(self) -> None:
        """End the wait of a poll."""
        self._check_process("wakeup")
        self._engine.wakeup()

    async def commit(self, offsets: Offsets | None, timeout_s: float | None) -> None:
        """Commit offsets for the group."""
        self._check_process("commit")
        commit = self._engine.commit(offsets, to_ms(timeout_s))
        tracer, config = tracing.tracer, self.config
        if tracer is not None:
            commit = tracer.trace_commit(config.client.client_id, config.group_id, commit)
        await commit

    def commit_soon(self, offsets: Offsets | None, on_done: CommitCallback | None) -> None:
        """Start a commit, and report its end."""
        self._check_process("commit_soon")
        task = self._engine.commit_soon(offsets)
        if on_done is not None:
            task.add_done_callback(partial(_report_commit, on_done))

    @property
    def is_closing(self) -> bool:
        """Whether `close` has begun."""
        return self._engine.is_closing

    async def close(self, timeout_s: float) -> None:
        """Leave the group, and close the connections. In a forked child it does nothing."""
        if self._check_process.is_forked:
            return
        await self._engine.close(int(timeout_s * 1000))

    def __repr__(self) -> str:
        group = "" if self.config.group_id is None else f" in {self.config.group_id!r}"
        return f"<Consumer {self.config.client.client_id!r}{group}>"


def to_ms(timeout_s: float | None) -> int | None:
    """Convert seconds to milliseconds; None, which stands for the setting's own limit, stays None."""
    return None if timeout_s is None else int(timeout_s * 1000)


def _report_commit(on_done: CommitCallback, task: "asyncio.Task[None]") -> None:
    try:
        on_done(asyncio.CancelledError() if task.cancelled() else task.exception())
    except BaseException as exc:
        if ends_program(exc):
            raise
        _log.exception("a callback of commit_soon failed")
