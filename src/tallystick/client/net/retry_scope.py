"""Deadlines: inside `run_with_retries`, every wait of a client ends at its deadline [CLI-2].

A scope is a context variable, so the tasks begun inside inherit it; they are free of it when it has ended.
Work that several callers share runs in a fresh context, and each caller's deadline ends its own wait only.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from tallystick.client.errors import Closed, TimedOut
from tallystick.kernel.value import Value

T = TypeVar("T")


class Deadline(Value):
    """End of a wait, and the setting that fixed it: every wait has a named limit [CLI-2]."""

    at_ms: int
    limit_name: str
    length_ms: int

    def remaining_ms(self, now_ms: int) -> int:
        """Return the milliseconds left, 0 when it has passed."""
        return max(self.at_ms - now_ms, 0)


class _RetryScope:
    """Deadline of one `run_with_retries`, and the scope around it."""

    __slots__ = ("deadline", "has_ended", "outer")

    def __init__(self, deadline: Deadline, outer: "_RetryScope | None") -> None:
        self.deadline, self.outer = deadline, outer
        self.has_ended = False


_RETRY_SCOPE: ContextVar[_RetryScope | None] = ContextVar("tallystick.scope", default=None)


def _find_innermost() -> _RetryScope | None:
    """Return the innermost scope that has not ended."""
    scope = _RETRY_SCOPE.get()
    while scope is not None and scope.has_ended:
        scope = scope.outer
    return scope


def read_clock_ms() -> int:
    """Return the loop's monotonic clock; its origin is arbitrary."""
    return int(asyncio.get_running_loop().time() * 1000)


def is_in_retry_scope() -> bool:
    """Return whether a deadline of retries applies here."""
    return _find_innermost() is not None


def limit_to_scope(deadline: Deadline) -> Deadline:
    """Return this deadline, or that of the scope if it is earlier."""
    scope = _find_innermost()
    return scope.deadline if scope is not None and scope.deadline.at_ms < deadline.at_ms else deadline


@contextmanager
def enter_retry_scope(deadline: Deadline) -> Iterator[Deadline]:
    """Apply a deadline to everything inside; yield the one that applies, which may be an outer scope's."""
    scope = _RetryScope(limit_to_scope(deadline), _find_innermost())
    token = _RETRY_SCOPE.set(scope)
    try:
        yield scope.deadline
    finally:
        scope.has_ended = True
        _RETRY_SCOPE.reset(token)


async def wait_for_shared(future: "asyncio.Future[T]", doing: str) -> T:
    """Wait for a shared future: a deadline ends this wait and not the work. Raises: TimedOut, Closed."""
    scope = _find_innermost()
    deadline = None if scope is None else scope.deadline
    left_s = None if deadline is None else deadline.remaining_ms(read_clock_ms()) / 1000
    await asyncio.wait((future,), timeout=left_s)
    if deadline is not None and not future.done():
        raise TimedOut(deadline.limit_name, deadline.length_ms, doing)
    if future.cancelled():
        raise Closed("the client was closed")
    return future.result()
