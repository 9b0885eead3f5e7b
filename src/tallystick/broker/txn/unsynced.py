"""Records of the transaction log that took effect before they were durable, and who waits for them."""

import asyncio
from collections.abc import Callable
from functools import partial

from tallystick.broker.txn.ports import TransactionStatePartition
from tallystick.kernel.ids import Offset, TransactionalId


class UnsyncedRecords:
    """The last such record of each id, kept until it is found durable or the id is removed."""

    def __init__(
        self,
        partition_for: Callable[[TransactionalId], int],
        find_partition: Callable[[int], TransactionStatePartition | None],
        fail_partition: Callable[[int, BaseException], None],
    ) -> None:
        """Create an empty table.

        Args:
            fail_partition: called with the partition of the log whose sync has failed; more than once.
        """
        self._partition_for = partition_for
        self._find_partition = find_partition
        self._fail_partition = fail_partition
        self._last_offsets: dict[TransactionalId, Offset] = {}

    def note(self, transactional_id: TransactionalId, last_offset: Offset) -> None:
        """Note that a record took effect as soon as the log had it."""
        self._last_offsets[transactional_id] = last_offset

    def forget(self, transactional_id: TransactionalId) -> None:
        """Forget an id that is removed."""
        self._last_offsets.pop(transactional_id, None)

    def when_durable(self, transactional_id: TransactionalId) -> "asyncio.Future[None] | None":
        """Return a future, done when all that took effect for the id is durable; None: it is.

        The future fails with the sync's exception; the partition of the log is lost then.
        """
        offset = self._last_offsets.get(transactional_id)
        if offset is None:
            return None
        index = self._partition_for(transactional_id)
        partition = self._find_partition(index)
        durable = None if partition is None else partition.when_durable(offset)
        if durable is None:
            del self._last_offsets[transactional_id]
        else:
            durable.add_done_callback(partial(_check, self._fail_partition, index))
        return durable

    def list_futures(self) -> "list[asyncio.Future[None]]":
        """Return futures that are done when all that took effect is durable."""
        return [
            durable
            for transactional_id in tuple(self._last_offsets)
            if (durable := self.when_durable(transactional_id)) is not None
        ]


def _check(
    fail_partition: Callable[[int, BaseException], None], index: int, durable: "asyncio.Future[None]"
) -> None:
    failure = None if durable.cancelled() else durable.exception()
    if failure is not None:
        fail_partition(index, failure)
