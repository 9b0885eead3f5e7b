"""Rules of a batch of units: which failure is whose, and the calls that differ between threads and tasks."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import InvalidStateError as FutureInvalidStateError
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from tallystick.client.errors import (
    AuthenticationFailed,
    Closed,
    ConnectionLost,
    IdExpired,
    NotSupported,
    TimedOut,
    Unreachable,
)
from tallystick.client.errors import Fenced as FencedInKafka
from tallystick.dualwrite.errors import (
    BadRow,
    BadStore,
    Fenced,
    Halted,
    NoFreeId,
    NotRecovered,
    NotYours,
    Torn,
    UnsafeStore,
)
from tallystick.kernel.errors import InDoubt, TallystickError

_OF_THE_WRITER: Final = (
    AuthenticationFailed,
    BadRow,
    BadStore,
    Closed,
    ConnectionLost,
    Fenced,
    FencedInKafka,
    Halted,
    IdExpired,
    InDoubt,
    NoFreeId,
    NotRecovered,
    NotSupported,
    TimedOut,
    Torn,
    Unreachable,
    UnsafeStore,
)


class BatchRolledBack(TallystickError):
    """A batch was rolled back, with all its units: a savepoint alone could not take back what one did."""


def may_be_of_unit(exc: BaseException) -> bool:
    """Return whether one of the units may have caused the failure of their batch.

    Then each runs again alone, and the error meets the one that it belongs to. A writer that was fenced, or a
    database or cluster that does not answer, would refuse every one of them as well.
    """
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, _OF_THE_WRITER) or getattr(cause, "connection_invalidated", False):
            return False
        cause = cause.__cause__
    return isinstance(exc, Exception)


current_unit: ContextVar[Any] = ContextVar("current_unit", default=None)  # the unit that runs, if one does


def check_outside_unit(runner: object, method: str) -> None:
    """Raise NotYours inside a unit of `runner`, which would wait for itself."""
    unit = current_unit.get()
    if unit is not None and unit.runner is runner and unit.is_running:
        raise NotYours(
            f"{method} inside a unit of the same pool would wait for the batch that it is in. Nothing of the "
            "inner call was done. Write and send with the unit that is running, or call it after run_batched"
        )


class UnitStopped(TallystickError):
    """A unit was stopped by what is no `Exception`: a cancelled task, or `sys.exit()` in its work.

    cause  the exception that its caller gets
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


def run_in_context(
    context: contextvars.Context, work: Callable[[Any], object], txn: object, _: Callable[[Any], None]
) -> object:
    """Run a unit's work with the context variables of its caller. Raises: UnitStopped."""
    try:
        result = context.run(work, txn)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"{work!r} is a coroutine function; its pool is that of tallystick.dualwrite.aio")
        return result
    except Exception:
        raise
    except BaseException as exc:  # it must end neither the batch nor the thread that runs it
        raise UnitStopped(exc) from exc


async def run_in_context_async(
    context: contextvars.Context,
    work: Callable[[Any], Awaitable[object]],
    txn: object,
    keep_task: Callable[[Any], None],
) -> object:
    """Run a unit's work in a task of its own, which its caller may cancel. Raises: UnitStopped."""
    task = asyncio.get_running_loop().create_task(_await_work(work, txn), context=context)
    keep_task(task)
    try:
        return await task
    except asyncio.CancelledError as exc:
        current = asyncio.current_task()
        if current is not None and current.cancelling():  # the batch itself is cancelled
            task.cancel()
            raise
        raise UnitStopped(exc) from exc


async def _await_work(work: Callable[[Any], Awaitable[object]], txn: object) -> object:
    return await work(txn)


def settle_future(future: Any, result: object = None, exc: BaseException | None = None) -> None:
    """Set a future's result or exception, unless its caller has given up, perhaps in this moment."""
    with suppress(FutureInvalidStateError, asyncio.InvalidStateError):
        if exc is None:
            future.set_result(result)
        else:
            future.set_exception(exc)


def create_future() -> "Future[Any]":
    return Future()


def create_future_async() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


def wait_for_future(future: "Future[Any]") -> Any:
    """Wait for a unit's result."""
    return future.result()


async def wait_for_future_async(future: "asyncio.Future[Any]") -> Any:
    return await asyncio.shield(future)


def wait_notified(changed: threading.Condition, limit_s: float | None) -> None:
    """Wait for a notification, or for the limit."""
    changed.wait(limit_s)


async def wait_notified_async(changed: asyncio.Condition, limit_s: float | None) -> None:
    try:
        await asyncio.wait_for(changed.wait(), limit_s)
    except TimeoutError:
        pass


def start_driver(name: str, drive: Callable[[], None]) -> threading.Thread:
    """Start what drives batches in the background."""
    thread = threading.Thread(target=drive, name=name, daemon=True)
    thread.start()
    return thread


def start_driver_async(name: str, drive: Callable[[], Any]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(drive(), name=name)


def join_driver(driver: threading.Thread) -> None:
    """Wait until a driver has ended."""
    driver.join()


async def join_driver_async(driver: "asyncio.Task[None]") -> None:
    await asyncio.wait([driver])
