"""Conversions for the group APIs: the wire's empty strings and -1 become None, and back."""

import logging
import uuid
from typing import Final

from tallystick.broker.group.machine.model import InstanceId
from tallystick.broker.handlers.ports import DeletionPort, HasTransactions
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.topics import TopicsImage
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, MemberId, ProducerId
from tallystick.protocol.primitives import NIL

_log = logging.getLogger("tallystick.groups")

OPERATIONS_NOT_REQUESTED: Final = -(2**31)
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


def parse_member_id(text: str | None) -> MemberId | None:
    return MemberId(text) if text else None


def parse_instance_id(text: str | None) -> InstanceId | None:
    return None if text is None else InstanceId(text)


def get_error_code(answer: object) -> int:
    """Return the error code of an answer that holds nothing else."""
    return answer.code if isinstance(answer, Reject) else ErrorCode.NONE


def find_topic(topics: TopicsImage, name: str, topic_id: uuid.UUID, *, by_id: bool) -> Topic | ErrorCode:
    """Find the topic of a request, by name or by id."""
    topic = topics.find_by_id(topic_id) if by_id and topic_id != NIL else None if by_id else topics.find(name)
    if topic is not None:
        return topic
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def log_blocking_transactions(broker: DeletionPort, group_id: GroupId, api: str) -> None:
    """Log the transactions that a deletion was refused for; the response has no field for a text."""
    broker.metrics.deletions_refused.add()
    descriptions = ", ".join(
        _describe_transaction(broker, producer) for producer in broker.groups.list_pending_producers(group_id)
    )
    _log.warning(
        "%s of group %s was refused: offsets are part of the open transactions of %s; commit or abort them"
        " first, or set delete.open.transactions=true",
        api,
        group_id,
        descriptions,
    )


def _describe_transaction(broker: HasTransactions, producer_id: ProducerId) -> str:
    entry = broker.transactions.find_by_producer_id(producer_id)
    return f"producer id {producer_id}" if entry is None else repr(entry.transactional_id)
