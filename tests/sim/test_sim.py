"""Whole runs of the broker from one seed each, with faults; `make sim` runs ten thousand.

The checkers are in `harness.sim.checkers`: read_committed sees all or nothing, database and log
agree, stable offsets only grow, pairs never go back, replay equals live, no record twice, all is completed.
"""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.support.effort import LONG
from tools.sim import append_seeds, run_seed

from harness.sim.faults import FAULTS_OFF, FaultKind, FaultPlan, add_faults, draw_faults
from harness.sim.simulation import SimulationResult

KNOWN = Path(__file__).with_name("seeds.txt")
RANGE = range(2_000 if LONG else 100)
AT_ONCE = 50

pytestmark = pytest.mark.slow


def known_seeds() -> list[int]:
    lines = KNOWN.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.gate(6)
@pytest.mark.parametrize("seed", known_seeds())
def test_a_seed_that_found_something_stays_clean(seed: int) -> None:
    """With every fault, and as the seeds were found: without those that came later."""
    assert run_seed(seed).violations == []
    assert run_seed(seed, without=frozenset(FaultKind)).violations == []


@pytest.mark.gate(2)
@pytest.mark.parametrize(
    "kind", [kind for kind in FaultKind if kind not in FAULTS_OFF], ids=lambda kind: kind.value
)
def test_each_disturbance_is_met_by_itself(kind: FaultKind) -> None:
    others = frozenset(FaultKind) - {kind}
    plain = frozenset(FaultKind)
    seeds = [seed for seed in range(100) if faults_of(seed, others) != faults_of(seed, plain)][:8]
    assert len(seeds) == 8, "it is drawn often"
    assert {seed: found for seed in seeds if (found := run_seed(seed, without=others).violations)} == {}


def faults_of(seed: int, without: frozenset[FaultKind]) -> FaultPlan:
    return add_faults(seed, draw_faults(Random(seed)), [kind for kind in FaultKind if kind not in without])


def test_seeds_of_a_night_that_fail_are_kept(tmp_path: Path) -> None:
    known = tmp_path / "seeds.txt"
    known.write_text("# before\n")
    append_seeds(known, [SimulationResult(7, violations=["two lines,\n  one finding", "another"])])
    assert known.read_text() == "# before\n7 two lines, one finding\n"


@pytest.mark.gate(1)
@pytest.mark.parametrize("first", RANGE[::AT_ONCE])
def test_a_range_of_seeds_is_clean(first: int) -> None:
    results = [run_seed(seed) for seed in range(first, first + AT_ONCE)]
    assert {result.seed: result.violations for result in results if result.violations} == {}
    assert sum(result.committed for result in results) > AT_ONCE, "the clients get somewhere"
    assert sum(result.boot_count for result in results) > 2 * AT_ONCE, "and the broker is restarted"


def test_a_seed_is_the_same_run_in_any_process() -> None:
    """Nothing depends on the order of a set or on an address; the digest is of every frame."""

    def printed(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tools.sim", "--seeds", "0..9", "--digest"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stdout

    assert "digest" in (first := printed("1"))
    assert printed("2") == first
