"""The store in a lake table for asyncio: each call that may block runs in a thread.

Table libraries block, so the calls of a transaction run one after the other in threads of the loop's
executor. A call is never left behind: a task that is cancelled waits until its call has ended, and is
cancelled then. So no thread appends rows to a transaction that was rolled back, or goes on committing during
the recovery that asks how the commit ended.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from tallystick.dualwrite.rules.model import StoredState
from tallystick.lake.dual_writes.store import BLOCK_BYTES_MAX, DeltaStore, LakeStore, LakeTransaction

A = ParamSpec("A")
T = TypeVar("T")


async def call_in_thread(call: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
    """Run a blocking call in a thread and return its result; a cancellation is raised when it has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancellation = exc
    if cancellation is not None:
        failure = None if task.cancelled() else task.exception()
        raise cancellation from failure
    return task.result()


class AsyncTableAppender:
    """Appender that a block uses for its table. Its rows are invisible before the commit."""

    def __init__(self, txn: LakeTransaction) -> None:
        self._txn = txn

    async def append(self, rows: object, *, merge_schema: bool | None = None) -> None:
        """Append rows; see `TableAppender.append`. Do not change them before this returns."""
        await call_in_thread(self._txn.append, rows, merge_schema=merge_schema)


class AsyncLakeTransaction:
    """The asyncio version of `LakeTransaction`."""

    def __init__(self, txn: LakeTransaction) -> None:
        self._txn = txn
        self._appender = AsyncTableAppender(txn)

    @property
    def handle(self) -> AsyncTableAppender:
        return self._appender

    def sent(self) -> None:
        """Count a record sent to Kafka."""
        self._txn.sent()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Discard the rows of a block if it raises."""
        with self._txn.savepoint():
            yield

    async def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Compare the owner, and write the rows as data files."""
        await call_in_thread(self._txn.record, row, before)

    async def commit(self) -> None:
        """Commit files and row as one version of the table."""
        await call_in_thread(self._txn.commit)

    async def rollback(self) -> None:
        """Forget the rows, and remove the files if no version can name them."""
        await call_in_thread(self._txn.rollback)


class AsyncLakeStore:
    """The asyncio version of a `LakeStore`; both may write under the same ids, one after the other."""

    ids_max: Final = LakeStore.ids_max

    def __init__(self, store: LakeStore) -> None:
        self._store = store
        self.database_system = store.database_system

    async def create(self) -> None:
        """Check that the table is there and can be written. Raises: BadStore."""
        await call_in_thread(self._store.create)

    async def claim(self, transactional_id: str) -> StoredState:
        """Take over the entry of an id."""
        return await call_in_thread(self._store.claim, transactional_id)

    async def begin(self) -> AsyncLakeTransaction:
        """Begin a transaction."""
        if self._store.has_idle_entry():
            return AsyncLakeTransaction(await call_in_thread(self._store.begin))
        return AsyncLakeTransaction(self._store.begin())

    async def read_state(self, transactional_id: str) -> StoredState | None:
        """Return the row as the newest version of the table has it."""
        return await call_in_thread(self._store.read_state, transactional_id)

    async def transactional_ids(self) -> Iterable[str]:
        """Return every id that has an entry, in order."""
        return await call_in_thread(self._store.transactional_ids)

    async def close(self) -> None:
        """Do nothing: a table keeps nothing open."""


class AsyncDeltaStore(AsyncLakeStore):
    """A store in a Delta table for `tallystick.dualwrite.aio`."""

    def __init__(
        self,
        table: str | Path,
        *,
        storage_options: Mapping[str, str] | None = None,
        merge_schema: bool = False,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        accept_lost: Collection[str] = (),
    ) -> None:
        """Bind the store to a Delta table, as a DeltaStore."""
        super().__init__(
            DeltaStore(
                table,
                storage_options=storage_options,
                merge_schema=merge_schema,
                block_bytes_max=block_bytes_max,
                accept_lost=accept_lost,
            )
        )
