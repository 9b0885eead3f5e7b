"""One unit of a batch: rows in a savepoint, and records that are sent when its work has returned."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from tallystick.client import tracing
from tallystick.client.aio.producer import Column
from tallystick.dualwrite.aio.writer import Transaction
from tallystick.dualwrite.stores.base import AsyncStoreTransaction
from tallystick.dualwrite.transaction import (
    DatabaseHalf,
    Savepoint,
    begin_savepoint,
    keep_open_if_forked,
    notify_sent,
)

D = TypeVar("D", bound=AsyncStoreTransaction)


class UnitTransaction(DatabaseHalf[D]):
    """The part of a shared dual write that belongs to one caller.

    Rows through `session` or `connection`, records through `send`; all of them are committed with the batch,
    or, if the unit raises, none of them are. Records are checked and sent when the unit has returned.
    """

    def __init__(self, txn: Transaction[D]) -> None:
        super().__init__(txn.database)
        self._txn = txn
        self._queue = Savepoint(txn.send, txn.send_batch)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        cluster: str | None = None,
    ) -> None:
        """Send one record with this unit; see `Producer.send`. `cluster` is required if there are several."""
        self._notify_sent(cluster)
        self._queue.send(
            topic,
            value,
            key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=tracing.carry_caller(topic, headers),
            cluster=cluster,
        )

    async def send_batch(
        self,
        topic: str,
        values: Column | Sequence[Any],
        keys: Column | Sequence[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        cluster: str | None = None,
    ) -> None:
        """Send many records at once with this unit; see `Producer.send_batch`."""
        self._notify_sent(cluster)
        self._queue.send_batch(
            topic, values, keys, partition=partition, timestamp_ms=timestamp_ms, cluster=cluster
        )

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Savepoint]:
        """Open a database savepoint inside the unit; see `Transaction.savepoint`."""
        part = Savepoint(self._txn.send, self._txn.send_batch)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(begin_savepoint(self.database))
            with keep_open_if_forked(self.owning_process, stack):
                yield part
        for send in part.queued_sends:
            notify_sent(self.database)
            self._queue.queued_sends.append(send)

    def take_sends(self) -> list[Any]:
        """Return the queued sends, in order, once the unit has returned."""
        return self._queue.queued_sends

    def _notify_sent(self, cluster: str | None) -> None:
        self.check_open()
        self._txn.check_cluster(cluster)
        notify_sent(self.database)
