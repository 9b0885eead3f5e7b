"""DeleteTopics: deletes topics by name, or from version 6 on by id (KIP-516)."""

from collections.abc import Sequence
from itertools import chain
from typing import Final
from uuid import UUID

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import NameCheck, make_topic_check_or_cluster
from tallystick.broker.handlers.ports import TopicDeletionPort
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.handlers.txn.open_transactions import check_topic_deletion
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import INTERNAL_TOPICS
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.value import Value
from tallystick.protocol.messages.topics.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tallystick.protocol.primitives import NIL

_NOT_AUTHORIZED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def handle(
    broker: TopicDeletionPort, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    pacer = LoopYielder()
    by_name = (DeleteTopicState(name=name, topic_id=NIL) for name in request.topic_names)
    distinct: dict[tuple[str | None, UUID], DeleteTopicState] = {}
    for topic in chain(by_name, request.topics):
        distinct[topic.name, topic.topic_id] = topic
        await pacer.count_entry()
    rights = _DeletionRights(
        may_describe=make_topic_check_or_cluster(
            broker, context, Operation.DESCRIBE, on_cluster=Operation.DELETE
        ),
        may_delete=make_topic_check_or_cluster(broker, context, Operation.DELETE),
    )
    results = []
    for topic in distinct.values():
        results.append(await _delete(broker, topic, rights))
        await pacer.count_entry()
    return DeleteTopicsResponse(responses=tuple(results))


class _DeletionRights(Value):
    """Rights of the sender to topics."""

    may_describe: NameCheck
    may_delete: NameCheck


async def _delete(
    broker: TopicDeletionPort, request: DeleteTopicState, rights: _DeletionRights
) -> DeletableTopicResult:
    name = request.name
    if name is None:
        topic = broker.topics.find_by_id(request.topic_id)
        if topic is None:
            return DeletableTopicResult(
                name=None, topic_id=request.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
        name = topic.name
        if not rights.may_describe(name):
            return DeletableTopicResult(name=None, topic_id=topic.topic_id, error_code=_NOT_AUTHORIZED)
    elif request.topic_id != NIL:
        return DeletableTopicResult(
            name=name,
            topic_id=request.topic_id,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="a topic is named by its name or by its id, not by both",
        )
    if not rights.may_describe(name):
        return DeletableTopicResult(name=name, topic_id=NIL, error_code=_NOT_AUTHORIZED)
    existing = broker.topics.find(name)
    if existing is not None and not rights.may_delete(name):
        return DeletableTopicResult(name=name, topic_id=existing.topic_id, error_code=_NOT_AUTHORIZED)
    refusal = await _check_deletion(broker, name)
    return DeletableTopicResult(
        name=name,
        topic_id=NIL if existing is None else existing.topic_id,
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.reason,
    )


async def _check_deletion(broker: TopicDeletionPort, name: str) -> Reject | None:
    # KIP-322: the error code of a broker that does not delete topics.
    if not broker.config.delete_topic_enable:
        return Reject(
            ErrorCode.TOPIC_DELETION_DISABLED,
            "topics cannot be deleted, as delete.topic.enable is false on this broker",
        )
    if name in INTERNAL_TOPICS:
        return Reject(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and cannot be deleted")

    def in_doubt(partitions: Sequence[Partition]) -> Reject | None:
        return check_topic_deletion(broker, partitions)

    refusal = await broker.topic_controller.delete(name, in_doubt)
    if refusal is None or broker.topic_controller.deletions.holds_name(name):
        broker.groups.delete_topic_offsets(name)
    return refusal
