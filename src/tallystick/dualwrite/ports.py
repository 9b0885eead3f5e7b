"""Protocols for the producer, admin client and store used by the recipe, blocking or asyncio."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeAlias, TypeVar

from tallystick.admin.cluster_view import ClusterDescription
from tallystick.admin.listing import Answers
from tallystick.admin.model import TransactionDescription
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.model import StoredState

T = TypeVar("T")
Later: TypeAlias = T | Awaitable[T]


class Producing(Protocol):
    """The methods used of `tallystick.Producer` and `tallystick.aio.Producer`."""

    @property
    def mode(self) -> Mode | None: ...
    @property
    def transaction_version(self) -> int: ...
    @property
    def needs_claim(self) -> bool: ...
    def init_transactions(self, keep_prepared_txn: bool = False) -> Later[None]: ...
    def begin_transaction(self) -> Later[None]: ...
    def prepare_transaction(self) -> Later[PreparedTxnState]: ...
    def commit_transaction(self) -> Later[None]: ...
    def abort_transaction(self) -> Later[None]: ...
    def complete_transaction(self, state: PreparedTxnState) -> Later[Completion]: ...
    def close(self, *, abort: bool = True) -> Later[None]: ...


class Describing(Protocol):
    """The methods used of `tallystick.Admin` and `tallystick.aio.Admin`."""

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> Later[Answers[str, TransactionDescription]]: ...
    def describe_cluster(self) -> Later[ClusterDescription]: ...
    def close(self) -> Later[None]: ...


class Transacting(Protocol):
    """The methods used of `StoreTransaction` and `AsyncStoreTransaction`."""

    def record(self, row: StoredState, before: StoredState | None = None) -> Later[None]: ...
    def commit(self) -> Later[None]: ...
    def rollback(self) -> Later[None]: ...


P = TypeVar("P", bound=Producing)
D_co = TypeVar("D_co", bound=Transacting, covariant=True)


class Storing(Protocol[D_co]):
    """The methods used of `Store` and `AsyncStore`."""

    def claim(self, transactional_id: str) -> Later[StoredState]: ...
    def begin(self) -> "D_co | Awaitable[D_co]": ...
    def read_state(self, transactional_id: str) -> Later[StoredState | None]: ...


MakeProducer = Callable[[Mapping[str, object]], P]
MakeAdmin = Callable[[Mapping[str, object]], Describing]
