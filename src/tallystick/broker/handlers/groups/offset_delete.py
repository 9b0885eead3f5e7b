"""OffsetDelete: deletes offsets of partitions that the group is not subscribed to (KIP-496).

Pending offsets of open transactions are refused (ADR 0022).
"""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import DeleteOffsets, OffsetPartitionErrors
from tallystick.broker.handlers.authorization import make_topic_check, may_on_group
from tallystick.broker.handlers.deduplicate import group_distinct
from tallystick.broker.handlers.groups.group_wire import get_error_code, log_blocking_transactions
from tallystick.broker.handlers.ports import DeletionPort
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedTopicResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.protocol.messages.groups.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(
    broker: DeletionPort, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | SlicedTopicResponse:
    if not may_on_group(broker, context, Operation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    distinct = await group_distinct(
        ((topic.name, topic.partitions) for topic in request.topics), lambda p: p.partition_index
    )
    may_read = make_topic_check(
        broker, context, Operation.READ, names=lambda: (topic.name for topic in request.topics)
    )
    pacer, existing = LoopYielder(), list[TopicPartition]()
    for topic, partitions in distinct.items():
        for partition in partitions:
            await pacer.count_entry()
            if not may_read(topic):
                continue
            if broker.topics.find_partition(topic, partition.partition_index) is not None:
                existing.append(TopicPartition(topic, partition.partition_index))
    group_id = GroupId(request.group_id)
    command = DeleteOffsets(
        partitions=tuple(existing), may_discard_pending=broker.config.delete_open_transactions
    )
    answer = await broker.groups.execute(group_id, command)
    if not isinstance(answer, OffsetPartitionErrors):
        return OffsetDeleteResponse(error_code=get_error_code(answer))
    if ErrorCode.POLICY_VIOLATION in answer.errors.values():
        log_blocking_transactions(broker, group_id, "OffsetDelete")
        broker.metrics.deletions_refused.add()
    codes: dict[TopicPartition, int] = {**dict.fromkeys(existing, ErrorCode.NONE), **answer.errors}

    def row(topic: str, partition: OffsetDeleteRequestPartition) -> OffsetDeleteResponsePartition:
        index = partition.partition_index
        if not may_read(topic):
            return OffsetDeleteResponsePartition(
                partition_index=index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
        code = codes.get(TopicPartition(topic, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return OffsetDeleteResponsePartition(partition_index=index, error_code=code)

    return SlicedTopicResponse(
        lambda topics: OffsetDeleteResponse(topics=topics),
        lambda name, rows: OffsetDeleteResponseTopic(name=name, partitions=rows),
        distinct,
        row,
    )
