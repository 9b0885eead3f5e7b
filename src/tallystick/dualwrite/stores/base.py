"""Store protocols: the methods that a dual write needs of a database.

The database must fence. A writer that stalled after `prepare` may wake up after another one has recovered its
id and aborted its Kafka transaction, and then commit its rows; and a COMMIT whose answer was lost may still
be running in the server. Therefore:

- `claim` replaces the owner of the row in a committed transaction of its own, and waits for any lock on the
  row. When it returns, every transaction of an earlier owner either is committed and in the row it returns,
  or can never be committed [DW-1].
- `record` writes the row in the user's transaction if the owner is unchanged; otherwise it raises
  WriterFenced, and the transaction cannot be committed [DW-2].
- `commit` returns when it has committed, and raises NotCommitted when it certainly has not. Any other
  exception leaves the outcome unknown, whether CommitUnknown or one from a signal handler [DW-3].
- The rows of a transaction and its record belong to one database transaction, or `record` or `commit`
  refuses: a statement that ended it unnoticed (ROLLBACK in SQL text, DDL on MySQL) took its rows [DW-11].

`tallystick.testing.store_suite` checks all of this against a real database. docs/dualwrite/own-store.md has a
complete store in fifty lines.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tallystick.dualwrite.errors import CorruptRow, DatabaseBehind, WriterFenced
from tallystick.dualwrite.rules.idempotency import IdempotencyKey, KeyResult
from tallystick.dualwrite.rules.leases import LeaseList, LeaseTaking
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value


class StoreTransaction(Protocol):
    """One database transaction, with the user's rows and the state rows. Used by one thread, once."""

    @property
    def handle(self) -> object:
        """The object the user works with: a Session, a WriteBatch, a TransactionRequest.

        A transaction may also expose it as `session`, `connection` or `batch`.
        """

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Replace the stored row of the id by `row` in this transaction, if its owner is `row.owner`.

        May be called for several ids. A store that can compare only at commit raises there.

        Args:
            before: the row as the writer last saw it committed. A different `state` in the database shows
                that it has lost that commit [DW-12].
        Raises: WriterFenced if the owner differs or there is no row; DatabaseBehind if the state differs.
            After either, nothing of this transaction may be committed. ManagedByWriter if the user ended the
            transaction.
        """

    def commit(self) -> None:
        """Commit, durably.

        Raises: NotCommitted if it certainly did not commit, with WriterFenced or the database's own error as
            its cause. CommitUnknown if the answer is lost; any other exception means the same.
        """

    def rollback(self) -> None:
        """Roll back and release the connection. Idempotent, and safe after a failure."""


class AsyncStoreTransaction(Protocol):
    """The asyncio version of `StoreTransaction`."""

    @property
    def handle(self) -> object: ...
    async def record(self, row: StoredState, before: StoredState | None = None) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


T_co = TypeVar("T_co", bound=StoreTransaction, covariant=True)
A_co = TypeVar("A_co", bound=AsyncStoreTransaction, covariant=True)


class Store(Protocol[T_co]):
    """The database that keeps the rows. Threads may share a store; each transaction belongs to one thread."""

    def create(self) -> None:
        """Create the table, path or family if missing. Raises: BadStore if it is of another version."""

    def claim(self, transactional_id: str) -> StoredState:
        """Take over the row by committing a new random owner [DW-1]; create the row if there is none.

        Returns: the row as it is now; only the owner is new.
        Raises: BadStore if the table is missing; CorruptRow if the row cannot be read; the database's own
            errors. A claim whose answer was lost may be repeated.
        """

    def begin(self) -> T_co:
        """Begin a transaction. Raises: UnsafeDurability if its commit would not be durable."""

    def read_state(self, transactional_id: str) -> StoredState | None:
        """Return the committed row without waiting for locks; None if there is none."""

    def transactional_ids(self) -> Iterable[str]:
        """Return every id that has a row, in order."""

    def close(self) -> None:
        """Close what the store itself opened. Objects passed to it stay open."""


class AsyncStore(Protocol[A_co]):
    """The asyncio version of `Store`."""

    async def create(self) -> None: ...
    async def claim(self, transactional_id: str) -> StoredState: ...
    async def begin(self) -> A_co: ...
    async def read_state(self, transactional_id: str) -> StoredState | None: ...
    async def transactional_ids(self) -> Iterable[str]: ...
    async def close(self) -> None: ...


# ---- leases of transactional ids


class LeaseStore(Store[T_co], Protocol[T_co]):
    """A store that can also keep leases. Optional. Each method commits a transaction of its own.

    Expiry is compared with the database's clock alone.
    """

    def claim_leased(self, transactional_id: str, holder: str) -> StoredState:
        """Claim as `claim` does, if the lease is the holder's when the claim commits [DW-15].

        The state row is locked first, and then the lease: a claim that waits for the former must not keep
        the holder from renewing the latter.
        Raises: LeaseLost; the claim was rolled back. Otherwise as `claim`.
        """

    def read_leases(self, base: str | None = None) -> LeaseList:
        """Return the leases of a base name, of every one if None, and the database's time."""

    def take_lease(self, taking: LeaseTaking) -> bool:
        """Acquire a lease if its row is unchanged since it was read, and return whether it was."""

    def renew_leases(self, ids: Iterable[str], holder: str, duration_ms: int) -> frozenset[str]:
        """Renew those leases of `ids` that are still the holder's, and return the ids that it holds."""

    def release_lease(self, transactional_id: str, holder: str) -> None:
        """Return a lease if it is still the holder's."""


class AsyncLeaseStore(AsyncStore[A_co], Protocol[A_co]):
    """The asyncio version of `LeaseStore`."""

    async def claim_leased(self, transactional_id: str, holder: str) -> StoredState: ...
    async def read_leases(self, base: str | None = None) -> LeaseList: ...
    async def take_lease(self, taking: LeaseTaking) -> bool: ...
    async def renew_leases(self, ids: Iterable[str], holder: str, duration_ms: int) -> frozenset[str]: ...
    async def release_lease(self, transactional_id: str, holder: str) -> None: ...


# ---- KIP-939's other recipe: consumed offsets next to the rows derived from them


class OffsetAdvance(Value, kw_only=True):
    """Progress in one partition, read from `before` up to but excluding `after`.

    before  None if the database has no offset of this partition yet
    """

    before: int | None
    after: int


class OffsetTransaction(StoreTransaction, Protocol):
    """A store transaction that can also move consumed offsets."""

    def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetAdvance]) -> None:
        """Replace each offset of `group` if it is still `before` [DW-4].

        That comparison is the fence: when a reader has lost a partition, others have moved its offset.
        Raises: WriterFenced, with the partition as its id, if any differs; then nothing may be committed.
        """


O_co = TypeVar("O_co", bound=OffsetTransaction, covariant=True)


class OffsetStore(Store[O_co], Protocol[O_co]):
    """A store that can also keep consumed offsets. Optional."""

    def read_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return the next offset to read for every stored partition of `group`."""


class AsyncOffsetTransaction(AsyncStoreTransaction, Protocol):
    """The asyncio version of `OffsetTransaction`."""

    async def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetAdvance]) -> None: ...


AO_co = TypeVar("AO_co", bound=AsyncOffsetTransaction, covariant=True)


class AsyncOffsetStore(AsyncStore[AO_co], Protocol[AO_co]):
    """The asyncio version of `OffsetStore`."""

    async def read_offsets(self, group: str) -> Mapping[TopicPartition, int]: ...


def check_record(now: StoredState | None, row: StoredState, before: StoredState | None) -> None:
    """Check that `row` may replace `now`, for stores that compare rows themselves.

    Raises: WriterFenced; DatabaseBehind.
    """
    if now is None or now.owner != row.owner:
        raise WriterFenced(row.transactional_id, row.owner, "gone" if now is None else now.owner)
    if before is not None and now.state != before.state:
        raise DatabaseBehind(
            f"{row.transactional_id}: the database has {now.state or 'no transaction'} as the last one, and "
            f"this writer has committed {before.state or 'none'} there: the database has lost commits that "
            "it acknowledged. Nothing of this block is committed; recover() says what to do"
        )


# ---- idempotency keys next to the rows; an optional part of a store


class IdempotentTransaction(StoreTransaction, Protocol):
    """A store transaction that can also insert idempotency keys."""

    def claim_key(self, key: IdempotencyKey) -> str | None:
        """Insert a key in this transaction, after the end of any other one that has inserted it.

        Returns: None if the key is this transaction's; the stored result if the key was there.
        Raises: BadStore if the table is missing; CorruptRow; a conflict if the key is there and cannot be
            seen.
        """

    def store_result(self, key: IdempotencyKey, text: str) -> None:
        """Store the result with the key that `claim_key` has inserted, when Kafka is prepared."""


def select_keys(row: StoredState, stored: Iterable[Sequence[Any]]) -> list[IdempotencyKey]:
    """Select the keys of a row's transaction.

    Args:
        stored: scope, key and result of candidates.
    """
    keys = []
    for scope, name, text in stored:
        key = IdempotencyKey(scope, name)
        if KeyResult.parse(key, text).states.get(row.transactional_id) == row.state:
            keys.append(key)
    return keys


def check_key_row(key: IdempotencyKey, claim: str, row: Sequence[Any] | None) -> str | None:
    """Return the result that is stored with a key; None if this transaction has inserted the key.

    Args:
        claim: what this transaction inserts.
        row: the claim and the result that the table has.
    Raises: CorruptRow for a key that was committed without a result.
    """
    if row is None:
        raise CorruptRow(str(key), "it was forgotten at this moment; neither side is committed")
    if row[0] == claim:
        return None
    if row[1] is None:
        raise CorruptRow(
            str(key),
            "it was committed before its work had ended, by a COMMIT inside the block: look what is there",
        )
    return str(row[1])
