"""One transaction of each kind, the power lost after every effect of the disk; then recovered and checked.

Nothing is sampled: each scenario runs once to count its effects, then once for each of them. Clients repeat
what got no answer, as real ones do; a client that prepared a transaction may find out from its database
alone how it ended. What has to hold afterwards is in `harness.sim.checkers`.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import pytest
from tests.support.effort import LONG

from harness.memory_fs import SurvivingChanges
from harness.sim.actors.clients import ClientProfile, SimClientFenced
from harness.sim.actors.dual_write import recover_dual_write
from harness.sim.disk_image import PARTITIONS
from harness.sim.faults import FaultPlan, PowerLoss
from harness.sim.simulation import Simulation

KEEPS: tuple[SurvivingChanges, ...] = ("nothing", "prefix", "everything", "unordered")
# The client of an id in the prepared directory whose last epoch is one away.
SPENT = "spent-1"

Script = Callable[[Simulation], Coroutine[object, object, None]]


@dataclass(frozen=True)
class Scenario:
    """`reported_outcome` is how each transaction ends, in order, crash or not; None.

    Its client never hears of it.
    """

    script: Script
    kind: ClientProfile
    told: tuple[bool | None, ...]
    owner: str = "plain-a"


async def plain(world: Simulation) -> None:
    producer = world.producer("plain-a")
    await producer.init()
    for commit in (True, False, True):
        producer.begin()
        await producer.send(PARTITIONS, 2)
        await producer.send(PARTITIONS[:1], 1)
        await producer.end(commit=commit)


async def with_offsets(world: Simulation) -> None:
    producer = world.producer("plain-a")
    await producer.init()
    for offset, commit in enumerate((True, False, True)):
        producer.begin()
        await producer.send(PARTITIONS[1:], 1)
        await producer.send_offset("group-plain-a", PARTITIONS[0], offset)
        await producer.end(commit=commit)


async def two_phase(world: Simulation) -> None:
    owner = world.workers[0].owner
    producer = world.producer(owner)
    generation = await recover_dual_write(producer, world.database, world.history)
    for commit in (True, True, False):
        txn = producer.begin()
        await producer.send(PARTITIONS, 1)
        if commit:
            world.database.commit(owner, generation, txn)
        await producer.end(commit=commit)


async def kept(world: Simulation) -> None:
    """Prepared and decided, then the client dies twice before the third incarnation finishes it."""
    owner = world.workers[0].owner
    for decided in (True, False, True):
        first = world.producer(owner)
        generation = await recover_dual_write(first, world.database, world.history)
        txn = first.begin()
        await first.send(PARTITIONS, 1)
        if decided:
            world.database.commit(owner, generation, txn)
        await world.producer(owner).init(keep=True)
        await world.producer(owner).init(keep=True)
    await recover_dual_write(world.producer(owner), world.database, world.history)


async def fence(world: Simulation) -> None:
    owner = world.workers[0].owner
    former = world.producer(owner)
    await former.init()
    former.begin()
    await former.send(PARTITIONS, 1)
    latter = world.producer(owner)
    await latter.init()
    with suppress(SimClientFenced):
        await former.end(commit=True)
    latter.begin()
    await latter.send(PARTITIONS[:2], 1)
    await latter.end(commit=True)


async def timeout(world: Simulation) -> None:
    producer = world.producer("plain-a")
    await producer.init()
    producer.begin()
    await producer.send(PARTITIONS, 1)
    await world.pass_time(2)
    with suppress(SimClientFenced):
        await producer.end(commit=True)


async def terminated(world: Simulation) -> None:
    """An administrator ends a transaction in doubt; its database had decided to commit it."""
    owner = world.workers[0].owner
    producer = world.producer(owner)
    generation = await recover_dual_write(producer, world.database, world.history)
    txn = producer.begin()
    await producer.send(PARTITIONS, 1)
    world.database.commit(owner, generation, txn)
    await world.producer(owner).init()


async def overflow(world: Simulation) -> None:
    producer = world.producer(SPENT)
    await producer.init()
    for _ in range(4):
        producer.begin()
        await producer.send(PARTITIONS[:2], 1)
        await producer.end(commit=True)


TWO_PHASE = ClientProfile(two_phase=True, keeps_prepared=True)
SCENARIOS = {
    "plain, version 2": Scenario(plain, ClientProfile(), (True, False, True)),
    "plain, version 1": Scenario(plain, ClientProfile(version=1), (True, False, True)),
    "with offsets, version 2": Scenario(with_offsets, ClientProfile(sends_offsets=True), (True, False, True)),
    "with offsets, version 1": Scenario(
        with_offsets, ClientProfile(version=1, sends_offsets=True), (True, False, True)
    ),
    "two-phase": Scenario(two_phase, TWO_PHASE, (True, True, False)),
    "kept": Scenario(kept, TWO_PHASE, (True, False, True)),
    "kept, both pairs overflow": Scenario(kept, TWO_PHASE, (True, False, True), SPENT),
    "kept without two-phase": Scenario(kept, ClientProfile(keeps_prepared=True), (True, False, True)),
    "epoch overflow": Scenario(overflow, ClientProfile(), (True,) * 4, SPENT),
    "fence": Scenario(fence, ClientProfile(), (None, True)),
    "fence on the last epoch": Scenario(fence, ClientProfile(), (None, True), SPENT),
    "timeout": Scenario(timeout, ClientProfile(timeout_ms=300), (None,)),
    "terminated": Scenario(terminated, ClientProfile(two_phase=True, keeps_prepared=False), (None,)),
}


def run(scenario: Scenario, loss: PowerLoss | None) -> Simulation:
    """The scenario, with at most one loss of power, recovered; raises what its clients raise."""
    faults = FaultPlan(power_losses=() if loss is None else (loss,), sync_delay_max_s=0.0)
    world = Simulation(0, faults=faults, kinds={scenario.owner: scenario.kind}, scenario=scenario.script)
    result = world.run()
    assert result.violations == [], loss
    told = tuple(txn.reported_outcome for txn in world.history.txns)
    assert told == scenario.told, loss
    return world


@cache
def effects_of(name: str) -> int:
    """How many effects the disk sees of a scenario without faults, its recovery included."""
    return run(SCENARIOS[name], None).supervisor.effects_of_first_life


@pytest.mark.gate(1)
@pytest.mark.parametrize("name", SCENARIOS)
def test_power_is_lost_after_each_effect(name: str) -> None:
    """[TXN-1] What was told before stays true, what was not is all or nothing, and nothing stays open."""
    effects = effects_of(name)
    assert effects > 20, "there is something to crash"
    for turn, effect in enumerate(range(0, effects, 1 if LONG else 2)):
        for keep in KEEPS if LONG else (KEEPS[turn % len(KEEPS)],):
            run(
                SCENARIOS[name],
                PowerLoss(after_effects=effect, after_s=0, keep=keep, keep_seed=effect, down_s=0.01),
            )
