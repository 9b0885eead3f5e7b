"""OffsetCommit: stores offsets of members, and of consumers without a membership."""

from collections.abc import Mapping

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.commands import CommitOffsets, OffsetToCommit
from tallystick.broker.handlers.authorization import make_topic_check, may_on_group
from tallystick.broker.handlers.groups.committing import OffsetCommitPlan
from tallystick.broker.handlers.groups.group_wire import parse_instance_id, parse_member_id
from tallystick.broker.handlers.ports import OffsetsPort
from tallystick.broker.handlers.sliced_response import collect_in_slices
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_SINCE = 10  # KIP-848


async def handle(
    broker: OffsetsPort, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Refuse unknown partitions one by one, and commit the others by one command."""
    if may_on_group(broker, context, Operation.READ, request.group_id):
        commit = await OffsetCommitPlan.build(
            broker.topics,
            request.topics,
            by_id=context.api_version >= TOPIC_IDS_SINCE,
            may_read=make_topic_check(
                broker, context, Operation.READ, names=lambda: (topic.name for topic in request.topics)
            ),
        )
    else:
        commit = OffsetCommitPlan.refuse_all(request.topics, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    answer = None
    if commit.offsets:
        command = _make_command(request, context, commit.offsets)
        answer = await broker.groups.execute(GroupId(request.group_id), command)
    answers = await commit.build_responses(
        request.topics,
        answer,
        lambda index, code: OffsetCommitResponsePartition(partition_index=index, error_code=code),
    )
    return OffsetCommitResponse(
        topics=await collect_in_slices(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            for topic, partitions in zip(request.topics, answers, strict=True)
        )
    )


def _make_command(
    request: OffsetCommitRequest, context: RequestContext, offsets: Mapping[TopicPartition, OffsetToCommit]
) -> CommitOffsets:
    generation, retention_ms = request.generation_id_or_member_epoch, request.retention_time_ms
    return CommitOffsets(
        member_id=parse_member_id(request.member_id),
        instance_id=parse_instance_id(request.group_instance_id),
        generation=None if generation < 0 else generation,
        retention_ms=None if retention_ms < 0 else retention_ms,
        offsets=offsets,
        knows_group_id_not_found=context.api_version >= 9,
    )
