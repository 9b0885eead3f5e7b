"""OffsetForLeaderEpoch: returns the end offset of a leader epoch, for log truncation detection (KIP-320)."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import make_topic_check_or_cluster
from tallystick.broker.handlers.deduplicate import group_distinct
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.handlers.sliced_response import SlicedTopicResponse
from tallystick.broker.partitions.visibility import check_leader_epoch
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import LeaderEpoch
from tallystick.protocol.messages.data.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


async def handle(
    broker: TopicsPort, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> SlicedTopicResponse:
    # Other brokers need CLUSTER_ACTION, and nothing else.
    may_describe = make_topic_check_or_cluster(
        broker,
        context,
        Operation.DESCRIBE,
        on_cluster=Operation.CLUSTER_ACTION,
        names=lambda: (topic.topic for topic in request.topics),
    )

    def answer(name: str, part_request: OffsetForLeaderPartition) -> EpochEndOffset:
        if not may_describe(name):
            return EpochEndOffset(
                partition=part_request.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
        return _find_epoch_end(broker, name, part_request)

    return SlicedTopicResponse(
        lambda topics: OffsetForLeaderEpochResponse(topics=topics),
        lambda name, partitions: OffsetForLeaderTopicResult(topic=name, partitions=partitions),
        await group_distinct(
            ((topic.topic, topic.partitions) for topic in request.topics), lambda p: p.partition
        ),
        answer,
    )


def _find_epoch_end(broker: TopicsPort, topic: str, request: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = broker.topics.find_partition(topic, request.partition)
    if partition is None:
        return EpochEndOffset(partition=request.partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    refusal = check_leader_epoch(request.current_leader_epoch, partition.leader_epoch)
    if refusal is not None:
        return EpochEndOffset(partition=request.partition, error_code=refusal.code)
    epoch_end = partition.find_epoch_end(LeaderEpoch(request.leader_epoch))
    if epoch_end is None:
        return EpochEndOffset(partition=request.partition)
    return EpochEndOffset(partition=request.partition, leader_epoch=epoch_end[0], end_offset=epoch_end[1])
