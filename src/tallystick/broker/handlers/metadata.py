"""Metadata: brokers, topics, partitions and their leaders; may create a requested topic."""

import asyncio
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from tallystick.broker.handlers.ports import MetadataPort
from tallystick.broker.handlers.sliced_response import SLICE_ENTRIES, SlicedListResponse
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TopicSpec, check_topic_name
from tallystick.broker.server.request_context import RequestContext
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

# KIP-430, without an authorizer all operations, as bits. Topics: READ WRITE CREATE DELETE ALTER DESCRIBE
# DESCRIBE_CONFIGS ALTER_CONFIGS. Cluster: CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS
# ALTER_CONFIGS IDEMPOTENT_WRITE.
OPERATIONS_NOT_REQUESTED: Final = -(2**31)
IDS_SINCE: Final = 12  # KIP-516: versions 10 and 11 have the field, but do not accept ids
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


def handle(
    broker: MetadataPort, request: MetadataRequest, context: RequestContext
) -> SlicedListResponse | Awaitable[SlicedListResponse]:
    """Answer at once unless a topic has to be created."""
    # Version 0 has no null: an empty list stands for all topics.
    if request.topics is None or (context.api_version == 0 and not request.topics):
        every = [MetadataRequestTopic(topic_id=NIL, name=name) for name in broker.topics.list_names()]
        return _list_topics(broker, context, request, every)
    wanted = _deduplicate(request.topics)
    if context.api_version < IDS_SINCE and any(t.name is None or t.topic_id != NIL for t in wanted):
        return SlicedListResponse(
            partial(_build_response, broker, context, request), wanted, _refuse_without_id
        )
    missing = [
        topic.name
        for topic in wanted
        if topic.topic_id == NIL and broker.topics.find(topic.name or "") is None
    ]
    # Requests before version 4 cannot forbid it.
    may_create = request.allow_auto_topic_creation or context.api_version < 4
    if missing and may_create and broker.config.auto_create_topics_enable:
        return _create_then_answer(broker, context, request, wanted)
    return _list_topics(broker, context, request, wanted)


def _deduplicate(wanted: Sequence[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.topic_id, topic.name): topic for topic in wanted}.values())


async def _create_then_answer(
    broker: MetadataPort,
    context: RequestContext,
    request: MetadataRequest,
    wanted: Sequence[MetadataRequestTopic],
) -> SlicedListResponse:
    refused: dict[str, Reject] = {}
    for number, topic in enumerate(wanted, 1):
        name = topic.name or ""
        if topic.topic_id == NIL and broker.topics.find(name) is None and name not in INTERNAL_TOPICS:
            made = await broker.topic_controller.create_if_absent(
                TopicSpec(name, broker.config.num_partitions)
            )
            if isinstance(made, Reject):
                refused[name] = made
        if number % SLICE_ENTRIES == 0:
            await asyncio.sleep(0)  # yield to other connections
    return _list_topics(broker, context, request, wanted, refused)


def _list_topics(
    broker: MetadataPort,
    context: RequestContext,
    request: MetadataRequest,
    wanted: Sequence[MetadataRequestTopic],
    refused: Mapping[str, Reject] = MappingProxyType({}),
) -> SlicedListResponse:
    def answer(topic: MetadataRequestTopic) -> MetadataResponseTopic:
        why = refused.get(topic.name or "") if topic.topic_id == NIL else None
        if why is not None and broker.topics.find(topic.name or "") is None:
            return MetadataResponseTopic(error_code=why.code, name=topic.name or "")
        return _find_topic(broker, topic, request)

    return SlicedListResponse(partial(_build_response, broker, context, request), wanted, answer)


def _find_topic(
    broker: MetadataPort, wanted: MetadataRequestTopic, request: MetadataRequest
) -> MetadataResponseTopic:
    if wanted.topic_id != NIL:
        topic = broker.topics.find_by_id(wanted.topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        name = wanted.name or ""
        topic = broker.topics.find(name)
        refused = check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if refused is None else refused.code
    if topic is None:
        return _unknown_topic(code, wanted.name, wanted.topic_id)
    return describe_topic(broker, topic, request)


def _refuse_without_id(wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    """Refuse a topic by INVALID_REQUEST, with which Kafka refuses the whole request.

    The response's name is not nullable, so it is "" for a topic id.
    """
    return MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=wanted.name or "")


def _unknown_topic(code: ErrorCode, name: str | None, topic_id: uuid.UUID) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)


def describe_topic(broker: MetadataPort, topic: Topic, request: MetadataRequest) -> MetadataResponseTopic:
    """Describe a topic with all its partitions."""
    node = broker.config.node_id
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            MetadataResponsePartition(
                partition_index=index,
                leader_id=node,
                leader_epoch=partition.leader_epoch,
                replica_nodes=(node,),
                isr_nodes=(node,),
            )
            for index, partition in enumerate(broker.topics.list_partitions_of(topic.name))
        ),
        topic_authorized_operations=(
            TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_REQUESTED
        ),
    )


def _build_response(
    broker: MetadataPort,
    context: RequestContext,
    request: MetadataRequest,
    topics: Iterable[MetadataResponseTopic],
) -> MetadataResponse:
    node, address = broker.config.node_id, broker.get_address(context.listener)
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
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_REQUESTED
        ),
    )
