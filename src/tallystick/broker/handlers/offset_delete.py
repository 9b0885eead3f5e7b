"""OffsetDelete: forget offsets of partitions the group does not read (KIP-496)."""

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.group.commands import DeleteOffsets, PerPartition
from tallystick.broker.handlers.group_wire import code_of
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
    asked = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    known = tuple(p for p in asked if broker.topics.partition(p.topic, p.partition) is not None)
    answer = await broker.groups.execute(GroupId(request.group_id), DeleteOffsets(partitions=known))
    if not isinstance(answer, PerPartition):
        return OffsetDeleteResponse(error_code=code_of(answer))
    missing = dict.fromkeys(set(asked) - set(known), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    codes = {**missing, **answer.refused}
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get(
                            TopicPartition(topic.name, partition.partition_index), ErrorCode.NONE
                        ),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )
