"""Encoding of entries as records of `__transaction_state`; confines the sentinels -1, INT32_MAX and null.

The log has one producer id and epoch, the next ones and a previous producer id; an entry has `writer` or
`marker_identity`, `client` and `previous_identity`. They are converted only here (style R5):

    recorded pair        the identity in the partitions: the writer while Ongoing, the marker while
                         Decided, else the client. A broker that knows no other field finishes the
                         transaction with it
    tags 1 and 3, next   the client, where it differs from the recorded pair
    tag 0, previous      the producer id of `previous_identity`, where Kafka's rule for retries needs it
    tag 10000            `previous_identity`, where Kafka's fields do not imply it

A record that Apache Kafka wrote has no private tags, and is read with the meaning that Kafka gives it.

Source: KIP-98, KIP-890 and KIP-939 "Persisted Data Format Changes"; TransactionLog of Kafka 4.3.1;
    docs/formats/transaction-state.md; ADR 0019.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from tallystick.broker.coordinator.placement import hash_to_partition
from tallystick.broker.txn.machine.commands import EntryRemoved, EntryStored, TxnRecord
from tallystick.broker.txn.machine.model import (
    NO_PARTITIONS,
    DecidedPhase,
    ForcedCause,
    IdlePhase,
    OngoingPhase,
    Partitions,
    TransactionResult,
    TxnEntry,
    TxnForcedOutcome,
    TxnPhase,
    TxnState,
)
from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    EPOCH_BUMP_VERSION,
    INT16_MAX,
    INT32_MAX,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.protocol import DecodeError, decode_prefix, encode
from tallystick.protocol.messages.txn.stored_transactions import (
    ForcedOutcomeSchema,
    MarkerOffset,
    MarkerOffsets,
    PartitionsSchema,
    SupersededPair,
    TransactionLogKey,
    TransactionLogValue,
)
from tallystick.protocol.primitives import encode_uvarint
from tallystick.protocol.records import BatchMeta, EncodedBatch, Record, encode_batch
from tallystick.protocol.records.key_values import iter_key_values

_INT16: Final = struct.Struct(">h")
_HEADER: Final = struct.Struct(">hqhib")  # version, producer id and epoch, timeout, status
_TIMES: Final = struct.Struct(">qqb")  # last update, start, number of tagged fields
_OFFSET: Final = struct.Struct(">iqb")  # partition, offset, no tagged fields
_NO_TAGS: Final = b"\0"
# Tagged fields: number, size, content.
_PREVIOUS_TAG: Final = struct.Struct(">bbq")
_VERSION_TAG: Final = struct.Struct(">bbh")
_MARKERS_TAG: Final = encode_uvarint(10003)
_NO_PARTITIONS: Final = b"\0"  # null: state Empty
_ZERO_PARTITIONS: Final = b"\1"  # empty array: states Complete*

_BATCH_META: Final = BatchMeta()

KEY_VERSION: Final = 0
_KEY_VERSION: Final = _INT16.pack(KEY_VERSION)
UNTAGGED_VALUE_VERSION: Final = 0  # where the finalized transaction.version is 0: no tags
TAGGED_VALUE_VERSION: Final = 1

_CACHED_PARTITIONS_MAX: Final = 8
_ABSENT: Final = -1
_LISTED_IDS_MAX: Final = 10
# Kafka stores two-phase commit as this timeout; the text of KIP-939 has -1. Both are read.
_NO_TIMEOUT: Final = INT32_MAX
# The last client epoch before Kafka replaces the producer id: the one above is reserved for markers.
_LAST_CLIENT_EPOCH: Final = INT16_MAX - 1

_RESULTS_BY_STATE: Final = MappingProxyType(
    {
        TxnState.PREPARE_COMMIT: TransactionResult.COMMIT,
        TxnState.PREPARE_ABORT: TransactionResult.ABORT,
        TxnState.COMPLETE_COMMIT: TransactionResult.COMMIT,
        TxnState.COMPLETE_ABORT: TransactionResult.ABORT,
    }
)


def partition_for(transactional_id: TransactionalId, partition_count: int) -> int:
    """Return the partition of `__transaction_state` that keeps an id."""
    return hash_to_partition(transactional_id, partition_count)


def check_version_downgrade(entries: Iterable[TxnEntry], level: int) -> Reject | None:
    """Refuse to lower `transaction.version` to `level` where that would lose state.

    Below 2 one epoch covers many transactions, so that neither a client apart from its writer nor the token
    of two-phase commit still means anything (KIP-939, "Compatibility, Deprecation, and Migration Plan").
    """
    if level >= EPOCH_BUMP_VERSION:
        return None
    ids = sorted(entry.transactional_id for entry in entries if _requires_epoch_bump(entry))
    if not ids:
        return None
    listed = ", ".join(ids[:_LISTED_IDS_MAX])
    more = f" and {len(ids) - _LISTED_IDS_MAX} more" if len(ids) > _LISTED_IDS_MAX else ""
    return Reject(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"transaction.version cannot be set to {level}: these transactional ids take part in two-phase"
        f" commit or wait for their next producer id: {listed}{more}. Nothing was changed; end their"
        " transactions first",
    )


def _requires_epoch_bump(entry: TxnEntry) -> bool:
    return (
        entry.client != entry.described_identity
        or entry.timeout_ms is None
        or _find_open_timeout(entry) is None
    )


# ---- writing


def encode_batch_of(
    records: Sequence[TxnRecord], now_ms: TimestampMs, transaction_version: int
) -> EncodedBatch:
    """Encode all records as one batch, so that a crash keeps either all of them or none."""
    batch: list[Record] = []
    for index, record in enumerate(records):
        key, value = encode_record(record, transaction_version)
        batch.append(Record(index, now_ms, key, value))
    return EncodedBatch(encode_batch(batch, _BATCH_META))


def encode_record(record: TxnRecord, transaction_version: int) -> tuple[bytes, bytes | None]:
    """Return key and value; `transaction_version` is the finalized level, which sets the format of values."""
    if isinstance(record, EntryStored):
        entry = record.entry
        return _encode_key(entry.transactional_id), _encode_value(entry, tagged=transaction_version > 0)
    return _encode_key(record.transactional_id), None


@lru_cache(maxsize=1 << 10)
def _encode_key(transactional_id: TransactionalId) -> bytes:
    name = transactional_id.encode()
    return _KEY_VERSION + _INT16.pack(len(name)) + name


def _encode_value(entry: TxnEntry, *, tagged: bool) -> bytes:
    if not tagged:
        return _INT16.pack(UNTAGGED_VALUE_VERSION) + encode(
            _build_untagged_value(entry), UNTAGGED_VALUE_VERSION
        )
    usual = _encode_common_value(entry)
    return (
        _INT16.pack(TAGGED_VALUE_VERSION) + encode(_build_tagged_value(entry), TAGGED_VALUE_VERSION)
        if usual is None
        else usual
    )


def _encode_common_value(entry: TxnEntry) -> bytes | None:
    """Encode the common kind of value in a third of the time, as the same bytes [WIRE-4]; None for others.

    A commit writes three values. The common kind is not kept and never forced, has one timeout, and a
    `previous_identity` that Kafka's fields imply.
    """
    phase, client, version = entry.phase, entry.client, entry.transaction_version
    state, described = phase.state, entry.described_identity
    previous = _find_previous_producer_id(entry, state)
    if entry.forced_outcomes or (described is not client and described != client):
        return None
    if entry.previous_identity != _infer_previous_identity(state, client, previous, version):
        return None
    tags = b""
    count = 0
    if previous is not None:
        tags, count = _PREVIOUS_TAG.pack(0, 8, previous), 1
    if version:
        tags, count = tags + _VERSION_TAG.pack(2, 2, version), count + 1
    if isinstance(phase, IdlePhase):
        timeout_ms = entry.timeout_ms
        partitions = _NO_PARTITIONS if phase.outcome is None else _ZERO_PARTITIONS
        if phase.marker_offsets:
            tags, count = tags + _encode_marker_tag(phase.marker_offsets), count + 1
    else:
        timeout_ms = phase.timeout_ms
        few = len(phase.partitions) <= _CACHED_PARTITIONS_MAX
        partitions = (_encode_partitions_cached if few else _encode_partitions)(phase.partitions)
        if timeout_ms != entry.timeout_ms:
            return None
    started_ms = _ABSENT if phase.started_ms is None else phase.started_ms
    timeout_ms = _NO_TIMEOUT if timeout_ms is None else timeout_ms
    return (
        _HEADER.pack(TAGGED_VALUE_VERSION, described.producer_id, described.epoch, timeout_ms, state)
        + partitions
        + _TIMES.pack(entry.updated_ms, started_ms, count)
        + tags
    )


def _encode_marker_tag(markers: Mapping[TopicPartition, Offset]) -> bytes:
    by_topic: dict[str, list[tuple[int, Offset]]] = {}
    for topic, partition in sorted([(p.topic, p.partition) for p in markers]):
        by_topic.setdefault(topic, []).append((partition, markers[TopicPartition(topic, partition)]))
    parts = [encode_uvarint(len(by_topic) + 1)]
    for topic, offsets in by_topic.items():
        parts += (_encode_compact_string(topic), encode_uvarint(len(offsets) + 1))
        parts += (_OFFSET.pack(partition, offset, 0) for partition, offset in offsets)
        parts.append(_NO_TAGS)
    content = b"".join(parts)
    return _MARKERS_TAG + encode_uvarint(len(content)) + content


def _encode_compact_string(text: str) -> bytes:
    raw = text.encode()
    return encode_uvarint(len(raw) + 1) + raw


def _encode_partitions(partitions: Partitions) -> bytes:
    groups = _group_partitions(partitions)
    parts = [encode_uvarint(len(groups) + 1)]
    for group in groups:
        ids = group.partition_ids
        parts += (_encode_compact_string(group.topic), encode_uvarint(len(ids) + 1))
        parts.append(struct.pack(f">{len(ids)}ib", *ids, 0))
    return b"".join(parts)


# A producer writes to the same few partitions repeatedly.
_encode_partitions_cached = lru_cache(maxsize=1 << 10)(_encode_partitions)


def _build_untagged_value(entry: TxnEntry) -> TransactionLogValue:
    """Return a value of version 0, without the fields it has no room for.

    A next producer id that waits for the markers is left out, as in Kafka: the id comes back with the
    markers' epoch, which is as far as the old one goes.
    """
    check(not entry.is_kept, f"{entry.transactional_id!r}: version 0 has no room for a kept transaction")
    phase, described = entry.phase, entry.described_identity
    return TransactionLogValue(
        producer_id=described.producer_id,
        producer_epoch=described.epoch,
        transaction_timeout_ms=_encode_timeout(_find_open_timeout(entry)),
        transaction_status=entry.state,
        transaction_partitions=_build_partitions_field(phase),
        transaction_last_update_timestamp_ms=entry.updated_ms,
        transaction_start_timestamp_ms=_ABSENT if phase.started_ms is None else phase.started_ms,
    )


def _build_tagged_value(entry: TxnEntry) -> TransactionLogValue:
    phase, described, client = entry.phase, entry.described_identity, entry.client
    has_own_client = client != described
    previous = _find_previous_producer_id(entry, entry.state)
    inferred = _infer_previous_identity(entry.state, client, previous, entry.transaction_version)
    open_timeout_ms = _find_open_timeout(entry)
    return TransactionLogValue(
        producer_id=described.producer_id,
        previous_producer_id=_ABSENT if previous is None else previous,
        next_producer_id=client.producer_id if has_own_client else _ABSENT,
        producer_epoch=described.epoch,
        next_producer_epoch=client.epoch if has_own_client else _ABSENT,
        transaction_timeout_ms=_encode_timeout(open_timeout_ms),
        transaction_status=entry.state,
        transaction_partitions=_build_partitions_field(phase),
        transaction_last_update_timestamp_ms=entry.updated_ms,
        transaction_start_timestamp_ms=_ABSENT if phase.started_ms is None else phase.started_ms,
        client_transaction_version=entry.transaction_version,
        superseded=None
        if entry.previous_identity == inferred
        else _build_superseded_pair(entry.previous_identity),
        forced_outcomes=tuple(map(_build_forced_outcome, entry.forced_outcomes)),
        next_transaction_timeout_ms=_ABSENT
        if entry.timeout_ms == open_timeout_ms
        else _encode_timeout(entry.timeout_ms),
        marker_offsets=_build_marker_offsets(phase.marker_offsets) if isinstance(phase, IdlePhase) else (),
    )


def _find_open_timeout(entry: TxnEntry) -> int | None:
    return entry.timeout_ms if isinstance(entry.phase, IdlePhase) else entry.phase.timeout_ms


def _encode_timeout(timeout_ms: int | None) -> int:
    return _NO_TIMEOUT if timeout_ms is None else timeout_ms


def _find_previous_producer_id(entry: TxnEntry, state: TxnState) -> ProducerId | None:
    """Return the previous id, by which Kafka recognises a retried end after it was replaced (KAFKA-20310)."""
    before = entry.previous_identity
    if before is None:
        return None
    is_complete = state in _RESULTS_BY_STATE
    return before.producer_id if is_complete or before.producer_id != entry.client.producer_id else None


def _build_partitions_field(phase: TxnPhase) -> tuple[PartitionsSchema, ...] | None:
    """Return null in Empty, an empty array in Complete*, else sorted groups: an entry has one encoding."""
    if isinstance(phase, IdlePhase):
        return None if phase.outcome is None else ()
    return _group_partitions(phase.partitions)


def _group_partitions(partitions: Partitions) -> tuple[PartitionsSchema, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted([(p.topic, p.partition) for p in partitions]):
        by_topic.setdefault(topic, []).append(partition)
    return tuple([PartitionsSchema(topic=t, partition_ids=tuple(ids)) for t, ids in by_topic.items()])


def _build_superseded_pair(identity: ProducerIdAndEpoch | None) -> SupersededPair:
    if identity is None:
        return SupersededPair(producer_id=_ABSENT, producer_epoch=_ABSENT)
    return SupersededPair(producer_id=identity.producer_id, producer_epoch=identity.epoch)


def _build_forced_outcome(outcome: TxnForcedOutcome) -> ForcedOutcomeSchema:
    at = outcome.partition
    return ForcedOutcomeSchema(
        producer_id=outcome.writer.producer_id,
        producer_epoch=outcome.writer.epoch,
        cause=outcome.cause,
        timestamp_ms=outcome.at_ms,
        topic=None if at is None else at.topic,
        partition_id=_ABSENT if at is None else at.partition,
    )


def _build_marker_offsets(markers: Mapping[TopicPartition, Offset]) -> tuple[MarkerOffsets, ...]:
    by_topic: dict[str, list[MarkerOffset]] = {}
    for at in sorted(markers):
        by_topic.setdefault(at.topic, []).append(MarkerOffset(partition_id=at.partition, offset=markers[at]))
    return tuple([MarkerOffsets(topic=t, partitions=tuple(offsets)) for t, offsets in by_topic.items()])


# ---- reading


def decode_batches(data: bytes, unknown_versions: Counter[int] | None = None) -> Iterator[TxnRecord]:
    """Yield every record in whole batches, in order. The log has checked their CRCs.

    Args:
        unknown_versions: counts the records of unknown kinds, by the version of their key.

    Raises:
        DecodeError: a record is of a known kind and cannot be read.
    """
    for key, value in iter_known_records(data, unknown_versions):
        yield decode_record(key, value)


def iter_known_records(
    data: bytes, unknown_versions: Counter[int] | None = None
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of every known record in whole batches, in order.

    For replay the last value of a key is enough, as each is a whole entry [TXN-2]; finding it costs a tenth
    of decoding them all. Args and errors as for `decode_batches`.
    """
    for key, value in iter_key_values(data):
        if key is None or len(key) < _INT16.size:
            raise DecodeError("a record of __transaction_state has no readable key")
        if key.startswith(_KEY_VERSION):
            yield key, value
        elif unknown_versions is not None:
            unknown_versions[_INT16.unpack_from(key)[0]] += 1


def peek_state_and_producer_id(value: bytes) -> tuple[int, ProducerId]:
    """Return state and recorded producer id of a value, at a fortieth of the cost of decoding all of it.

    Raises:
        DecodeError: the value is too short.
    """
    if len(value) < _HEADER.size:
        raise DecodeError(f"a value of __transaction_state has {len(value)} bytes, fewer than its header")
    _, producer_id, _, _, state = _HEADER.unpack_from(value)
    return state, producer_id


def peek_completion(value: bytes) -> tuple[frozenset[int], Mapping[TopicPartition, Offset]]:
    """Return producer ids and marker offsets of a Complete* value, at half the cost of decoding all of it.

    Raises:
        DecodeError: the value cannot be read.
    """
    (version,) = _INT16.unpack_from(value)
    if version not in (UNTAGGED_VALUE_VERSION, TAGGED_VALUE_VERSION):
        raise DecodeError(f"a value of __transaction_state has version {version}; supported are 0 and 1")
    read, _ = decode_prefix(TransactionLogValue, value, version, _INT16.size)
    return frozenset((read.producer_id, read.previous_producer_id)), _parse_marker_offsets(
        read.marker_offsets
    )


def decode_record(key: bytes, value: bytes | None) -> TxnRecord:
    """Decode a key of version 0 and its value.

    Raises:
        DecodeError: either cannot be read.
    """
    read, _ = decode_prefix(TransactionLogKey, key, KEY_VERSION, _INT16.size)
    transactional_id = TransactionalId(read.transactional_id)
    if value is None:
        return EntryRemoved(transactional_id=transactional_id)
    if len(value) < _INT16.size:
        raise DecodeError(f"{transactional_id!r}: a value of {len(value)} bytes has no version")
    (version,) = _INT16.unpack_from(value)
    if version not in (UNTAGGED_VALUE_VERSION, TAGGED_VALUE_VERSION):
        raise DecodeError(f"{transactional_id!r}: the value has version {version}; supported are 0 and 1")
    log_value, _ = decode_prefix(TransactionLogValue, value, version, _INT16.size)
    if log_value.transaction_status == TxnState.EMPTY and log_value.producer_epoch < 0:
        # Kafka may store an id before it has a producer id and epoch (KAFKA-14880): treat it as unknown.
        return EntryRemoved(transactional_id=transactional_id)
    return EntryStored(entry=_build_entry(transactional_id, log_value))


def _build_entry(transactional_id: TransactionalId, read: TransactionLogValue) -> TxnEntry:
    state = _STATES_BY_ID.get(read.transaction_status)
    version = read.client_transaction_version
    if state is None or not 0 <= version <= EPOCH_BUMP_VERSION:
        raise DecodeError(
            f"{transactional_id!r}: status {read.transaction_status} with transaction version {version} is"
            " not supported"
        )
    described = _parse_identity(transactional_id, read.producer_id, read.producer_epoch)
    timeout_ms = _parse_timeout(read.transaction_timeout_ms)
    phase = _parse_phase(state, described, timeout_ms, read)
    client = described if isinstance(phase, IdlePhase) else _parse_client(described, read)
    own_timeout_ms = read.next_transaction_timeout_ms
    return TxnEntry(
        transactional_id=transactional_id,
        phase=phase,
        client=client,
        previous_identity=_parse_previous_identity(transactional_id, state, client, read),
        timeout_ms=timeout_ms if own_timeout_ms < 0 else _parse_timeout(own_timeout_ms),
        transaction_version=version,
        updated_ms=TimestampMs(read.transaction_last_update_timestamp_ms),
        forced_outcomes=tuple(map(_parse_forced_outcome, read.forced_outcomes))
        if read.forced_outcomes
        else (),
    )


# Dead and PrepareEpochFence exist only in Kafka's memory; in a log they mean corruption.
_STATES_BY_ID: Final = MappingProxyType(
    {state.value: state for state in (TxnState.EMPTY, TxnState.ONGOING, *_RESULTS_BY_STATE)}
)


def _parse_identity(transactional_id: TransactionalId, producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    if producer_id < 0 or epoch < 0:
        raise DecodeError(f"{transactional_id!r}: producer id {producer_id} with epoch {epoch} is no pair")
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def _parse_timeout(timeout_ms: int) -> int | None:
    return None if timeout_ms == _NO_TIMEOUT or timeout_ms < 0 else timeout_ms


def _parse_phase(
    state: TxnState, described: ProducerIdAndEpoch, timeout_ms: int | None, read: TransactionLogValue
) -> TxnPhase:
    start = read.transaction_start_timestamp_ms
    outcome = _RESULTS_BY_STATE.get(state)
    if state in _IDLE_STATES:
        started_ms = None if start < 0 or outcome is None else TimestampMs(start)
        if read.marker_offsets:
            return IdlePhase(
                outcome=outcome,
                started_ms=started_ms,
                marker_offsets=_parse_marker_offsets(read.marker_offsets),
            )
        return IdlePhase(outcome=outcome, started_ms=started_ms)
    started_ms = TimestampMs(read.transaction_last_update_timestamp_ms if start < 0 else start)
    partitions = _parse_partitions(read.transaction_partitions or ())
    if outcome is None:
        return OngoingPhase(
            writer=described, partitions=partitions, started_ms=started_ms, timeout_ms=timeout_ms
        )
    return DecidedPhase(
        outcome=outcome,
        marker_identity=described,
        partitions=partitions,
        started_ms=started_ms,
        timeout_ms=timeout_ms,
    )


_IDLE_STATES: Final = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})


def _parse_client(described: ProducerIdAndEpoch, read: TransactionLogValue) -> ProducerIdAndEpoch:
    """Return the client; Kafka before KIP-939 writes the next producer id alone, and means its epoch 0."""
    next_id, next_epoch = read.next_producer_id, read.next_producer_epoch
    if next_id < 0 and next_epoch < 0:
        return described
    return ProducerIdAndEpoch(
        described.producer_id if next_id < 0 else ProducerId(next_id), ProducerEpoch(max(next_epoch, 0))
    )


def _parse_previous_identity(
    transactional_id: TransactionalId, state: TxnState, client: ProducerIdAndEpoch, read: TransactionLogValue
) -> ProducerIdAndEpoch | None:
    pair = read.superseded
    if pair is None:
        previous = read.previous_producer_id
        return _infer_previous_identity(
            state, client, None if previous < 0 else ProducerId(previous), read.client_transaction_version
        )
    if pair.producer_id < 0:
        return None
    return _parse_identity(transactional_id, pair.producer_id, pair.producer_epoch)


def _infer_previous_identity(
    state: TxnState, client: ProducerIdAndEpoch, previous: ProducerId | None, transaction_version: int
) -> ProducerIdAndEpoch | None:
    """Return the identity whose retried EndTxn Kafka recognises by its own fields; None before version 2.

    Source: TransactionCoordinator.endTransaction, the retry on epoch bump and on epoch overflow (KIP-890).
    """
    if state not in _RESULTS_BY_STATE or transaction_version < EPOCH_BUMP_VERSION:
        return None
    if client.epoch > 0:
        return ProducerIdAndEpoch(client.producer_id, ProducerEpoch(client.epoch - 1))
    if previous is None or previous == client.producer_id:
        return None
    return ProducerIdAndEpoch(previous, ProducerEpoch(_LAST_CLIENT_EPOCH))


def _parse_partitions(read: Iterable[PartitionsSchema]) -> Partitions:
    partitions = [TopicPartition(part.topic, index) for part in read for index in part.partition_ids]
    return frozenset(partitions) if partitions else NO_PARTITIONS


def _parse_marker_offsets(read: Iterable[MarkerOffsets]) -> Mapping[TopicPartition, Offset]:
    return MappingProxyType(
        {
            TopicPartition(part.topic, marker.partition_id): Offset(marker.offset)
            for part in read
            for marker in part.partitions
        }
    )


def _parse_forced_outcome(read: ForcedOutcomeSchema) -> TxnForcedOutcome:
    try:
        cause = ForcedCause(read.cause)
    except ValueError:
        raise DecodeError(f"a forced outcome has the unknown cause {read.cause}") from None
    return TxnForcedOutcome(
        writer=ProducerIdAndEpoch(ProducerId(read.producer_id), ProducerEpoch(read.producer_epoch)),
        cause=cause,
        at_ms=TimestampMs(read.timestamp_ms),
        partition=None if read.topic is None else TopicPartition(read.topic, read.partition_id),
    )
