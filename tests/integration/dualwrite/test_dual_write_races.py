"""Two writers of one transactional id: whatever one is in the middle of, the other undoes no decision."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.support.dual_world import Crash, Crashed, MakeWorld, World

from tallystick.client.transactions.state import State
from tallystick.dualwrite import DualWriter, SqlStore, WriterFenced
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt, TallystickError
from tallystick.kernel.value import replace

pytestmark = pytest.mark.server

MODES: dict[str, dict[str, object]] = {
    "2pc": {},
    "keep": {"tallystick.modes": "keep"},
    "resume": {"tallystick.modes": "resume"},
}


class After:
    """Watches a writer, and does something once, after the first step of a name."""

    def __init__(self, name: str, do: Callable[[], object]) -> None:
        self._name = name
        self._do = do
        self.did = False

    def __call__(self, _: int, step: RecipeStep, done: bool) -> None:
        if done and step.name == self._name and not self.did:
            self.did = True
            self._do()


def decides_and_is_gone(world: World) -> None:
    """Another writer takes the id over, and its process ends when its database has committed."""
    crash = Crash(at="commit database")
    with suppress(Crashed):
        other = world.life(crash)
        other.recover()
        world.pay(other, 1, "decided")
    assert crash.struck
    world.cut()


def settle(world: World) -> list[str]:
    last = world.life()
    last.recover()
    assert last.recover().clean
    return world.check()


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stalls_after", ["claim", "describe", "init"])
def test_a_recovery_that_was_overtaken_decides_nothing(
    sqlite_world: MakeWorld, mode: str, stalls_after: str
) -> None:
    """[DW-9] It has read its row, stalls, and wakes when another has claimed the row and decided."""
    world = sqlite_world(**MODES[mode])
    slow = watched(world, After(stalls_after, lambda: decides_and_is_gone(world)))
    with suppress(TallystickError, InDoubt):
        slow.recover()
    assert settle(world) == ["decided"]


def watched(world: World, watch: After) -> DualWriter[SqlTransaction]:
    writer = DualWriter(SqlStore(world.make_engine()), world.config, watch=watch)
    world.lives.append((writer, None, []))
    return writer


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", MODES)
def test_an_idle_writer_that_was_taken_over_ends_nothing(sqlite_world: MakeWorld, mode: str) -> None:
    """[DW-9] Its next transaction does not initialise the id: that would abort what another has decided."""
    world = sqlite_world(**MODES[mode])
    idle = world.life()
    idle.recover()
    if mode != "resume":
        loses_the_next_pair(idle)
    decides_and_is_gone(world)
    with pytest.raises(WriterFenced, match="claimed by another"):
        world.pay(idle, 2, "no")
    assert not idle.ready
    assert settle(world) == ["decided"]


@pytest.mark.parametrize("mode", ["2pc", "keep"])
def test_a_writer_whose_pair_was_lost_recovers_before_it_goes_on(sqlite_world: MakeWorld, mode: str) -> None:
    """[DW-9]"""
    world = sqlite_world(**MODES[mode])
    writer = world.life()
    writer.recover()
    loses_the_next_pair(writer)
    world.pay(writer, 1, "a")
    assert settle(world) == ["a"]


def loses_the_next_pair(writer: DualWriter[SqlTransaction]) -> None:
    """As after a commit whose answer was lost, and which was then seen to have been carried out [CLI-46]."""
    branch = next(iter(writer._session.branches.values()))
    manager = branch.producer._runner._runner.require_transaction_manager("test")
    manager._holder.current = replace(manager.machine, state=State.UNCLAIMED, client=None)
