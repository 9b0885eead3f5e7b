"""Deadlines count the time in which the loop ran: a process that was stopped finds nobody dead for it."""

import logging

from tests.support.groups import G
from tests.support.groups import World as GroupWorld
from tests.support.loops import on_a_loop
from tests.support.txn_coordinator import World as TxnWorld
from tests.support.txn_coordinator import commit

from tallystick.broker.coordinator.timer import (
    SUSPENSION_GRACE_MS,
    SUSPENSION_MIN_MS,
    CoordinatorTimer,
)
from tallystick.broker.group.machine.commands import DONE, Heartbeat
from tallystick.broker.group.machine.model import GroupState
from tallystick.broker.txn.machine.commands import EndTxnResult
from tallystick.broker.txn.sweeper import SCANNED_PER_TICK
from tallystick.kernel.ids import TransactionalId
from tallystick.testing import FakeClock

DAY_MS = 86_400_000


class Timed:
    """A timer whose tick asks for the next one after a second."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ticks = 0
        self.timer = CoordinatorTimer(self.clock, self.tick, logging.getLogger("tallystick.test"))

    def tick(self) -> int:
        self.ticks += 1
        return self.timer.monotonic_ms() + 1_000

    def fire(self, after_ms: int) -> int:
        self.clock.advance(after_ms)
        self.timer.fire()
        return self.ticks


@on_a_loop
async def test_a_timer_that_is_late_adds_that_to_every_deadline_and_listens_first() -> None:
    it = Timed()
    it.timer.arm(1_000)
    assert it.fire(1_000 + SUSPENSION_MIN_MS) == 1
    at_ms = it.timer.monotonic_ms()
    assert at_ms == 1_000 + SUSPENSION_MIN_MS, "merely busy"
    assert it.fire(1_000 + DAY_MS) == 1, "nothing is over before what has come is read"
    assert it.timer.monotonic_ms() == at_ms + 1_000
    it.timer.arm(0)  # whoever asks for less waits, too
    assert it.fire(SUSPENSION_GRACE_MS) == 2
    assert it.timer.now_ms() - 1_700_000_000_000 == 2_000 + SUSPENSION_MIN_MS + DAY_MS + SUSPENSION_GRACE_MS
    it.timer.cancel()


@on_a_loop
async def test_a_loop_that_is_always_late_still_finds_things_over() -> None:
    it = Timed()
    it.timer.arm(1_000)
    assert [it.fire(5_000) for _ in range(6)] == [0, 1, 1, 2, 2, 3]
    it.timer.cancel()


@on_a_loop
async def test_members_of_a_broker_that_was_stopped_for_longer_than_their_sessions_stay() -> None:
    async with GroupWorld() as world:
        joined = await world.member()
        await world.pass_time(1)
        world.clock.advance(60_000)
        world.coordinator._runtime.timer.fire()
        await world.settle()
        beat = Heartbeat(member_id=joined.member_id, generation=joined.generation)
        assert await world.coordinator.execute(G, beat) == DONE
        world.clock.advance(SUSPENSION_GRACE_MS)
        world.coordinator._runtime.timer.fire()
        await world.settle()
        assert world.group().state is GroupState.STABLE
        await world.pass_time(10_000)
        assert world.group().state is GroupState.EMPTY, "and who is silent goes, as ever"


@on_a_loop
async def test_a_decision_that_came_while_the_broker_was_stopped_is_heard_before_the_timeout() -> None:
    """The transaction's own time is the log's: it goes on, and is looked at when what has come is read."""
    async with TxnWorld() as world:
        who = await world.begin()
        world.clock.advance(DAY_MS)
        world.coordinator._runtime.timer.fire()
        assert isinstance(await world.ask(commit(who)), EndTxnResult)
        await world.settle()
        other = await world.begin()
        world.clock.advance(DAY_MS)
        world.coordinator._runtime.timer.fire()
        await world.pass_time(SUSPENSION_GRACE_MS + 10_000)
        assert not isinstance(await world.ask(commit(other)), EndTxnResult)


@on_a_loop
async def test_a_timer_that_is_armed_for_what_has_passed_is_not_late() -> None:
    it = Timed()
    it.clock.advance(DAY_MS)
    at_ms = it.timer.monotonic_ms()
    it.timer.arm(0)
    assert it.fire(0) == 1
    assert it.timer.monotonic_ms() == at_ms, "the loop ran all the time"
    it.timer.cancel()


@on_a_loop
async def test_a_sweep_that_goes_on_in_the_next_turn_does_not_move_deadlines() -> None:
    """More ids than are looked at in one turn; a machine that has been up for longer than the process."""
    world = TxnWorld()
    world.clock.advance(DAY_MS)
    async with world:
        for number in range(SCANNED_PER_TICK + 1):
            await world.init(TransactionalId(f"t{number}"))
        timer, interval_ms = world.coordinator._runtime.timer, world.settings.abort_timed_out_interval_ms
        for _ in range(interval_ms // SUSPENSION_MIN_MS):
            world.clock.advance(SUSPENSION_MIN_MS)
            timer.fire()
        timer.fire()
        assert timer.monotonic_ms() == DAY_MS + interval_ms
