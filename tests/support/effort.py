"""The effort of property tests: little in `make check`, more in `make test` and `make test-full`."""

from hypothesis import settings


def examples(*, quick: int, full: int) -> int:
    """Return the number of examples for the profile in use, which `tests/conftest.py` chooses."""
    return quick if settings.get_current_profile_name() == "quick" else full
