"""Show that invariants are tested: python -m tools.mutate [NUMBER ...] breaks each and sees its test fail.

tests/meta/mutations.toml names for an invariant of docs/invariants.md a line of the source, what to put in
its place, and the test that must fail then. Each change is made in a copy of src, one at a time. The same
tests must pass on the unchanged copy first. A test that cannot be collected does not count as one that fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "tests" / "meta" / "mutations.toml"

# pytest's exit codes: every test passed, some failed. All others mean that nothing was tested.
PASSED, FAILED = 0, 1

# The same examples and the same order of sets in every run, and no compiled file of changed source.
REPEATABLE: Final = {"HYPOTHESIS_PROFILE": "quick", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A change that breaks an invariant.

    file  below src/tallystick
    old   the text to be replaced, which is there exactly once
    test  the test that fails under the change, as pytest names it
    """

    invariant: str
    file: str
    old: str
    new: str
    test: str

    @property
    def path(self) -> Path:
        """The file, below the root of the repository."""
        return Path("src", "tallystick", self.file)

    def apply_to(self, text: str) -> str:
        """Return the text of the file with the change made.

        Raises:
            ValueError: the text to be replaced is not there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.invariant}: {self.file} has {self.old!r} {count} times, not once")
        return text.replace(self.old, self.new)


def read_mutations() -> list[Mutation]:
    """Return the mutations of the table, in its order."""
    return [Mutation(**row) for row in tomllib.loads(TABLE.read_text())["mutation"]]


def read_exemptions() -> dict[str, str]:
    """Return the invariants without a mutation, each with the reason."""
    groups = tomllib.loads(TABLE.read_text())["exempt"]
    return {invariant: group["why"] for group in groups for invariant in group["invariants"]}


def run_tests(source: Path, tests: Sequence[str]) -> int:
    """Run tests on a copy of src, and return pytest's exit code."""
    options = ["-x", "-q", "-p", "no:randomly", "-p", "no:xdist", "--timeout", "120"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env={**os.environ, **REPEATABLE, "PYTHONPATH": str(source)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return result.returncode


def require_copy_in_use(source: Path) -> None:
    """Exit where Python would import another tallystick than the copy."""
    result = subprocess.run(
        [sys.executable, "-c", "import tallystick; print(tallystick.__file__)"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    if not Path(result.stdout.strip()).is_relative_to(source):
        sys.exit(f"{result.stdout.strip()} is imported, not the copy in {source}")


def run_mutations(mutations: Sequence[Mutation], copies: Sequence[Path]) -> Iterator[tuple[Mutation, int]]:
    """Run each mutation's test on a copy with its change; yield pytest's exit codes, in order."""
    free = SimpleQueue[Path]()
    for source in copies:
        free.put(source)

    def run_one(mutation: Mutation) -> int:
        source = free.get()
        path = source / "tallystick" / mutation.file
        original = path.read_text()
        try:
            path.write_text(mutation.apply_to(original))
            return run_tests(source, [mutation.test])
        finally:
            path.write_text(original)
            free.put(source)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(mutations, pool.map(run_one, mutations), strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("invariants", nargs="*", metavar="NUMBER", help="TXN-7, ...; default: all")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    mutations = [m for m in read_mutations() if not options.invariants or m.invariant in options.invariants]
    if not mutations:
        sys.exit("no such invariant in the table")
    began, survivors = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, str(number), "src") for number in range(options.processes)]
        for copy in copies:
            shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        require_copy_in_use(copies[0])
        if run_tests(copies[0], sorted({m.test for m in mutations})) != PASSED:
            sys.exit("a test of the table fails, or cannot be run, without any change")
        for mutation, code in run_mutations(mutations, copies):
            is_caught = code == FAILED
            survivors += not is_caught
            verdict = "caught" if is_caught else "NOT CAUGHT" if code == PASSED else f"NOT RUN ({code})"
            print(f"{mutation.invariant:8}{verdict:12}{mutation.file}: {mutation.test}", flush=True)
    print(f"{len(mutations)} mutations in {time.monotonic() - began:.0f} s, {survivors} not caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
