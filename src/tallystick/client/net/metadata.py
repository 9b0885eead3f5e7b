"""Cluster metadata: brokers, topics and leaders as values, and how a response changes them.

A response may be older than what is known already: brokers learn of a new leader at different times. Leader
epochs say which is newer, so a partition only ever moves to a higher epoch [CLI-4], unless its topic was
recreated (another topic id) or the cluster is another one.

Source: KIP-320 for leader epochs, KIP-516 for topic ids; Kafka MetadataCache, Metadata.updateLatestMetadata.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Never
from uuid import UUID

from tallystick.client.settings.config import Address
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import TOPIC_NAME_LENGTH_MAX
from tallystick.kernel.value import Value, replace
from tallystick.protocol.messages.topics.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Node(Value, kw_only=True):
    """A broker."""

    id: int
    address: Address
    rack: str | None = None


class PartitionInfo(Value, kw_only=True):
    """A partition. `leader` is None where it has none now, `leader_epoch` where the broker reports none."""

    index: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0


class TopicInfo(Value, kw_only=True):
    """A topic and its partitions by number. `id` is nil where the cluster has none."""

    name: str
    id: UUID
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]


class MetadataImage(Value, kw_only=True):
    """The cluster as last seen. `error_codes` has the topics that were asked for and are missing."""

    cluster_id: str | None
    controller_id: int | None
    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo]
    error_codes: Mapping[str, int]

    def find_partition(self, at: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(at.topic)
        return None if topic is None else topic.partitions.get(at.partition)

    def find_leader(self, at: TopicPartition) -> int | None:
        """Return the leader of a partition, if there is one and its address is known."""
        partition = self.find_partition(at)
        if partition is None or partition.leader is None or partition.leader not in self.nodes:
            return None
        return partition.leader

    def is_online_replica(self, at: TopicPartition, node: int) -> bool:
        """Return whether a broker has a replica of the partition and can be asked for it."""
        partition = self.find_partition(at)
        return (
            partition is not None
            and node in self.nodes
            and node in partition.replicas
            and node not in partition.offline
        )

    def find_leader_error(self, at: TopicPartition) -> int:
        """Return the error code for a partition without a usable leader."""
        if at.topic in self.error_codes:
            return self.error_codes[at.topic]
        partition = self.find_partition(at)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return partition.error_code or ErrorCode.LEADER_NOT_AVAILABLE


_EMPTY_MAP: Final[Mapping[str, Never]] = MappingProxyType({})
EMPTY_IMAGE: Final = MetadataImage(
    cluster_id=None, controller_id=None, nodes=MappingProxyType({}), topics=_EMPTY_MAP, error_codes=_EMPTY_MAP
)


_TOPIC_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_topic_name(name: str) -> bool:
    """Return whether a topic may have this name. Source: Kafka Topic.validate."""
    return (
        0 < len(name) <= TOPIC_NAME_LENGTH_MAX
        and name not in (".", "..")
        and _TOPIC_NAME_CHARS.issuperset(name)
    )


def merge_response(image: MetadataImage, answer: MetadataResponse, *, all_topics: bool) -> MetadataImage:
    """Return the image updated by `answer`; with `all_topics`, topics it leaves out are gone."""
    is_same_cluster = image.cluster_id in (None, answer.cluster_id) or answer.cluster_id is None
    before = image.topics if is_same_cluster else {}
    topics = {} if all_topics else dict(before)
    errors = {} if all_topics or not is_same_cluster else dict(image.error_codes)
    for topic in answer.topics:
        if topic.name is None:
            continue
        if topic.error_code:
            topics.pop(topic.name, None)
            errors[topic.name] = topic.error_code
        else:
            errors.pop(topic.name, None)
            topics[topic.name] = _merge_topic(before.get(topic.name), topic)
    return MetadataImage(
        cluster_id=answer.cluster_id or image.cluster_id,
        controller_id=answer.controller_id if answer.controller_id >= 0 else None,
        nodes=MappingProxyType(
            {
                b.node_id: Node(id=b.node_id, address=Address(b.host, b.port), rack=b.rack)
                for b in answer.brokers
            }
        ),
        topics=MappingProxyType(topics),
        error_codes=MappingProxyType(errors),
    )


def with_leaders(
    image: MetadataImage, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node] = ()
) -> MetadataImage:
    """Return the image updated by new leaders, their epochs and addresses in a response (KIP-951)."""
    topics = dict(image.topics)
    for at, (leader, epoch) in leaders.items():
        partition = image.find_partition(at)
        if (
            partition is None
            or leader < 0
            or (partition.leader_epoch is not None and epoch <= partition.leader_epoch)
        ):
            continue
        topic = topics[at.topic]
        new_partition = replace(partition, leader=leader, leader_epoch=epoch, error_code=0)
        topics[at.topic] = replace(
            topic, partitions=MappingProxyType({**topic.partitions, at.partition: new_partition})
        )
    return replace(
        image,
        topics=MappingProxyType(topics),
        nodes=MappingProxyType({**image.nodes, **{node.id: node for node in nodes}}),
    )


def without_topics(image: MetadataImage, names: Iterable[str]) -> MetadataImage:
    """Return the image without these topics."""
    dropped_names = set(names)
    return replace(
        image,
        topics=MappingProxyType(
            {name: topic for name, topic in image.topics.items() if name not in dropped_names}
        ),
        error_codes=MappingProxyType(
            {name: code for name, code in image.error_codes.items() if name not in dropped_names}
        ),
    )


def _merge_topic(before: TopicInfo | None, topic: MetadataResponseTopic) -> TopicInfo:
    is_same_topic = before is not None and before.id == topic.topic_id
    partitions = {}
    for partition_answer in topic.partitions:
        partition = _parse_partition(partition_answer)
        former = before.partitions.get(partition.index) if before is not None and is_same_topic else None
        is_stale = (
            former is not None
            and former.leader_epoch is not None
            and partition.leader_epoch is not None
            and partition.leader_epoch < former.leader_epoch
        )
        partitions[partition.index] = former if is_stale and former is not None else partition
    return TopicInfo(
        name=topic.name or "",
        id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=MappingProxyType(partitions),
    )


def _parse_partition(partition: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        index=partition.partition_index,
        leader=partition.leader_id if partition.leader_id >= 0 else None,
        leader_epoch=partition.leader_epoch if partition.leader_epoch >= 0 else None,
        replicas=partition.replica_nodes,
        isr=partition.isr_nodes,
        offline=partition.offline_replicas,
        error_code=partition.error_code,
    )
