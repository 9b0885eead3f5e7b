"""ListOffsets: looks up the offset of a timestamp, of the log start or of the end."""

from collections.abc import Iterable
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.distinct import merged
from tallystick.broker.handlers.listing import ListedByTopic, Pacer
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.visibility import Isolation, check_leader_epoch, readable_end
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TimestampMs
from tallystick.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tallystick.protocol.records import RecordsError
from tallystick.storage.fs import StorageFailure

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

# The version that introduced each special timestamp (KIP-734, KIP-405, KIP-1005, KIP-1023).
_SINCE: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


async def handle(broker: Broker, request: ListOffsetsRequest, context: RequestContext) -> ListedByTopic:
    isolation = Isolation(request.isolation_level == 1)
    twice = await _asked_twice(request.topics)
    named = await merged(
        ((topic.name, topic.partitions) for topic in request.topics), lambda p: p.partition_index
    )

    def answer(name: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        # As in Kafka, a partition that is named twice gets an error instead of two answers.
        if (name, wanted.partition_index) in twice:
            return _refused(wanted.partition_index, ErrorCode.INVALID_REQUEST)
        return _answer(broker, name, wanted, isolation, context.api_version)

    return ListedByTopic(
        lambda topics: ListOffsetsResponse(topics=topics),
        lambda name, partitions: ListOffsetsTopicResponse(name=name, partitions=partitions),
        named,
        answer,
    )


async def _asked_twice(topics: Iterable[ListOffsetsTopic]) -> set[tuple[str, int]]:
    """Return the partitions that a request names more than once."""
    pacer, once, twice = Pacer(), set[tuple[str, int]](), set[tuple[str, int]]()
    for topic in topics:
        await pacer.step()
        for partition in topic.partitions:
            await pacer.step()
            place = (topic.name, partition.partition_index)
            (twice if place in once else once).add(place)
    return twice


def _answer(
    broker: Broker, topic: str, wanted: ListOffsetsPartition, isolation: Isolation, version: int
) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    partition = broker.topics.partition(topic, index)
    if partition is None:
        return _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    refused = check_leader_epoch(wanted.current_leader_epoch, partition.leader_epoch)
    if refused is not None:
        return _refused(index, refused.code)
    if version < _SINCE.get(wanted.timestamp, 0) or wanted.timestamp < EARLIEST_PENDING_UPLOAD:
        return _refused(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        found = _find(partition, wanted.timestamp, isolation)
    except StorageFailure:
        return _refused(index, ErrorCode.KAFKA_STORAGE_ERROR)
    except RecordsError:
        # An unreadable batch (compressed, or older than validation on append) must not fail other partitions.
        return _refused(index, ErrorCode.CORRUPT_MESSAGE)
    if isinstance(found, Reject):
        return _refused(index, found.code)
    offset, timestamp, epoch = found
    return ListOffsetsPartitionResponse(
        partition_index=index,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=epoch if version >= 4 else -1,
    )


def _find(partition: Partition, timestamp: int, isolation: Isolation) -> tuple[int, int, int] | Reject:
    """Return offset, timestamp and leader epoch, -1 for each that does not exist."""
    log = partition.log
    end = readable_end(isolation, log.high_watermark, log.last_stable_offset)
    match timestamp:
        case -1:
            return end, -1, partition.leader_epoch
        case -2 | -4:
            return log.log_start_offset, -1, partition.epoch_at(log.log_start_offset)
        case -3:
            found = log.max_timestamp()
        case -5 | -6:
            # There is no tiered storage: a 4.3 broker without remote storage returns -1, too.
            return -1, -1, -1
        case _:
            found = log.offset_for_timestamp(TimestampMs(timestamp))
    if found is None or found[0] >= end:
        return -1, -1, -1
    return found[0], found[1], found[2]


def _refused(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
