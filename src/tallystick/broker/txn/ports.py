"""What the transaction coordinator is given: its topic and its settings."""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tallystick.broker.txn.machine.commands import Answer, Command
from tallystick.broker.txn.machine.model import TxnConfig, TxnEntry
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, TransactionalId
from tallystick.kernel.value import frozen
from tallystick.storage.producers import AppendOrigin


@frozen(kw_only=True)
class TxnSettings:
    """Settings of the coordinator: the machine's, and the shell's own.

    answer_timeout_ms  the longest that anybody waits here, as offsets.commit.timeout.ms is for groups
    """

    config: TxnConfig = TxnConfig()
    abort_timed_out_interval_ms: int = 10_000
    remove_expired_interval_ms: int = 3_600_000
    answer_timeout_ms: int = 5_000


class Appended(Protocol):
    """Where a batch went."""

    @property
    def last_offset(self) -> Offset: ...


class StatePartition(Protocol):
    """What the coordinator needs of one partition of `__transaction_state`."""

    @property
    def leader_epoch(self) -> int: ...

    def append(self, batches: bytes, origin: AppendOrigin) -> Appended | Reject:
        """Append one batch. A Reject and LogFull: nothing was written; another exception: nobody knows."""
        ...

    def durable(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Done when power loss cannot take the record, as far as flush.policy promises; None: it is so."""
        ...

    def read_all(self, max_bytes: int) -> Iterator[bytes]:
        """Everything in the log now, in order, in pieces of whole batches."""
        ...


class StateTopic(Protocol):
    """`__transaction_state` as a whole."""

    @property
    def partition_count(self) -> int:
        """An id's partition depends on it, so it is the topic's own once there is a topic."""
        ...

    def existing(self) -> Sequence[StatePartition]:
        """All partitions, by index; empty when there is no topic yet."""
        ...

    async def ensure(self) -> Reject | None:
        """Make the topic unless it is there."""
        ...


class LoadedIds(Protocol):
    """The coordinator at the end of its loading, to whom nobody else may speak yet."""

    def loaded(self) -> Mapping[TransactionalId, TxnEntry]:
        """Every entry, as it is now."""
        ...

    def to_compare(self) -> Iterable[TxnEntry]:
        """Those whose partition of the log is compared now."""
        ...

    def coordinator_epoch(self, transactional_id: TransactionalId) -> int:
        """Signs markers."""
        ...

    def run_loading(self, transactional_id: TransactionalId, command: Command) -> Awaitable[Answer]:
        """Run a command as if loading were over."""
        ...

    async def move_loading(self, transactional_id: TransactionalId) -> Reject | None:
        """Give the id's client another producer id (`consistency.moved`)."""
        ...


class Comparison(Protocol):
    """At a start: what the log says is compared with what partitions have.

    A partition of the log that cannot be read then is compared when it is read back.
    """

    def begin(self, index: int) -> None:
        """A partition of the log is read from its start; what was read of it before counts no more."""
        ...

    async def read(self, index: int, piece: bytes) -> None:
        """A piece of a partition of the log, whole batches; all of an id in order."""
        ...

    async def settle(self, ids: LoadedIds, indexes: Collection[int], *, is_last: bool) -> None:
        """Act on what was found. Order: `ids.to_compare` is loaded, and no marker of it has been sent yet.

        Args:
            indexes: partitions of the log that have been read whole, and not been compared before.
            is_last: every partition of the log has been read now.
        """
        ...
