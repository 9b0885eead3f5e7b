"""Invariant checks that also run in production."""


class InvariantBroken(Exception):
    """A state that must not exist. Stops the partition that met it; never becomes an error code."""


def check(condition: object, why: str) -> None:
    """Raise InvariantBroken unless `condition` holds; unlike `assert` it survives `python -O`."""
    if not condition:
        raise InvariantBroken(why)
