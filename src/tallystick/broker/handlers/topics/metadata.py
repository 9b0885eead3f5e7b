"""Metadata: brokers, topics, partitions and their leaders; may create a requested topic."""

import asyncio
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import (
    NameCheck,
    find_cluster_operations,
    find_topic_operations,
    make_topic_check,
    make_topic_check_or_cluster,
)
from tallystick.broker.handlers.ports import MetadataPort
from tallystick.broker.handlers.sliced_response import SLICE_ENTRIES, SlicedListResponse
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TopicSpec, check_topic_name
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.value import Value
from tallystick.protocol.messages.topics.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tallystick.protocol.primitives import NIL

OPERATIONS_NOT_REQUESTED: Final = -(2**31)
IDS_SINCE: Final = 12  # KIP-516: versions 10 and 11 have the field, but do not accept ids
_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def handle(
    broker: MetadataPort, request: MetadataRequest, context: RequestContext
) -> SlicedListResponse | Awaitable[SlicedListResponse]:
    """Answer immediately unless a topic has to be created."""
    # Version 0 has no null: an empty list stands for all topics.
    if request.topics is None or (context.api_version == 0 and not request.topics):
        # The sender named none of them: what he may not describe is left out.
        rights = _MetadataRights.check(broker, context, log_denied=False)
        names = (name for name in broker.topics.list_names() if rights.may_describe(name))
        every = [MetadataRequestTopic(topic_id=NIL, name=name) for name in names]
        return _list_topics(broker, request, every, rights)
    topics = _deduplicate(request.topics)
    if context.api_version < IDS_SINCE and any(t.name is None or t.topic_id != NIL for t in topics):
        return SlicedListResponse(
            partial(_build_response, broker, context, request), topics, _refuse_without_id
        )
    rights = _MetadataRights.check(broker, context)
    absent = [
        topic.name
        for topic in topics
        if topic.topic_id == NIL
        and broker.topics.find(topic.name or "") is None
        and rights.may_describe(topic.name or "")
    ]
    # Requests before version 4 cannot forbid it.
    may_create = request.allow_auto_topic_creation or context.api_version < 4
    if absent and may_create and broker.config.auto_create_topics_enable:
        return _create_then_answer(broker, request, topics, rights)
    return _list_topics(broker, request, topics, rights)


class _MetadataRights(Value):
    """Rights of the sender of one request."""

    context: RequestContext
    may_describe: NameCheck

    @classmethod
    def check(
        cls, broker: MetadataPort, context: RequestContext, *, log_denied: bool = True
    ) -> "_MetadataRights":
        """Return the rights to topics; `log_denied` as in Authorizer.allows."""
        return cls(context, make_topic_check(broker, context, Operation.DESCRIBE, log_denied=log_denied))


def _deduplicate(topics: Sequence[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.topic_id, topic.name): topic for topic in topics}.values())


async def _create_then_answer(
    broker: MetadataPort,
    request: MetadataRequest,
    topics: Sequence[MetadataRequestTopic],
    rights: _MetadataRights,
) -> SlicedListResponse:
    refusals: dict[str, Reject] = {}
    may_create = make_topic_check_or_cluster(broker, rights.context, Operation.CREATE)
    for number, topic in enumerate(topics, 1):
        name = topic.name or ""
        is_missing = topic.topic_id == NIL and broker.topics.find(name) is None
        if is_missing and not rights.may_describe(name):
            continue
        if is_missing and not may_create(name):
            refusals[name] = Reject(_DENIED, "Topic authorization failed.")
        elif is_missing and name not in INTERNAL_TOPICS:
            result = await broker.topic_controller.create_if_absent(
                TopicSpec(name, broker.config.num_partitions)
            )
            if isinstance(result, Reject):
                refusals[name] = result
        if number % SLICE_ENTRIES == 0:
            await asyncio.sleep(0)  # yield to other connections
    return _list_topics(broker, request, topics, rights, refusals)


def _list_topics(
    broker: MetadataPort,
    request: MetadataRequest,
    topics: Sequence[MetadataRequestTopic],
    rights: _MetadataRights,
    refusals: Mapping[str, Reject] = MappingProxyType({}),
) -> SlicedListResponse:
    def answer(topic: MetadataRequestTopic) -> MetadataResponseTopic:
        refusal = refusals.get(topic.name or "") if topic.topic_id == NIL else None
        if refusal is not None and broker.topics.find(topic.name or "") is None:
            return MetadataResponseTopic(error_code=refusal.code, name=topic.name or "")
        return _find_topic(broker, topic, request, rights)

    respond = partial(_build_response, broker, rights.context, request)
    return SlicedListResponse(respond, topics, answer)


def _find_topic(
    broker: MetadataPort,
    requested_topic: MetadataRequestTopic,
    request: MetadataRequest,
    rights: _MetadataRights,
) -> MetadataResponseTopic:
    if requested_topic.topic_id != NIL:
        topic = broker.topics.find_by_id(requested_topic.topic_id)
        if topic is not None and not rights.may_describe(topic.name):
            return _unknown_topic(_DENIED, None, requested_topic.topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        name = requested_topic.name or ""
        if not rights.may_describe(name):
            return _unknown_topic(_DENIED, name, NIL)
        topic = broker.topics.find(name)
        refusal = check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if refusal is None else refusal.code
    if topic is None:
        return _unknown_topic(code, requested_topic.name, requested_topic.topic_id)
    return describe_topic(broker, topic, request, rights.context)


def _refuse_without_id(requested_topic: MetadataRequestTopic) -> MetadataResponseTopic:
    """Refuse a topic by INVALID_REQUEST, with which Kafka refuses the whole request.

    The response's name is not nullable, so it is "" for a topic id.
    """
    return MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=requested_topic.name or "")


def _unknown_topic(code: ErrorCode, name: str | None, topic_id: uuid.UUID) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)


def describe_topic(
    broker: MetadataPort, topic: Topic, request: MetadataRequest, context: RequestContext
) -> MetadataResponseTopic:
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
            find_topic_operations(broker, context, topic.name)
            if request.include_topic_authorized_operations
            else OPERATIONS_NOT_REQUESTED
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
            find_cluster_operations(broker, context)
            if request.include_cluster_authorized_operations
            else OPERATIONS_NOT_REQUESTED
        ),
    )
