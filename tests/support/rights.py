"""The rights that each API needs: requests, where their answers say no, and with which code.

One row is one right of one API. `others` are the further rights that the request needs, so that a principal
with all of them and the row's own is not refused.

Source: Kafka 4.3 KafkaApis, ControllerApis, ConfigHelper.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tallystick.broker.authorizer.authorizer import (
    Operation,
    group_resource,
    topic_resource,
    transactional_id_resource,
)
from tallystick.broker.authorizer.bindings import ResourcePattern
from tallystick.kernel.codes import ErrorCode as E
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclResource
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.records import BatchMeta, Record, encode_batch

TOPIC, GROUP, ID = "orders", "g", "t"
ON_TOPIC, ON_GROUP, ON_ID = topic_resource(TOPIC), group_resource(GROUP), transactional_id_resource(ID)
Right = tuple[Operation, ResourcePattern]
DENIALS = frozenset(
    {
        E.TOPIC_AUTHORIZATION_FAILED,
        E.GROUP_AUTHORIZATION_FAILED,
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

EVERYTHING: tuple[Right, ...] = tuple(
    (Operation.ALL, ResourcePattern(kind, "kafka-cluster" if kind is AclResource.CLUSTER else "*"))
    for kind in AclResource
    if kind is not AclResource.ANY
)


class Row(Value, kw_only=True):
    """One right of one API.

    name         of the test case
    request      by the name of the topic that it is about
    rights       each of which suffices
    others       further rights that the request needs
    places       picks the codes out of the answer that are `code` after a denial; all others must be 0
    is_absent    a resource that does not exist is denied in the same words
    """

    name: str
    version: int
    request: Callable[[str], object]
    rights: tuple[Right, ...]
    others: tuple[Right, ...] = ()
    code: E
    places: Callable[[Any], list[int]]
    is_absent: bool = False


def iter_codes(value: Any) -> Iterator[int]:
    """Yield every error code in an answer."""
    for field in value.__struct_fields__:
        inside = getattr(value, field)
        if field.endswith("error_code"):
            yield inside
        elif isinstance(inside, tuple):
            for each in inside:
                if hasattr(each, "__struct_fields__"):
                    yield from iter_codes(each)


def build(key: ApiKey, content: dict[str, Any]) -> object:
    """Return the request of an API with this content."""
    return msgspec.convert(content, API_SPECS[key].request)


def topic_rows(key: ApiKey, version: int, field: str, partition: dict[str, Any], **more: Any) -> Any:
    """Return what builds a request with one topic, whose name is in `field`, and one partition."""
    return lambda topic: build(key, {**more, "topics": [{field: topic, "partitions": [partition]}]})


def produce(topic: str, *, transactional: bool = False) -> ProduceRequest:
    meta = (
        BatchMeta(producer_id=0, producer_epoch=0, base_sequence=0, is_transactional=True)
        if transactional
        else BatchMeta()
    )
    data = PartitionProduceData(index=0, records=encode_batch([Record(0, 0, None, b"v")], meta))
    other = PartitionProduceData(index=1, records=encode_batch([Record(0, 0, None, b"v")], BatchMeta()))
    parts = (data, other)
    return ProduceRequest(
        transactional_id=ID if transactional else None,
        acks=-1,
        timeout_ms=1_000,
        topic_data=(TopicProduceData(name=topic, partition_data=parts),),
    )


def fetch(topic: str, replica_id: int = -1) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        topics=(FetchTopic(topic=topic, partitions=(part,)),),
    )


def partition_codes(topics: str = "topics", partitions: str = "partitions") -> Callable[[Any], list[int]]:
    return lambda answer: [
        part.error_code for topic in getattr(answer, topics) for part in getattr(topic, partitions)
    ]


def entry_codes(entries: str) -> Callable[[Any], list[int]]:
    return lambda answer: [each.error_code for each in getattr(answer, entries)]


def top_code(answer: Any) -> list[int]:
    return [answer.error_code]


def on(operation: Operation, resource: ResourcePattern) -> tuple[Right, ...]:
    return ((operation, resource),)


def rename(rights: Iterable[Right]) -> list[Right]:
    """Return these rights with the topic that does not exist in place of the one that does."""
    return [
        (operation, topic_resource("absent") if resource == ON_TOPIC else resource)
        for operation, resource in rights
    ]
