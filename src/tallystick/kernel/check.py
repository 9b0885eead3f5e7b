"""Invariant checks that also run in production."""

from typing import TypeVar

T = TypeVar("T")


class InvariantBroken(Exception):
    """A state that must not exist. Stops the partition that met it; never becomes an error code."""


def check(condition: object, why: str) -> None:
    """Raise InvariantBroken unless `condition` holds; unlike `assert` it survives `python -O`."""
    if not condition:
        raise InvariantBroken(why)


def require(value: T | None, why: str) -> T:
    """Return a value that is never None here. Raises: InvariantBroken if it is."""
    if value is None:
        raise InvariantBroken(why)
    return value
