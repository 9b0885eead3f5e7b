"""Subscriptions and assignments of the consumer protocol, as bytes.

They travel inside JoinGroup and SyncGroup, unread by the broker. A subscription also contains the user data
of the assignor:

    sticky              the last assignment and its generation, since by then the member has given it up
    cooperative-sticky  the generation, for leaders that read subscriptions of version 1

Source: KIP-54, KIP-341 (the generation), KIP-429, KIP-792, KIP-881; ConsumerProtocol.
"""

from collections.abc import Collection, Iterable, Mapping
from struct import Struct, error
from typing import Final

from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol import DecodeError, decode_prefix, encode
from tallystick.protocol.messages.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tallystick.protocol.messages.groups.consumer_protocol import TopicPartition as WirePartitions

SUBSCRIPTION_VERSION: Final = 3

PartitionRacks = Mapping[str, tuple[frozenset[str], ...]]
"""Racks with a replica of each partition, by topic; empty sets where brokers name none (KIP-881)."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


class Subscription(Value, kw_only=True):
    """One member's subscription, as an assignor sees it.

    owned       partitions it reads now; empty in an eager group, where they are given up before joining
    generation  generation in which it got them; None for unknown
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int | None = None
    instance_id: str | None = None
    rack: str | None = None
    user_data: bytes | None = None


class MemberData(Value):
    """A member's assignment before this rebalance, and its generation; None for unknown."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """Return the `metadata` of one protocol in JoinGroup."""
    message = ConsumerProtocolSubscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=_group_by_topic(subscription.owned),
        generation_id=-1 if subscription.generation is None else subscription.generation,
        rack_id=subscription.rack,
    )
    return _INT16.pack(SUBSCRIPTION_VERSION) + encode(message, SUBSCRIPTION_VERSION)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Decode a member's subscription, of any version.

    Raises: DecodeError.
    """
    version = _read_version(data)
    message, _ = decode_prefix(ConsumerProtocolSubscription, data, version, _INT16.size)
    generation = message.generation_id
    return Subscription(
        topics=message.topics,
        owned=_flatten(message.owned_partitions),
        generation=None if generation < 0 else generation,
        instance_id=instance_id,
        rack=message.rack_id or None,
        user_data=message.user_data,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return one member's assignment in SyncGroup."""
    message = ConsumerProtocolAssignment(assigned_partitions=_group_by_topic(partitions))
    return _INT16.pack(SUBSCRIPTION_VERSION) + encode(message, SUBSCRIPTION_VERSION)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the assignment of a member, as the leader wrote it; in order of topic and partition.

    Raises: DecodeError, also for no bytes at all: the leader forgot this member.
    """
    message, _ = decode_prefix(ConsumerProtocolAssignment, data, _read_version(data), _INT16.size)
    return tuple(sorted(set(_flatten(message.assigned_partitions))))


def encode_member_data(previous: MemberData) -> bytes:
    """Return the user data of `sticky`: the last assignment and its generation."""
    topics = _group_by_topic(previous.partitions)
    parts = [_INT32.pack(len(topics))]
    for topic in topics:
        name = topic.topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(topic.partitions)))
        parts += map(_INT32.pack, topic.partitions)
    parts.append(_INT32.pack(-1 if previous.generation is None else previous.generation))
    return b"".join(parts)


def decode_member_data(data: bytes | None) -> MemberData:
    """Decode the user data of `sticky`; version 0 has no generation, and unreadable data is dropped.

    Source: StickyAssignor.memberData.
    """
    if not data:
        return MemberData()
    try:
        partitions, at = _read_partitions(data)
    except (error, UnicodeDecodeError, DecodeError):
        return MemberData((), -1)
    if len(data) - at < _INT32.size:
        return MemberData(partitions)
    return MemberData(partitions, _INT32.unpack_from(data, at)[0])


def encode_generation(generation: int | None) -> bytes:
    """Return the user data of `cooperative-sticky`."""
    return _INT32.pack(-1 if generation is None else generation)


def decode_generation(data: bytes | None) -> int | None:
    """Return the generation in the user data of `cooperative-sticky`; -1 where it cannot be read."""
    if data is None:
        return None
    return int(_INT32.unpack_from(data)[0]) if len(data) >= _INT32.size else -1


def _read_partitions(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    (topics,) = _INT32.unpack_from(data)
    at = _INT32.size
    partitions: list[TopicPartition] = []
    _check_size(topics, data, at)
    for _ in range(topics):
        (size,) = _INT16.unpack_from(data, at)
        at += _INT16.size
        _check_size(size, data, at)
        name = data[at : at + size].decode()
        at += size
        (count,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        _check_size(count * _INT32.size, data, at)
        for _ in range(count):
            partitions.append(TopicPartition(name, _INT32.unpack_from(data, at)[0]))
            at += _INT32.size
    return tuple(partitions), at


def _check_size(size: int, data: bytes, at: int) -> None:
    if not 0 <= size <= len(data) - at:
        raise DecodeError(f"{size} at byte {at} of {len(data)}")


def _read_version(data: bytes) -> int:
    if len(data) < _INT16.size:
        raise DecodeError(f"{len(data)} bytes of the consumer protocol: not even its version")
    (version,) = _INT16.unpack_from(data)
    if version < 0:
        raise DecodeError(f"version {version} of the consumer protocol")
    return min(int(version), SUBSCRIPTION_VERSION)  # newer versions begin with the same fields


def _group_by_topic(partitions: Iterable[TopicPartition]) -> tuple[WirePartitions, ...]:
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return tuple(WirePartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())


def _flatten(topics: Iterable[WirePartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)


def use_rack_aware_assignment(members: Collection[str], partitions: Collection[frozenset[str]]) -> bool:
    """Return whether a member is in a rack of the topic, and not every partition is in all those racks.

    Source: AbstractPartitionAssignor.useRackAwareAssignment.
    """
    everywhere = frozenset[str]().union(*partitions)
    return not everywhere.isdisjoint(members) and any(racks != everywhere for racks in partitions)
