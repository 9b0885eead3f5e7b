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

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.ports import TxnMarkersPort
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicDeleted
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.server import CloseConnection
from tallystick.broker.txn.machine.commands import RecordForcedMarker, TxnAnswer
from tallystick.broker.txn.machine.model import DecidedPhase, OngoingPhase, TransactionResult, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT16_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.txn.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tallystick.protocol.records.control import ControlType, EndTransactionMarker, encode_marker
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.log.log import AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin

_log = logging.getLogger("tallystick.transactions")

# Kafka's default of request.timeout.ms, which limits the same wait.
DURABLE_S_MAX: Final = 30.0

# Number of markers that are written together and share a sync.
MARKERS_AT_ONCE: Final = 256

# Reported as NOT_LEADER_OR_FOLLOWER, which senders of markers expect and retry.
_COORDINATOR_NOT_READY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class _MarkerRequest(Value, kw_only=True):
    """One marker for one partition."""

    partition: TopicPartition
    producer: ProducerIdAndEpoch
    outcome: TransactionResult
    marker: EndTransactionMarker
    guard: TxnGuard


_ResultKey = tuple[int, TopicPartition]


async def handle(
    broker: TxnMarkersPort, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    _check_partition_count(broker, request)
    # A repeated marker is written once; contradicting ones are kept, to be refused.
    pacer = LoopYielder()
    distinct: dict[tuple[_ResultKey, _MarkerRequest | ErrorCode], None] = {}
    for marker in request.markers:
        await pacer.count_entry()
        for each in _iter_marker_requests(broker, marker):
            distinct[each] = None
            await pacer.count_entry()
    requests = list(distinct)
    if not _is_authorized(broker, context):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return await _build_response([(key, code) for key, _ in requests])
    if isinstance(broker.transactions.list_entries(), Reject):
        # Decisions are still being loaded; Kafka's tools retry after this code.
        return await _build_response([(key, ErrorCode.NOT_LEADER_OR_FOLLOWER) for key, _ in requests])
    codes: list[ErrorCode] = []
    for first in range(0, len(requests), MARKERS_AT_ONCE):
        codes += await _write_markers(broker, requests[first : first + MARKERS_AT_ONCE], context)
    return await _build_response([(key, code) for (key, _), code in zip(requests, codes, strict=True)])


def _check_partition_count(broker: TxnMarkersPort, request: WriteTxnMarkersRequest) -> None:
    """Close the connection if the request names more partitions than can exist.

    Kafka's coordinators send the markers of many transactions at once; this broker has its own.
    """
    count = sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics)
    if count > broker.config.max_partitions:
        raise CloseConnection(
            f"a WriteTxnMarkers has {count} partitions, but max.partitions is {broker.config.max_partitions}"
        )


async def _write_markers(
    broker: TxnMarkersPort,
    requests: Sequence[tuple[_ResultKey, _MarkerRequest | ErrorCode]],
    context: RequestContext,
) -> list[ErrorCode]:
    """Write markers that share a sync, yielding to the event loop in between."""
    pacer, writes = LoopYielder(), list[asyncio.Task[ErrorCode] | ErrorCode]()
    for _, request in requests:
        await pacer.count_entry()
        if isinstance(request, _MarkerRequest):
            writes.append(asyncio.ensure_future(_write_marker(broker, request, context)))
        else:
            writes.append(request)
    await asyncio.gather(*(each for each in writes if isinstance(each, asyncio.Task)))
    return [each.result() if isinstance(each, asyncio.Task) else each for each in writes]


def _has_partition(broker: TxnMarkersPort, partition: TopicPartition) -> bool:
    return broker.topics.find_partition(partition.topic, partition.partition) is not None


def _is_authorized(broker: TxnMarkersPort, context: RequestContext) -> bool:
    return may_on_cluster(broker, context, Operation.ALTER, log_denied=False) or may_on_cluster(
        broker, context, Operation.CLUSTER_ACTION
    )


def _iter_marker_requests(
    broker: TxnMarkersPort, marker: WritableTxnMarker
) -> Iterator[tuple[_ResultKey, _MarkerRequest | ErrorCode]]:
    """Yield what to write, or why nothing is written, for each partition that a marker names.

    It may name hundreds of thousands, and there are few: what all of them have in common is made once, and
    nothing for those that do not exist, because the garbage collector looks at all of it in one piece.
    """
    identity = ProducerIdAndEpoch(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch))
    outcome = TransactionResult.COMMIT if marker.transaction_result else TransactionResult.ABORT
    control = EndTransactionMarker(
        control_type=ControlType.COMMIT if marker.transaction_result else ControlType.ABORT,
        coordinator_epoch=marker.coordinator_epoch,
    )
    is_signed = marker.producer_id >= 0 and 0 <= marker.producer_epoch <= INT16_MAX
    for topic in marker.topics:
        starts = topic.txn_start_offsets
        is_valid = is_signed and len(starts) in (0, len(topic.partition_indexes))
        for number, index in enumerate(topic.partition_indexes):
            partition = TopicPartition(topic.name, index)
            key = (marker.producer_id, partition)
            if not is_valid:
                yield key, ErrorCode.INVALID_REQUEST
            elif not _has_partition(broker, partition):
                yield key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                guard = TxnGuard(
                    transaction_version=marker.transaction_version,
                    txn_start_offset=starts[number] if starts else None,
                )
                yield (
                    key,
                    _MarkerRequest(
                        partition=partition, producer=identity, outcome=outcome, marker=control, guard=guard
                    ),
                )


async def _write_marker(
    broker: TxnMarkersPort, request: _MarkerRequest, context: RequestContext
) -> ErrorCode:
    name = request.partition
    partition = broker.topics.find_partition(name.topic, name.partition)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name.topic == TRANSACTION_STATE_TOPIC:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    # KIP-664 lets an operator abort a transaction in one partition. It must not break one that is decided.
    entry = broker.transactions.find_by_producer_id(request.producer.producer_id)
    if _contradicts(entry, request):
        return ErrorCode.INVALID_TXN_STATE
    try:
        async with asyncio.timeout(DURABLE_S_MAX):
            result = await _append_marker(broker, partition, request, entry, context)
    except TimeoutError:
        return ErrorCode.REQUEST_TIMED_OUT
    except TopicDeleted:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(result, Reject):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if result.code in _COORDINATOR_NOT_READY else result.code
    return ErrorCode.NONE


def _contradicts(entry: TxnEntry | None, request: _MarkerRequest) -> bool:
    """Return whether the marker contradicts what the coordinator has decided for a partition [TXN-11].

    A COMMIT does where nothing was decided, even if no transactional id knows the producer: the transaction
    hangs, and there is no decision that a marker could repeat. It does after the end of its transaction.
    """
    phase, is_commit = None if entry is None else entry.phase, request.outcome is TransactionResult.COMMIT
    if not isinstance(phase, DecidedPhase) or phase.outcome is not TransactionResult.COMMIT:
        return is_commit
    if is_commit:
        return request.partition not in phase.partitions
    return request.partition in phase.unmarked_partitions


async def _append_marker(
    broker: TxnMarkersPort,
    partition: Partition,
    request: _MarkerRequest,
    entry: TxnEntry | None,
    context: RequestContext,
) -> AppendResult | Reject:
    """Append the marker and have the coordinator record it.

    No decision is made between the two: the record is submitted before any other command, or after a decision
    under way, which the coordinator then knows as torn.
    """
    batch = encode_marker(request.marker, request.producer, timestamp_ms=broker.clock.now_ms())
    durable_future: asyncio.Future[None] | None = None
    # KIP-98: the group coordinator applies the marker to the pending offsets of its partition.
    if request.partition.topic == CONSUMER_OFFSETS_TOPIC:
        result = await broker.groups.write_marker(request.partition.partition, batch, request.guard)
    else:
        result = partition.append(batch, AppendOrigin.COORDINATOR, request.guard)
        if isinstance(result, AppendResult):
            durable_future = partition.when_durable(result.last_offset)
    if isinstance(result, Reject):
        return result
    notification = _notify_coordinator(broker, request.partition, entry, context)
    if durable_future is not None:
        await durable_future
    if notification is not None and isinstance(refusal := await notification, Reject):
        _log.error(
            "an operator's ABORT marker was written to %s, but its coordinator could not record it: %s",
            request.partition,
            refusal.reason,
        )
    return result


def _notify_coordinator(
    broker: TxnMarkersPort, partition: TopicPartition, entry: TxnEntry | None, context: RequestContext
) -> "asyncio.Future[TxnAnswer] | None":
    if entry is None or not isinstance(entry.phase, OngoingPhase) or partition not in entry.phase.partitions:
        return None
    command = RecordForcedMarker(writer=entry.phase.writer, partition=partition)
    return broker.transactions.submit(entry.transactional_id, command, context)


async def _build_response(results: list[tuple[_ResultKey, ErrorCode]]) -> WriteTxnMarkersResponse:
    """Build the response as Kafka does: one result for each producer id, however many markers it had."""
    pacer = LoopYielder()
    by_producer: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for (producer_id, partition), code in results:
        await pacer.count_entry()
        topics = by_producer.setdefault(producer_id, {})
        topics.setdefault(partition.topic, {})[partition.partition] = code
    results_by_producer = []
    for producer_id, topics in by_producer.items():
        topic_results = []
        for name, codes in topics.items():
            partitions = []
            for index, code in codes.items():
                await pacer.count_entry()
                partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
            topic_results.append(WritableTxnMarkerTopicResult(name=name, partitions=tuple(partitions)))
        results_by_producer.append(
            WritableTxnMarkerResult(producer_id=producer_id, topics=tuple(topic_results))
        )
    return WriteTxnMarkersResponse(markers=tuple(results_by_producer))
