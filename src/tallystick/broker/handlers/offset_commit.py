"""OffsetCommit: store offsets, of members and of consumers without a group."""

from collections.abc import Mapping

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.group.commands import CommitOffsets, OffsetToCommit
from tallystick.broker.handlers.committing import Commit
from tallystick.broker.handlers.group_wire import instance_id_of, member_id_of
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_SINCE = 10


async def handle(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Partitions that do not exist are refused one by one; the rest is one command."""
    commit = Commit.of(broker.topics, request.topics, by_id=context.api_version >= TOPIC_IDS_SINCE)
    answer = None
    if commit.offsets:
        command = _command(request, context, commit.offsets)
        answer = await broker.groups.execute(GroupId(request.group_id), command)
    codes = commit.codes(answer)
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=codes[row, column]
                    )
                    for column, asked in enumerate(topic.partitions)
                ),
            )
            for row, topic in enumerate(request.topics)
        )
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
