"""The path of a command through a coordinator: decide, append, durable, apply, reply.

Source: Kafka's CoordinatorRuntime, with two differences. State changes when its records are durable, not
before, so that nothing has to be reverted; therefore the commands of one key wait for one another in a queue,
from the decision until its records are durable and applied. And where appending is all that `flush.policy`
promises, a command completes before `submit` returns: no queue is made and no task is created (ADR 0017).

Every wait is bounded: a command that is stuck on a hanging disk, or queued behind one, is answered after the
coordinator's answer timeout. If its records are in the log by then, it still takes effect.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tallystick.broker.coordinator.reload import CoordinatorRefusals, PartitionReloader, find_last_offset
from tallystick.broker.coordinator.timer import CoordinatorTimer
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset

KeyT = TypeVar("KeyT", bound=Hashable)
CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")
_KeyT = TypeVar("_KeyT", bound=Hashable, contravariant=True)


@dataclass(slots=True, eq=False)
class PendingCommand(Generic[CommandT, AnswerT]):
    """A command, and the future that its caller waits for; without a requester it is the broker's own."""

    command: CommandT
    future: "asyncio.Future[AnswerT | Reject]"
    has_deadline: bool = False
    requester: RequestContext | None = None


@dataclass(slots=True, eq=False)
class PendingWrite:
    """Records that were appended and are not durable yet.

    durable_future  done when the records are durable
    apply           applies the records, and answers the callers
    """

    durable_future: "asyncio.Future[Any]"
    apply: Callable[[], None]


@dataclass(slots=True, eq=False)
class CommandQueue(Generic[CommandT, AnswerT]):
    """A key while a write is becoming durable.

    in_flight  the commands that were written
    waiting    the commands that are decided after them
    """

    in_flight: Sequence[PendingCommand[CommandT, AnswerT]]
    durable_future: "asyncio.Future[Any]"
    waiting: deque[PendingCommand[CommandT, AnswerT]] = field(default_factory=deque)


class LogPartition(Protocol):
    """The parts of a coordinator topic's partition that the runtime uses."""

    def when_durable(self, offset: Offset) -> "asyncio.Future[None] | None": ...

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]: ...


class LogTopic(Protocol):
    """The coordinator's own topic."""

    def list_partitions(self) -> Sequence[LogPartition]: ...


class CoordinatorLogic(Protocol[_KeyT, CommandT, AnswerT]):
    """State and decisions of one kind of coordinator."""

    def partition_for(self, key: _KeyT) -> int:
        """Return the partition of the coordinator's topic that keeps the key."""
        ...

    def decide(self, key: _KeyT, group: Sequence[PendingCommand[CommandT, AnswerT]]) -> PendingWrite | None:
        """Decide commands that are carried out together, and append their records.

        Returns:
            The write to wait for; None where the commands are answered already, or wait elsewhere.

        Raises:
            Exception: an append's outcome is unknown, or an invariant is broken; the partition is lost then.
        """
        ...

    def enqueue_or_answer(
        self,
        key: _KeyT,
        pending: PendingCommand[CommandT, AnswerT],
        command_queue: CommandQueue[CommandT, AnswerT],
    ) -> None:
        """Accept a command that arrives while a write of its key is becoming durable."""
        ...

    def take_next_commands(
        self, key: _KeyT, queue: deque[PendingCommand[CommandT, AnswerT]]
    ) -> Sequence[PendingCommand[CommandT, AnswerT]]:
        """Dequeue the commands to decide next; none if the first ones were answered meanwhile."""
        ...

    def on_idle(self, key: _KeyT) -> None:
        """Record that the key no longer has a write in flight."""
        ...

    def build_timeout_answer(self, command: CommandT) -> AnswerT | Reject:
        """Return the answer to a command whose deadline has passed."""
        ...

    def is_lost(self, index: int) -> bool:
        """Return whether the state of the partition must not be used for decisions."""
        ...

    def unload(self, index: int) -> None:
        """Drop the state of a partition that was lost, and answer every caller that waits for it."""
        ...

    async def load(self, index: int) -> None:
        """Read the partition's log from its start, and load its state."""
        ...

    def on_loaded(self, index: int) -> None:
        """Continue the work that the log of a partition just read shows as unfinished."""
        ...


class CoordinatorRuntime(Generic[KeyT, CommandT, AnswerT]):
    """Queues, deadlines and partitions of one coordinator. Lives on the loop."""

    def __init__(
        self,
        name: str,
        topic: LogTopic,
        logic: CoordinatorLogic[KeyT, CommandT, AnswerT],
        clock: Clock,
        log: logging.Logger,
        *,
        tick: Callable[[], int],
        answer_timeout_ms: Callable[[], int],
    ) -> None:
        """Create the runtime of one coordinator.

        Args:
            name: name of the coordinator's topic.
            tick: runs everything that is due; returns the monotonic time of the next deadline.
            answer_timeout_ms: how long a caller waits at most; read at each use.
        """
        self.refusals = CoordinatorRefusals.for_topic(name)
        self.timer = CoordinatorTimer(clock, tick, log)
        self.reloader = PartitionReloader(name, self, self.timer, log)
        self.command_queues: dict[KeyT, CommandQueue[CommandT, AnswerT]] = {}
        self.is_stopped = False
        self._topic = topic
        self._logic = logic
        self._answer_timeout_ms = answer_timeout_ms
        self._deadlines: deque[tuple[int, PendingCommand[CommandT, AnswerT]]] = deque()
        self._paused_commands: deque[tuple[KeyT, PendingCommand[CommandT, AnswerT]]] | None = None

    # ---- life

    def begin_shutdown(self) -> None:
        """Refuse new commands and those that wait undecided: the broker is stopping."""
        self.is_stopped = True
        self.timer.close()
        for command_queue in self.command_queues.values():
            answer_all(command_queue.waiting, self.refusals.stopped)
        for _, pending in self._paused_commands or ():
            answer(pending, self.refusals.stopped)

    async def stop(self) -> None:
        """Finish the appends in flight, for as long as a caller would wait; refuse the rest."""
        self.begin_shutdown()
        self.timer.cancel()
        await self.reloader.stop()
        futures = [command_queue.durable_future for command_queue in self.command_queues.values()]
        if futures:
            await asyncio.wait(futures, timeout=self._answer_timeout_ms() / 1_000)
        for command_queue in self.command_queues.values():
            answer_all((*command_queue.in_flight, *command_queue.waiting), self.refusals.stopped)

    # ---- partitions

    def find_refusal(self, key: KeyT) -> Reject | None:
        """Return why the key cannot be served now; None where it can."""
        if self.is_stopped:
            return self.refusals.stopped
        return self.reloader.find_refusal(self._logic.partition_for(key)) if self.reloader else None

    async def load(self, index: int) -> None:
        """See `CoordinatorLogic`."""
        await self._logic.load(index)

    def on_loaded(self, index: int) -> None:
        """See `CoordinatorLogic`."""
        self._logic.on_loaded(index)

    def wake_at(self, at_ms: int) -> None:
        """Call `tick` at this monotonic time or before."""
        self.timer.arm(at_ms)

    async def read_log(self, index: int, chunk_bytes: int) -> AsyncIterator[bytes]:
        """Yield a partition's log in pieces of whole batches; when it ends, all of them are durable."""
        partition, end = self._topic.list_partitions()[index], None
        for chunk in partition.iter_batches(chunk_bytes):
            yield chunk
            end = find_last_offset(chunk)
            await asyncio.sleep(0)
        durable = partition.when_durable(end) if end is not None and self.reloader.is_lost(index) else None
        if durable is not None:
            await durable

    def fail_partition(self, index: int, cause: BaseException) -> None:
        """Drop a partition's state and have its log read back.

        Whether an append is durable is unknown, or an invariant is broken: nothing more is decided on this
        state, and no caller waits for it any longer.
        """
        self._logic.unload(index)
        for key in [key for key in self.command_queues if self._logic.partition_for(key) == index]:
            command_queue = self.command_queues.pop(key)
            answer_all((*command_queue.in_flight, *command_queue.waiting), self.refusals.lost)
        self.reloader.mark_lost(index, cause)

    def fail_partition_once(self, index: int, cause: BaseException) -> None:
        """Do as `fail_partition`, unless the partition is lost already."""
        if not self.reloader.is_lost(index):
            self.fail_partition(index, cause)

    # ---- commands

    def submit(
        self, key: KeyT, pending: PendingCommand[CommandT, AnswerT]
    ) -> "asyncio.Future[AnswerT | Reject]":
        """Run a client's command. The future is done already where nothing had to be waited for."""
        refusal = self.find_refusal(key)
        if refusal is not None:
            answer(pending, refusal)
        else:
            self.submit_internal(key, pending)
        return pending.future

    def submit_internal(self, key: KeyT, pending: PendingCommand[CommandT, AnswerT]) -> None:
        """Run a command without asking `find_refusal`, as is done for the coordinator's own."""
        if self._paused_commands is not None:
            self._paused_commands.append((key, pending))
            self.set_deadline(pending)
        else:
            self.submit_unpaused(key, pending)

    def submit_unpaused(self, key: KeyT, pending: PendingCommand[CommandT, AnswerT]) -> None:
        """Do as `submit_internal`, even while commands are held up."""
        command_queue = self.command_queues.get(key)
        if command_queue is None:
            self.decide_commands(key, (pending,))
        else:
            self._logic.enqueue_or_answer(key, pending, command_queue)

    def decide_commands(self, key: KeyT, group: Sequence[PendingCommand[CommandT, AnswerT]]) -> None:
        """Decide a group once. A broken invariant costs the partition it was found in, and no other."""
        logic = self._logic
        if self.reloader and logic.is_lost(logic.partition_for(key)):
            answer_all(group, self.refusals.lost)  # the partition was lost while the commands waited
            return
        try:
            write = logic.decide(key, group)
        except Exception as exc:
            self.fail_partition(logic.partition_for(key), exc)
            answer_all(group, self.refusals.lost)
            return
        if write is not None:
            # [TXN-1]: nothing is applied or answered before the records are durable.
            command_queue = self.command_queues[key] = CommandQueue(group, write.durable_future)
            for pending in group:
                self.set_deadline(pending)
            write.durable_future.add_done_callback(partial(self._on_durable, key, command_queue, write))

    def decide_queued(self, key: KeyT, queue: deque[PendingCommand[CommandT, AnswerT]]) -> None:
        """Decide queued commands in order, until one of them waits for durability."""
        while queue:
            command_queue = self.command_queues.get(key)
            if command_queue is not None:
                command_queue.waiting.extend(queue)
                return
            group = self._logic.take_next_commands(key, queue)
            if group:
                self.decide_commands(key, group)

    def _on_durable(
        self,
        key: KeyT,
        command_queue: CommandQueue[CommandT, AnswerT],
        write: PendingWrite,
        durable: "asyncio.Future[Any]",
    ) -> None:
        if self.command_queues.get(key) is not command_queue:
            if not durable.cancelled():
                durable.exception()  # the partition was lost meanwhile; its callers are answered
            return
        try:
            durable.result()
            del self.command_queues[key]
            write.apply()
        except (Exception, asyncio.CancelledError) as exc:
            self.fail_partition(self._logic.partition_for(key), exc)
            answer_all((*command_queue.in_flight, *command_queue.waiting), self.refusals.lost)
            return
        self.decide_queued(key, command_queue.waiting)
        if key not in self.command_queues:
            self._logic.on_idle(key)

    @asynccontextmanager
    async def pause_commands(
        self, list_unfinished: Callable[[], Sequence["asyncio.Future[Any]"]]
    ) -> AsyncIterator[bool]:
        """Hold up new commands; on entry, all pending ones are durable and applied.

        For a change of the rules that every decision rests on. One at a time.

        Args:
            list_unfinished: returns further futures that must be done before nothing is pending.

        Yields:
            Whether everything settled within the answer timeout.
        """
        self._paused_commands = deque()
        try:
            yield await self._wait_for_writes(list_unfinished)
        finally:
            paused, self._paused_commands = self._paused_commands, None
            for key, pending in paused:
                if not pending.future.done():
                    self.submit_unpaused(key, pending)

    async def _wait_for_writes(self, list_unfinished: Callable[[], Sequence["asyncio.Future[Any]"]]) -> bool:
        try:
            async with asyncio.timeout(self._answer_timeout_ms() / 1_000):
                while pending := [
                    *(command_queue.durable_future for command_queue in self.command_queues.values()),
                    *list_unfinished(),
                ]:
                    await asyncio.wait(pending)
        except TimeoutError:
            return False
        return True

    # ---- time

    def enqueue(
        self, queue: deque[PendingCommand[CommandT, AnswerT]], pending: PendingCommand[CommandT, AnswerT]
    ) -> None:
        """Queue a command, for a bounded time; answered commands at the head leave the queue."""
        while queue and queue[0].future.done():
            queue.popleft()
        queue.append(pending)
        self.set_deadline(pending)

    def set_deadline(self, pending: PendingCommand[CommandT, AnswerT]) -> None:
        """Set a deadline for the command's answer, unless it has one."""
        if pending.has_deadline:
            return
        deadlines = self._deadlines
        while deadlines and deadlines[0][1].future.done():
            deadlines.popleft()
        pending.has_deadline = True
        at_ms = self.timer.monotonic_ms() + self._answer_timeout_ms()
        deadlines.append((at_ms, pending))
        self.timer.arm(at_ms)

    def answer_overdue(self, now_ms: int) -> int | None:
        """Answer the commands whose deadline has passed.

        A command that is being appended may still take effect; a queued one will not.

        Returns:
            Monotonic milliseconds of the next deadline; None if there is none.
        """
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, pending = deadlines.popleft()
            if not pending.future.done():
                answer(pending, self._logic.build_timeout_answer(pending.command))
        return deadlines[0][0] if deadlines else None


def answer(pending: PendingCommand[Any, AnswerT], result: AnswerT | Reject) -> None:
    """Answer a command, unless it has been answered: its deadline may have passed."""
    if not pending.future.done():
        pending.future.set_result(result)


def answer_all(group: Iterable[PendingCommand[Any, AnswerT]], result: AnswerT | Reject) -> None:
    """Answer several commands alike."""
    for pending in group:
        if not pending.future.done():
            pending.future.set_result(result)
