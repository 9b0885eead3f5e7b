"""Metadata: brokers, topics, partitions and their leader; may create a topic that is asked for."""

import uuid
from collections.abc import Awaitable, Iterable
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.metadata import Topic
from tallystick.broker.topics import INTERNAL, NewTopic, check_name
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tallystick.protocol.primitives import NIL

# Without an authorizer everybody may do everything: READ WRITE CREATE DELETE ALTER DESCRIBE
# DESCRIBE_CONFIGS ALTER_CONFIGS as bits (KIP-430); for the cluster CREATE ALTER DESCRIBE CLUSTER_ACTION
# DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE.
NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


def handle(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Answer at once unless a topic has to be made."""
    wanted = request.topics
    # Version 0 has no null: an empty list asks for all topics.
    if wanted is None or (context.api_version == 0 and not wanted):
        return _response(broker, request, [describe(broker, topic, request) for topic in broker.topics])
    missing = [
        topic.name
        for topic in wanted
        if topic.topic_id == NIL and broker.topics.find(topic.name or "") is None
    ]
    may_create = request.allow_auto_topic_creation or context.api_version < 4
    if missing and may_create and broker.config.auto_create_topics_enable:
        return _create_then_answer(broker, request, wanted)
    return _response(broker, request, [_find(broker, topic, request) for topic in wanted])


async def _create_then_answer(
    broker: Broker, request: MetadataRequest, wanted: tuple[MetadataRequestTopic, ...]
) -> MetadataResponse:
    answers = []
    for topic in wanted:
        name = topic.name or ""
        if topic.topic_id == NIL and broker.topics.find(name) is None and name not in INTERNAL:
            made = await broker.topics.create_if_absent(NewTopic(name, broker.config.num_partitions))
            if isinstance(made, Reject):
                answers.append(MetadataResponseTopic(error_code=made.code, name=name))
                continue
        answers.append(_find(broker, topic, request))
    return _response(broker, request, answers)


def _find(broker: Broker, wanted: MetadataRequestTopic, request: MetadataRequest) -> MetadataResponseTopic:
    if wanted.topic_id != NIL:
        topic = broker.topics.find_id(wanted.topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        name = wanted.name or ""
        topic = broker.topics.find(name)
        refused = check_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if refused is None else refused.code
    if topic is None:
        return _unknown(code, wanted.name, wanted.topic_id)
    return describe(broker, topic, request)


def _unknown(code: ErrorCode, name: str | None, topic_id: uuid.UUID) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)


def describe(broker: Broker, topic: Topic, request: MetadataRequest) -> MetadataResponseTopic:
    """A topic with all its partitions."""
    node = broker.config.node_id
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL,
        partitions=tuple(
            MetadataResponsePartition(
                partition_index=index,
                leader_id=node,
                leader_epoch=partition.leader_epoch,
                replica_nodes=(node,),
                isr_nodes=(node,),
            )
            for index, partition in enumerate(broker.topics.partitions(topic.name))
        ),
        topic_authorized_operations=(
            TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
        ),
    )


def _response(
    broker: Broker, request: MetadataRequest, topics: Iterable[MetadataResponseTopic]
) -> MetadataResponse:
    node, address = broker.config.node_id, broker.address
    return MetadataResponse(
        brokers=(
            MetadataResponseBroker(
                node_id=node, host=address.host, port=address.port, rack=broker.config.broker_rack
            ),
        ),
        cluster_id=broker.cluster_id,
        controller_id=node,
        topics=tuple(topics),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
