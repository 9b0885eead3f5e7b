"""Dependencies of the group coordinator: its topic."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from tallystick.broker.coordinator.log_order import DurableFuture
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.storage.log.log import AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin


class OffsetsPartition(Protocol):
    """The parts of a `__consumer_offsets` partition that the coordinator uses."""

    def append(
        self, batches: bytes, origin: AppendOrigin = ..., guard: TxnGuard = ...
    ) -> AppendResult | Reject:
        """Append one batch.

        After a Reject or DiskFull nothing was written; after another exception that is unknown.
        """
        ...

    def when_durable(self, offset: Offset) -> DurableFuture | None:
        """Return a future, done when the record survives a power loss as far as `flush.policy` promises."""
        ...

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]:
        """Yield all that is in the log now, in order, in pieces of whole batches."""
        ...


class OffsetsTopic(Protocol):
    """The whole topic `__consumer_offsets`."""

    @property
    def partition_count(self) -> int:
        """Partitions of the existing topic, as a group's partition depends on the count; else the setting."""
        ...

    def list_partitions(self) -> Sequence[OffsetsPartition]:
        """Return all partitions by index; none when the topic does not exist yet."""
        ...

    async def ensure_exists(self) -> Reject | None:
        """Create the topic unless it exists."""
        ...

    async def ensure_partition(self, index: int) -> OffsetsPartition | Reject:
        """Return one partition; create the topic if it does not exist."""
        ...
