"""How hard a property is tried: a little in `make check`, at length in `make test` and `make test-full`."""

from hypothesis import settings


def examples(*, quick: int, full: int) -> int:
    """As many examples as the profile in use stands for; `tests/conftest.py` chooses it."""
    return quick if settings.get_current_profile_name() == "quick" else full
