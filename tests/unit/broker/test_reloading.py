"""Partitions that a coordinator reads back: when, how often, and what its clients are told meanwhile."""

import asyncio
import logging

import pytest
from tests.support.loops import on_a_loop

from tallystick.broker.coordinator.reload import (
    BACKOFF_MAX_MS,
    BACKOFF_MS,
    HEALTHY_AFTER_MS,
    PartitionReloader,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.storage.disk.fs import LogOffline
from tallystick.testing import FakeClock


class Coordinator:
    """Reads when it is told to; what it does is in `done`."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.done: list[str] = []
        self.failure: Exception | None = None
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.wakes: list[int] = []
        self.reloads = PartitionReloader("__topic", self, self.clock, logging.getLogger("tallystick.test"))

    async def load(self, index: int) -> None:
        self.done.append(f"read {index}")
        await self.may_read.wait()
        if self.failure is not None:
            raise self.failure

    def on_loaded(self, index: int) -> None:
        self.done.append(f"resume {index}")

    def wake_at(self, at_ms: int) -> None:
        self.wakes.append(at_ms)

    async def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.reloads.run_due(self.clock.monotonic_ms())
        for _ in range(5):
            await asyncio.sleep(0)

    def code(self, index: int) -> ErrorCode | None:
        refusal = self.reloads.find_refusal(index)
        return None if refusal is None else refusal.code


@on_a_loop
async def test_a_lost_partition_is_read_back_after_a_moment_and_no_other() -> None:
    it = Coordinator()
    it.reloads.mark_lost(3, OSError("eio"))
    assert (it.code(3), it.code(4)) == (ErrorCode.NOT_COORDINATOR, None)
    assert it.wakes == [BACKOFF_MS]
    await it.pass_time(BACKOFF_MS - 1)
    assert not it.done
    it.may_read.clear()
    await it.pass_time(1)
    assert (it.done, it.code(3)) == (["read 3"], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    it.may_read.set()
    await it.pass_time(0)
    assert (it.done, it.code(3), it.reloads.reload_count) == (["read 3", "resume 3"], None, 1)
    assert not it.reloads


@on_a_loop
async def test_what_cannot_be_read_is_tried_again_later_each_time_and_for_ever() -> None:
    it = Coordinator()
    it.failure = ValueError("not a record")
    it.reloads.mark_lost(0, OSError("eio"))
    waits = []
    for _ in range(12):
        at_ms = it.wakes[-1]
        waits.append(at_ms - it.clock.monotonic_ms())
        await it.pass_time(waits[-1])
    assert waits[:3] == [BACKOFF_MS, 2 * BACKOFF_MS, 4 * BACKOFF_MS]
    assert waits[-1] == BACKOFF_MAX_MS
    assert it.code(0) is ErrorCode.NOT_COORDINATOR
    assert not it.reloads.is_loading
    it.failure = None
    await it.pass_time(BACKOFF_MAX_MS)
    assert it.code(0) is None


@on_a_loop
@pytest.mark.parametrize(
    ("served_ms", "wait_ms"), [(HEALTHY_AFTER_MS - 1, 2 * BACKOFF_MS), (HEALTHY_AFTER_MS, BACKOFF_MS)]
)
async def test_one_that_is_lost_again_at_once_waits_for_longer(served_ms: int, wait_ms: int) -> None:
    it = Coordinator()
    it.reloads.mark_lost(0, OSError("eio"))
    await it.pass_time(BACKOFF_MS)
    it.clock.advance(served_ms)
    it.reloads.mark_lost(0, OSError("eio"))
    assert it.wakes[-1] - it.clock.monotonic_ms() == wait_ms
    assert it.reloads.loss_counts[0] == 2


@on_a_loop
async def test_a_log_that_is_offline_is_not_read_again() -> None:
    """[LOG-4] What was written is in no known state, and the process ends."""
    it = Coordinator()
    it.reloads.mark_lost(0, LogOffline("/data", "a sync failed"))
    await it.pass_time(10 * BACKOFF_MAX_MS)
    assert (it.done, it.wakes, it.code(0)) == ([], [], ErrorCode.NOT_COORDINATOR)


@on_a_loop
async def test_what_is_lost_while_it_is_read_does_not_serve() -> None:
    it = Coordinator()
    it.reloads.mark_lost(0, OSError("eio"))
    it.may_read.clear()
    await it.pass_time(BACKOFF_MS)
    it.reloads.mark_lost(0, OSError("eio, again"))
    it.may_read.set()
    await it.pass_time(0)
    assert (it.done, it.code(0)) == (["read 0"], ErrorCode.NOT_COORDINATOR)
    await it.pass_time(2 * BACKOFF_MS)
    assert it.done == ["read 0", "read 0", "resume 0"]


@on_a_loop
async def test_stopping_ends_what_is_being_read() -> None:
    it = Coordinator()
    it.reloads.mark_lost(0, OSError("eio"))
    it.may_read.clear()
    await it.pass_time(BACKOFF_MS)
    await it.reloads.stop()
    await it.pass_time(BACKOFF_MAX_MS)
    assert it.done == ["read 0"]
