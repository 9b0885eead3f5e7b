"""The dual write's recipe in the simulator: seeds, faults on both sides, and recipes that must be found out.

The session is the real one, the broker, too; clients, network, disk, clock and database are simulated. The
checkers of every simulation compare what the database committed with what is in the log.
"""

from functools import partial
from random import Random

import pytest
from effort import LONG
from sim_dual_write import (
    MakeSession,
    Server,
    SimProducer,
    SimSession,
    SimStore,
    SimTransaction,
    Writers,
)

from tallystick.dualwrite.errors import CommitUnknown, NotCommitted
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.recipes import Recipe, run_step
from tallystick.dualwrite.recovery import ClusterHalf, Finding, Report
from tallystick.dualwrite.session import ClusterBranch, DualWriteSession, WriterState
from tallystick.kernel.value import replace
from tallystick.testing.sim.clients import ClientProfile
from tallystick.testing.sim.faults import FaultPlan, draw_faults
from tallystick.testing.sim.simulation import Simulation, SimulationResult

SEEDS = 3_000 if LONG else 60
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


def run(seed: int, session: MakeSession = DualWriteSession) -> tuple[SimulationResult, list[Finding]]:
    """One run; what recoveries found in it."""
    faults, found = faults_of(seed), list[Finding]()

    async def scenario(world: Simulation) -> None:
        server = Server(world, Random(seed + 5), faults.database_unknown)
        writers = [
            Writers(world, server, owner, min(faults.client_dies, 0.05), faults.client_lives_on, session)
            for owner in OWNERS
        ]
        for each in [world.clients.create_task(one.run()) for one in writers]:
            await each
        found.extend(each for one in writers for each in one.found)

    kinds = {owner: ClientProfile(two_phase=True, keeps_prepared=True) for owner in OWNERS}
    return Simulation(seed, faults=faults, kinds=kinds, scenario=scenario).run(), found


def test_seeds_agree() -> None:
    """[DW-1, DW-2, DW-3, DW-5, DW-6, DW-7]"""
    runs = {seed: run(seed) for seed in range(SEEDS)}
    assert {seed: result.violations for seed, (result, _) in runs.items() if result.violations} == {}
    assert sum(result.committed for result, _ in runs.values()) > 2 * SEEDS, "the writers get somewhere"
    met = {each for _, found in runs.values() for each in found}
    assert met >= {Finding.IDLE, Finding.UNDECIDED, Finding.DECIDED, Finding.STALE, Finding.FINISHED}


# ---- recipes that are wrong


class RecordsLate(DualWriteSession[SimTransaction, SimProducer]):
    """Kafka's half is committed before the database has recorded anything."""

    def commit(self, txn: SimTransaction, *, wait_visible: bool = False) -> Recipe[None]:
        self.state = WriterState.UNSETTLED
        rows = yield from self._prepare(txn)
        yield from self._commit_kafka(rows)
        yield from run_step("commit database", "", txn.commit)
        for branch, row in rows:
            branch.row = row
        self.state = WriterState.READY


class ClaimsNothing(DualWriteSession[SimTransaction, SimProducer]):
    """It reads the row, and leaves it to its former owner, too."""

    def _recover_branches(self, *, accept_torn: bool) -> Recipe[Report]:
        self._store.claim = self._read  # type: ignore[method-assign]
        return (yield from super()._recover_branches(accept_torn=accept_torn))

    async def _read(self, transactional_id: str) -> StoredState:
        store = self._store
        assert isinstance(store, SimStore)
        found = await store.read_state(transactional_id)
        return found or await SimStore.claim(store, transactional_id)


class InitialisesFirst(DualWriteSession[SimTransaction, SimProducer]):
    """It asks the cluster what it holds when there is nothing left to see."""

    def _describe_branch(self, branch: ClusterBranch[SimProducer]) -> Recipe[ClusterHalf]:
        producer = self._factories.create_producer(branch.config)
        yield from run_step("init", branch.id, partial(producer.init_transactions, True))
        return (yield from super()._describe_branch(branch))


class AbortsWhenNotKnown(DualWriteSession[SimTransaction, SimProducer]):
    """A COMMIT without an answer is taken for one that failed."""

    def commit(self, txn: SimTransaction, *, wait_visible: bool = False) -> Recipe[None]:
        commit = txn.commit

        async def known() -> None:
            try:
                await commit()
            except CommitUnknown as exc:
                raise NotCommitted(exc) from exc

        txn.commit = known  # type: ignore[method-assign]
        yield from super().commit(txn, wait_visible=wait_visible)


@pytest.mark.parametrize("recipe", [RecordsLate, ClaimsNothing, InitialisesFirst, AbortsWhenNotKnown])
def test_a_broken_recipe_is_found_out(recipe: type[SimSession]) -> None:
    assert any(run(seed, recipe)[0].violations for seed in range(SUSPECTS))
