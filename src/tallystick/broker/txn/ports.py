"""Dependencies of the transaction coordinator: its topic, its settings, the comparison at a start."""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tallystick.broker.txn.machine.commands import TxnAnswer, TxnCommand
from tallystick.broker.txn.machine.model import TxnConfig, TxnEntry
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, TransactionalId
from tallystick.kernel.value import Value
from tallystick.storage.state.producer_state import AppendOrigin


class TxnSettings(Value, kw_only=True):
    """Settings of the coordinator: the state machine's, and the shell's own.

    answer_timeout_ms  the longest wait for an answer, as offsets.commit.timeout.ms is for groups
    """

    config: TxnConfig = TxnConfig()
    abort_timed_out_interval_ms: int = 10_000
    remove_expired_interval_ms: int = 3_600_000
    answer_timeout_ms: int = 5_000


class AppendPosition(Protocol):
    """Position of an appended batch."""

    @property
    def last_offset(self) -> Offset: ...


class TransactionStatePartition(Protocol):
    """The parts of a `__transaction_state` partition that the coordinator uses."""

    @property
    def leader_epoch(self) -> int: ...

    def append(self, batches: bytes, origin: AppendOrigin) -> AppendPosition | Reject:
        """Append one batch.

        After a Reject or DiskFull nothing was written; after another exception that is unknown.
        """
        ...

    def when_durable(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Return a future, done when the record survives a power loss as far as `flush.policy` promises.

        None: it does already.
        """
        ...

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]:
        """Yield all that is in the log now, in order, in pieces of whole batches."""
        ...


class TransactionStateTopic(Protocol):
    """The whole topic `__transaction_state`."""

    @property
    def partition_count(self) -> int:
        """Partitions of the existing topic, as an id's partition depends on the count; else the setting."""
        ...

    def list_partitions(self) -> Sequence[TransactionStatePartition]:
        """Return all partitions by index; none when the topic does not exist yet."""
        ...

    async def ensure_exists(self) -> Reject | None:
        """Create the topic unless it exists."""
        ...


class LoadingCoordinator(Protocol):
    """The coordinator at the end of its loading, before it serves clients."""

    def list_entries(self) -> Mapping[TransactionalId, TxnEntry]:
        """Return every entry, as it is now."""
        ...

    def list_entries_to_compare(self) -> Iterable[TxnEntry]:
        """Return the entries whose partition of the log is compared now."""
        ...

    def get_coordinator_epoch(self, transactional_id: TransactionalId) -> int:
        """Return the coordinator epoch for the id's markers."""
        ...

    def submit_while_loading(
        self, transactional_id: TransactionalId, command: TxnCommand
    ) -> Awaitable[TxnAnswer]:
        """Run a command as if loading were over."""
        ...

    async def replace_producer_id(self, transactional_id: TransactionalId) -> Reject | None:
        """Give the id's client another producer id (`consistency.moved`)."""
        ...


class StartComparison(Protocol):
    """Comparison of the transaction log with the data partitions, at a start.

    A partition of the log that cannot be read then is compared when it is read back.
    """

    def begin_partition(self, index: int) -> None:
        """Record that a partition of the log is read from its start; discard what was read of it before."""
        ...

    async def read_chunk(self, index: int, piece: bytes) -> None:
        """Add a piece of a partition of the log: whole batches, all records of an id in order."""
        ...

    async def repair(self, ids: LoadingCoordinator, indexes: Collection[int], *, is_last: bool) -> None:
        """Act on the findings. The entries to compare are loaded, and none of their markers has been sent.

        Args:
            indexes: partitions of the log that have been read whole, and not been compared before.
            is_last: every partition of the log has been read now.
        """
        ...
