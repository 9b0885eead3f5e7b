"""The path of a command through a coordinator: decide, append, durable, apply, reply.

Source: Kafka's CoordinatorRuntime, with two differences. State changes when its records are durable, not
before, so that nothing has to be reverted; therefore the commands of one key wait for one another in a lane,
from the decision until its records are durable and applied. And where appending is all that `flush.policy`
promises, a command completes before `submit` returns: no lane is taken and no task is created (ADR 0017).

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

from tallystick.broker.coordinator.reload import Refusals, Reloads, last_offset_of
from tallystick.broker.coordinator.serving_time import ServingTimer
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset

Key = TypeVar("Key", bound=Hashable)
Command = TypeVar("Command")
Answer = TypeVar("Answer")
_Key = TypeVar("_Key", bound=Hashable, contravariant=True)


@dataclass(slots=True, eq=False)
class Pending(Generic[Command, Answer]):
    """A command, and the future that its caller waits for."""

    command: Command
    future: "asyncio.Future[Answer | Reject]"
    has_deadline: bool = False


@dataclass(slots=True, eq=False)
class Write:
    """Records that were appended and are not durable yet.

    durable  done when the records are durable
    apply    applies the records, and answers the callers
    """

    durable: "asyncio.Future[Any]"
    apply: Callable[[], None]


@dataclass(slots=True, eq=False)
class Lane(Generic[Command, Answer]):
    """A key while a write is becoming durable.

    current  the commands that were written
    queue    the commands that are decided after them
    """

    current: Sequence[Pending[Command, Answer]]
    durable: "asyncio.Future[Any]"
    queue: deque[Pending[Command, Answer]] = field(default_factory=deque)


class LogPartition(Protocol):
    """The parts of a coordinator topic's partition that the runtime uses."""

    def durable(self, offset: Offset) -> "asyncio.Future[None] | None": ...

    def read_all(self, max_bytes: int) -> Iterator[bytes]: ...


class LogTopic(Protocol):
    """The coordinator's own topic."""

    def existing(self) -> Sequence[LogPartition]: ...


class CoordinatorLogic(Protocol[_Key, Command, Answer]):
    """State and decisions of one kind of coordinator."""

    def partition_of(self, key: _Key) -> int:
        """Return the partition of the coordinator's topic that keeps the key."""
        ...

    def decide(self, key: _Key, group: Sequence[Pending[Command, Answer]]) -> Write | None:
        """Decide commands that are carried out together, and append their records.

        Returns:
            The write to wait for; None where the commands are answered already, or wait elsewhere.

        Raises:
            Exception: an append's outcome is unknown, or an invariant is broken; the partition is lost then.
        """
        ...

    def meet(self, key: _Key, pending: Pending[Command, Answer], lane: Lane[Command, Answer]) -> None:
        """Take in a command that arrives while a write of its key is becoming durable."""
        ...

    def next_group(
        self, key: _Key, queue: deque[Pending[Command, Answer]]
    ) -> Sequence[Pending[Command, Answer]]:
        """Take the commands to decide next from the queue; none if the first ones were answered meanwhile."""
        ...

    def became_idle(self, key: _Key) -> None:
        """Note that no write of the key is in flight any more."""
        ...

    def overdue(self, command: Command) -> Answer | Reject:
        """Return the answer to a command whose deadline has passed."""
        ...

    def is_lost(self, index: int) -> bool:
        """Return whether the state of the partition must not be used for decisions."""
        ...

    def discard(self, index: int) -> None:
        """Drop the state of a partition that was lost, and answer every caller that waits for it."""
        ...

    async def read_back(self, index: int) -> None:
        """Read the partition's log from its start, and load its state."""
        ...

    def resume(self, index: int) -> None:
        """Continue the work that the log of a partition just read shows as unfinished."""
        ...


class CoordinatorRuntime(Generic[Key, Command, Answer]):
    """Lanes, deadlines and partitions of one coordinator. Lives on the loop."""

    def __init__(
        self,
        name: str,
        topic: LogTopic,
        logic: CoordinatorLogic[Key, Command, Answer],
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
        self.refusals = Refusals.of(name)
        self.timer = ServingTimer(clock, tick, log)
        self.partitions = Reloads(name, self, self.timer, log)
        self.lanes: dict[Key, Lane[Command, Answer]] = {}
        self.is_stopped = False
        self._topic = topic
        self._logic = logic
        self._answer_timeout_ms = answer_timeout_ms
        self._deadlines: deque[tuple[int, Pending[Command, Answer]]] = deque()
        self._paused: deque[tuple[Key, Pending[Command, Answer]]] | None = None

    # ---- life

    def release(self) -> None:
        """Refuse new commands and those that wait undecided: the broker is stopping."""
        self.is_stopped = True
        self.timer.close()
        for lane in self.lanes.values():
            answer_all(lane.queue, self.refusals.stopped)
        for _, pending in self._paused or ():
            answer(pending, self.refusals.stopped)

    async def stop(self) -> None:
        """Finish the appends in flight, for as long as a caller would wait; refuse the rest."""
        self.release()
        self.timer.cancel()
        await self.partitions.stop()
        writing = [lane.durable for lane in self.lanes.values()]
        if writing:
            await asyncio.wait(writing, timeout=self._answer_timeout_ms() / 1_000)
        for lane in self.lanes.values():
            answer_all((*lane.current, *lane.queue), self.refusals.stopped)

    # ---- partitions

    def refusal(self, key: Key) -> Reject | None:
        """Return why the key cannot be served now; None where it can."""
        if self.is_stopped:
            return self.refusals.stopped
        return self.partitions.refusal(self._logic.partition_of(key)) if self.partitions else None

    async def read_back(self, index: int) -> None:
        """See `CoordinatorLogic`."""
        await self._logic.read_back(index)

    def resume(self, index: int) -> None:
        """See `CoordinatorLogic`."""
        self._logic.resume(index)

    def wake_at(self, at_ms: int) -> None:
        """Call `tick` at this monotonic time or before."""
        self.timer.arm(at_ms)

    async def replay(self, index: int, chunk_bytes: int) -> AsyncIterator[bytes]:
        """Yield a partition's log in pieces of whole batches; when it ends, all of them are durable."""
        partition, end = self._topic.existing()[index], None
        for piece in partition.read_all(chunk_bytes):
            yield piece
            end = last_offset_of(piece)
            await asyncio.sleep(0)
        durable = partition.durable(end) if end is not None and self.partitions.is_lost(index) else None
        if durable is not None:
            await durable

    def lose(self, index: int, cause: BaseException) -> None:
        """Drop a partition's state and have its log read back.

        Whether an append is durable is unknown, or an invariant is broken: nothing more is decided on this
        state, and no caller waits for it any longer.
        """
        self._logic.discard(index)
        for key in [key for key in self.lanes if self._logic.partition_of(key) == index]:
            lane = self.lanes.pop(key)
            answer_all((*lane.current, *lane.queue), self.refusals.lost)
        self.partitions.lose(index, cause)

    # ---- commands

    def submit(self, key: Key, pending: Pending[Command, Answer]) -> "asyncio.Future[Answer | Reject]":
        """Run a client's command. The future is done already where nothing had to be waited for."""
        refusal = self.refusal(key)
        if refusal is not None:
            answer(pending, refusal)
        else:
            self.take_in(key, pending)
        return pending.future

    def take_in(self, key: Key, pending: Pending[Command, Answer]) -> None:
        """Run a command without asking `refusal`, as is done for the coordinator's own."""
        if self._paused is not None:
            self._paused.append((key, pending))
            self.bound(pending)
        else:
            self.admit(key, pending)

    def admit(self, key: Key, pending: Pending[Command, Answer]) -> None:
        """Do as `take_in`, even while commands are held up."""
        lane = self.lanes.get(key)
        if lane is None:
            self.run(key, (pending,))
        else:
            self._logic.meet(key, pending, lane)

    def run(self, key: Key, group: Sequence[Pending[Command, Answer]]) -> None:
        """Decide a group once. A broken invariant costs the partition it was found in, and no other."""
        logic = self._logic
        if self.partitions and logic.is_lost(logic.partition_of(key)):
            answer_all(group, self.refusals.lost)  # the partition was lost while the group waited
            return
        try:
            write = logic.decide(key, group)
        except Exception as exc:
            self.lose(logic.partition_of(key), exc)
            answer_all(group, self.refusals.lost)
            return
        if write is not None:
            lane = self.lanes[key] = Lane(group, write.durable)
            for pending in group:
                self.bound(pending)
            write.durable.add_done_callback(partial(self._on_durable, key, lane, write))

    def drain(self, key: Key, queue: deque[Pending[Command, Answer]]) -> None:
        """Decide queued commands in order, until one of them takes the lane."""
        while queue:
            lane = self.lanes.get(key)
            if lane is not None:
                lane.queue.extend(queue)
                return
            group = self._logic.next_group(key, queue)
            if group:
                self.run(key, group)

    def _on_durable(
        self, key: Key, lane: Lane[Command, Answer], write: Write, durable: "asyncio.Future[Any]"
    ) -> None:
        if self.lanes.get(key) is not lane:
            if not durable.cancelled():
                durable.exception()  # the partition was lost meanwhile; its callers are answered
            return
        try:
            durable.result()
            del self.lanes[key]
            write.apply()
        except (Exception, asyncio.CancelledError) as exc:
            self.lose(self._logic.partition_of(key), exc)
            answer_all((*lane.current, *lane.queue), self.refusals.lost)
            return
        self.drain(key, lane.queue)
        if key not in self.lanes:
            self._logic.became_idle(key)

    @asynccontextmanager
    async def paused(self, waiting: Callable[[], Sequence["asyncio.Future[Any]"]]) -> AsyncIterator[bool]:
        """Hold up new commands; on entry, all pending ones are durable and applied.

        For a change of the rules that every decision rests on. One at a time.

        Args:
            waiting: further futures that must be done before nothing is pending.

        Yields:
            Whether everything settled within the answer timeout.
        """
        self._paused = deque()
        try:
            yield await self._settled(waiting)
        finally:
            held, self._paused = self._paused, None
            for key, pending in held:
                if not pending.future.done():
                    self.admit(key, pending)

    async def _settled(self, waiting: Callable[[], Sequence["asyncio.Future[Any]"]]) -> bool:
        try:
            async with asyncio.timeout(self._answer_timeout_ms() / 1_000):
                while pending := [*(lane.durable for lane in self.lanes.values()), *waiting()]:
                    await asyncio.wait(pending)
        except TimeoutError:
            return False
        return True

    # ---- time

    def enqueue(self, queue: deque[Pending[Command, Answer]], pending: Pending[Command, Answer]) -> None:
        """Queue a command, for a bounded time; answered commands at the head leave the queue."""
        while queue and queue[0].future.done():
            queue.popleft()
        queue.append(pending)
        self.bound(pending)

    def bound(self, pending: Pending[Command, Answer]) -> None:
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
                answer(pending, self._logic.overdue(pending.command))
        return deadlines[0][0] if deadlines else None


def answer(pending: Pending[Any, Answer], said: Answer | Reject) -> None:
    """Answer a command, unless it has been answered: its deadline may have passed."""
    if not pending.future.done():
        pending.future.set_result(said)


def answer_all(group: Iterable[Pending[Any, Answer]], said: Answer | Reject) -> None:
    """Answer several commands alike."""
    for pending in group:
        answer(pending, said)
