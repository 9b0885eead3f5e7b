"""Steps on the store: claiming a row, checking its owner, and noting in it what is finished.

The owner is checked under the row's lock, so that proxies and clusters send the check to the primary [DW-9].
A plain SELECT may be answered by a lagging replica (pgpool-II's load balancing, ProxySQL's and MaxScale's
read/write split, Galera with `wsrep_sync_wait=0`). So the check records the row unchanged, under its owner,
in a transaction that is then rolled back.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tallystick.client.aio.producer import Producer
from tallystick.dualwrite.branch import ClusterBranch
from tallystick.dualwrite.errors import NotCommitted
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.recipes import AsyncStepRunner
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.stores.base import AsyncStore, AsyncStoreTransaction
from tallystick.kernel.value import replace

D = TypeVar("D", bound=AsyncStoreTransaction)
FindKeys = Callable[[StoredState], Awaitable[Sequence[IdempotencyKey]]]

_log = logging.getLogger("tallystick.dualwrite")


class AsyncStoreClient(Generic[D]):
    """A writer's use of its store: one transaction at a time."""

    def __init__(self, store: AsyncStore[D], steps: AsyncStepRunner, ids_text: str) -> None:
        self._store = store
        self._steps = steps
        self._ids_text = ids_text
        self.transaction: D | None = None  # begun and, as far as known, not ended

    async def claim(self, branch: ClusterBranch[Producer]) -> None:
        """Take over the row of an id [DW-1]."""
        branch.row = await self._steps.run("claim", branch.id, self._store.claim, branch.id)

    async def read(self, transactional_id: str) -> StoredState:
        """Return the row of an id, without a claim; an empty one if there is none."""
        row = await self._steps.run("read", transactional_id, self._store.read_state, transactional_id)
        return StoredState(transactional_id=transactional_id, owner="") if row is None else row

    async def find_keys(self, row: StoredState) -> Sequence[IdempotencyKey]:
        """Return the idempotency keys that were committed with a row's transaction.

        None in a store without them. They are for a text, so a failure is logged.
        """
        store = getattr(self._store, "wrapped_store", self._store)
        find: FindKeys | None = getattr(store, "find_idempotency_keys", None)
        if find is None:
            return ()
        try:
            return await self._steps.run("find keys", row.transactional_id, find, row)
        except Exception as exc:  # of the database's driver
            _log.warning("%s: its idempotency keys could not be read: %s", row.transactional_id, exc)
            return ()

    async def check_owner(self, branch: ClusterBranch[Producer]) -> None:
        """Raise Fenced if another writer has claimed the row: it may have decided the open transaction."""
        await self._steps.run("check owner", branch.id, self._check_owner_locked, branch.require_row())

    async def record_settled(self, branch: ClusterBranch[Producer], *, settled: bool) -> None:
        """Record in the row that both halves are finished, or that Kafka's half is about to be.

        No outcome depends on it: it preserves what InitProducerId erases.
        """
        row = branch.require_row()
        if not row.state or row.settled or (row.completing and not settled):
            return
        await self._record(branch, replace(row, settled=settled, completing=row.completing or not settled))

    async def record_known(self, branch: ClusterBranch[Producer]) -> None:
        """Record in a row without a transaction that a recovery has ended: once in the life of an id.

        Nothing is open under the id then, so that a later transaction is not that of another database.
        """
        row = branch.require_row()
        if not row.state and not row.known:
            await self._record(branch, replace(row, known=True))

    async def _record(self, branch: ClusterBranch[Producer], new_row: StoredState) -> None:
        row = branch.require_row()
        try:
            txn = await self._steps.run("begin settling", branch.id, self._open, self._begin_briefly)
            await self._steps.run("settle", branch.id, txn.record, new_row, row)
            await self._steps.run("commit settled", branch.id, txn.commit)
            self.transaction = None
        except BaseException as exc:
            await self.roll_back_open()
            if isinstance(exc, NotCommitted):
                raise exc.cause from exc
            raise
        branch.row = new_row

    async def begin(self) -> D:
        """Begin the transaction for the user's rows."""
        return await self._steps.run("begin database", "", self._open, self._store.begin)

    async def roll_back_open(self) -> bool:
        """Roll back what is open, whose locks would block a claim; return whether nothing is left."""
        return self.transaction is None or await self.roll_back(self.transaction)

    async def roll_back(self, txn: D) -> bool:
        """Roll back the database's half; return whether it succeeded. A failure is only logged."""
        try:
            await self._steps.run("roll back", "", txn.rollback)
        except Exception as exc:
            _log.warning("%s: the database's transaction could not be rolled back: %s", self._ids_text, exc)
            return False
        self.transaction = None
        return True

    async def _open(self, begin: Callable[[], Awaitable[D]]) -> D:
        """Begin in the database, and keep the transaction before any interrupt so that it is released."""
        self.transaction = txn = await begin()
        return txn

    async def _begin_briefly(self) -> D:
        """Begin a transaction on a state row alone, with a limited wait for its lock if the store can.

        A client whose host is gone may hold that lock for hours. `begin_briefly` is an optional method of a
        store that limits the wait; `begin` is used otherwise.
        """
        begin: Callable[[], Awaitable[D]] = getattr(self._store, "begin_briefly", self._store.begin)
        return await begin()

    async def _check_owner_locked(self, row: StoredState) -> None:
        txn: D | None = None
        try:
            txn = await self._begin_briefly()
            await txn.record(row)
        finally:
            if txn is not None:
                await txn.rollback()
