"""ListOffsets: looks up the offset of a timestamp, of the log start or of the end."""

from collections.abc import Iterable
from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import make_topic_check
from tallystick.broker.handlers.deduplicate import group_distinct
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedTopicResponse
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.visibility import IsolationLevel, check_leader_epoch, find_readable_end
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TimestampMs
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tallystick.storage.disk.fs import CorruptLog, StorageFailure

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

# The version that introduced each special timestamp (KIP-734, KIP-405, KIP-1005, KIP-1023).
_SUPPORTED_SINCE: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


async def handle(
    broker: TopicsPort, request: ListOffsetsRequest, context: RequestContext
) -> SlicedTopicResponse:
    isolation = IsolationLevel(request.isolation_level == 1)
    repeats = await _find_repeated(request.topics)
    distinct = await group_distinct(
        ((topic.name, topic.partitions) for topic in request.topics), lambda p: p.partition_index
    )

    may_describe = make_topic_check(
        broker, context, Operation.DESCRIBE, names=lambda: (topic.name for topic in request.topics)
    )

    def answer(name: str, part_request: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        if not may_describe(name):
            return _refused_response(part_request.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        # As in Kafka, a partition that is named twice gets an error instead of two answers.
        if (name, part_request.partition_index) in repeats:
            return _refused_response(part_request.partition_index, ErrorCode.INVALID_REQUEST)
        return _answer_partition(broker, name, part_request, isolation, context.api_version)

    return SlicedTopicResponse(
        lambda topics: ListOffsetsResponse(topics=topics),
        lambda name, partitions: ListOffsetsTopicResponse(name=name, partitions=partitions),
        distinct,
        answer,
    )


async def _find_repeated(topics: Iterable[ListOffsetsTopic]) -> set[tuple[str, int]]:
    """Return the partitions that a request names more than once."""
    pacer, first_keys, repeated_keys = LoopYielder(), set[tuple[str, int]](), set[tuple[str, int]]()
    for topic in topics:
        await pacer.count_entry()
        for partition in topic.partitions:
            await pacer.count_entry()
            place = (topic.name, partition.partition_index)
            (repeated_keys if place in first_keys else first_keys).add(place)
    return repeated_keys


def _answer_partition(
    broker: TopicsPort, topic: str, request: ListOffsetsPartition, isolation: IsolationLevel, version: int
) -> ListOffsetsPartitionResponse:
    index = request.partition_index
    partition = broker.topics.find_partition(topic, index)
    if partition is None:
        return _refused_response(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    refusal = check_leader_epoch(request.current_leader_epoch, partition.leader_epoch)
    if refusal is not None:
        return _refused_response(index, refusal.code)
    if version < _SUPPORTED_SINCE.get(request.timestamp, 0) or request.timestamp < EARLIEST_PENDING_UPLOAD:
        return _refused_response(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        result = _find_offset(partition, request.timestamp, isolation)
    except CorruptLog as exc:
        # An unreadable batch (compressed, or older than validation on append) must not fail other partitions.
        partition.report_damage(exc)
        return _refused_response(index, ErrorCode.CORRUPT_MESSAGE)
    except StorageFailure:
        return _refused_response(index, ErrorCode.KAFKA_STORAGE_ERROR)
    if isinstance(result, Reject):
        return _refused_response(index, result.code)
    offset, timestamp, epoch = result
    return ListOffsetsPartitionResponse(
        partition_index=index,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=epoch if version >= 4 else -1,
    )


def _find_offset(
    partition: Partition, timestamp: int, isolation: IsolationLevel
) -> tuple[int, int, int] | Reject:
    """Return offset, timestamp and leader epoch, -1 for each that does not exist."""
    log = partition.log
    # KIP-98: for a read_committed consumer the log ends at the last stable offset.
    end = find_readable_end(isolation, log.reader.high_watermark, log.reader.last_stable_offset)
    match timestamp:
        case -1:
            return end, -1, partition.leader_epoch
        case -2 | -4:
            return log.log_start_offset, -1, partition.find_epoch_at(log.log_start_offset)
        case -3:  # KIP-734: the record with the largest timestamp
            record = log.reader.find_max_timestamp()
        case -5 | -6:
            # There is no tiered storage: a 4.3 broker without remote storage returns -1, too.
            return -1, -1, -1
        case _:
            record = log.reader.find_offset_by_timestamp(TimestampMs(timestamp))
    if record is None or record[0] >= end:
        return -1, -1, -1
    return record[0], record[1], record[2]


def _refused_response(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
