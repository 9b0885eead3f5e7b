"""Check of a row's owner under its lock, so that proxies and clusters send it to the primary [DW-9].

A plain SELECT may be answered by a lagging replica (pgpool-II's load balancing, ProxySQL's and MaxScale's
read/write split, Galera with `wsrep_sync_wait=0`). So the check records the row unchanged, under its owner,
in a transaction that is then rolled back.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.ports import StorePort, StoreTransactionPort

D = TypeVar("D", bound=StoreTransactionPort)


def begin_briefly(store: StorePort[D]) -> "D | Awaitable[D]":
    """Begin a transaction on a state row alone, with a limited wait for its lock if the store can.

    A client whose host is gone may hold that lock for hours. `begin_briefly` is an optional method of a store
    that limits the wait; `begin` is used otherwise.
    """
    begin: Callable[[], D | Awaitable[D]] = getattr(store, "begin_briefly", store.begin)
    return begin()


def check_owner_locked(store: StorePort[Any], row: StoredState) -> "Awaitable[None] | None":
    """Raise Fenced unless `row.owner` still owns the row; an asyncio store returns an awaitable."""
    begun: Any = None
    try:
        begun = begin_briefly(store)
        if inspect.isawaitable(begun):
            return _check_owner_async(begun, row)
        begun.record(row)
    finally:
        if hasattr(begun, "rollback"):
            begun.rollback()
    return None


async def _check_owner_async(begun: Awaitable[Any], row: StoredState) -> None:
    txn: Any = None
    try:
        txn = await begun
        await txn.record(row)
    finally:
        if txn is not None:
            await txn.rollback()
