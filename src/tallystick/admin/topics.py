"""Topics, partitions, offsets and records: create, alter, delete and describe them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec import field

from tallystick.admin.admin_call import AdminCall, Answers
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.offsets import (
    OffsetAndTimestamp,
    build_list_offsets_request,
    parse_list_offsets_response,
)
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value, replace
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.data.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tallystick.protocol.messages.data.list_offsets import ListOffsetsResponse
from tallystick.protocol.messages.topics import create_topics as ct
from tallystick.protocol.messages.topics.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tallystick.protocol.messages.topics.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
"""Instead of a time in `list_offsets`: the first record, the end, the record with the latest timestamp."""

DELETE_BY_ID_VERSION: Final = 6
_NIL: Final = UUID(int=0)
_BROKER_DEFAULT: Final = -1


class NewTopic(Value, kw_only=True):
    """A topic to create. None stands for the broker's default."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)


class CreatedTopic(Value, kw_only=True):
    """A created topic, as the broker reports it; None if the broker's version does not report a field."""

    name: str
    id: UUID | None
    partitions: int | None
    replicas: int | None


async def create(
    call: AdminCall, topics: Iterable[NewTopic], *, validate_only: bool
) -> Answers[str, CreatedTopic]:
    topics_by_name = {topic.name: topic for topic in topics}

    async def ask(names: Sequence[str]) -> dict[str, CreatedTopic | ClientError]:
        request = ct.CreateTopicsRequest(
            topics=tuple(_to_creatable_topic(topics_by_name[name]) for name in names),
            timeout_ms=call.cluster.config.request_timeout_ms,
            validate_only=validate_only,
        )
        answer = await call.cluster.send(await call.find_controller(), request, ct.CreateTopicsResponse)
        return {each.name: _to_created_topic(each) for each in answer.topics}

    return await call.send_with_retries("CreateTopics", topics_by_name, ask)


def _to_creatable_topic(topic: NewTopic) -> ct.CreatableTopic:
    return ct.CreatableTopic(
        name=topic.name,
        num_partitions=_BROKER_DEFAULT if topic.partitions is None else topic.partitions,
        replication_factor=_BROKER_DEFAULT if topic.replicas is None else topic.replicas,
        configs=tuple(ct.CreatableTopicConfig(name=n, value=v) for n, v in topic.config.items()),
    )


def _to_created_topic(each: ct.CreatableTopicResult) -> CreatedTopic | ClientError:
    if each.error_code:
        return build_broker_error("CreateTopics", each.name, each.error_code, each.error_message)
    return CreatedTopic(
        name=each.name,
        id=None if each.topic_id == _NIL else each.topic_id,
        partitions=None if each.num_partitions < 0 else each.num_partitions,
        replicas=None if each.replication_factor < 0 else each.replication_factor,
    )


async def delete(call: AdminCall, names: Iterable[str]) -> Answers[str, None]:
    async def ask(some: Sequence[str]) -> dict[str, ClientError | None]:
        request = DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name=name, topic_id=_NIL) for name in some),
            topic_names=tuple(some),
            timeout_ms=call.cluster.config.request_timeout_ms,
        )
        node = await call.find_controller()
        version = (await call.cluster.wait_for_versions(node)).find_latest_usable(ApiKey.DELETE_TOPICS)
        if version is not None and version < DELETE_BY_ID_VERSION:
            request = replace(request, topics=())
        answer = await call.cluster.send(node, request, DeleteTopicsResponse)
        return {
            each.name or "": build_broker_error(
                "DeleteTopics", each.name, each.error_code, each.error_message
            )
            if each.error_code
            else None
            for each in answer.responses
        }

    return await call.send_with_retries("DeleteTopics", names, ask)


async def create_partitions(
    call: AdminCall, totals: Mapping[str, int], *, validate_only: bool
) -> Answers[str, None]:
    async def ask(names: Sequence[str]) -> dict[str, ClientError | None]:
        request = CreatePartitionsRequest(
            topics=tuple(
                CreatePartitionsTopic(name=name, count=totals[name], assignments=None) for name in names
            ),
            timeout_ms=call.cluster.config.request_timeout_ms,
            validate_only=validate_only,
        )
        answer = await call.cluster.send(await call.find_controller(), request, CreatePartitionsResponse)
        return {
            each.name: build_broker_error("CreatePartitions", each.name, each.error_code, each.error_message)
            if each.error_code
            else None
            for each in answer.results
        }

    return await call.send_with_retries("CreatePartitions", totals, ask)


async def list_all(call: AdminCall, *, internal: bool) -> Mapping[str, TopicInfo]:
    cluster = call.cluster
    image = await cluster.run_with_retries("Metadata", "", lambda: cluster.refresh(None), call.deadline)
    cluster.forget_topics(None)
    return {name: topic for name, topic in image.topics.items() if internal or not topic.is_internal}


async def describe(call: AdminCall, names: Iterable[str]) -> Answers[str, TopicInfo]:
    cluster = call.cluster

    async def ask(some: Sequence[str]) -> dict[str, TopicInfo | ClientError]:
        image = await cluster.refresh(some)
        return {
            name: image.topics[name]
            if name in image.topics
            else build_broker_error("Metadata", name, image.error_codes[name])
            for name in some
            if name in image.topics or name in image.error_codes
        }

    return await call.send_with_retries("Metadata", names, ask)


async def delete_records(
    call: AdminCall, before: Mapping[TopicPartition, int | None]
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
            timeout_ms=call.cluster.config.request_timeout_ms,
        )
        answer = await call.cluster.send(node, request, DeleteRecordsResponse)
        return {
            at: build_broker_error("DeleteRecords", at, p.error_code) if p.error_code else p.low_watermark
            for t in answer.topics
            for p in t.partitions
            for at in (TopicPartition(t.name, p.partition_index),)
        }

    return await call.send_to_leaders(before, ask, "DeleteRecords")


async def list_offsets(
    call: AdminCall, times_ms: Mapping[TopicPartition, int], *, read_committed: bool
) -> Answers[TopicPartition, OffsetAndTimestamp | None]:
    async def ask(
        node: int, some: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | ClientError | None]:
        request = build_list_offsets_request({at: times_ms[at] for at in some}, {}, int(read_committed))
        offsets, errors = parse_list_offsets_response(
            await call.cluster.send(node, request, ListOffsetsResponse)
        )
        return {**offsets, **errors}

    return await call.send_to_leaders(times_ms, ask, "ListOffsets")
