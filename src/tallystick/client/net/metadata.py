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

from tallystick.client.config import Address
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import TOPIC_NAME_LENGTH_MAX
from tallystick.kernel.value import Value, replace
from tallystick.protocol.messages.metadata import (
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
        found = self.find_partition(at)
        if found is None or found.leader is None or found.leader not in self.nodes:
            return None
        return found.leader

    def find_topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic by its id. Cost: linear; keep a dict to read whole responses."""
        return next((t.name for t in self.topics.values() if t.id == topic_id), None)

    def find_leader_error(self, at: TopicPartition) -> int:
        """Return the error code for a partition without a usable leader."""
        if at.topic in self.error_codes:
            return self.error_codes[at.topic]
        found = self.find_partition(at)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return found.error_code or ErrorCode.LEADER_NOT_AVAILABLE


_EMPTY_MAP: Final[Mapping[str, Never]] = MappingProxyType({})
EMPTY_IMAGE: Final = MetadataImage(
    cluster_id=None, controller_id=None, nodes=MappingProxyType({}), topics=_EMPTY_MAP, error_codes=_EMPTY_MAP
)


_TOPIC_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_topic_name(name: str) -> bool:
    """Tell whether a topic may have this name. Source: Kafka Topic.validate."""
    return (
        0 < len(name) <= TOPIC_NAME_LENGTH_MAX
        and name not in (".", "..")
        and _TOPIC_NAME_CHARS.issuperset(name)
    )


def merge_response(known: MetadataImage, answer: MetadataResponse, *, all_topics: bool) -> MetadataImage:
    """Return the image updated by `answer`; with `all_topics`, topics it leaves out are gone."""
    same = known.cluster_id in (None, answer.cluster_id) or answer.cluster_id is None
    before = known.topics if same else {}
    topics = {} if all_topics else dict(before)
    errors = {} if all_topics or not same else dict(known.error_codes)
    for found in answer.topics:
        if found.name is None:
            continue
        if found.error_code:
            topics.pop(found.name, None)
            errors[found.name] = found.error_code
        else:
            errors.pop(found.name, None)
            topics[found.name] = _merge_topic(before.get(found.name), found)
    return MetadataImage(
        cluster_id=answer.cluster_id or known.cluster_id,
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
    known: MetadataImage, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node] = ()
) -> MetadataImage:
    """Return the image updated by new leaders, their epochs and addresses in a response (KIP-951)."""
    topics = dict(known.topics)
    for at, (leader, epoch) in leaders.items():
        found = known.find_partition(at)
        if found is None or leader < 0 or (found.leader_epoch is not None and epoch <= found.leader_epoch):
            continue
        topic = topics[at.topic]
        moved = replace(found, leader=leader, leader_epoch=epoch, error_code=0)
        topics[at.topic] = replace(
            topic, partitions=MappingProxyType({**topic.partitions, at.partition: moved})
        )
    return replace(
        known,
        topics=MappingProxyType(topics),
        nodes=MappingProxyType({**known.nodes, **{node.id: node for node in nodes}}),
    )


def without_topics(known: MetadataImage, names: Iterable[str]) -> MetadataImage:
    """Return the image without these topics."""
    gone = set(names)
    return replace(
        known,
        topics=MappingProxyType({name: topic for name, topic in known.topics.items() if name not in gone}),
        error_codes=MappingProxyType(
            {name: code for name, code in known.error_codes.items() if name not in gone}
        ),
    )


def _merge_topic(before: TopicInfo | None, found: MetadataResponseTopic) -> TopicInfo:
    same = before is not None and before.id == found.topic_id
    partitions = {}
    for answered in found.partitions:
        partition = _parse_partition(answered)
        held = before.partitions.get(partition.index) if before is not None and same else None
        stale = (
            held is not None
            and held.leader_epoch is not None
            and partition.leader_epoch is not None
            and partition.leader_epoch < held.leader_epoch
        )
        partitions[partition.index] = held if stale and held is not None else partition
    return TopicInfo(
        name=found.name or "",
        id=found.topic_id,
        is_internal=found.is_internal,
        partitions=MappingProxyType(partitions),
    )


def _parse_partition(answered: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        index=answered.partition_index,
        leader=answered.leader_id if answered.leader_id >= 0 else None,
        leader_epoch=answered.leader_epoch if answered.leader_epoch >= 0 else None,
        replicas=answered.replica_nodes,
        isr=answered.isr_nodes,
        offline=answered.offline_replicas,
        error_code=answered.error_code,
    )
