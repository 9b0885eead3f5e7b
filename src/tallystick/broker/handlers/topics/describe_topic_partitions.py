"""DescribeTopicPartitions: topics page by page, in the order of their names (KIP-966)."""

from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import find_topic_operations, make_topic_check
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, check_topic_name
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.topics.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tallystick.protocol.primitives import NIL

_NO_NODES: Final = ()


def handle(
    broker: TopicsPort, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    named = {topic.name for topic in request.topics}
    may_describe = make_topic_check(broker, context, Operation.DESCRIBE, log_denied=bool(named))
    requested_names = named or {name for name in broker.topics.list_names() if may_describe(name)}
    cursor = request.cursor
    limit = broker.config.max_request_partition_size_limit
    if cursor is not None and cursor.partition_index < 0:
        # As in Kafka. A negative index would count from the end.
        return _build_page(
            [_refused_topic(name, ErrorCode.INVALID_REQUEST) for name in sorted(requested_names)[:limit]],
            None,
        )
    names = sorted(name for name in requested_names if cursor is None or name >= cursor.topic_name)
    room = min(max(request.response_partition_limit, 1), limit)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if len(topics) == limit:  # unknown topics have no partitions to count
            return _build_page(topics, Cursor(topic_name=name, partition_index=0))
        if not may_describe(name):
            topics.append(_refused_topic(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        count = len(broker.topics.list_partitions_of(name))
        if count > first and room == 0:
            return _build_page(topics, Cursor(topic_name=name, partition_index=first))
        last = min(count, first + room)
        topics.append(
            _describe(broker, name, range(first, last), find_topic_operations(broker, context, name))
        )
        room -= max(0, last - first)
        if last < count:
            return _build_page(topics, Cursor(topic_name=name, partition_index=last))
    return _build_page(topics, None)


def _build_page(
    topics: list[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=cursor)


def _refused_topic(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_id=NIL)


def _describe(
    broker: TopicsPort, name: str, indexes: range, operations: int
) -> DescribeTopicPartitionsResponseTopic:
    topic = broker.topics.find(name)
    if topic is None:
        refusal = check_topic_name(name)
        return _refused_topic(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if refusal is None else refusal.code)
    node, partitions = broker.config.node_id, broker.topics.list_partitions_of(name)
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=node,
                leader_epoch=partitions[index].leader_epoch,
                replica_nodes=(node,),
                isr_nodes=(node,),
                eligible_leader_replicas=_NO_NODES,
                last_known_elr=_NO_NODES,
            )
            for index in indexes
        ),
        topic_authorized_operations=operations,
    )
