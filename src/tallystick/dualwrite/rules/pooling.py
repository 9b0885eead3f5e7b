"""Rules of a pool of writers: its ids, its waits, and its errors."""

import asyncio
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, LifoQueue
from typing import Any, Final, TypeVar

from tallystick.client.errors import BrokerRefused, Fenced
from tallystick.dualwrite.errors import NoFreeId, WriterFenced
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.settings import BadConfig

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

_log = logging.getLogger("tallystick.dualwrite")

WAIT_S: Final = 30.0
SIZE_MAX: Final = 1000


def pool_ids(config: Mapping[str, object], size: int) -> list[str]:
    """Build the ids of a pool: `transactional.id`, a hyphen and a number. Raises: BadConfig."""
    base = config.get("transactional.id")
    if not isinstance(base, str) or not base:
        raise BadConfig("transactional.id: must be set: the ids of the pool begin with it")
    if not 1 <= size <= SIZE_MAX:
        raise BadConfig(f"size: {size} is not 1..{SIZE_MAX}")
    return [f"{base}-{number}" for number in range(size)]


def select_larger_pool_ids(base: object, size: int, stored_ids: Iterable[str]) -> list[str]:
    """Select the stored ids that a larger pool of the same name may have left."""
    form = re.compile(rf"{re.escape(str(base))}-(0|[1-9][0-9]*)")
    return [each for each in stored_ids if (match := form.fullmatch(each)) and int(match[1]) >= size]


def may_belong_to_pool(base: object, row: StoredState | None) -> bool:
    """Return whether an id found by `select_larger_pool_ids` belongs to a pool.

    A row without a recorded transaction, or of an earlier version, does not show it. Such a row counts as a
    pool's, because only this pool would find a transaction that a larger pool left in doubt.
    """
    if row is None or not row.alone:
        return True
    _log.warning(
        "%r has an id like those of the pool %r, and was recorded by a DualWriter of its own: it is not "
        "recovered with the pool. Where that writer is gone, `tallystick transactions resolve` finishes it",
        row.transactional_id,
        base,
    )
    return False


def combine_errors(errors: Sequence[E]) -> E:
    """Return the first error, with a note for each of the others."""
    first, *others = errors
    for each in others:
        first.add_note(f"and {type(each).__name__}: {each}")
    return first


def log_if_fenced(base: object, writer: object, exc: BaseException) -> None:
    """Log that an id was lost to another client, which suggests two pools of the same name."""
    cause = _find_fenced_error(exc)
    if cause is None:
        return
    _log.error(
        "the pool %r has lost an id to another client, %r: %s. If that is no operator's `tallystick "
        "transactions resolve`, another process has a pool of the same name, or a DualWriter of this id: "
        "they take it from each other for ever. Give each process a transactional.id of its own",
        base,
        writer,
        cause,
    )


def _find_fenced_error(exc: BaseException) -> BaseException | None:
    cause: BaseException | None = exc
    while cause is not None and not _is_fenced_error(cause):
        cause = cause.__cause__
    return cause


def _is_fenced_error(exc: BaseException) -> bool:
    """Return whether the id was fenced, in the database or in Kafka, which may notice first."""
    if isinstance(exc, BrokerRefused):
        return isinstance(exc, Fenced) or exc.code == ErrorCode.INVALID_PRODUCER_EPOCH
    return isinstance(exc, WriterFenced)


def no_free_id_error(size: int, limit_s: float) -> NoFreeId:
    return NoFreeId(f"none of {size} ids became free within {limit_s:g} s")


def take_free(free: "LifoQueue[T]", limit_s: float) -> T | None:
    """Acquire the writer that became free last, waiting for up to `limit_s`; None if nothing does."""
    try:
        return free.get(timeout=limit_s) if limit_s > 0 else free.get_nowait()
    except Empty:
        return None


async def take_free_async(free: "asyncio.LifoQueue[T]", limit_s: float) -> T | None:
    try:
        if limit_s <= 0:
            return free.get_nowait()
        async with asyncio.timeout(limit_s):  # `wait_for` of Python 3.11 may swallow a cancellation
            return await free.get()
    except (TimeoutError, asyncio.QueueEmpty):
        return None


# ---- leased ids


def describe_process() -> str:
    """Return host and process id, for people who look at the table of leases."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def log_contradiction(transactional_id: str, exc: Exception) -> None:
    """Log an id that only people can settle, with the command that shows it."""
    _log.error(
        "%r is left as it is, and is not used: %s. Look at both sides with `tallystick transactions resolve "
        "--store URL --transactional-id %s --dry-run`",
        transactional_id,
        exc,
        transactional_id,
    )


def log_lease_lost(base: object, writer: object, exc: BaseException) -> None:
    """Log that an id was lost to another process while it was used."""
    cause = _find_fenced_error(exc)
    if cause is not None:
        _log.warning(
            "the pool %r has lost an id while it was used, %r: %s. Its lease had expired, and another "
            "process has recovered it; or an operator did. The pool goes on, with another id if it must",
            base,
            writer,
            cause,
        )


def wait_event(event: threading.Event, limit_s: float) -> None:
    """Wait for an event, or for the limit."""
    event.wait(limit_s)


async def wait_event_async(event: asyncio.Event, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass


def start_background(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a background thread, which does not keep the process from ending."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def start_background_async(name: str, run: Callable[[], Any]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(run(), name=name)


def join_within(driver: threading.Thread, limit_s: float) -> None:
    """Wait until a background thread has ended, or for the limit. A daemon thread may outlive it."""
    driver.join(limit_s)


async def join_within_async(driver: "asyncio.Task[None]", limit_s: float) -> None:
    _, pending = await asyncio.wait([driver], timeout=limit_s)
    for task in pending:
        task.cancel()
