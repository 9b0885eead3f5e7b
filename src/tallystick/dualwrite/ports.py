"""Protocols for the producer, admin client and store used by the recipe, blocking or asyncio."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeAlias, TypeVar

from tallystick.admin.admin_call import Answers
from tallystick.admin.cluster_view import ClusterDescription
from tallystick.admin.model import TransactionDescription
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.model import StoredState

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]


class ProducerPort(Protocol):
    """The methods used of `tallystick.Producer` and `tallystick.aio.Producer`."""

    @property
    def mode(self) -> Mode | None: ...
    @property
    def transaction_version(self) -> int: ...
    @property
    def needs_claim(self) -> bool: ...
    def init_transactions(self, keep_prepared_txn: bool = False) -> MaybeAwaitable[None]: ...
    def begin_transaction(self) -> MaybeAwaitable[None]: ...
    def prepare_transaction(self) -> MaybeAwaitable[PreparedTxnState]: ...
    def commit_transaction(self) -> MaybeAwaitable[None]: ...
    def abort_transaction(self) -> MaybeAwaitable[None]: ...
    def complete_transaction(self, state: PreparedTxnState) -> MaybeAwaitable[Completion]: ...
    def close(self, *, abort: bool = True) -> MaybeAwaitable[None]: ...


class AdminPort(Protocol):
    """The methods used of `tallystick.Admin` and `tallystick.aio.Admin`."""

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> MaybeAwaitable[Answers[str, TransactionDescription]]: ...
    def describe_cluster(self) -> MaybeAwaitable[ClusterDescription]: ...
    def close(self) -> MaybeAwaitable[None]: ...


class StoreTransactionPort(Protocol):
    """The methods used of `StoreTransaction` and `AsyncStoreTransaction`."""

    def record(self, row: StoredState, before: StoredState | None = None) -> MaybeAwaitable[None]: ...
    def commit(self) -> MaybeAwaitable[None]: ...
    def rollback(self) -> MaybeAwaitable[None]: ...


P = TypeVar("P", bound=ProducerPort)
D_co = TypeVar("D_co", bound=StoreTransactionPort, covariant=True)


class StorePort(Protocol[D_co]):
    """The methods used of `Store` and `AsyncStore`."""

    def claim(self, transactional_id: str) -> MaybeAwaitable[StoredState]: ...
    def begin(self) -> "D_co | Awaitable[D_co]": ...
    def read_state(self, transactional_id: str) -> MaybeAwaitable[StoredState | None]: ...


ProducerFactory = Callable[[Mapping[str, object]], P]
AdminFactory = Callable[[Mapping[str, object]], AdminPort]
