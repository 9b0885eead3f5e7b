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
from tallystick.protocol.messages.create_partitions import (
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
    asked = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        await pacer.count_entry()
        if asked[topic.name] > 1:
            refused: Reject | None = Reject(
                ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is asked for twice"
            )
        elif not may_alter(topic.name):
            refused = Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        else:
            refused = _check(broker, topic)
        if refused is None and not request.validate_only:
            grown = await broker.topic_controller.grow(topic.name, topic.count)
            refused = grown if isinstance(grown, Reject) else None
        results.append(
            CreatePartitionsTopicResult(
                name=topic.name,
                error_code=ErrorCode.NONE if refused is None else refused.code,
                error_message=None if refused is None else refused.reason,
            )
        )
    return CreatePartitionsResponse(results=tuple(results))


def _check(broker: TopicControllerPort, wanted: CreatePartitionsTopic) -> Reject | None:
    if wanted.name in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
        # The number of partitions decides which one a group or transactional id belongs to.
        return Reject(ErrorCode.INVALID_REQUEST, f"the partitions of {wanted.name!r} are fixed")
    refused = broker.topic_controller.check_growth(wanted.name, wanted.count)
    if refused is not None or wanted.assignments is None:
        return refused
    added = wanted.count - len(broker.topics.list_partitions_of(wanted.name))
    node = broker.config.node_id
    if len(wanted.assignments) != added or any(a.broker_ids != (node,) for a in wanted.assignments):
        return Reject(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(wanted.assignments)} assignments for {added} new partitions; the only broker is {node}",
        )
    return None
