"""Exceptions at the n-th line of the synchronous clients, cancellation at the n-th wait of a coroutine."""

import asyncio
import gc
import itertools
import linecache
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

from tallystick.client import blocking

SYNCHRONOUS_CLIENTS = frozenset(str(path) for path in Path(str(blocking.__file__)).parent.glob("*.py"))
POINTS_MAX = 200


def interrupted(
    call: Callable[[], object],
    at: int,
    kind: type[BaseException],
    files: frozenset[str] = SYNCHRONOUS_CLIENTS,
) -> bool:
    """Raise `kind` at the `at`-th line of these files in `call`; return whether it has one.

    Not where a `with` ends: there a signal handler runs after a lock is given back, a trace function before.
    """
    lines = 0

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and not _is_with(frame):
            lines += 1
            if lines == at:
                raise kind
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    # A client that an earlier test left in a cycle would be closed in the middle: its lines are counted, and
    # what is raised in a `__del__` goes nowhere.
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    except kind:
        return True
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return False


def _is_with(frame: types.FrameType) -> bool:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def points(make: Callable[[int], bool]) -> int:
    """Try every point from the first one until there is none; return how many there were."""
    for at in range(1, POINTS_MAX):
        if not make(at):
            return at - 1
    raise AssertionError("a call without an end")


def cancelled_at(coroutine: Coroutine[object, object, object], at: int) -> "asyncio.Task[object]":
    """Return a task that is cancelled at its `at`-th wait; never, if it waits less often."""

    @types.coroutine
    def counting() -> Generator[Any, Any, object]:
        for wait in itertools.count(1):
            try:
                awaited = coroutine.send(None)
            except StopIteration as done:
                return done.value
            if wait == at:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield awaited
            except BaseException as exc:  # thrown by the task: passed on to the coroutine
                return (yield from _rest(coroutine, exc))
        raise AssertionError

    async def main() -> object:
        return await counting()

    task = asyncio.get_running_loop().create_task(main())
    return task


def _rest(coroutine: Coroutine[object, object, object], thrown: BaseException) -> Generator[Any, Any, object]:
    """Run the rest of a coroutine after an exception was thrown into it."""
    try:
        awaited = coroutine.throw(thrown)
        while True:
            yield awaited
            awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value
