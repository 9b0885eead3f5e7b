"""Writing of end markers to the partitions of this broker."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Protocol

from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, TopicDeleted, TopicsImage
from tallystick.broker.txn.machine.commands import MarkerRequest
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.broker.txn.marker_sender import MarkerResult
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, Offset, TopicPartition
from tallystick.protocol.records.control import ControlType, EndTransactionMarker, encode_marker
from tallystick.storage.disk.fs import DiskFull
from tallystick.storage.log.log import AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin

_log = logging.getLogger("tallystick.transactions")

_CONTROL_TYPES: Final = {
    TransactionResult.COMMIT: ControlType.COMMIT,
    TransactionResult.ABORT: ControlType.ABORT,
}


_GUARDS: Final = tuple(TxnGuard(transaction_version=version) for version in range(EPOCH_BUMP_VERSION + 1))


class OffsetsMarkerWriter(Protocol):
    """Owner of the partitions of `__consumer_offsets`: a marker there also commits or aborts offsets."""

    async def write_marker(self, index: int, batch: bytes, guard: TxnGuard) -> AppendResult | Reject: ...


class LocalMarkerWriter:
    """A MarkerWriter for local partitions. Lives on the loop."""

    def __init__(self, topics: TopicsImage, groups: OffsetsMarkerWriter, clock: Clock) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._cached_batch: tuple[MarkerRequest, int, bytes] | None = None

    def write(
        self, send: MarkerRequest, partition: TopicPartition, coordinator_epoch: int
    ) -> MarkerResult | Awaitable[MarkerResult]:
        """Write one marker. Returns None where the partition has nothing to end."""
        target = self._topics.find_partition(partition.topic, partition.partition)
        if target is None and self._topics.is_deletion_in_doubt(partition.topic):
            # Without the marker the transaction would be complete, but still open if the topic comes back.
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {partition.topic!r} is being deleted")
        if target is None:
            return None  # deleted with all its records
        batch = self._encode_marker_batch(send, _choose_coordinator_epoch(target, send, coordinator_epoch))
        guard = _GUARDS[send.transaction_version]
        if partition.topic == CONSUMER_OFFSETS_TOPIC:
            return self._write_through_groups(send, target, batch, guard)
        try:
            result = target.append(batch, AppendOrigin.COORDINATOR, guard)
        except DiskFull as exc:
            return Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc))
        if isinstance(result, Reject):
            return _classify_refused_marker(target, send, result)
        durable_future = target.when_durable(result.last_offset)
        return (
            result.base_offset if durable_future is None else _await_sync(durable_future, result.base_offset)
        )

    async def _write_through_groups(
        self, send: MarkerRequest, partition: Partition, batch: bytes, guard: TxnGuard
    ) -> MarkerResult:
        result = await self._groups.write_marker(partition.topic_partition.partition, batch, guard)
        return (
            _classify_refused_marker(partition, send, result)
            if isinstance(result, Reject)
            else result.base_offset
        )

    def _encode_marker_batch(self, send: MarkerRequest, coordinator_epoch: int) -> bytes:
        """Return the marker batch; all partitions of a transaction get the same."""
        latest = self._cached_batch
        if latest is not None and latest[0] is send and latest[1] == coordinator_epoch:
            return latest[2]
        marker = EndTransactionMarker(
            control_type=_CONTROL_TYPES[send.outcome], coordinator_epoch=coordinator_epoch
        )
        batch = encode_marker(marker, send.marker_identity, timestamp_ms=self._clock.now_ms())
        self._cached_batch = (send, coordinator_epoch, batch)
        return batch


def _choose_coordinator_epoch(partition: Partition, send: MarkerRequest, coordinator_epoch: int) -> int:
    """Return our coordinator epoch, or a higher one that the partition has seen.

    There is no other coordinator: a higher epoch came from an administrator's marker, or from before
    `__transaction_state` was lost, and with our own the partition would refuse the marker for ever.
    """
    state = partition.log.producer_state_manager.find_producer(send.marker_identity.producer_id)
    if state is None or state.coordinator_epoch is None:
        return coordinator_epoch
    return max(coordinator_epoch, state.coordinator_epoch)


def _classify_refused_marker(partition: Partition, send: MarkerRequest, refusal: Reject) -> MarkerResult:
    """Return the result of a refused marker; None if it is too old, or its partition is gone.

    An old marker has nothing to end: whatever is open in the partition was begun under a later epoch. Kafka
    stops there, and the id stays undecided until its coordinator is loaded again (KAFKA-19999).
    """
    if refusal.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if refusal.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
        return refusal
    _log.warning(
        "%s: the marker of %s is too old and was dropped, as the partition has a later epoch: %s",
        partition.topic_partition,
        send.marker_identity,
        refusal.reason,
    )
    return None


async def _await_sync(durable_future: "asyncio.Future[None]", offset: Offset) -> MarkerResult:
    try:
        await durable_future
    except TopicDeleted:
        return None
    return offset
