"""CreatePartitions: grows a topic to a total number of partitions (KIP-195)."""

from collections import Counter

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import make_topic_check
from tallystick.broker.handlers.ports import TopicControllerPort
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.topics.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(
    broker: TopicControllerPort, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    pacer, results = LoopYielder(), list[CreatePartitionsTopicResult]()
    may_alter = make_topic_check(broker, context, Operation.ALTER)
    request_counts = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        await pacer.count_entry()
        if request_counts[topic.name] > 1:
            refusal: Reject | None = Reject(
                ErrorCode.INVALID_REQUEST, f"the request has topic {topic.name!r} twice; nothing was changed"
            )
        elif not may_alter(topic.name):
            refusal = Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        else:
            refusal = _check(broker, topic)
        if refusal is None and not request.validate_only:
            grown = await broker.topic_controller.grow(topic.name, topic.count)
            refusal = grown if isinstance(grown, Reject) else None
        results.append(
            CreatePartitionsTopicResult(
                name=topic.name,
                error_code=ErrorCode.NONE if refusal is None else refusal.code,
                error_message=None if refusal is None else refusal.reason,
            )
        )
    return CreatePartitionsResponse(results=tuple(results))


def _check(broker: TopicControllerPort, topic: CreatePartitionsTopic) -> Reject | None:
    if topic.name in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
        # The number of partitions decides which one a group or transactional id belongs to.
        return Reject(
            ErrorCode.INVALID_REQUEST,
            f"the number of partitions of {topic.name!r} cannot be changed, as ids are mapped by it",
        )
    refusal = broker.topic_controller.check_growth(topic.name, topic.count)
    if refusal is not None or topic.assignments is None:
        return refusal
    new_count = topic.count - len(broker.topics.list_partitions_of(topic.name))
    node = broker.config.node_id
    if len(topic.assignments) != new_count or any(a.broker_ids != (node,) for a in topic.assignments):
        return Reject(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(topic.assignments)} assignments were given for {new_count} new partitions; each needs"
            f" one, of broker {node}",
        )
    return None
