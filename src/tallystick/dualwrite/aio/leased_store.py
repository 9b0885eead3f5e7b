"""A store as the writer of a leased id sees it: a claim succeeds only for the holder of the lease."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.stores.base import AsyncLeaseStore, AsyncStoreTransaction
from tallystick.dualwrite.tracing import get_database_system

D = TypeVar("D", bound=AsyncStoreTransaction)


class AsyncLeasedStore(Generic[D]):
    """The store of one pool's leased ids."""

    def __init__(self, store: AsyncLeaseStore[D], holder: str) -> None:
        """Wrap a store.

        Args:
            holder: token of the pool.
        """
        self.wrapped_store = store
        self._holder = holder
        self.database_system = get_database_system(store)

    async def create(self) -> None:
        await self.wrapped_store.create()

    async def claim(self, transactional_id: str) -> StoredState:
        """Claim an id whose lease the pool holds. Raises: LeaseLost."""
        return await self.wrapped_store.claim_leased(transactional_id, self._holder)

    async def begin(self) -> D:
        return await self.wrapped_store.begin()

    async def begin_briefly(self) -> D:
        begin: Callable[[], Awaitable[D]] = getattr(
            self.wrapped_store, "begin_briefly", self.wrapped_store.begin
        )
        return await begin()

    async def read_state(self, transactional_id: str) -> StoredState | None:
        return await self.wrapped_store.read_state(transactional_id)

    async def transactional_ids(self) -> Iterable[str]:
        return await self.wrapped_store.transactional_ids()

    async def close(self) -> None:
        """Do nothing: the caller owns the store."""
