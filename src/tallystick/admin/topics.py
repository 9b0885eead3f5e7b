"""Topics, partitions, offsets and records: create, alter, delete and describe them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final
from uuid import UUID

from tallystick.admin.listing import Answers, Asker
from tallystick.client.errors import ClientError, refused
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.offsets import OffsetAndTimestamp, list_request, listed_of
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen, replace
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages import create_topics as ct
from tallystick.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tallystick.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tallystick.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tallystick.protocol.messages.list_offsets import ListOffsetsResponse

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
"""Instead of a time in `list_offsets`: the first record, the end, the record with the latest timestamp."""

DELETE_BY_ID: Final = 6
_NIL: Final = UUID(int=0)
_BROKERS_DEFAULT: Final = -1


@frozen(kw_only=True)
class NewTopic:
    """A topic to create. None stands for the broker's default."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@frozen(kw_only=True)
class CreatedTopic:
    """A created topic, as the broker reports it; None if the broker's version does not report a field."""

    name: str
    id: UUID | None
    partitions: int | None
    replicas: int | None


async def create(
    asker: Asker, topics: Iterable[NewTopic], *, validate_only: bool
) -> Answers[str, CreatedTopic]:
    wanted = {topic.name: topic for topic in topics}

    async def ask(names: Sequence[str]) -> dict[str, CreatedTopic | ClientError]:
        request = ct.CreateTopicsRequest(
            topics=tuple(_creatable(wanted[name]) for name in names),
            timeout_ms=asker.cluster.config.request_timeout_ms,
            validate_only=validate_only,
        )
        answer = await asker.cluster.send(await asker.controller(), request, ct.CreateTopicsResponse)
        return {each.name: _created(each) for each in answer.topics}

    return await asker.rounds("CreateTopics", wanted, ask)


def _creatable(topic: NewTopic) -> ct.CreatableTopic:
    return ct.CreatableTopic(
        name=topic.name,
        num_partitions=_BROKERS_DEFAULT if topic.partitions is None else topic.partitions,
        replication_factor=_BROKERS_DEFAULT if topic.replicas is None else topic.replicas,
        configs=tuple(ct.CreatableTopicConfig(name=n, value=v) for n, v in topic.config.items()),
    )


def _created(each: ct.CreatableTopicResult) -> CreatedTopic | ClientError:
    if each.error_code:
        return refused("CreateTopics", each.name, each.error_code, each.error_message)
    return CreatedTopic(
        name=each.name,
        id=None if each.topic_id == _NIL else each.topic_id,
        partitions=None if each.num_partitions < 0 else each.num_partitions,
        replicas=None if each.replication_factor < 0 else each.replication_factor,
    )


async def delete(asker: Asker, names: Iterable[str]) -> Answers[str, None]:
    async def ask(some: Sequence[str]) -> dict[str, ClientError | None]:
        request = DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name=name, topic_id=_NIL) for name in some),
            topic_names=tuple(some),
            timeout_ms=asker.cluster.config.request_timeout_ms,
        )
        node = await asker.controller()
        version = (await asker.cluster.versions(node)).highest(ApiKey.DELETE_TOPICS)
        if version is not None and version < DELETE_BY_ID:
            request = replace(request, topics=())
        answer = await asker.cluster.send(node, request, DeleteTopicsResponse)
        return {
            each.name or "": refused("DeleteTopics", each.name, each.error_code, each.error_message)
            if each.error_code
            else None
            for each in answer.responses
        }

    return await asker.rounds("DeleteTopics", names, ask)


async def create_partitions(
    asker: Asker, totals: Mapping[str, int], *, validate_only: bool
) -> Answers[str, None]:
    async def ask(names: Sequence[str]) -> dict[str, ClientError | None]:
        request = CreatePartitionsRequest(
            topics=tuple(
                CreatePartitionsTopic(name=name, count=totals[name], assignments=None) for name in names
            ),
            timeout_ms=asker.cluster.config.request_timeout_ms,
            validate_only=validate_only,
        )
        answer = await asker.cluster.send(await asker.controller(), request, CreatePartitionsResponse)
        return {
            each.name: refused("CreatePartitions", each.name, each.error_code, each.error_message)
            if each.error_code
            else None
            for each in answer.results
        }

    return await asker.rounds("CreatePartitions", totals, ask)


async def list_all(asker: Asker, *, internal: bool) -> Mapping[str, TopicInfo]:
    cluster = asker.cluster
    image = await cluster.retrying("Metadata", "", lambda: cluster.refresh(None), asker.deadline)
    cluster.forget_topics(None)
    return {name: topic for name, topic in image.topics.items() if internal or not topic.is_internal}


async def describe(asker: Asker, names: Iterable[str]) -> Answers[str, TopicInfo]:
    cluster = asker.cluster

    async def ask(some: Sequence[str]) -> dict[str, TopicInfo | ClientError]:
        image = await cluster.refresh(some)
        return {
            name: image.topics[name]
            if name in image.topics
            else refused("Metadata", name, image.errors[name])
            for name in some
            if name in image.topics or name in image.errors
        }

    return await asker.rounds("Metadata", names, ask)


async def delete_records(
    asker: Asker, before: Mapping[TopicPartition, int | None]
) -> Answers[TopicPartition, int]:
    async def ask(node: int, some: Sequence[TopicPartition]) -> dict[TopicPartition, int | ClientError]:
        topics: dict[str, list[DeleteRecordsPartition]] = {}
        for at in some:
            offset = before[at]
            part = DeleteRecordsPartition(
                partition_index=at.partition, offset=LATEST if offset is None else offset
            )
            topics.setdefault(at.topic, []).append(part)
        request = DeleteRecordsRequest(
            topics=tuple(DeleteRecordsTopic(name=n, partitions=tuple(p)) for n, p in topics.items()),
            timeout_ms=asker.cluster.config.request_timeout_ms,
        )
        answer = await asker.cluster.send(node, request, DeleteRecordsResponse)
        return {
            at: refused("DeleteRecords", at, p.error_code) if p.error_code else p.low_watermark
            for t in answer.topics
            for p in t.partitions
            for at in (TopicPartition(t.name, p.partition_index),)
        }

    return await asker.of_leaders(before, ask, "DeleteRecords")


async def list_offsets(
    asker: Asker, times_ms: Mapping[TopicPartition, int], *, read_committed: bool
) -> Answers[TopicPartition, OffsetAndTimestamp | None]:
    async def ask(
        node: int, some: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | ClientError | None]:
        request = list_request({at: times_ms[at] for at in some}, {}, int(read_committed))
        found, errors = listed_of(await asker.cluster.send(node, request, ListOffsetsResponse))
        return {**found, **errors}

    return await asker.of_leaders(times_ms, ask, "ListOffsets")
