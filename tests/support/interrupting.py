"""Exceptions at the n-th line of the synchronous clients, cancellation at the n-th wait of a coroutine."""

import asyncio
import gc
import itertools
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from tallystick.client.blocking import consumer as blocking_consumer
from tallystick.client.blocking import producer as blocking_producer
from tallystick.client.blocking import thread

_FILES = frozenset(str(module.__file__) for module in (thread, blocking_producer, blocking_consumer))
POINTS_MAX = 200


def interrupted(call: Callable[[], object], at: int, kind: type[BaseException]) -> bool:
    """Raise `kind` at the `at`-th line of the synchronous clients in `call`; return whether it has one."""
    lines = 0

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in _FILES:
            return None
        if event == "line":
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
