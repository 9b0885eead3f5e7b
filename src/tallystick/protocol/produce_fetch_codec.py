"""Hand-written codecs of Produce and Fetch, the two APIs whose request rate follows the data.

The generated codecs build an object for every struct of a message; these build only one tuple per partition,
and read a struct of fixed fields in one `struct` call. Everything else is as in the generated codecs:

    reading    The fast reader handles only the usual shape: a flexible version, no tagged fields, lengths
               that fit. It leaves everything else, hostile bytes included, to the generated decoder,
               which interprets the bytes or reports what is wrong with them [WIRE-4].
    writing    Usual responses only (no record errors, no tagged fields). Any other response is a
               `ProduceResponse` or `FetchResponse` for the generated encoder.

Both are compared with the generated codecs, byte for byte, in `tests/properties/test_wire_hot.py`.
"""

from collections.abc import Iterable, Sequence
from struct import Struct, error
from typing import Final, NamedTuple
from uuid import UUID

from tallystick.kernel.limits import STRING_BYTES_MAX
from tallystick.protocol.codec import decode, encode, encode_parts
from tallystick.protocol.compile import DECODE_MEMORY_BYTES
from tallystick.protocol.errors import DecodeError, EncodeError
from tallystick.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tallystick.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tallystick.protocol.primitives import (
    NIL,
    SHORT_UVARINTS,
    encode_uvarint,
    make_uuid,
    read_uvarint,
)

TopicKey = str | UUID
"""A topic as the version identifies it: by id from Produce 13 and Fetch 13 on (KIP-516), by name before."""

PRODUCE_FLEXIBLE_SINCE: Final = 9
PRODUCE_TOPIC_ID_SINCE: Final = 13
FETCH_FLEXIBLE_SINCE: Final = 12
FETCH_TOPIC_ID_SINCE: Final = 13

# A request with more partitions is left to the generated decoder, which bounds its memory.
_FAST_PARTITIONS_MAX: Final = 10_000

_new = tuple.__new__


class _NeedsGeneratedCodec(Exception):
    """A request that the fast reader does not handle."""


_FAST_PATH_ERRORS: Final = (_NeedsGeneratedCodec, DecodeError, error, IndexError, UnicodeDecodeError)


# ------------------------------------------------------------------------------------ Produce


class ProducePartitionData(NamedTuple):
    """Records for one partition: a view of the request, or None if the client sent null."""

    partition: int
    records: bytes | memoryview | None


class ProduceRequestView(NamedTuple):
    """A Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionData]]]


class ProducePartitionResult(NamedTuple):
    """The result for one partition's records; -1 for an offset or time that does not apply."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None


_unpack_acks: Final = Struct(">hiB").unpack_from
_unpack_index: Final = Struct(">iB").unpack_from
_unpack_topic_id: Final = Struct(">16sB").unpack_from


def read_produce_request(
    body: memoryview, version: int, room: int = DECODE_MEMORY_BYTES
) -> ProduceRequestView:
    """Read a Produce request of any version; `records` are views of `body`.

    Args:
        room: memory that an unusual request may take; see `decode`.

    Raises: DecodeError, also when the request needs more memory than `room`, UnsupportedVersion.
    Cost: about 1.5 us plus 0.5 us per partition for flexible versions without tagged fields.
    """
    if version >= PRODUCE_FLEXIBLE_SINCE:
        try:
            return _read_produce_fast(body, version >= PRODUCE_TOPIC_ID_SINCE)
        except _FAST_PATH_ERRORS:
            pass
    request = decode(ProduceRequest, body, version, room=room)
    topics = [
        (
            t.topic_id if version >= PRODUCE_TOPIC_ID_SINCE else t.name,
            [ProducePartitionData(p.index, p.records) for p in t.partition_data],
        )
        for t in request.topic_data
    ]
    return ProduceRequestView(request.transactional_id, request.acks, request.timeout_ms, topics)


def _read_produce_fast(body: memoryview, by_id: bool) -> ProduceRequestView:
    end = len(body)
    transactional_id: str | None = None
    at = body[0]
    if at:
        transactional_id = _read_string(body, 1, at)
    else:
        at = 1
    acks, timeout_ms, topics_left = _unpack_acks(body, at)
    at += 7
    topics: list[tuple[TopicKey, list[ProducePartitionData]]] = []
    room = _FAST_PARTITIONS_MAX
    _check_count(topics_left)
    for _ in range(topics_left - 1):
        topic, count, at = _read_topic(body, at, by_id)
        room -= count + 1
        if room < 0:
            raise _NeedsGeneratedCodec
        parts = []
        for _ in range(count):
            partition, n = _unpack_index(body, at)
            at += 5
            if n > 127:
                n, at = read_uvarint(body, at - 1)
            if n:
                stop = at + n - 1
                parts.append(_new(ProducePartitionData, (partition, body[at:stop])))
                at = stop
            else:
                parts.append(_new(ProducePartitionData, (partition, None)))
            if body[at]:  # also fails if the records are truncated
                raise _NeedsGeneratedCodec
            at += 1
        topics.append((topic, parts))
        if body[at]:
            raise _NeedsGeneratedCodec
        at += 1
    if body[at] or at + 1 != end:
        raise _NeedsGeneratedCodec
    return ProduceRequestView(transactional_id, acks, timeout_ms, topics)


def _read_string(body: memoryview, at: int, stored: int) -> str:
    """Read a compact string of up to 126 bytes with prefix `stored`; `body[at + stored - 1]` follows it."""
    if not 0 < stored < 128:
        raise _NeedsGeneratedCodec
    return str(body[at : at + stored - 1], "utf-8")


def _check_count(stored: int) -> None:
    if not 0 < stored < 128:
        raise _NeedsGeneratedCodec


_RESULT: Final = Struct(">ihqqq")
# After a partition's numbers: no record errors, no message, no tagged fields.
_NO_MORE_FIELDS: Final = b"\x01\x00\x00"
_pack_result_and_end: Final = Struct(">ihqqq3s").pack
_pack_throttle: Final = Struct(">iB").pack


def write_produce_response(
    topics: Iterable[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    version: int,
    throttle_time_ms: int = 0,
) -> bytes:
    """Encode a Produce response of any version, without its header.

    Raises: EncodeError, UnsupportedVersion.
    """
    answers = topics if isinstance(topics, (list, tuple)) else list(topics)
    if version < PRODUCE_FLEXIBLE_SINCE:
        return encode(_build_produce_response(answers, version, throttle_time_ms), version)
    out: list[bytes] = [_encode_count(len(answers))]
    try:
        for topic, parts in answers:
            out.append(_encode_topic(topic, version >= PRODUCE_TOPIC_ID_SINCE))
            out.append(_encode_count(len(parts)))
            for part in parts:
                if part.error_message is None:
                    out.append(_pack_result_and_end(*part[:5], _NO_MORE_FIELDS))
                else:
                    message = _encode_compact(part.error_message)
                    out.append(_RESULT.pack(*part[:5]) + b"\x01" + message + b"\x00")
            out.append(b"\x00")
        out.append(_pack_throttle(throttle_time_ms, 0))
    except error as wrong:
        raise EncodeError(f"ProduceResponse v{version}: {wrong}") from wrong
    return b"".join(out)


def _build_produce_response(
    answers: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]], version: int, throttle_time_ms: int
) -> ProduceResponse:
    by_id = version >= PRODUCE_TOPIC_ID_SINCE
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name="" if by_id else _get_topic_name(topic),
                topic_id=_get_topic_id(topic) if by_id else NIL,
                partition_responses=tuple(_build_partition_response(part) for part in parts),
            )
            for topic, parts in answers
        ),
        throttle_time_ms=throttle_time_ms,
    )


def _build_partition_response(part: ProducePartitionResult) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=part.partition,
        error_code=part.error_code,
        base_offset=part.base_offset,
        log_append_time_ms=part.log_append_time_ms,
        log_start_offset=part.log_start_offset,
        error_message=part.error_message,
    )


# -------------------------------------------------------------------------------------- Fetch


class FetchPartitionSpec(NamedTuple):
    """A partition to fetch from; -1 for an epoch or an offset that was not sent."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FetchRequestView(NamedTuple):
    """A Fetch request. `replica_id` is -1 for consumers, whichever field the version has it in."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[tuple[TopicKey, Sequence[FetchPartitionSpec]]]
    forgotten: Sequence[tuple[TopicKey, Sequence[int]]]
    rack_id: str


class FetchPartitionResult(NamedTuple):
    """The result for one partition.

    `aborted_transactions` are (producer id, first offset) pairs, None for read_uncommitted; `records` are
    passed to the socket uncopied.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: bytes | memoryview | None = None


_unpack_fetch_limits: Final = Struct(">iiibiiB").unpack_from
_unpack_replica: Final = Struct(">i").unpack_from
_unpack_fetch_partition: Final = Struct(">iiqiqi").unpack_from
_REPLICA_TAG_SINCE: Final = 15


def read_fetch_request(body: memoryview, version: int) -> FetchRequestView:
    """Read a Fetch request of any version.

    Raises: DecodeError, UnsupportedVersion.
    Cost: about 1.5 us plus 0.4 us per partition for flexible versions without tagged fields.
    """
    if version >= FETCH_FLEXIBLE_SINCE:
        try:
            return _read_fetch_fast(body, version)
        except _FAST_PATH_ERRORS:
            pass
    request = decode(FetchRequest, body, version)
    by_id = version >= FETCH_TOPIC_ID_SINCE
    replica_id = request.replica_state.replica_id if version >= _REPLICA_TAG_SINCE else request.replica_id
    topics = [
        (
            t.topic_id if by_id else t.topic,
            [
                FetchPartitionSpec(
                    p.partition,
                    p.current_leader_epoch,
                    p.fetch_offset,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    p.partition_max_bytes,
                )
                for p in t.partitions
            ],
        )
        for t in request.topics
    ]
    return FetchRequestView(
        replica_id,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        topics,
        [(t.topic_id if by_id else t.topic, t.partitions) for t in request.forgotten_topics_data],
        request.rack_id,
    )


def _read_fetch_fast(body: memoryview, version: int) -> FetchRequestView:
    end = len(body)
    replica_id, at = -1, 0
    if version < _REPLICA_TAG_SINCE:
        (replica_id,) = _unpack_replica(body, 0)
        at = 4
    wait_ms, bytes_min, bytes_max, isolation, session_id, session_epoch, topics_left = _unpack_fetch_limits(
        body, at
    )
    at += 22
    _check_count(topics_left)
    by_id = version >= FETCH_TOPIC_ID_SINCE
    topics: list[tuple[TopicKey, list[FetchPartitionSpec]]] = []
    room = _FAST_PARTITIONS_MAX
    for _ in range(topics_left - 1):
        topic, count, at = _read_topic(body, at, by_id)
        room -= count
        if room < 0:
            raise _NeedsGeneratedCodec
        parts = []
        for _ in range(count):
            parts.append(_new(FetchPartitionSpec, _unpack_fetch_partition(body, at)))
            if body[at + 32]:
                raise _NeedsGeneratedCodec
            at += 33
        topics.append((topic, parts))
        if body[at]:
            raise _NeedsGeneratedCodec
        at += 1
    forgotten: Sequence[tuple[TopicKey, Sequence[int]]] = ()
    rack_id = ""
    if body[at] == 1 and body[at + 1] == 1:  # nothing forgotten, no rack: the common case
        at += 2
    else:
        forgotten, at = _read_forgotten_fast(body, at, by_id)
        n = body[at]
        rack_id = _read_string(body, at + 1, n)
        at += n
    if body[at] or at + 1 != end:
        raise _NeedsGeneratedCodec
    return FetchRequestView(
        replica_id,
        wait_ms,
        bytes_min,
        bytes_max,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
    )


def _read_topic(body: memoryview, at: int, by_id: bool) -> tuple[TopicKey, int, int]:
    """Read a topic and the number of entries that follow it."""
    topic: TopicKey
    if by_id:
        raw, count = _unpack_topic_id(body, at)
        topic = make_uuid(raw)
        at += 17
    else:
        n = body[at]
        topic = _read_string(body, at + 1, n)
        at += n
        count = body[at]
        at += 1
    if count > 127:
        count, at = read_uvarint(body, at - 1)
    if count == 0:
        raise _NeedsGeneratedCodec
    return topic, count - 1, at


def _read_forgotten_fast(
    body: memoryview, at: int, by_id: bool
) -> tuple[list[tuple[TopicKey, list[int]]], int]:
    forgotten: list[tuple[TopicKey, list[int]]] = []
    topics_left = body[at]
    _check_count(topics_left)
    at += 1
    for _ in range(topics_left - 1):
        topic, count, at = _read_topic(body, at, by_id)
        if count > _FAST_PARTITIONS_MAX:
            raise _NeedsGeneratedCodec
        forgotten.append((topic, list(Struct(f">{count}i").unpack_from(body, at))))
        at += 4 * count
        if body[at]:
            raise _NeedsGeneratedCodec
        at += 1
    return forgotten, at


_pack_fetch_head: Final = Struct(">ihi").pack
_pack_fetch_result: Final = Struct(">ihqqq").pack
_pack_committed_result: Final = Struct(">ihqqqBi").pack
_pack_aborted: Final = Struct(">qqx").pack
_pack_replica: Final = Struct(">i").pack


class FetchResponseHeader(NamedTuple):
    """The part of a Fetch response that applies to all partitions."""

    session_id: int = 0
    error_code: int = 0
    throttle_time_ms: int = 0


def write_fetch_response(
    topics: Iterable[tuple[TopicKey, Sequence[FetchPartitionResult]]],
    version: int,
    session: FetchResponseHeader,
) -> list[bytes | memoryview]:
    """Encode a Fetch response of any version, without its header, as buffers: record data is not copied.

    Raises: EncodeError, UnsupportedVersion.
    """
    answers = topics if isinstance(topics, (list, tuple)) else list(topics)
    if version < FETCH_FLEXIBLE_SINCE:
        return encode_parts(_build_fetch_response(answers, version, session), version)
    out: list[bytes | memoryview] = []
    try:
        # Bytes between two pieces of record data are collected here, into one buffer for the socket.
        text = _pack_fetch_head(session.throttle_time_ms, session.error_code, session.session_id)
        text += _encode_count(len(answers))
        for topic, parts in answers:
            text += _encode_topic(topic, version >= FETCH_TOPIC_ID_SINCE) + _encode_count(len(parts))
            for part in parts:
                text += _encode_fetch_result(part)
                records = part.records
                if records is None:
                    text += b"\x00\x00"
                elif len(records) == 0:
                    text += b"\x01\x00"
                else:
                    out += (text + encode_uvarint(len(records) + 1), records)
                    text = b"\x00"
            text += b"\x00"
    except error as wrong:
        raise EncodeError(f"FetchResponse v{version}: {wrong}") from wrong
    out.append(text + b"\x00")
    return out


def _encode_fetch_result(part: FetchPartitionResult) -> bytes:
    if part.aborted_transactions is None:
        return _pack_committed_result(*part[:5], 0, part.preferred_read_replica)
    aborted = b"".join(
        [_pack_aborted(producer_id, first) for producer_id, first in part.aborted_transactions]
    )
    return b"".join(
        (
            _pack_fetch_result(*part[:5]),
            _encode_count(len(part.aborted_transactions)),
            aborted,
            _pack_replica(part.preferred_read_replica),
        )
    )


def _build_fetch_response(
    answers: Sequence[tuple[TopicKey, Sequence[FetchPartitionResult]]],
    version: int,
    session: FetchResponseHeader,
) -> FetchResponse:
    by_id = version >= FETCH_TOPIC_ID_SINCE
    return FetchResponse(
        throttle_time_ms=session.throttle_time_ms,
        error_code=session.error_code,
        session_id=session.session_id,
        responses=tuple(
            FetchableTopicResponse(
                topic="" if by_id else _get_topic_name(topic),
                topic_id=_get_topic_id(topic) if by_id else NIL,
                partitions=tuple(_build_partition_data(part) for part in parts),
            )
            for topic, parts in answers
        ),
    )


def _build_partition_data(part: FetchPartitionResult) -> PartitionData:
    aborted = part.aborted_transactions
    return PartitionData(
        partition_index=part.partition,
        error_code=part.error_code,
        high_watermark=part.high_watermark,
        last_stable_offset=part.last_stable_offset,
        log_start_offset=part.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else tuple(AbortedTransaction(producer_id=p, first_offset=first) for p, first in aborted),
        preferred_read_replica=part.preferred_read_replica,
        records=part.records,
    )


# ------------------------------------------------------------------------------- small pieces


def _encode_count(elements: int) -> bytes:
    """Encode a compact array's prefix."""
    return SHORT_UVARINTS[elements + 1] if elements < 127 else encode_uvarint(elements + 1)


def _encode_compact(text: str) -> bytes:
    """Encode a compact string."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as wrong:
        raise EncodeError(str(wrong)) from wrong
    if len(raw) > STRING_BYTES_MAX:
        raise EncodeError(f"a string of {len(raw)} bytes, above {STRING_BYTES_MAX}")
    return encode_uvarint(len(raw) + 1) + raw


def _encode_topic(topic: TopicKey, by_id: bool) -> bytes:
    return _get_topic_id(topic).bytes if by_id else _encode_compact(_get_topic_name(topic))


def _get_topic_name(topic: TopicKey) -> str:
    if isinstance(topic, str):
        return topic
    raise EncodeError(f"topic id {topic} in a version that names topics")


def _get_topic_id(topic: TopicKey) -> UUID:
    if isinstance(topic, UUID):
        return topic
    raise EncodeError(f"topic {topic!r} in a version that has topic ids")
