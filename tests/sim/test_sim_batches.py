"""Units of concurrent callers in the simulator: the product's pool, and variants that must be found out.

What runs is `WriterPool.run_batched` itself, against the real broker; the clients beneath it, the database,
network, disk and clock are simulated. Processes of callers are killed between any two effects.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

import pytest
from tests.support.effort import LONG
from tools.sim import run_seed

from harness.sim.actors import batches
from harness.sim.actors.units import BatchCounts
from harness.sim.faults import FaultKind, add_faults, draw_faults
from harness.sim.shared_database import BatchTransaction
from tallystick.dualwrite.aio import batches as product
from tallystick.dualwrite.aio.batches import AsyncBatchRunner
from tallystick.dualwrite.aio.session import AsyncDualWriteSession
from tallystick.dualwrite.aio.unit import UnitTransaction
from tallystick.dualwrite.batch_rules import BatchRolledBack
from tallystick.dualwrite.writer_life import WriterState

RUNS = 600 if LONG else 20
# A broken variant is to be found within as many runs.
SUSPECTS = 60
# Those below are in `test_sim`.
FIRST = 100_000

pytestmark = pytest.mark.slow


def seeds_with_batches(count: int) -> Iterator[int]:
    """Yield the first seeds that draw callers who share dual writes."""
    seeds = (seed for seed in range(FIRST, FIRST + 100 * count) if has_batches(seed))
    return islice(seeds, count)


def has_batches(seed: int) -> bool:
    return add_faults(seed, draw_faults(Random(seed)), [FaultKind.BATCHES]).batches is not None


def test_units_are_in_both_halves_or_in_neither() -> None:
    """[DW-14] Also what their callers are told is checked, once each, and their order."""
    counts, wrong = BatchCounts(), {}
    for seed in seeds_with_batches(RUNS):
        result = run_seed(seed)
        counts.update(result.batches)
        if result.violations:
            wrong[seed] = result.violations
    assert wrong == {}
    assert (
        min(counts[each] for each in ("formed", "killed", "split", "recovered", "overtaken")) >= RUNS // 4
    ), counts


def test_a_quarter_of_the_seeds_has_batches() -> None:
    assert 200 < sum(has_batches(seed) for seed in range(1000)) < 300


# ---- variants that are wrong


class SendsAtOnce(UnitTransaction[Any]):
    """Records are not held back until the work has returned."""

    async def send(self, topic: str, *args: Any, **named: Any) -> None:
        named.pop("cluster", None)
        await self._txn.send(topic, *args, **named)


class RecordsLate(AsyncDualWriteSession[Any]):
    """Kafka's half is committed before the database's."""

    async def commit(self, txn: Any, *, wait_visible: bool = False) -> None:
        self.life.state = WriterState.UNSETTLED
        rows = await self._prepare(txn)
        await self._kafka.commit()
        await self._steps.run("commit database", "", txn.commit)
        for branch, row in rows:
            branch.row = row
        self._database.transaction = None
        self.life.state = WriterState.READY


class TellsTooEarly(AsyncBatchRunner[Any]):
    """A caller returns when its unit is ready."""

    async def _run_unit(self, txn: Any, batch: Any, unit: Any) -> None:
        await super()._run_unit(txn, batch, unit)
        if unit in batch.ready:
            unit.succeed()


class DoubtsNothing(AsyncBatchRunner[Any]):
    """A COMMIT without an answer is taken for one that succeeded."""

    async def _resolve(self, writer: Any, doubt: Any) -> BaseException | None:
        await super()._resolve(writer, doubt)
        return None


class RunsAgainInDoubt(AsyncBatchRunner[Any]):
    """A COMMIT without an answer is taken for one that failed."""

    async def _resolve(self, writer: Any, doubt: Any) -> BaseException | None:
        await super()._resolve(writer, doubt)
        return BatchRolledBack("in doubt")


Break = Callable[[pytest.MonkeyPatch], None]


def keep_rows(patch: pytest.MonkeyPatch) -> None:
    """What a unit that raised has written stays in its batch."""

    async def keep(_: BatchTransaction) -> None:
        pass

    patch.setattr(BatchTransaction, "roll_back_unit", keep)


VARIANTS: dict[str, Break] = {
    "sends at once": lambda patch: patch.setattr(product, "UnitTransaction", SendsAtOnce),
    "records late": lambda patch: patch.setattr(batches, "AsyncDualWriteSession", RecordsLate),
    "tells too early": lambda patch: patch.setattr(batches, "AsyncBatchRunner", TellsTooEarly),
    "doubts nothing": lambda patch: patch.setattr(batches, "AsyncBatchRunner", DoubtsNothing),
    "runs again in doubt": lambda patch: patch.setattr(batches, "AsyncBatchRunner", RunsAgainInDoubt),
    "keeps rows": keep_rows,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_variant_is_found_out(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DW-14]"""
    VARIANTS[variant](monkeypatch)
    found = (
        number for number, seed in enumerate(seeds_with_batches(SUSPECTS), 1) if run_seed(seed).violations
    )
    assert next(found, None) is not None
