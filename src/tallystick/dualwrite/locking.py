"""A look at who owns a row, under its lock: what a proxy or a cluster sends to the primary [DW-9].

A plain SELECT may be answered by a replica that is behind (pgpool-II's load balancing, ProxySQL's and
MaxScale's read/write split, Galera with `wsrep_sync_wait=0`). So the row is recorded as it is, under its
owner, in a transaction that is then rolled back.
"""

import inspect
from collections.abc import Awaitable
from typing import Any

from tallystick.dualwrite.halves import Storing
from tallystick.dualwrite.model import StoredState


def look_under_lock(store: Storing[Any], row: StoredState) -> "Awaitable[None] | None":
    """Raises: Fenced unless `row.owner` still has the row; what is returned is awaited, if it can be."""
    begun: Any = None
    try:
        begun = store.begin()
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
