"""WriteTxnMarkers: an administrator ends a transaction in single partitions.

This broker's own coordinator writes its markers without the network. Requests come from
`kafka-transactions.sh abort` and similar tools, without the coordinator. Two rules keep them from doing harm:

* a marker must not contradict the coordinator's decision, and only a decision commits;
* an ABORT into an open transaction is recorded by the coordinator, as a heuristic decision.

With the private tag `txn_start_offsets` a marker applies only to the transaction that begins at that offset,
of exactly that epoch (KIP-664); the coordinator epoch is then not compared, and -1 means that no coordinator
sent it.

Source: KafkaApis.handleWriteTxnMarkersRequest; KIP-664 "Aborting Transactions"; docs/adr/0020.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.listing import Pacer
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import GROUP_OFFSETS, TRANSACTION_STATE, TopicDeleted
from tallystick.broker.server.acl import CLUSTER, Operation
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import Answer, NoteForcedMarker
from tallystick.broker.txn.machine.model import Decided, Ongoing, Outcome, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT16_MAX, Identity, ProducerEpoch, ProducerId, TopicPartition
from tallystick.kernel.value import frozen
from tallystick.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tallystick.protocol.records.control import ControlType, Marker, encode_marker
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import AppendOrigin, AppendResult, TxnGuard

_log = logging.getLogger("tallystick.transactions")

# Kafka's default of request.timeout.ms, which limits the same wait.
DURABLE_S_MAX: Final = 30.0

# Number of markers that are written together and share a sync.
MARKERS_AT_ONCE: Final = 256

# Reported as NOT_LEADER_OR_FOLLOWER, which senders of markers expect and retry.
_NOT_READY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@frozen(kw_only=True)
class _Wanted:
    """One marker for one partition."""

    partition: TopicPartition
    identity: Identity
    outcome: Outcome
    marker: Marker
    guard: TxnGuard


_Asked = tuple[int, TopicPartition]


async def handle(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    # A repeated marker is written once; contradicting ones are kept, to be refused.
    pacer = Pacer()
    named: dict[tuple[_Asked, _Wanted | ErrorCode], None] = {}
    for marker in request.markers:
        await pacer.step()
        for each in _each(marker):
            named[each] = None
            await pacer.step()
    wanted = list(named)
    if not _may(broker, context):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return await _response([(asked, code) for asked, _ in wanted])
    if isinstance(broker.transactions.entries(), Reject):
        # Decisions are still being loaded; Kafka's tools retry after this code.
        return await _response([(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER) for asked, _ in wanted])
    codes: list[ErrorCode] = []
    for first in range(0, len(wanted), MARKERS_AT_ONCE):
        codes += await _write_together(broker, wanted[first : first + MARKERS_AT_ONCE])
    return await _response([(asked, code) for (asked, _), code in zip(wanted, codes, strict=True)])


async def _write_together(
    broker: Broker, some: Sequence[tuple[_Asked, _Wanted | ErrorCode]]
) -> list[ErrorCode]:
    """Write markers that share a sync, yielding to the event loop in between."""
    pacer, running = Pacer(), list[asyncio.Task[ErrorCode] | ErrorCode]()
    for _, one in some:
        await pacer.step()
        if isinstance(one, _Wanted) and _is_there(broker, one.partition):
            running.append(asyncio.ensure_future(_write(broker, one)))
        else:
            running.append(one if isinstance(one, ErrorCode) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await asyncio.gather(*(each for each in running if isinstance(each, asyncio.Task)))
    return [each.result() if isinstance(each, asyncio.Task) else each for each in running]


def _is_there(broker: Broker, partition: TopicPartition) -> bool:
    return broker.topics.partition(partition.topic, partition.partition) is not None


def _may(broker: Broker, context: RequestContext) -> bool:
    return any(
        broker.authorizer.allows(context, operation, CLUSTER)
        for operation in (Operation.ALTER, Operation.CLUSTER_ACTION)
    )


def _each(marker: WritableTxnMarker) -> Iterator[tuple[_Asked, _Wanted | ErrorCode]]:
    identity = Identity(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch))
    outcome = Outcome.COMMIT if marker.transaction_result else Outcome.ABORT
    signed = marker.producer_id >= 0 and 0 <= marker.producer_epoch <= INT16_MAX
    for topic in marker.topics:
        starts: tuple[int | None, ...] = topic.txn_start_offsets or (None,) * len(topic.partition_indexes)
        for number, index in enumerate(topic.partition_indexes):
            partition = TopicPartition(topic.name, index)
            asked = (marker.producer_id, partition)
            if not signed or len(starts) != len(topic.partition_indexes):
                yield asked, ErrorCode.INVALID_REQUEST
                continue
            yield (
                asked,
                _Wanted(
                    partition=partition,
                    identity=identity,
                    outcome=outcome,
                    marker=Marker(
                        type=ControlType.COMMIT if marker.transaction_result else ControlType.ABORT,
                        coordinator_epoch=marker.coordinator_epoch,
                    ),
                    guard=TxnGuard(
                        transaction_version=marker.transaction_version, txn_start_offset=starts[number]
                    ),
                ),
            )


async def _write(broker: Broker, wanted: _Wanted) -> ErrorCode:
    name = wanted.partition
    partition = broker.topics.partition(name.topic, name.partition)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name.topic == TRANSACTION_STATE:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    entry = broker.transactions.find_writer(wanted.identity.producer_id)
    if entry is not None and _contradicts(entry, wanted):
        return ErrorCode.INVALID_TXN_STATE
    try:
        async with asyncio.timeout(DURABLE_S_MAX):
            result = await _append(broker, partition, wanted, entry)
    except TimeoutError:
        return ErrorCode.REQUEST_TIMED_OUT
    except TopicDeleted:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(result, Reject):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if result.code in _NOT_READY else result.code
    return ErrorCode.NONE


def _contradicts(entry: TxnEntry, wanted: _Wanted) -> bool:
    """Return whether the marker contradicts the coordinator's decision in a partition [TXN-11]."""
    match entry.phase:
        case Ongoing(partitions=partitions):
            return wanted.outcome is Outcome.COMMIT and wanted.partition in partitions
        case Decided(outcome=outcome) as decided:
            return wanted.outcome is not outcome and wanted.partition in decided.unmarked
        case _:
            return False


async def _append(
    broker: Broker, partition: Partition, wanted: _Wanted, entry: TxnEntry | None
) -> AppendResult | Reject:
    """Append the marker and have the coordinator record it.

    No decision is made between the two: the record is submitted before any other command, or after a decision
    under way, which the coordinator then knows as torn.
    """
    batch = encode_marker(wanted.marker, wanted.identity, timestamp_ms=broker.clock.now_ms())
    synced: asyncio.Future[None] | None = None
    if wanted.partition.topic == GROUP_OFFSETS:
        result = await broker.groups.write_marker(wanted.partition.partition, batch, wanted.guard)
    else:
        result = partition.append(batch, AppendOrigin.COORDINATOR, wanted.guard)
        if isinstance(result, AppendResult):
            synced = partition.durable(result.last_offset)
    if isinstance(result, Reject):
        return result
    noted = _note(broker, wanted.partition, entry)
    if synced is not None:
        await synced
    if noted is not None and isinstance(refused := await noted, Reject):
        _log.error("an ABORT marker in %s is not on record: %s", wanted.partition, refused.reason)
    return result


def _note(
    broker: Broker, partition: TopicPartition, entry: TxnEntry | None
) -> "asyncio.Future[Answer] | None":
    if entry is None or not isinstance(entry.phase, Ongoing) or partition not in entry.phase.partitions:
        return None
    command = NoteForcedMarker(writer=entry.phase.writer, partition=partition)
    return broker.transactions.submit(entry.transactional_id, command)


async def _response(results: list[tuple[_Asked, ErrorCode]]) -> WriteTxnMarkersResponse:
    """Build the response as Kafka does: one result for each producer id, however many markers it had."""
    pacer = Pacer()
    by_producer: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for (producer_id, partition), code in results:
        await pacer.step()
        topics = by_producer.setdefault(producer_id, {})
        topics.setdefault(partition.topic, {})[partition.partition] = code
    made = []
    for producer_id, topics in by_producer.items():
        told = []
        for name, codes in topics.items():
            partitions = []
            for index, code in codes.items():
                await pacer.step()
                partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
            told.append(WritableTxnMarkerTopicResult(name=name, partitions=tuple(partitions)))
        made.append(WritableTxnMarkerResult(producer_id=producer_id, topics=tuple(told)))
    return WriteTxnMarkersResponse(markers=tuple(made))
