"""The effort of tests: least in `make check`, more in `make test`, all of it in `make test-full`."""

import os
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import pytest
from hypothesis import settings

GATE: Final = os.environ.get("HYPOTHESIS_PROFILE") == "gate"
"""Whether this is `make test`, which runs of each test as many cases as its mark `gate` says."""

# The long form of crash tests, of simulations and of what goes through all 32,767 epochs.
LONG: Final = os.environ.get("TALLYSTICK_LONG") == "1"

# Seeds of each random torture in its long form: `make crash SEEDS=n`.
TORTURE_SEEDS: Final = int(os.environ.get("TALLYSTICK_SEEDS", "8"))

long_form: Final = pytest.mark.skipif(
    not LONG, reason="long form: TALLYSTICK_LONG=1, as make test-full sets it"
)


def examples(*, quick: int, gate: int, full: int) -> int:
    """Return the number of examples for the profile in use, which `tests/conftest.py` chooses.

    The profiles "quick" and "gate" try the same examples in every run, so many more of them would find
    nothing that the run before did not. "full" draws new ones each time.
    """
    return {"quick": quick, "gate": gate, "full": full}[settings.get_current_profile_name() or "quick"]


def find_cases_left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the cases of tests with the mark `gate(n)` beyond the n of each that `make test` runs.

    They are drawn by the hashes of their ids: any n parameters of a matrix, and the same in every run.
    """
    cases_by_test = defaultdict(list)
    for item in items:
        if item.get_closest_marker("gate") is not None:
            cases_by_test[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for cases in cases_by_test.values():
        (count,) = cases[0].get_closest_marker("gate").args  # type: ignore[union-attr]  # each has it
        left_out.update(sorted(cases, key=lambda case: sha256(case.nodeid.encode()).digest())[count:])
    return left_out
