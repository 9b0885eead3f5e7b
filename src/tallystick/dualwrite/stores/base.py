"""What a dual write asks of a database. A store for another one is these few methods.

The database must fence. A writer that stalled after `prepare` may wake when another has recovered its id and
aborted its Kafka half, and then commit its rows; and a COMMIT whose answer was lost may still be running in
the server. Therefore:

- `claim` replaces the owner of the row in a committed transaction of its own, and waits for whatever holds
  the row. When it returns, every transaction of an earlier owner is committed and in the row it returns, or
  can never be committed any more [DW-1].
- `record` writes the row in the user's transaction, if its owner is still the same; otherwise it raises
  Fenced, and the transaction cannot be committed [DW-2].
- `commit` returns when it has committed, and raises NotCommitted when it certainly has not. Whatever else it
  raises leaves the outcome unknown, CommitUnknown and an exception out of a signal's handler alike [DW-3].
- The rows of a transaction and its record are of one transaction of the database, or `record` or `commit`
  refuses: what ended it behind the writer's back (ROLLBACK in SQL text, DDL on MySQL) took its rows [DW-11].

`tallystick.testing.store_suite` checks all of it against a real database. docs/dualwrite.md has a whole store
in fifty lines.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from tallystick.dualwrite.errors import DatabaseBehind, Fenced
from tallystick.dualwrite.model import StoredState
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen


class StoreTransaction(Protocol):
    """One transaction of the database: the user's rows and ours. Used by one thread, once."""

    @property
    def handle(self) -> object:
        """What the user works with: a Session, a WriteBatch, a TransactionRequest.

        A transaction may have more names for it: `session`, `connection`, `batch`.
        """

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Make `row` the row of its id, as part of this transaction, if that row's owner is `row.owner`.

        May be called for several ids. A store that can compare only at the commit raises there.

        Args:
            before: the row as the writer last saw it committed. Another `state` there says that the database
                has lost that commit [DW-12].
        Raises: Fenced if the owner is another, or there is no row; DatabaseBehind for another state; then
            nothing of this transaction may be committed. NotYours if the user has ended the transaction.
        """

    def commit(self) -> None:
        """Commit, durably.

        Raises: NotCommitted if it certainly did not commit, with Fenced or the database's own error as its
            cause. CommitUnknown if the answer is lost; but anything else means the same.
        """

    def rollback(self) -> None:
        """End it without effect, and give its connection back. After a failure and again: harmless."""


class AsyncStoreTransaction(Protocol):
    """The same under asyncio."""

    @property
    def handle(self) -> object: ...
    async def record(self, row: StoredState, before: StoredState | None = None) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


T_co = TypeVar("T_co", bound=StoreTransaction, covariant=True)
A_co = TypeVar("A_co", bound=AsyncStoreTransaction, covariant=True)


class Store(Protocol[T_co]):
    """Where the rows are. Threads may share one; each transaction is used by one thread."""

    def create(self) -> None:
        """Make the table, path or family if it is not there. Raises: BadStore if it is of another version."""

    def claim(self, transactional_id: str) -> StoredState:
        """Take the row over [DW-1]: a new random owner, committed; a new row if there was none.

        Returns: the row as it is now; only the owner is new.
        Raises: BadStore without a table; BadRow for one that cannot be read; the database's own errors. A
            claim whose answer was lost may be repeated.
        """

    def begin(self) -> T_co:
        """A new transaction. Raises: UnsafeStore where a commit would not be durable."""

    def read_state(self, transactional_id: str) -> StoredState | None:
        """The row as it is committed, without waiting for anybody; None if there is none."""

    def transactional_ids(self) -> Iterable[str]:
        """Every id that has a row, in order."""

    def close(self) -> None:
        """Give up what the store itself opened. What was handed to it stays open."""


class AsyncStore(Protocol[A_co]):
    """The same under asyncio."""

    async def create(self) -> None: ...
    async def claim(self, transactional_id: str) -> StoredState: ...
    async def begin(self) -> A_co: ...
    async def read_state(self, transactional_id: str) -> StoredState | None: ...
    async def transactional_ids(self) -> Iterable[str]: ...
    async def close(self) -> None: ...


# ---- KIP-939's other recipe: consumed offsets beside the rows that were made of them


@frozen(kw_only=True)
class OffsetMoved:
    """A partition was read from `before` on, up to and without `after`.

    before  None: the database has no offset of this partition yet
    """

    before: int | None
    after: int


class OffsetTransaction(StoreTransaction, Protocol):
    """A transaction that can also move consumed offsets."""

    def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetMoved]) -> None:
        """Replace each offset of `group`, if it is still `before` [DW-4].

        That comparison is the fence: a reader who has lost a partition has an offset that others have moved.
        Raises: Fenced, with the partition as its id, if any differs; then nothing may be committed.
        """


O_co = TypeVar("O_co", bound=OffsetTransaction, covariant=True)


class OffsetStore(Store[O_co], Protocol[O_co]):
    """A store that can also keep consumed offsets. Optional."""

    def read_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """The next offset to read of every partition that `group` has."""


class AsyncOffsetTransaction(AsyncStoreTransaction, Protocol):
    """The same under asyncio."""

    async def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetMoved]) -> None: ...


AO_co = TypeVar("AO_co", bound=AsyncOffsetTransaction, covariant=True)


class AsyncOffsetStore(AsyncStore[AO_co], Protocol[AO_co]):
    """The same under asyncio."""

    async def read_offsets(self, group: str) -> Mapping[TopicPartition, int]: ...


def check_record(now: StoredState | None, row: StoredState, before: StoredState | None) -> None:
    """May `row` replace `now`? For stores that look at the row themselves.

    Raises: Fenced; DatabaseBehind.
    """
    if now is None or now.owner != row.owner:
        raise Fenced(row.transactional_id, row.owner, "gone" if now is None else now.owner)
    if before is not None and now.state != before.state:
        raise DatabaseBehind(
            f"{row.transactional_id}: the database has {now.state or 'no transaction'} as the last one, and "
            f"this writer has committed {before.state or 'none'} there: the database has lost commits that "
            "it acknowledged. Neither half of this transaction is committed; recover() says what to do"
        )
