"""OffsetCommit: store offsets, of members and of consumers without a group."""

from collections.abc import Mapping

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.group.commands import CommitOffsets, OffsetToCommit, PerPartition
from tallystick.broker.handlers.group_wire import code_of, find_topic, instance_id_of, member_id_of
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

# The place of a partition in the request: topics may be named twice, or by ids nobody knows.
Place = tuple[int, int]


async def handle(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Partitions that do not exist are refused one by one; the rest is one command."""
    codes: dict[Place, int] = {}
    partitions: dict[Place, TopicPartition] = {}
    offsets: dict[TopicPartition, OffsetToCommit] = {}
    by_id = context.api_version >= 10
    for row, topic in enumerate(request.topics):
        found = find_topic(broker.topics, topic.name, topic.topic_id, by_id=by_id)
        for column, wanted in enumerate(topic.partitions):
            place = (row, column)
            if isinstance(found, ErrorCode):
                codes[place] = found
            elif not 0 <= wanted.partition_index < found.partitions:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partition = TopicPartition(found.name, wanted.partition_index)
                epoch = wanted.committed_leader_epoch
                partitions[place] = partition
                offsets[partition] = OffsetToCommit(
                    offset=Offset(wanted.committed_offset),
                    leader_epoch=None if epoch < 0 else LeaderEpoch(epoch),
                    metadata=wanted.committed_metadata or "",
                    topic_id=found.topic_id,
                )
    if offsets:
        answer = await broker.groups.execute(GroupId(request.group_id), _command(request, context, offsets))
        refused = answer.refused if isinstance(answer, PerPartition) else {}
        whole = code_of(answer)
        codes |= {place: refused.get(partition, whole) for place, partition in partitions.items()}
    return OffsetCommitResponse(
        topics=tuple(_topic_response(row, topic, codes) for row, topic in enumerate(request.topics))
    )


def _command(
    request: OffsetCommitRequest, context: RequestContext, offsets: Mapping[TopicPartition, OffsetToCommit]
) -> CommitOffsets:
    generation, retention_ms = request.generation_id_or_member_epoch, request.retention_time_ms
    return CommitOffsets(
        member_id=member_id_of(request.member_id),
        instance_id=instance_id_of(request.group_instance_id),
        generation=None if generation < 0 else generation,
        retention_ms=None if retention_ms < 0 else retention_ms,
        offsets=offsets,
        knows_group_id_not_found=context.api_version >= 9,
    )


def _topic_response(
    row: int, topic: OffsetCommitRequestTopic, codes: Mapping[Place, int]
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(
                partition_index=wanted.partition_index, error_code=codes[row, column]
            )
            for column, wanted in enumerate(topic.partitions)
        ),
    )
