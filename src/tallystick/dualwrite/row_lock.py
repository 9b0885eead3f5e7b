"""A look at who owns a row, under its lock: what a proxy or a cluster sends to the primary [DW-9].

A plain SELECT may be answered by a replica that is behind (pgpool-II's load balancing, ProxySQL's and
MaxScale's read/write split, Galera with `wsrep_sync_wait=0`). So the row is recorded as it is, under its
owner, in a transaction that is then rolled back.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.ports import Storing, Transacting

D = TypeVar("D", bound=Transacting)


def begin_briefly(store: Storing[D]) -> "D | Awaitable[D]":
    """Begin a transaction for a row of ours alone, whose lock a client that is gone may have for hours.

    A store that can, limits how long it waits for locks there: `begin_briefly`, as its `begin` otherwise.
    """
    begin: Callable[[], D | Awaitable[D]] = getattr(store, "begin_briefly", store.begin)
    return begin()


def look_under_lock(store: Storing[Any], row: StoredState) -> "Awaitable[None] | None":
    """Raises: Fenced unless `row.owner` still has the row; what is returned is awaited, if it can be."""
    begun: Any = None
    try:
        begun = begin_briefly(store)
        if inspect.isawaitable(begun):
            return _look(begun, row)
        begun.record(row)
    finally:
        if hasattr(begun, "rollback"):
            begun.rollback()
    return None


async def _look(begun: Awaitable[Any], row: StoredState) -> None:
    txn: Any = None
    try:
        txn = await begun
        await txn.record(row)
    finally:
        if txn is not None:
            await txn.rollback()
