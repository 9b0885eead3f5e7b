"""What both coordinators rest on: queues, deadlines and lost partitions, with commands that mean nothing."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

from tests.support.loops import on_a_loop

from tallystick.broker.coordinator.runtime import (
    CommandQueue,
    CoordinatorRuntime,
    PendingCommand,
    PendingWrite,
    answer_all,
)
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.testing import FakeClock

TIMEOUT_MS = 1_000


class Partition:
    def when_durable(self, offset: Offset) -> None:
        return None

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]:
        return iter(())


class Counters:
    """Adds numbers to keys, one letter each: those before "n" are kept in partition 0, the others in 1.

    Adding is durable when a test says so; adding 0 needs no record; adding a negative number breaks an
    invariant.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.totals: dict[str, int] = {}
        self.syncs: deque[asyncio.Future[None]] = deque()
        self.idle: list[str] = []
        self.runtime: CoordinatorRuntime[str, int, int] = CoordinatorRuntime(
            "__counters",
            self,
            self,
            self.clock,
            logging.getLogger("tallystick.test"),
            tick=lambda: self.clock.monotonic_ms() + TIMEOUT_MS,
            answer_timeout_ms=lambda: TIMEOUT_MS,
        )

    def ask(self, key: str, number: int) -> "asyncio.Future[int | Reject]":
        pending: PendingCommand[int, int] = PendingCommand(number, asyncio.get_running_loop().create_future())
        return self.runtime.submit(key, pending)

    async def sync(self, failure: Exception | None = None) -> None:
        future = self.syncs.popleft()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
        await asyncio.sleep(0)

    def list_partitions(self) -> Sequence[Partition]:
        return (Partition(), Partition())

    def partition_for(self, key: str) -> int:
        return int(key >= "n")

    def decide(self, key: str, group: Sequence[PendingCommand[int, int]]) -> PendingWrite | None:
        numbers = [pending.command for pending in group]
        if min(numbers) < 0:
            raise ValueError("a negative number")
        apply = partial(self._apply, key, group)
        if sum(numbers) == 0:
            apply()
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.syncs.append(future)
        return PendingWrite(future, apply)

    def _apply(self, key: str, group: Sequence[PendingCommand[int, int]]) -> None:
        self.totals[key] = self.totals.get(key, 0) + sum(pending.command for pending in group)
        answer_all(group, self.totals[key])

    def enqueue_or_answer(
        self, key: str, pending: PendingCommand[int, int], queue: CommandQueue[int, int]
    ) -> None:
        self.runtime.enqueue(queue.waiting, pending)

    def take_next_commands(
        self, key: str, queue: deque[PendingCommand[int, int]]
    ) -> Sequence[PendingCommand[int, int]]:
        first = queue.popleft()
        return () if first.future.done() else (first,)

    def on_idle(self, key: str) -> None:
        self.idle.append(key)

    def build_timeout_answer(self, command: int) -> Reject:
        return self.runtime.refusals.timed_out

    def is_lost(self, index: int) -> bool:
        return self.runtime.reloader.is_lost(index)

    def unload(self, index: int) -> None:
        for key in [key for key in self.totals if self.partition_for(key) == index]:
            del self.totals[key]

    async def load(self, index: int) -> None:
        async for _ in self.runtime.read_log(index, 1024):
            pass

    def on_loaded(self, index: int) -> None:
        pass


@on_a_loop
async def test_a_command_that_needs_no_record_is_answered_at_once() -> None:
    counters = Counters()
    assert counters.ask("a", 0).result() == 0
    assert not counters.runtime.command_queues


@on_a_loop
async def test_commands_of_a_key_are_decided_in_order_each_on_what_is_durable() -> None:
    counters = Counters()
    first, second, other = counters.ask("a", 1), counters.ask("a", 2), counters.ask("b", 5)
    assert len(counters.syncs) == 2, "the second command of a key waits, another key does not"
    await counters.sync()
    assert first.result() == 1
    assert not second.done()
    await counters.sync()
    await counters.sync()
    assert (second.result(), other.result()) == (3, 5)
    assert counters.idle == ["b", "a"]


@on_a_loop
async def test_a_command_whose_time_passes_while_it_queues_never_happens() -> None:
    counters = Counters()
    written, queued = counters.ask("a", 1), counters.ask("a", 2)
    counters.clock.advance(TIMEOUT_MS)
    counters.runtime.answer_overdue(counters.runtime.timer.monotonic_ms())
    assert await written == await queued == counters.runtime.refusals.timed_out
    await counters.sync()
    assert counters.totals == {"a": 1}, "what was written happens, though its caller waits no longer"
    assert not counters.syncs


@on_a_loop
async def test_a_failed_write_loses_its_partition_and_no_other() -> None:
    counters = Counters()
    lost, queued, neighbour, other = (counters.ask(key, 1) for key in ("a", "a", "b", "z"))
    await counters.sync(OSError("the disk is broken"))
    refused = counters.runtime.refusals.lost
    assert await lost == await queued == await neighbour == refused
    assert await counters.ask("c", 0) == refused
    await counters.sync()  # of "b": nobody waits for it any more
    await counters.sync()
    assert await other == 1
    assert counters.totals == {"z": 1}


@on_a_loop
async def test_a_broken_invariant_loses_its_partition_and_no_other() -> None:
    counters = Counters()
    assert await counters.ask("a", -1) == counters.runtime.refusals.lost
    assert await counters.ask("z", 0) == 0
    counters.clock.advance(1_000)
    counters.runtime.reloader.run_due(counters.clock.monotonic_ms())
    assert await counters.ask("a", 0) == counters.runtime.refusals.loading
    for _ in range(3):
        await asyncio.sleep(0)
    assert await counters.ask("a", 0) == 0


@on_a_loop
async def test_what_is_asked_for_during_a_pause_is_decided_after_it() -> None:
    counters = Counters()
    before = counters.ask("a", 1)
    syncing = asyncio.ensure_future(counters.sync())
    async with counters.runtime.pause_commands(list) as is_settled:
        assert is_settled
        assert before.result() == 1
        during = counters.ask("b", 0)
        assert not during.done()
    assert during.result() == 0
    await syncing


@on_a_loop
async def test_a_stopped_coordinator_refuses_what_queues_and_finishes_what_is_written() -> None:
    counters = Counters()
    written, queued = counters.ask("a", 1), counters.ask("a", 2)
    stopping = asyncio.ensure_future(counters.runtime.stop())
    await asyncio.sleep(0)
    assert await queued == counters.runtime.refusals.stopped
    await counters.sync()
    await stopping
    assert await written == 1
    assert await counters.ask("z", 0) == counters.runtime.refusals.stopped
