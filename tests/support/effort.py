"""The effort of tests: least in `make check`, more in `make test`, all of it in `make test-full`."""

import os
from typing import Final

import pytest
from hypothesis import settings

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
