"""DeleteRecords: advances the log start offset (KIP-107), but not into an open transaction.

The records of an open transaction may still be committed.
"""

from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import make_topic_check
from tallystick.broker.handlers.deduplicate import group_distinct
from tallystick.broker.handlers.ports import DeletionPort
from tallystick.broker.handlers.sliced_response import SlicedTopicResponse, answer_in_slices
from tallystick.broker.handlers.txn.open_transactions import check_records_deletion
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, resolve_topic_config
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Offset
from tallystick.protocol.messages.data.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tallystick.storage.disk.fs import StorageFailure

HIGH_WATERMARK: Final = -1


async def handle(
    broker: DeletionPort, request: DeleteRecordsRequest, context: RequestContext
) -> SlicedTopicResponse:
    distinct = await group_distinct(
        ((topic.name, topic.partitions) for topic in request.topics), lambda p: p.partition_index
    )
    may_delete = make_topic_check(
        broker, context, Operation.DELETE, names=lambda: (topic.name for topic in request.topics)
    )

    def delete(name: str, record_request: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        if not may_delete(name):
            return _refused_result(record_request.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return _delete(broker, name, record_request)

    results = await answer_in_slices(distinct, delete)
    return SlicedTopicResponse(
        lambda topics: DeleteRecordsResponse(topics=topics),
        lambda name, partitions: DeleteRecordsTopicResult(name=name, partitions=partitions),
        results,
        lambda _, result: result,
    )


def _delete(
    broker: DeletionPort, topic: str, request: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    index, offset = request.partition_index, request.offset
    topic_entry, partition = broker.topics.find(topic), broker.topics.find_partition(topic, index)
    if topic_entry is None or partition is None:
        return _refused_result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic in INTERNAL_TOPICS:
        return _refused_result(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    # As in Kafka's Partition.deleteRecordsOnLeader: only topics with the delete policy lose records.
    if "delete" not in resolve_topic_config(broker.config, topic_entry).cleanup_policy:
        return _refused_result(index, ErrorCode.POLICY_VIOLATION)
    log = partition.log
    target = log.reader.high_watermark if offset == HIGH_WATERMARK else Offset(offset)
    if not 0 <= target <= log.reader.high_watermark:
        return _refused_result(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    refusal = check_records_deletion(broker, [(partition, target)])
    if refusal is not None:
        return _refused_result(index, refusal.code)
    try:
        refusal = partition.delete_records_before(target)
    except (StorageFailure, OSError):
        return _refused_result(index, ErrorCode.KAFKA_STORAGE_ERROR)
    if refusal is not None:
        return _refused_result(index, refusal.code)
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=log.log_start_offset)


def _refused_result(index: int, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=code)
