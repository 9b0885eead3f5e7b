"""What the group coordinator is given: its topic."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from tallystick.broker.coordinator.log_order import Durable
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.storage.log import AppendOrigin, AppendResult, TxnGuard


class OffsetsPartition(Protocol):
    """What the coordinator needs of one partition of `__consumer_offsets`."""

    def append(
        self, batches: bytes, origin: AppendOrigin = ..., guard: TxnGuard = ...
    ) -> AppendResult | Reject:
        """Append one batch.

        A Reject and LogFull mean that nothing was written; another exception, that nobody knows.
        """
        ...

    def durable(self, offset: Offset) -> Durable | None:
        """Done when power loss cannot take the record any more, as far as flush.policy promises."""
        ...

    def read_all(self, max_bytes: int) -> Iterator[bytes]:
        """Everything in the log now, in order, in pieces of whole batches."""
        ...


class OffsetsTopic(Protocol):
    """`__consumer_offsets` as a whole."""

    @property
    def partition_count(self) -> int:
        """A group's partition depends on it, so it is the topic's own once there is a topic."""
        ...

    def existing(self) -> Sequence[OffsetsPartition]:
        """All partitions, by index; empty when there is no topic yet."""
        ...

    async def ensure(self) -> Reject | None:
        """Make the topic unless it is there."""
        ...

    async def partition(self, index: int) -> OffsetsPartition | Reject:
        """One partition; the topic is made when it is not there."""
        ...
