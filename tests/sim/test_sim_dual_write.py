"""The dual write's recipe in the simulator: seeds, faults on both sides, and recipes that must be found out.

The session is the real one, the broker, too; clients, network, disk, clock and database are simulated. The
checkers of every simulation compare what the database committed with what is in the log.
"""

from random import Random
from typing import Any, get_args

import pytest
from tests.support.effort import LONG
from tests.support.sim_dual_write import (
    MakeSession,
    Server,
    SimSession,
    SimStore,
    SimTransaction,
    Writers,
)

from harness.sim.actors.clients import ClientProfile
from harness.sim.actors.product_clients import ProductProducer
from harness.sim.faults import FaultPlan, draw_faults
from harness.sim.simulation import Simulation, SimulationResult
from tallystick.dualwrite.aio.session import AsyncDualWriteSession
from tallystick.dualwrite.block.branch import ClusterBranch
from tallystick.dualwrite.block.life import WriterState
from tallystick.dualwrite.block.steps import Wait
from tallystick.dualwrite.errors import CommitUnknown, NotCommitted
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import ClusterSide, Finding
from tallystick.kernel.value import replace

SEEDS = 3_000 if LONG else 40
# A broken recipe is to be found within as many seeds.
SUSPECTS = 120
OWNERS = ("plain-a", "spent-1")

pytestmark = pytest.mark.slow


def faults_of(seed: int) -> FaultPlan:
    """Nothing that was acknowledged is lost, no id expires, and nobody but the owner ends a transaction."""
    return replace(
        draw_faults(Random(seed + (1 << 33))),
        flush_policy="ack",
        terminations_at_s=(),
        upgrade_at_s=None,
        fresh_disk=False,
        settings={},
    )


def run(
    seed: int, session: MakeSession = AsyncDualWriteSession, wait: Wait = "committed"
) -> tuple[SimulationResult, list[Finding]]:
    """One run; what recoveries found in it."""
    faults, found = faults_of(seed), list[Finding]()

    async def scenario(world: Simulation) -> None:
        server = Server(world, Random(seed + 5), faults.database_unknown)
        writers = [
            Writers(
                world, server, owner, min(faults.client_dies, 0.05), faults.client_lives_on, session, wait
            )
            for owner in OWNERS
        ]
        for each in [world.clients.create_task(one.run()) for one in writers]:
            await each
        found.extend(each for one in writers for each in one.found)

    kinds = {owner: ClientProfile(two_phase=True, keeps_prepared=True) for owner in OWNERS}
    return Simulation(seed, faults=faults, kinds=kinds, scenario=scenario).run(), found


@pytest.mark.gate(1)
@pytest.mark.parametrize("wait", get_args(Wait))
def test_seeds_agree(wait: Wait) -> None:
    """[DW-1, DW-2, DW-3, DW-5, DW-6, DW-7]"""
    runs = {seed: run(seed, wait=wait) for seed in range(SEEDS)}
    assert {seed: result.violations for seed, (result, _) in runs.items() if result.violations} == {}
    assert sum(result.committed for result, _ in runs.values()) > 2 * SEEDS, "the writers get somewhere"
    met = {each for _, found in runs.values() for each in found}
    assert met >= {Finding.IDLE, Finding.UNDECIDED, Finding.DECIDED, Finding.STALE, Finding.FINISHED}


# ---- recipes that are wrong


class RecordsLate(AsyncDualWriteSession[SimTransaction]):
    """Kafka's half is committed before the database has recorded anything."""

    async def commit(self, txn: SimTransaction, **options: Any) -> None:
        self.life.state = WriterState.UNSETTLED
        rows = await self._prepare(txn, None, "")
        await self._kafka.commit()
        await self._steps.run("commit database", "", txn.commit)
        for branch, row in rows:
            branch.row = row
        self.life.state = WriterState.READY


class ClaimsNothing(AsyncDualWriteSession[SimTransaction]):
    """It reads the row, and leaves it to its former owner, too."""

    def __init__(self, store: SimStore, *others: Any, **options: Any) -> None:
        super().__init__(store, *others, **options)

        async def read(transactional_id: str) -> StoredState:
            row = await store.read_state(transactional_id)
            return row or await SimStore.claim(store, transactional_id)

        store.claim = read  # type: ignore[method-assign]


class InitialisesFirst(AsyncDualWriteSession[SimTransaction]):
    """It asks the cluster what it holds when there is nothing left to see."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        clusters = self._clusters
        describe = clusters.describe

        async def initialise_and_describe(branch: ClusterBranch[ProductProducer]) -> ClusterSide:
            producer = self._factories.create_producer(branch.config)
            await self._steps.run("init", branch.id, producer.init_transactions, True)
            return await describe(branch)

        clusters.describe = initialise_and_describe  # type: ignore[method-assign]


class AbortsWhenNotKnown(AsyncDualWriteSession[SimTransaction]):
    """A COMMIT without an answer is taken for one that failed."""

    async def commit(self, txn: SimTransaction, *, wait_visible: bool = False) -> None:
        commit = txn.commit

        async def known() -> None:
            try:
                await commit()
            except CommitUnknown as exc:
                raise NotCommitted(exc) from exc

        txn.commit = known  # type: ignore[method-assign]
        await super().commit(txn, wait_visible=wait_visible)


@pytest.mark.gate(1)
@pytest.mark.parametrize("recipe", [RecordsLate, ClaimsNothing, InitialisesFirst, AbortsWhenNotKnown])
def test_a_broken_recipe_is_found_out(recipe: type[SimSession]) -> None:
    assert any(run(seed, recipe)[0].violations for seed in range(SUSPECTS))
