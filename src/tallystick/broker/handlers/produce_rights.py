"""Rights of a Produce request, where the broker has an authorizer.

Transactional records need WRITE on the transactional id: without it every partition of the request is
refused, transactional or not. Then each topic needs WRITE. Denied records leave the request before anything
looks at their topic or validates them: the answer does not depend on whether the partition exists.

Source: KafkaApis.handleProduceRequest.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Self

from tallystick.broker.authorizer.authorizer import TOPIC, Operation, transactional_id_resource
from tallystick.broker.handlers.authorization import make_topic_check
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.value import replace
from tallystick.protocol.messages.produce import ProduceRequest, TopicProduceData

TOPIC_ID_SINCE: Final = 13  # KIP-516
# Position in a batch of format 2 of the byte with the transactional bit: the lower one of the attributes.
_ATTRIBUTES_AT: Final = 22
_TRANSACTIONAL_BIT: Final = 0x10
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


def withhold_denied(broker: ProducePort, request: ProduceRequest, context: RequestContext) -> ProduceRequest:
    """Return the request with DeniedRecords where the sender may not write; itself if he may everywhere."""
    names, is_transactional = set[str](), False
    # One loop for both rights, because each request passes here: it shows in the time of a small one.
    for topic in request.topic_data:
        names.add(topic.name)
        for part in topic.partition_data:
            records = part.records
            if (
                records is not None
                and len(records) > _ATTRIBUTES_AT
                and records[_ATTRIBUTES_AT] & _TRANSACTIONAL_BIT
            ):
                is_transactional = True
    if is_transactional and not _may_write_as(broker, request, context):
        topics = tuple([_withhold(topic, _DENIED_BY_ID) for topic in request.topic_data])
        return replace(request, topic_data=topics)
    topic_names: Sequence[str | None] = ()
    if context.api_version >= TOPIC_ID_SINCE:
        topic_names = _find_topic_names(broker, request)
        names = {name for name in topic_names if name is not None}
    if broker.authorizer.remembers_allowed(context, _WRITE, TOPIC, names):
        return request
    return _withhold_denied_topics(
        broker, request, context, topic_names or [topic.name for topic in request.topic_data]
    )


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
    return name is not None and broker.authorizer.allows(context, _WRITE, transactional_id_resource(name))


def _withhold(topic: TopicProduceData, reason: DeniedRecords) -> TopicProduceData:
    return replace(
        topic, partition_data=tuple(replace(part, records=reason) for part in topic.partition_data)
    )
