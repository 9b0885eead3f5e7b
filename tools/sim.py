"""Simulate whole runs of the broker, each from one seed: python -m tools.sim [--seed N | --seeds FROM..TO].

A run has clients, broker, disk and clock in one thread, with faults; see
`harness.sim.simulation`. The seed is printed first. Seeds with findings are listed at the end;
`--seed N --trace` shows one of them. `--nightly N` runs N seeds that were never run before, and adds those
with findings to tests/sim/seeds.txt, which every later test run repeats.
"""

import argparse
import logging
import os
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from random import SystemRandom

from harness.sim.faults import FAULTS_OFF, FaultKind
from harness.sim.simulation import Simulation, SimulationResult

KNOWN = Path(__file__).parents[1] / "tests" / "sim" / "seeds.txt"
# The first seed of the nightly runs: far from those that are run by number.
NIGHTLY_FROM, NIGHTLY_TO = 10**9, 10**12

# Seeds per task of a process; small enough for a short wait at the end.
SEEDS_AT_ONCE = 50


def run_seed(
    seed: int, *, trace: bool = False, without: Collection[FaultKind] = FAULTS_OFF
) -> SimulationResult:
    """Run one seed; an exception counts as a finding."""
    world = Simulation(seed, say=print if trace else None, without=without)
    try:
        return world.run()
    except Exception as exc:
        if trace:
            traceback.print_exc()
        return SimulationResult(seed, violations=[*world.history.violations, f"{exc!r}"])


def _run_seeds(seeds: range, *, without: Collection[FaultKind]) -> list[SimulationResult]:
    logging.disable(logging.CRITICAL)  # a broker that is crashed on purpose logs a lot
    return [run_seed(seed, without=without) for seed in seeds]


def run_seeds(
    seeds: range, processes: int, without: Collection[FaultKind] = FAULTS_OFF
) -> Iterator[SimulationResult]:
    """Run all seeds in several processes and yield their results."""
    run_piece = partial(_run_seeds, without=without)
    pieces = [seeds[i : i + SEEDS_AT_ONCE] for i in range(0, len(seeds), SEEDS_AT_ONCE)]
    if processes == 1:
        for piece in pieces:
            yield from run_piece(piece)
        return
    with ProcessPoolExecutor(processes) as pool:
        for results in pool.map(run_piece, pieces):
            yield from results


def _parse_seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    return range(int(first), int(last if dots else first) + 1)


def _show_one(seed: int, without: Collection[FaultKind], *, trace: bool) -> int:
    print(f"seed {seed}", flush=True)
    if not trace:
        logging.disable(logging.CRITICAL)
    result = run_seed(seed, trace=trace, without=without)
    for wrong in result.violations:
        print(f"  {wrong}")
    print(
        f"seed {seed}: {len(result.violations)} findings; transactions: {result.committed} committed, "
        f"{result.aborted} aborted, {result.unknown} unknown; {result.boot_count} lives of the broker, "
        f"{result.requests} answers, digest {result.digest:08x}"
    )
    return 1 if result.violations else 0


def _run_many(seeds: range, processes: int, without: Collection[FaultKind]) -> list[SimulationResult]:
    """Run the seeds, print the findings, and return the runs with findings."""
    print(f"seeds {seeds.start}..{seeds.stop - 1}", flush=True)
    began, seeds_run, failures = time.monotonic(), 0, list[SimulationResult]()
    transactions = boot_count = 0
    for result in run_seeds(seeds, processes, without):
        seeds_run += 1
        transactions += result.committed
        boot_count += result.boot_count
        if result.violations:
            failures.append(result)
            print(f"seed {result.seed}: {result.violations[0]}", flush=True)
        if seeds_run % 1000 == 0:
            print(
                f"{seeds_run:,} seeds, {len(failures)} failed, {time.monotonic() - began:.0f} s", flush=True
            )
    took = time.monotonic() - began
    print(
        f"{seeds_run:,} seeds in {took:.0f} s ({1000 * took / max(seeds_run, 1):.1f} ms each): "
        f"{len(failures)} failed; {transactions:,} transactions committed, {boot_count:,} lives of the broker"
    )
    if failures:
        print("failed:", *[result.seed for result in failures])
    return failures


def append_seeds(path: Path, failures: Sequence[SimulationResult]) -> None:
    """Add seeds, each with its first finding, to the file of those that every test run repeats."""
    with path.open("a") as file:
        file.writelines(
            f"{result.seed} {' '.join(result.violations[0].split())[:200]}\n" for result in failures
        )


def _run_nightly(count: int, processes: int) -> int:
    base = SystemRandom().randrange(NIGHTLY_FROM, NIGHTLY_TO)
    failures = _run_many(range(base, base + count), processes, FAULTS_OFF)
    append_seeds(KNOWN, failures)
    if failures:
        print(f"added to {KNOWN}; describe each of them there")
    return 1 if failures else 0


def _list_faults_off(options: argparse.Namespace) -> frozenset[FaultKind]:
    if options.plain:
        return frozenset(FaultKind)
    if options.only:
        return frozenset(FaultKind) - {FaultKind(name) for name in options.only.split(",")}
    return FAULTS_OFF | {FaultKind(name) for name in options.without.split(",") if name}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=_parse_seeds, default=_parse_seeds("0..9999"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--nightly", type=int, metavar="N", help="run N new seeds; keep those that fail")
    names = ", ".join(kind.value for kind in FaultKind)
    parser.add_argument("--without", default="", metavar="NAMES", help=f"switch faults off: {names}")
    parser.add_argument("--only", default="", metavar="NAMES", help="switch off all of these but those named")
    parser.add_argument("--plain", action="store_true", help="switch all of these off")
    parser.add_argument("--trace", action="store_true", help="show everything that happens; with --seed")
    parser.add_argument("--digest", action="store_true", help="print a number for each run, and nothing else")
    options = parser.parse_args()
    without = _list_faults_off(options)
    if options.nightly is not None:
        return _run_nightly(options.nightly, options.processes)
    if options.digest:
        logging.disable(logging.CRITICAL)
        for seed in options.seeds:
            print(f"seed {seed}: digest {run_seed(seed, without=without).digest:08x}")
        return 0
    if options.seed is not None:
        return _show_one(options.seed, without, trace=options.trace)
    return 1 if _run_many(options.seeds, options.processes, without) else 0


if __name__ == "__main__":
    sys.exit(main())
