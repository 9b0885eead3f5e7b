"""OffsetDelete: forget offsets of partitions the group does not read (KIP-496), nor has open (ADR 0023)."""

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.group.commands import DeleteOffsets, PerPartition
from tallystick.broker.handlers.distinct import merged
from tallystick.broker.handlers.group_wire import code_of, log_who_holds
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    named = merged(((topic.name, topic.partitions) for topic in request.topics), lambda p: p.partition_index)
    asked = [
        TopicPartition(topic, partition.partition_index)
        for topic, partitions in named.items()
        for partition in partitions
    ]
    known = tuple(p for p in asked if broker.topics.partition(p.topic, p.partition) is not None)
    group_id = GroupId(request.group_id)
    command = DeleteOffsets(partitions=known, discards_pending=broker.config.delete_open_transactions)
    answer = await broker.groups.execute(group_id, command)
    if not isinstance(answer, PerPartition):
        return OffsetDeleteResponse(error_code=code_of(answer))
    if ErrorCode.POLICY_VIOLATION in answer.refused.values():
        log_who_holds(broker, group_id, "OffsetDelete")
        broker.metrics.deletions_refused.add()
    missing = dict.fromkeys(set(asked) - set(known), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    codes = {**missing, **answer.refused}
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get(
                            TopicPartition(topic, partition.partition_index), ErrorCode.NONE
                        ),
                    )
                    for partition in partitions
                ),
            )
            for topic, partitions in named.items()
        )
    )
