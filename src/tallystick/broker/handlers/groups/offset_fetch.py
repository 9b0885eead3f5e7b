"""OffsetFetch: committed offsets of one group or, from version 8 on, of several (KIP-709)."""

from collections.abc import Iterable
from uuid import UUID

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.machine.model import ClassicGroup
from tallystick.broker.group.machine.queries import find_committed_offset, list_committed_offsets
from tallystick.broker.handlers.authorization import NameCheck, make_topic_check, may_on_group
from tallystick.broker.handlers.deduplicate import group_distinct, identity_key
from tallystick.broker.handlers.groups.group_wire import NO_EPOCH, NO_OFFSET, find_topic
from tallystick.broker.handlers.ports import OffsetsPort
from tallystick.broker.handlers.sliced_response import LoopYielder, collect_in_slices
from tallystick.broker.metadata.store import Topic
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from tallystick.protocol.primitives import NIL


class _GroupOffsetsReader(Value):
    """Fetch of one group's offsets. `by_id`: the response names topics by id."""

    broker: OffsetsPort
    group: ClassicGroup | None
    require_stable: bool
    by_id: bool
    may_describe: NameCheck

    def read_partition(self, topic: str, topic_id: UUID | None, index: int) -> OffsetFetchResponsePartition:
        offset = find_committed_offset(
            self.group,
            TopicPartition(topic, index),
            topic_id=topic_id,
            require_stable=self.require_stable,
        )
        if offset is None or isinstance(offset, Reject):
            return missing_offset(index, ErrorCode.NONE if offset is None else offset.code)
        return OffsetFetchResponsePartition(
            partition_index=index,
            committed_offset=offset.offset,
            committed_leader_epoch=NO_EPOCH if offset.leader_epoch is None else offset.leader_epoch,
            metadata=offset.metadata,
        )

    async def read_requested(
        self, topics: Iterable[OffsetFetchRequestTopic], pacer: LoopYielder
    ) -> tuple[OffsetFetchResponseTopic, ...]:
        distinct = await group_distinct(
            (((topic.name, topic.topic_id), topic.partition_indexes) for topic in topics), identity_key
        )
        results = list[OffsetFetchResponseTopic]()
        for (requested_name, requested_id), indexes in distinct.items():
            await pacer.count_entry()
            lookup = find_topic(self.broker.topics, requested_name, requested_id, by_id=self.by_id)
            denied = self._check_right(requested_name, lookup)
            if denied is not None:
                rows = await _collect_paced((missing_offset(index, denied) for index in indexes), pacer)
            elif self.by_id and isinstance(lookup, ErrorCode):
                rows = await _collect_paced((missing_offset(index, lookup) for index in indexes), pacer)
            else:
                # An offset may outlive its topic's metadata for a moment; it is found by name.
                topic = None if isinstance(lookup, ErrorCode) else lookup
                name, topic_id = (topic.name, topic.topic_id) if topic else (requested_name, None)
                rows = await _collect_paced(
                    (self.read_partition(name, topic_id, index) for index in indexes), pacer
                )
            results.append(
                OffsetFetchResponseTopic(name=requested_name, topic_id=requested_id, partitions=rows)
            )
        return tuple(results)

    def _check_right(self, name: str, topic: Topic | ErrorCode) -> ErrorCode | None:
        """Return the code of a denial; one by name comes before whether the topic exists."""
        if isinstance(topic, ErrorCode) and self.by_id:
            return None
        allowed = self.may_describe(name if isinstance(topic, ErrorCode) else topic.name)
        return None if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def read_all(self) -> Iterable[OffsetFetchResponseTopic]:
        by_topic: dict[str, list[int]] = {}
        for partition in list_committed_offsets(self.group):
            by_topic.setdefault(partition.topic, []).append(partition.partition)
        for name, indexes in by_topic.items():
            if not self.may_describe(name):
                continue
            topic = self.broker.topics.find(name)
            if topic is None and self.by_id:
                continue  # the response cannot name a topic without an id
            topic_id = topic.topic_id if topic is not None else None
            rows = tuple(self.read_partition(name, topic_id, index) for index in indexes)
            yield OffsetFetchResponseTopic(name=name, topic_id=topic_id or NIL, partitions=rows)


def missing_offset(index: int, code: int) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
    )


async def handle(
    broker: OffsetsPort, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    pacer = LoopYielder()
    if context.api_version >= 8:
        groups = []
        for group_request in _deduplicate(request.groups):
            await pacer.count_entry()
            groups.append(await _fetch_group(broker, group_request, request, context, pacer))
        return OffsetFetchResponse(groups=tuple(groups))
    group_request = OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)
    group = await _fetch_group(broker, group_request, request, context, pacer)
    topics = group.topics
    if group.error_code and context.api_version < 2:
        # Version 1 has no error code for the group, so each partition gets it.
        topics = tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    missing_offset(index, group.error_code) for index in topic.partition_indexes
                ),
            )
            for topic in request.topics or ()
        )
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _deduplicate(groups: Iterable[OffsetFetchRequestGroup]) -> Iterable[OffsetFetchRequestGroup]:
    return {group.group_id: group for group in groups}.values()


async def _collect_paced(
    rows: Iterable[OffsetFetchResponsePartition], pacer: LoopYielder
) -> tuple[OffsetFetchResponsePartition, ...]:
    collected = []
    for row in rows:
        collected.append(row)
        await pacer.count_entry()
    return tuple(collected)


async def _fetch_group(
    broker: OffsetsPort,
    group_request: OffsetFetchRequestGroup,
    request: OffsetFetchRequest,
    context: RequestContext,
    pacer: LoopYielder,
) -> OffsetFetchResponseGroup:
    group_id = GroupId(group_request.group_id)
    if not may_on_group(broker, context, Operation.DESCRIBE, group_id):
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return OffsetFetchResponseGroup(group_id=group_id, error_code=denied)
    # KIP-447: a stable read sees every commit that was accepted before it.
    stable = request.require_stable
    group = await broker.groups.get_settled_group(group_id) if stable else broker.groups.get_group(group_id)
    if isinstance(group, Reject):
        return OffsetFetchResponseGroup(group_id=group_id, error_code=group.code)
    named = group_request.topics is not None
    may_describe = make_topic_check(broker, context, Operation.DESCRIBE, log_denied=named)
    read = _GroupOffsetsReader(broker, group, stable, context.api_version >= 10, may_describe)
    topics = await (
        collect_in_slices(read.read_all())
        if group_request.topics is None
        else read.read_requested(group_request.topics, pacer)
    )
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)
