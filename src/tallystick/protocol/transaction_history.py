"""History of a transactional id: what the records of `__transaction_state` say has happened. Pure.

A record of that topic is a whole state. What has happened is the difference between two of them, so a history
is kept as states and told as transitions: by the broker from the states that it applied, and by a reader of
the topic, Apache Kafka's too, from the records it finds there [HIS-1].

    before                 after                                        transition
    -                      Empty                                        INITIALIZED
    any that is not open   Empty, or another client                     INITIALIZED
    any that is not open   Ongoing                                      BEGUN
    Ongoing                Ongoing, more partitions                     PARTITIONS_ADDED
    Ongoing                Ongoing, another client                      KEPT
    Ongoing                PrepareCommit, PrepareAbort                  COMMITTED, ABORTED
    Ongoing                PrepareAbort, with a new forced outcome      TERMINATED, TIMED_OUT
    Ongoing, Prepare*      the same, with a new forced outcome          MARKER_FORCED
    Prepare*               Complete*                                    COMPLETED
    Prepare*               any other                                    COMPLETED, and what that one says
    any                    a tombstone                                  EXPIRED

The last but one: a crash or a compaction may leave the log without the record of a completion.
Preparing (KIP-939) is no transition, as brokers cannot see it. In the log of Apache Kafka an abort by timeout
or by a new incarnation looks like the client's own, and is ABORTED.

Source: KIP-98 "Transaction Log"; KIP-939 for KEPT; docs/formats/transaction-state.md for forced outcomes.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import Value
from tallystick.protocol.codec import decode_prefix
from tallystick.protocol.errors import DecodeError
from tallystick.protocol.messages.txn.stored_transactions import TransactionLogKey, TransactionLogValue

EMPTY: Final = 0
ONGOING: Final = 1
PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
COMPLETE_COMMIT: Final = 4
COMPLETE_ABORT: Final = 5
DEAD: Final = 6
"""Kafka's state of an id that is being removed; stands for a tombstone here."""

STATE_LABELS: Final[Mapping[int, str]] = MappingProxyType(
    {
        EMPTY: "Empty",
        ONGOING: "Ongoing",
        PREPARE_COMMIT: "PrepareCommit",
        PREPARE_ABORT: "PrepareAbort",
        COMPLETE_COMMIT: "CompleteCommit",
        COMPLETE_ABORT: "CompleteAbort",
        DEAD: "Dead",
    }
)
STATES_BY_LABEL: Final[Mapping[str, int]] = MappingProxyType(
    {label: state for state, label in STATE_LABELS.items()}
)
_DECIDED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
_COMPLETE: Final = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
_COMPLETE_AFTER: Final = MappingProxyType({PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT})
_VERSION_SIZE: Final = 2
_HEADER: Final = struct.Struct(">hqhib")  # version, producer id and epoch, timeout, status
_TIMES: Final = struct.Struct(">qqb")  # last update, start, number of tagged fields
_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_TWO_BYTES: Final = 0x80  # a varint from here on takes two bytes
_KEY_VERSION: Final = 0
_VALUE_VERSIONS: Final = frozenset({0, 1})


class TransitionKind(IntEnum):
    """Kind of a transactional id's transition; the numbers are on the wire (docs/formats/private-tags.md)."""

    INITIALIZED = 1  # InitProducerId: the id has a new client; a former one is fenced
    KEPT = 2  # InitProducerId with KeepPreparedTxn: the same, and the open transaction waits for it
    BEGUN = 3
    PARTITIONS_ADDED = 4
    COMMITTED = 5  # decided, by the client
    ABORTED = 6  # decided, by the client as far as the log tells
    TIMED_OUT = 7  # decided: aborted after transaction.timeout.ms
    TERMINATED = 8  # decided: aborted by an InitProducerId that kept nothing
    MARKER_FORCED = 9  # an administrator's ABORT marker ended the transaction in one partition
    COMPLETED = 10  # every partition has its marker
    EXPIRED = 11  # unused for transactional.id.expiration.ms


_BY_CAUSE: Final = MappingProxyType({1: TransitionKind.TERMINATED, 2: TransitionKind.TIMED_OUT})
_MARKER_CAUSE: Final = 3


class ForcedEnd(Value, gc=False):
    """The last forced outcome that a state tells of; two that are equal are the same one."""

    cause: int
    at_ms: int
    producer: ProducerIdAndEpoch


class RecordedState(Value, gc=False):
    """A state of a transactional id, as far as its history needs it.

    at_ms            when it was recorded
    producer         the producer id and epoch of the data; once decided, those of the markers
    client           those that may speak next; with a tombstone both are None
    partition_count  partitions of the transaction; 0 in states without one
    started_ms       None: nothing has begun
    client_id, host, port   of the request that led to it, where there was one and it is known

    Tens of thousands are kept, and none is part of a cycle: the garbage collector need not look at them.
    """

    state: int
    at_ms: int
    producer: ProducerIdAndEpoch | None
    client: ProducerIdAndEpoch | None
    partition_count: int = 0
    started_ms: int | None = None
    forced: ForcedEnd | None = None
    client_id: str | None = None
    host: str | None = None
    port: int = 0


class TransactionTransition(Value, kw_only=True):
    """One entry of a transactional id's history.

    kind             a plain number: from a newer version
    state            Kafka's name of the state after it
    producer         of INITIALIZED and KEPT those of the new client, else those of the data; from the
                     decision on, those of the markers; None of an expired id
    partition_count  partitions of the transaction
    client_id        the name that the client of the request gave itself; None where no request led to it, or
                     the broker does not say
    address          host:port of that client
    """

    transactional_id: str
    kind: TransitionKind | int
    at_ms: int
    state: str
    producer: ProducerIdAndEpoch | None
    partition_count: int
    client_id: str | None = None
    address: str | None = None


def iter_transitions(
    name: str, states: Iterable[RecordedState], before: RecordedState | None = None
) -> Iterator[TransactionTransition]:
    """Yield the transitions between successive states.

    Args:
        before: the state before them; without it the first one tells only what it shows alone.
    """
    for after in states:
        yield from derive_transitions(name, before, after)
        before = after


def derive_transitions(
    name: str, before: RecordedState | None, after: RecordedState
) -> tuple[TransactionTransition, ...]:
    """Return what has happened between two states; none where they tell the same."""
    implied: tuple[TransactionTransition, ...] = ()
    if before is not None and before.state in _DECIDED and after.state not in _DECIDED | _COMPLETE:
        implied = (_build(name, TransitionKind.COMPLETED, before, at_ms=after.at_ms),)
    kind = _find_kind(before, after)
    if kind is None:
        return implied
    if kind is TransitionKind.COMPLETED:
        count = before.partition_count if before is not None and before.state in _DECIDED else 0
        return (_build(name, kind, after, partition_count=count),)
    return (*implied, _build(name, kind, after))


def _find_kind(before: RecordedState | None, after: RecordedState) -> TransitionKind | None:
    is_same_phase = before is not None and before.state == after.state
    match after.state:
        case 0:  # EMPTY
            return TransitionKind.INITIALIZED if before != after else None
        case 1:  # ONGOING
            return _find_kind_of_ongoing(before, after)
        case 2 | 3:  # PREPARE_COMMIT, PREPARE_ABORT
            forced = _find_new_forced_end(before, after)
            if forced is not None and forced.cause in _BY_CAUSE and not is_same_phase:
                return _BY_CAUSE[forced.cause]
            if is_same_phase:
                return TransitionKind.MARKER_FORCED if forced is not None else None
            return TransitionKind.COMMITTED if after.state == PREPARE_COMMIT else TransitionKind.ABORTED
        case 4 | 5:  # COMPLETE_COMMIT, COMPLETE_ABORT
            if not is_same_phase:
                return TransitionKind.COMPLETED
            is_another_client = before is not None and before.client != after.client
            return TransitionKind.INITIALIZED if is_another_client else None
        case 6:  # DEAD
            return None if is_same_phase else TransitionKind.EXPIRED
        case _:
            return None


def _find_kind_of_ongoing(before: RecordedState | None, after: RecordedState) -> TransitionKind | None:
    if before is None:
        if after.at_ms == after.started_ms:
            return TransitionKind.BEGUN
        forced = _find_new_forced_end(before, after)
        if forced is not None and forced.cause == _MARKER_CAUSE:
            return TransitionKind.MARKER_FORCED
        is_kept = after.client != after.producer
        return TransitionKind.KEPT if is_kept else TransitionKind.PARTITIONS_ADDED
    if before.state != ONGOING or before.producer != after.producer:
        return TransitionKind.BEGUN
    if before.client != after.client:
        return TransitionKind.KEPT
    if before.partition_count != after.partition_count:
        return TransitionKind.PARTITIONS_ADDED
    return None if before.forced == after.forced else TransitionKind.MARKER_FORCED


def _find_new_forced_end(before: RecordedState | None, after: RecordedState) -> ForcedEnd | None:
    """Return the forced outcome that came with a state; alone, the state shows that by its time."""
    if after.forced is None:
        return None
    if before is None:
        return after.forced if after.forced.at_ms == after.at_ms else None
    return None if after.forced == before.forced else after.forced


def _build(
    name: str,
    kind: TransitionKind,
    told_by: RecordedState,
    *,
    at_ms: int | None = None,
    partition_count: int | None = None,
) -> TransactionTransition:
    """Build a transition; with `at_ms` one that the record after it implies, which no request led to."""
    is_implied = at_ms is not None
    is_new_client = kind in (TransitionKind.INITIALIZED, TransitionKind.KEPT)
    state = _COMPLETE_AFTER.get(told_by.state, told_by.state) if is_implied else told_by.state
    return TransactionTransition(
        transactional_id=name,
        kind=kind,
        at_ms=told_by.at_ms if at_ms is None else at_ms,
        state=STATE_LABELS[state],
        producer=told_by.client if is_new_client else told_by.producer,
        partition_count=told_by.partition_count if partition_count is None else partition_count,
        client_id=None if is_implied else told_by.client_id,
        address=None if is_implied or told_by.host is None else f"{told_by.host}:{told_by.port}",
    )


# ------------------------------------------------------------------------------- from the topic


def decode_recorded_state(
    key: bytes, value: bytes | None, timestamp_ms: int
) -> tuple[str, RecordedState] | None:
    """Decode a record of `__transaction_state`: the transactional id and its state.

    Args:
        timestamp_ms: of the record, for a tombstone, which says no time.

    Returns: None for a kind of record that this version does not know, and for an id without a producer id,
        which Kafka may store (KAFKA-14880).

    Raises:
        DecodeError: it is of a known kind and cannot be read.
    """
    if len(key) < _VERSION_SIZE:
        raise DecodeError("a record of __transaction_state has no readable key")
    if int.from_bytes(key[:_VERSION_SIZE], "big") != _KEY_VERSION:
        return None
    name = _read_name(key)
    if value is None:
        return name, RecordedState(DEAD, timestamp_ms, None, None)
    usual = _read_usual_state(value)
    if usual is not None:
        return name, usual
    version = int.from_bytes(value[:_VERSION_SIZE], "big")
    if len(value) < _VERSION_SIZE or version not in _VALUE_VERSIONS:
        raise DecodeError(f"{name!r}: a value of {len(value)} bytes and version {version} is not supported")
    read = decode_prefix(TransactionLogValue, value, version, _VERSION_SIZE)[0]
    if read.transaction_status not in STATE_LABELS:
        raise DecodeError(f"{name!r}: status {read.transaction_status} is not supported")
    return None if read.producer_epoch < 0 else (name, _convert(read))


def _read_name(key: bytes) -> str:
    length, text = int.from_bytes(key[2:4], "big"), key[4:]
    if length == len(text) and text.isascii():
        return text.decode("ascii")
    return decode_prefix(TransactionLogKey, key, _KEY_VERSION, _VERSION_SIZE)[0].transactional_id


def _read_usual_state(value: bytes) -> RecordedState | None:
    """Read a value of the usual layout, at a sixth of the cost of its declaration [WIRE-4].

    Usual is version 1 with short lists of partitions and no tags but Kafka's. Names of topics are not looked
    at. Returns None for any other value, a damaged one included.
    """
    try:
        version, producer_id, epoch, _, state = _HEADER.unpack_from(value)
        if version != 1 or producer_id < 0 or epoch < 0 or state not in STATE_LABELS:
            return None
        at, count = _HEADER.size + 1, 0
        topic_count = value[at - 1]  # plus 1; 0 is null
        for _ in range(topic_count - 1):
            name_size = value[at]  # plus 1, which is the byte itself
            list_size = value[at + name_size]
            if not 0 < name_size < _TWO_BYTES or not 0 < list_size < _TWO_BYTES:
                return None
            at += name_size + 1 + 4 * (list_size - 1)
            if value[at]:  # tagged fields
                return None
            at, count = at + 1, count + list_size - 1
        at_ms, started_ms, tag_count = _TIMES.unpack_from(value, at)
        at, next_id, next_epoch = at + _TIMES.size, -1, -1
        for _ in range(tag_count):
            tag, size = value[at], value[at + 1]
            at += 2
            if (tag, size) == (1, 8):
                (next_id,) = _INT64.unpack_from(value, at)
            elif (tag, size) == (3, 2):
                (next_epoch,) = _INT16.unpack_from(value, at)
            elif (tag, size) not in ((0, 8), (2, 2)):
                return None
            at += size
    except (struct.error, IndexError):
        return None
    if at != len(value) or topic_count >= _TWO_BYTES:
        return None
    producer = ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))
    client = _find_client(producer, next_id, next_epoch)
    return RecordedState(state, at_ms, producer, client, count, None if started_ms < 0 else started_ms)


def _find_client(producer: ProducerIdAndEpoch, next_id: int, next_epoch: int) -> ProducerIdAndEpoch:
    """Return the client; Kafka before KIP-939 writes the next producer id alone, and means its epoch 0."""
    if next_id < 0 and next_epoch < 0:
        return producer
    producer_id = producer.producer_id if next_id < 0 else ProducerId(next_id)
    return ProducerIdAndEpoch(producer_id, ProducerEpoch(max(next_epoch, 0)))


def _convert(read: TransactionLogValue) -> RecordedState:
    producer = ProducerIdAndEpoch(ProducerId(read.producer_id), ProducerEpoch(read.producer_epoch))
    forced = read.forced_outcomes[-1] if read.forced_outcomes else None
    started_ms = read.transaction_start_timestamp_ms
    return RecordedState(
        state=read.transaction_status,
        at_ms=read.transaction_last_update_timestamp_ms,
        producer=producer,
        client=_find_client(producer, read.next_producer_id, read.next_producer_epoch),
        partition_count=sum(len(each.partition_ids) for each in read.transaction_partitions or ()),
        started_ms=None if started_ms < 0 else started_ms,
        forced=None
        if forced is None
        else ForcedEnd(
            forced.cause,
            forced.timestamp_ms,
            ProducerIdAndEpoch(ProducerId(forced.producer_id), ProducerEpoch(forced.producer_epoch)),
        ),
    )
