"""Refusal of a pool's block inside another one of the same caller, whose locks or id it would wait for."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from weakref import ref

from tallystick.client.errors import IllegalState
from tallystick.kernel.value import Value


class _OpenBlock(Value):
    """A block of a pool, and who has it open: a task that is created inside is another caller."""

    pool: int
    thread: int
    task: "ref[asyncio.Task[object]] | None"


_open_blocks: Final[ContextVar[tuple[_OpenBlock, ...]]] = ContextVar("tallystick_open_blocks", default=())


@contextmanager
def refuse_nested(pool: object) -> Iterator[None]:
    """Note that this caller has a block of `pool` open. Raises: IllegalState if it has one already."""
    block = _OpenBlock(id(pool), threading.get_ident(), _find_task())
    if block in _open_blocks.get():
        raise IllegalState(
            "this caller has a block of the pool open, and another one inside would wait for its locks or its"
            " id: use the open block's transaction, or writer() for a second one that commits by itself"
        )
    _open_blocks.set((*_open_blocks.get(), block))
    try:
        yield
    finally:
        # No token: the end of a generator may run in another context than its beginning, as in FastAPI.
        _open_blocks.set(tuple(each for each in _open_blocks.get() if each != block))


def _find_task() -> "ref[asyncio.Task[object]] | None":
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
    return None if task is None else ref(task)
