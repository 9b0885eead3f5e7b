"""A Produce request in progress: its partitions with their results, from parsing and authorization on.

Where the broker has an authorizer, transactional records need WRITE on the transactional id: without it every
partition of the request is refused, transactional or not. Then each topic needs WRITE. Partitions are refused
before anything looks at their topic or validates their records: the answer does not depend on whether the
partition exists.

Source: KafkaApis.handleProduceRequest.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallystick.broker.authorizer.audit_log import is_audited
from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.authorizer.known_rights import NO_NAMES, WRITE_TOPIC, keep_id
from tallystick.broker.handlers.authorization import make_topic_check, may_write_as
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TopicKey
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.server import CloseConnection
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.data.produce import ProduceRequest
from tallystick.protocol.records import BatchHeader
from tallystick.storage.log.log import AppendResult
from tallystick.storage.state.validation import IS_TRANSACTIONAL, read_batch_flags

TOPIC_ID_SINCE: Final = 13  # KIP-516
# A request with more partitions yields to the event loop while it is served.
PARTITIONS_BEFORE_YIELD: Final = 256

REPEATED_PARTITION: Final = Reject(
    ErrorCode.INVALID_REQUEST, "the request has this partition more than once; nothing was appended to it"
)
_TOPIC_NOT_AUTHORIZED: Final = Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
_ID_NOT_AUTHORIZED: Final = Reject(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
)


@dataclass(slots=True)
class PartitionAppend:
    """The batch of one partition, and its result: None until it is appended or refused.

    `records` is a view of the request's buffer, or a copy where the batch has to wait.
    """

    index: int
    records: bytes | memoryview
    result: AppendResult | Reject | None = None
    partition: Partition | None = None


@dataclass(slots=True)
class TransactionalAppend:
    """A transactional batch that the coordinator may have to verify."""

    part: PartitionAppend
    target: Partition
    header: BatchHeader


@dataclass(slots=True)
class ProduceInProgress:
    """A Produce request on its way from parsing to the response. Each step fills in results.

    batch_flags    of all batches, as `read_batch_flags` returns them
    transactional  batches to verify
    unfinished     appended batches, each with something that must be durable before the response
    """

    request: ProduceRequest
    context: RequestContext
    topics: list[tuple[TopicKey, list[PartitionAppend]]]
    partition_count: int
    batch_flags: int
    transactional: list[TransactionalAppend] = field(default_factory=list)
    unfinished: "list[tuple[PartitionAppend, asyncio.Future[None]]]" = field(default_factory=list)

    def add_unfinished(self, part: PartitionAppend, durable: "asyncio.Future[None] | None") -> None:
        """Make the response wait for `durable`, None if it is durable already. acks=0 has no response."""
        if durable is not None and self.request.acks != 0:
            self.unfinished.append((part, durable))

    def iter_undecided(self) -> Iterator[tuple[TopicKey, PartitionAppend]]:
        """Yield the partitions that are neither appended nor refused, with their topics."""
        for topic, parts in self.topics:
            for part in parts:
                if part.result is None:
                    yield topic, part

    def copy_records(self) -> None:
        """Copy the records, because the request's buffer is going to be reused."""
        for _, parts in self.topics:
            for part in parts:
                if isinstance(part.records, memoryview):
                    part.records = bytes(part.records)

    def refuse(self, topic_index: int, refusal: Reject) -> None:
        """Refuse a topic's partitions that are not refused yet."""
        for part in self.topics[topic_index][1]:
            part.result = part.result or refusal


def parse(request: ProduceRequest, context: RequestContext, partitions_max: int) -> ProduceInProgress:
    """Return the request with all its partitions undecided, apart from those that it names repeatedly.

    Kafka keeps the last of their batches and drops the others silently, which the producer would take for
    written; here all of them are refused.

    Raises: CloseConnection if there are more batches than partitions can exist.
    """
    by_id = context.api_version >= TOPIC_ID_SINCE
    topics: list[tuple[TopicKey, list[PartitionAppend]]] = []
    batch_flags = count = 0
    for topic in request.topic_data:
        count += len(topic.partition_data)
        if count > PARTITIONS_BEFORE_YIELD and count > partitions_max:
            raise CloseConnection(
                f"a Produce has {count} partitions or more, but max.partitions is {partitions_max}"
            )
        parts = []
        for part in topic.partition_data:
            records = part.records
            if records:
                batch_flags |= read_batch_flags(records)
            parts.append(PartitionAppend(part.index, records or b""))
        topics.append((topic.topic_id if by_id else topic.name, parts))
    if count > 1:
        _refuse_repeated(topics, count)
    return ProduceInProgress(request, context, topics, count, batch_flags)


def _refuse_repeated(topics: list[tuple[TopicKey, list[PartitionAppend]]], count: int) -> None:
    if len({(topic, part.index) for topic, parts in topics for part in parts}) == count:
        return
    times = Counter((topic, part.index) for topic, parts in topics for part in parts)
    for topic, parts in topics:
        for part in parts:
            if times[topic, part.index] > 1:
                part.result = REPEATED_PARTITION


def authorize(broker: ProducePort, produce: ProduceInProgress) -> None:
    """Refuse the partitions that the sender may not write to."""
    if not broker.authorizer.is_configured:
        return
    request, context = produce.request, produce.context
    if produce.batch_flags & IS_TRANSACTIONAL:
        name = request.transactional_id
        if name is None or not may_write_as(broker, context, name):
            for at in range(len(produce.topics)):
                produce.refuse(at, _ID_NOT_AUTHORIZED)
            return
    by_id = context.api_version >= TOPIC_ID_SINCE
    if not is_audited(logging.DEBUG):
        known = context.known_rights.get(WRITE_TOPIC, NO_NAMES)
        for topic in request.topic_data:
            if topic.topic_id.int not in known.topic_ids if by_id else topic.name not in known.names:
                break
        else:
            known.checks += len(request.topic_data)
            return
    if not by_id:
        _refuse_denied(broker, produce, [topic.name for topic in request.topic_data])
        return
    entries = [broker.topics.find_by_id(topic.topic_id) for topic in request.topic_data]
    names = [None if entry is None else entry.name for entry in entries]
    _refuse_denied(broker, produce, names)
    for topic, topic_name in zip(request.topic_data, names, strict=True):
        if topic_name is not None:
            keep_id(context.known_rights, WRITE_TOPIC, topic.topic_id, topic_name)


def _refuse_denied(
    broker: ProducePort, produce: ProduceInProgress, topic_names: Sequence[str | None]
) -> None:
    """Refuse the topics that are denied. An unknown id is answered as such, which reveals nothing."""

    def iter_names() -> Iterator[str]:
        for name, (_, parts) in zip(topic_names, produce.topics, strict=True):
            if name is not None:
                yield from [name] * len(parts)

    may_write = make_topic_check(broker, produce.context, Operation.WRITE, names=iter_names)
    for at, name in enumerate(topic_names):
        if name is not None and not may_write(name):
            produce.refuse(at, _TOPIC_NOT_AUTHORIZED)
