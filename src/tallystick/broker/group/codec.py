"""Encoding of durable events as records of `__consumer_offsets`; confines the sentinels -1 and "".

A record's key begins with an int16 that gives the type of the record, its value with an int16 version; a null
value is a tombstone. Types that are not written here (consumer, share and streams groups) are skipped on
replay, so that a log of Kafka's own can be read.

Source: Kafka's OffsetCommitKey/Value and GroupMetadataKey/Value; docs/formats/consumer-offsets.md.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, assert_never
from uuid import UUID

from tallystick.broker.coordinator.placement import hash_to_partition
from tallystick.broker.group.machine.events import (
    DurableEvent,
    GroupRemoved,
    GroupStored,
    OffsetsCommitted,
    OffsetsDeleted,
    ReplayedEvent,
    StoredMember,
    TransactionEnded,
)
from tallystick.broker.group.machine.model import CommittedOffset, Generation, InstanceId
from tallystick.kernel.ids import (
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
)
from tallystick.protocol import DecodeError, decode, decode_prefix, encode
from tallystick.protocol.messages.groups.stored_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EncodedBatch,
    Record,
    decode_records,
    encode_batch,
    iter_headers,
    read_marker,
)
from tallystick.protocol.records.batch import MAGIC, BatchHeader

_INT16: Final = struct.Struct(">h")

OFFSET_KEY_VERSIONS: Final = (0, 1)  # 0 was written by very old brokers
OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2

# Only version 1 has a field for a commit's own expiry.
EXPIRING_OFFSET_VALUE_VERSION: Final = 1
OFFSET_VALUE_VERSION: Final = 4
GROUP_VALUE_VERSION: Final = 3

_ZERO_ID: Final = UUID(int=0)


def partition_for(group_id: GroupId, partition_count: int) -> int:
    """Return the partition of `__consumer_offsets` that keeps a group."""
    return hash_to_partition(group_id, partition_count)


def count_records(event: DurableEvent) -> int:
    """Return the number of records of an event."""
    match event:
        case GroupStored() | GroupRemoved():
            return 1
        case OffsetsCommitted(offsets=offsets):
            return len(offsets)
        case OffsetsDeleted(partitions=partitions):
            return len(partitions)
        case _:
            assert_never(event)


def encode_batch_of(
    events: Sequence[DurableEvent], now_ms: TimestampMs, producer: ProducerIdAndEpoch | None = None
) -> EncodedBatch:
    """Encode all events as one batch, so that a crash keeps either all of them or none.

    Args:
        producer: producer id and epoch of the transaction the batch is part of. Its base sequence is always
            0, as in Kafka: sequence numbers are not checked here.
    """
    records = [
        Record(offset=index, timestamp_ms=now_ms, key=key, value=value)
        for index, (key, value) in enumerate(pair for event in events for pair in encode_event(event))
    ]
    return EncodedBatch(
        encode_batch(records, BatchMeta() if producer is None else _build_batch_meta(producer))
    )


def _build_batch_meta(producer: ProducerIdAndEpoch) -> BatchMeta:
    return BatchMeta(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        is_transactional=True,
    )


def build_batch_header(producer: ProducerIdAndEpoch) -> BatchHeader:
    """Return the header of such a batch with its producer's fields, before its records are known."""
    meta = _build_batch_meta(producer)
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=meta.attributes,
        last_offset_delta=0,
        base_timestamp=-1,
        max_timestamp=-1,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=meta.base_sequence,
        record_count=1,
    )


def encode_event(event: DurableEvent) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of each record of an event."""
    match event:
        case GroupStored(group_id=group_id):
            yield (
                _encode_group_key(group_id),
                _INT16.pack(GROUP_VALUE_VERSION) + encode(_build_group_value(event), GROUP_VALUE_VERSION),
            )
        case GroupRemoved(group_id=group_id):
            yield _encode_group_key(group_id), None
        case OffsetsCommitted(group_id=group_id, offsets=offsets):
            for partition, offset in offsets.items():
                expires = offset.expire_timestamp_ms is not None
                version = EXPIRING_OFFSET_VALUE_VERSION if expires else OFFSET_VALUE_VERSION
                value = _INT16.pack(version) + encode(_build_offset_value(offset), version)
                yield _encode_offset_key(group_id, partition), value
        case OffsetsDeleted(group_id=group_id, partitions=partitions):
            for partition in partitions:
                yield _encode_offset_key(group_id, partition), None
        case _:
            assert_never(event)


def _encode_group_key(group_id: GroupId) -> bytes:
    return _INT16.pack(GROUP_KEY_VERSION) + encode(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)


def _encode_offset_key(group_id: GroupId, partition: TopicPartition) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)
    return _INT16.pack(OFFSET_KEY_VERSION) + encode(key, OFFSET_KEY_VERSION)


def _build_offset_value(offset: CommittedOffset) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=-1 if offset.expire_timestamp_ms is None else offset.expire_timestamp_ms,
        topic_id=offset.topic_id or _ZERO_ID,
    )


def _build_group_value(event: GroupStored) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=event.protocol_type or "",
        generation=event.generation,
        protocol=event.protocol_name,
        leader=event.leader_id,
        current_state_timestamp=-1 if event.state_timestamp_ms is None else event.state_timestamp_ms,
        members=tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in event.members
        ),
    )


# ---- reading


def decode_batches(data: bytes) -> Iterator[ReplayedEvent]:
    """Yield every event in whole batches, in order. The log has checked their CRCs.

    Raises:
        DecodeError: a record of a known type cannot be read.
    """
    for at, header in iter_headers(data):
        if header.is_control:
            marker = read_marker(data, at)
            if marker is not None:
                event = TransactionEnded(
                    producer_id=ProducerId(header.producer_id),
                    is_committed=marker.control_type is ControlType.COMMIT,
                )
                yield ReplayedEvent(event, Offset(header.base_offset))
        else:
            yield from _merge_commits(_decode_record(record, header) for record in decode_records(data, at))


def _merge_commits(entries: Iterator[ReplayedEvent | None]) -> Iterator[ReplayedEvent]:
    """Join adjacent commits of one group, so that a request is applied as a whole, as it was live."""
    previous: ReplayedEvent | None = None
    for entry in entries:
        merged = None if previous is None or entry is None else _try_merge(previous, entry)
        if merged is not None:
            previous = merged
            continue
        if previous is not None:
            yield previous
        previous = entry
    if previous is not None:
        yield previous


def _try_merge(first: ReplayedEvent, second: ReplayedEvent) -> ReplayedEvent | None:
    """Return both as one event; None unless they are adjacent commits of one writer to one group.

    Compaction leaves gaps between records, and a partition may occur twice: then they stay separate.
    """
    a, b = first.event, second.event
    if not isinstance(a, OffsetsCommitted) or not isinstance(b, OffsetsCommitted):
        return None
    adjacent = first.offset + len(a.offsets) == second.offset and not a.offsets.keys() & b.offsets.keys()
    if not adjacent or (a.group_id, a.producer_id) != (b.group_id, b.producer_id):
        return None
    event = OffsetsCommitted(
        group_id=a.group_id, offsets={**a.offsets, **b.offsets}, producer_id=a.producer_id
    )
    return ReplayedEvent(event, first.offset)


def _decode_record(record: Record, header: BatchHeader) -> ReplayedEvent | None:
    """Return the event of one record; None for a type that is not written here."""
    key = record.key
    if key is None or len(key) < _INT16.size:
        raise DecodeError(f"__consumer_offsets record {record.offset} has no key")
    (key_type,) = _INT16.unpack_from(key)
    at = Offset(record.offset)
    if key_type in OFFSET_KEY_VERSIONS:
        offset_key = decode(OffsetCommitKey, key[_INT16.size :], key_type)
        producer_id = ProducerId(header.producer_id) if header.is_transactional else None
        return ReplayedEvent(_parse_offset_event(offset_key, record.value, producer_id), at)
    if key_type == GROUP_KEY_VERSION:
        group_key = decode(GroupMetadataKey, key[_INT16.size :], key_type)
        return ReplayedEvent(_parse_group_event(GroupId(group_key.group), record.value), at)
    return None


def _parse_version(value: bytes) -> int:
    if len(value) < _INT16.size:
        raise DecodeError(f"a value of __consumer_offsets has {len(value)} bytes, too few for a version")
    (version,) = _INT16.unpack_from(value)
    return int(version)


def _parse_offset_event(
    key: OffsetCommitKey, value: bytes | None, producer_id: ProducerId | None
) -> OffsetsCommitted | OffsetsDeleted:
    group_id, partition = GroupId(key.group), TopicPartition(key.topic, key.partition)
    if value is None:
        return OffsetsDeleted(group_id=group_id, partitions=(partition,))
    message, _ = decode_prefix(OffsetCommitValue, value, _parse_version(value), _INT16.size)
    offset = CommittedOffset(
        offset=Offset(message.offset),
        leader_epoch=None if message.leader_epoch < 0 else LeaderEpoch(message.leader_epoch),
        metadata=message.metadata,
        commit_timestamp_ms=TimestampMs(message.commit_timestamp),
        expire_timestamp_ms=None if message.expire_timestamp < 0 else TimestampMs(message.expire_timestamp),
        topic_id=None if message.topic_id == _ZERO_ID else message.topic_id,
    )
    return OffsetsCommitted(group_id=group_id, offsets={partition: offset}, producer_id=producer_id)


def _parse_group_event(group_id: GroupId, value: bytes | None) -> GroupStored | GroupRemoved:
    if value is None:
        return GroupRemoved(group_id=group_id)
    message, _ = decode_prefix(GroupMetadataValue, value, _parse_version(value), _INT16.size)
    timestamp = message.current_state_timestamp
    return GroupStored(
        group_id=group_id,
        generation=Generation(message.generation),
        protocol_type=message.protocol_type or None,
        protocol_name=message.protocol,
        leader_id=None if message.leader is None else MemberId(message.leader),
        state_timestamp_ms=None if timestamp < 0 else TimestampMs(timestamp),
        members=tuple(_parse_member(member) for member in message.members),
    )


def _parse_member(message: MemberMetadata) -> StoredMember:
    timeout_ms = message.rebalance_timeout
    return StoredMember(
        member_id=MemberId(message.member_id),
        instance_id=None if message.group_instance_id is None else InstanceId(message.group_instance_id),
        client_id=message.client_id,
        client_host=message.client_host,
        # Version 0 has one timeout for both.
        rebalance_timeout_ms=message.session_timeout if timeout_ms < 0 else timeout_ms,
        session_timeout_ms=message.session_timeout,
        subscription=message.subscription,
        assignment=message.assignment,
    )
