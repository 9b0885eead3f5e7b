"""Rights of a Produce request, where the broker has an authorizer.

Transactional records need WRITE on the transactional id: without it every partition of the request is
refused, transactional or not. Then each topic needs WRITE. Denied records leave the request before anything
looks at their topic or validates them: the answer does not depend on whether the partition exists.

Source: KafkaApis.handleProduceRequest.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final, Self

from tallystick.broker.authorizer.audit_log import is_audited
from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.authorizer.known_rights import WRITE_TOPIC, keep_id
from tallystick.broker.handlers.authorization import make_topic_check, may_write_as
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.value import replace
from tallystick.protocol.messages.data.produce import ProduceRequest, TopicProduceData
from tallystick.storage.state.validation import IS_TRANSACTIONAL

TOPIC_ID_SINCE: Final = 13  # KIP-516
# Beside the traits of `read_traits`: a topic on which the sender is not yet known to have the right.
UNKNOWN_RIGHT: Final = 2
_WRITE: Final = Operation.WRITE

_TOPIC_NOT_AUTHORIZED: Final = Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
_ID_NOT_AUTHORIZED: Final = Reject(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
)


class DeniedRecords(bytes):
    """The reason of a denial, in the place of the records."""

    def __new__(cls, why: Reject) -> Self:
        instance = super().__new__(cls)
        instance.reject = why
        return instance

    reject: Reject


_DENIED_BY_ID: Final = DeniedRecords(_ID_NOT_AUTHORIZED)
_DENIED_BY_TOPIC: Final = DeniedRecords(_TOPIC_NOT_AUTHORIZED)


def withhold_denied(
    broker: ProducePort, request: ProduceRequest, context: RequestContext, traits: int
) -> ProduceRequest:
    """Return the request with DeniedRecords where the sender may not write; itself if he may everywhere.

    Args:
        traits: of all batches, as `read_traits` returns them, and UNKNOWN_RIGHT if a topic is not in the
            known rights.
    """
    if traits & IS_TRANSACTIONAL and not _may_write_as(broker, request, context):
        topics = tuple([_withhold(topic, _DENIED_BY_ID) for topic in request.topic_data])
        return replace(request, topic_data=topics)
    known = context.known_rights.get(WRITE_TOPIC)
    if not traits & UNKNOWN_RIGHT and known is not None and not is_audited(logging.DEBUG):
        known.checks += len(request.topic_data)
        return request
    if context.api_version < TOPIC_ID_SINCE:
        return _withhold_denied_topics(broker, request, context, [topic.name for topic in request.topic_data])
    names = _find_topic_names(broker, request)
    request = _withhold_denied_topics(broker, request, context, names)
    for topic, name in zip(request.topic_data, names, strict=True):
        if name is not None:
            keep_id(context.known_rights, WRITE_TOPIC, topic.topic_id, name)
    return request


def _find_topic_names(broker: ProducePort, request: ProduceRequest) -> list[str | None]:
    """Return the name of each topic that the request names by id; None for an unknown one."""
    topics = [broker.topics.find_by_id(topic.topic_id) for topic in request.topic_data]
    return [None if topic is None else topic.name for topic in topics]


def _withhold_denied_topics(
    broker: ProducePort, request: ProduceRequest, context: RequestContext, topic_names: Sequence[str | None]
) -> ProduceRequest:
    """Ask about each topic, and return the request with DeniedRecords in those that are denied."""

    def iter_names() -> Iterator[str]:
        for topic, name in zip(request.topic_data, topic_names, strict=True):
            if name is not None:
                yield from [name] * len(topic.partition_data)

    may_write = make_topic_check(broker, context, _WRITE, names=iter_names)
    # An unknown id is answered as such; it reveals nothing.
    denied = [name is not None and not may_write(name) for name in topic_names]
    if not any(denied):
        return request
    topics = tuple(
        _withhold(topic, _DENIED_BY_TOPIC) if refused else topic
        for topic, refused in zip(request.topic_data, denied, strict=True)
    )
    return replace(request, topic_data=topics)


def _may_write_as(broker: ProducePort, request: ProduceRequest, context: RequestContext) -> bool:
    name = request.transactional_id
    return name is not None and may_write_as(broker, context, name)


def _withhold(topic: TopicProduceData, reason: DeniedRecords) -> TopicProduceData:
    return replace(
        topic, partition_data=tuple(replace(part, records=reason) for part in topic.partition_data)
    )
