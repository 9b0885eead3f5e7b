# Generated from dualwrite/aio/leased_store.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""A store as the writer of a leased id sees it: a claim succeeds only for the holder of the lease."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.stores.base import LeaseStore, StoreTransaction
from tallystick.dualwrite.tracing import get_database_system

D = TypeVar("D", bound=StoreTransaction)


class LeasedStore(Generic[D]):
    """The store of one pool's leased ids."""

    def __init__(self, store: LeaseStore[D], holder: str) -> None:
        """Wrap a store.

        Args:
            holder: token of the pool.
        """
        self.wrapped_store = store
        self._holder = holder
        self.database_system = get_database_system(store)

    def create(self) -> None:
        self.wrapped_store.create()

    def claim(self, transactional_id: str) -> StoredState:
        """Claim an id whose lease the pool holds. Raises: LeaseLost."""
        return self.wrapped_store.claim_leased(transactional_id, self._holder)

    def begin(self) -> D:
        return self.wrapped_store.begin()

    def begin_briefly(self) -> D:
        begin: Callable[[], D] = getattr(self.wrapped_store, "begin_briefly", self.wrapped_store.begin)
        return begin()

    def read_state(self, transactional_id: str) -> StoredState | None:
        return self.wrapped_store.read_state(transactional_id)

    def transactional_ids(self) -> Iterable[str]:
        return self.wrapped_store.transactional_ids()

    def close(self) -> None:
        """Do nothing: the caller owns the store."""
