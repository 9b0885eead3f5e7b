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
from tallystick.protocol.compile import PURSE_BYTES
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
    read_uvarint,
    uuid_from,
)

Topic = str | UUID
"""A topic as the version identifies it: by id from Produce 13 and Fetch 13 on (KIP-516), by name before."""

PRODUCE_FLEXIBLE: Final = 9
PRODUCE_BY_ID: Final = 13
FETCH_FLEXIBLE: Final = 12
FETCH_BY_ID: Final = 13

# A request with more partitions is left to the generated decoder, which bounds its memory.
_QUICK_PARTITIONS_MAX: Final = 10_000

_new = tuple.__new__


class _Unusual(Exception):
    """A request that the fast reader does not handle."""


_DOUBTS: Final = (_Unusual, DecodeError, error, IndexError, UnicodeDecodeError)


# ------------------------------------------------------------------------------------ Produce


class ProducePart(NamedTuple):
    """Records for one partition: a view of the request, or None if the client sent null."""

    partition: int
    records: bytes | memoryview | None


class ProduceCall(NamedTuple):
    """A Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[tuple[Topic, Sequence[ProducePart]]]


class ProduceAnswer(NamedTuple):
    """The result for one partition's records; -1 for an offset or time that does not apply."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None


_ACKS: Final = Struct(">hiB").unpack_from
_INDEX: Final = Struct(">iB").unpack_from
_ID: Final = Struct(">16sB").unpack_from


def read_produce_request(body: memoryview, version: int, room: int = PURSE_BYTES) -> ProduceCall:
    """Read a Produce request of any version; `records` are views of `body`.

    Args:
        room: memory that an unusual request may take; see `decode`.

    Raises: DecodeError, also when the request needs more memory than `room`, UnsupportedVersion.
    Cost: about 1.5 us plus 0.5 us per partition for flexible versions without tagged fields.
    """
    if version >= PRODUCE_FLEXIBLE:
        try:
            return _quick_produce(body, version >= PRODUCE_BY_ID)
        except _DOUBTS:
            pass
    request = decode(ProduceRequest, body, version, room=room)
    topics = [
        (
            t.topic_id if version >= PRODUCE_BY_ID else t.name,
            [ProducePart(p.index, p.records) for p in t.partition_data],
        )
        for t in request.topic_data
    ]
    return ProduceCall(request.transactional_id, request.acks, request.timeout_ms, topics)


def _quick_produce(body: memoryview, by_id: bool) -> ProduceCall:
    end = len(body)
    transactional_id: str | None = None
    at = body[0]
    if at:
        transactional_id = _string(body, 1, at)
    else:
        at = 1
    acks, timeout_ms, topics_left = _ACKS(body, at)
    at += 7
    topics: list[tuple[Topic, list[ProducePart]]] = []
    room = _QUICK_PARTITIONS_MAX
    _check_count(topics_left)
    for _ in range(topics_left - 1):
        topic: Topic
        if by_id:
            raw, count = _ID(body, at)
            topic = uuid_from(raw)
            at += 17
        else:
            n = body[at]
            topic = _string(body, at + 1, n)
            at += n
            count = body[at]
            at += 1
        if count > 127:
            count, at = read_uvarint(body, at - 1)
        room -= count
        if count == 0 or room < 0:
            raise _Unusual
        parts = []
        for _ in range(count - 1):
            partition, n = _INDEX(body, at)
            at += 5
            if n > 127:
                n, at = read_uvarint(body, at - 1)
            if n:
                stop = at + n - 1
                parts.append(_new(ProducePart, (partition, body[at:stop])))
                at = stop
            else:
                parts.append(_new(ProducePart, (partition, None)))
            if body[at]:  # also fails if the records are truncated
                raise _Unusual
            at += 1
        topics.append((topic, parts))
        if body[at]:
            raise _Unusual
        at += 1
    if body[at] or at + 1 != end:
        raise _Unusual
    return ProduceCall(transactional_id, acks, timeout_ms, topics)


def _string(body: memoryview, at: int, stored: int) -> str:
    """Read a compact string of up to 126 bytes with prefix `stored`; `body[at + stored - 1]` follows it."""
    if not 0 < stored < 128:
        raise _Unusual
    return str(body[at : at + stored - 1], "utf-8")


def _check_count(stored: int) -> None:
    if not 0 < stored < 128:
        raise _Unusual


_PLACE: Final = Struct(">ihqqq")
# After a partition's numbers: no record errors, no message, no tagged fields.
_NOTHING_MORE: Final = b"\x01\x00\x00"
_PLACE_AND_NO_MORE: Final = Struct(">ihqqq3s").pack
_THROTTLE: Final = Struct(">iB").pack


def write_produce_response(
    topics: Iterable[tuple[Topic, Sequence[ProduceAnswer]]], version: int, throttle_time_ms: int = 0
) -> bytes:
    """Encode a Produce response of any version, without its header.

    Raises: EncodeError, UnsupportedVersion.
    """
    answers = topics if isinstance(topics, (list, tuple)) else list(topics)
    if version < PRODUCE_FLEXIBLE:
        return encode(_produce_response(answers, version, throttle_time_ms), version)
    out: list[bytes] = [_count(len(answers))]
    try:
        for topic, parts in answers:
            out.append(_topic(topic, version >= PRODUCE_BY_ID))
            out.append(_count(len(parts)))
            for part in parts:
                if part.error_message is None:
                    out.append(_PLACE_AND_NO_MORE(*part[:5], _NOTHING_MORE))
                else:
                    message = _compact(part.error_message)
                    out.append(_PLACE.pack(*part[:5]) + b"\x01" + message + b"\x00")
            out.append(b"\x00")
        out.append(_THROTTLE(throttle_time_ms, 0))
    except error as wrong:
        raise EncodeError(f"ProduceResponse v{version}: {wrong}") from wrong
    return b"".join(out)


def _produce_response(
    answers: Sequence[tuple[Topic, Sequence[ProduceAnswer]]], version: int, throttle_time_ms: int
) -> ProduceResponse:
    by_id = version >= PRODUCE_BY_ID
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name="" if by_id else _name(topic),
                topic_id=_id(topic) if by_id else NIL,
                partition_responses=tuple(_partition_response(part) for part in parts),
            )
            for topic, parts in answers
        ),
        throttle_time_ms=throttle_time_ms,
    )


def _partition_response(part: ProduceAnswer) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=part.partition,
        error_code=part.error_code,
        base_offset=part.base_offset,
        log_append_time_ms=part.log_append_time_ms,
        log_start_offset=part.log_start_offset,
        error_message=part.error_message,
    )


# -------------------------------------------------------------------------------------- Fetch


class FetchPart(NamedTuple):
    """A partition to fetch from; -1 for an epoch or an offset that was not sent."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FetchCall(NamedTuple):
    """A Fetch request. `replica_id` is -1 for consumers, whichever field the version has it in."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[tuple[Topic, Sequence[FetchPart]]]
    forgotten: Sequence[tuple[Topic, Sequence[int]]]
    rack_id: str


class FetchAnswer(NamedTuple):
    """The result for one partition.

    `aborted` are (producer id, first offset) pairs, None for read_uncommitted; `records` are passed to the
    socket uncopied.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: bytes | memoryview | None = None


_WISHES: Final = Struct(">iiibiiB").unpack_from
_READ_REPLICA: Final = Struct(">i").unpack_from
_FETCH_PART: Final = Struct(">iiqiqi").unpack_from
_REPLICA_IN_TAG: Final = 15


def read_fetch_request(body: memoryview, version: int) -> FetchCall:
    """Read a Fetch request of any version.

    Raises: DecodeError, UnsupportedVersion.
    Cost: about 1.5 us plus 0.4 us per partition for flexible versions without tagged fields.
    """
    if version >= FETCH_FLEXIBLE:
        try:
            return _quick_fetch(body, version)
        except _DOUBTS:
            pass
    request = decode(FetchRequest, body, version)
    by_id = version >= FETCH_BY_ID
    replica_id = request.replica_state.replica_id if version >= _REPLICA_IN_TAG else request.replica_id
    topics = [
        (
            t.topic_id if by_id else t.topic,
            [
                FetchPart(
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
    return FetchCall(
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


def _quick_fetch(body: memoryview, version: int) -> FetchCall:
    end = len(body)
    replica_id, at = -1, 0
    if version < _REPLICA_IN_TAG:
        (replica_id,) = _READ_REPLICA(body, 0)
        at = 4
    wait_ms, bytes_min, bytes_max, isolation, session_id, session_epoch, topics_left = _WISHES(body, at)
    at += 22
    _check_count(topics_left)
    by_id = version >= FETCH_BY_ID
    topics: list[tuple[Topic, list[FetchPart]]] = []
    room = _QUICK_PARTITIONS_MAX
    for _ in range(topics_left - 1):
        topic, count, at = _fetch_topic(body, at, by_id)
        room -= count
        if room < 0:
            raise _Unusual
        parts = []
        for _ in range(count):
            parts.append(_new(FetchPart, _FETCH_PART(body, at)))
            if body[at + 32]:
                raise _Unusual
            at += 33
        topics.append((topic, parts))
        if body[at]:
            raise _Unusual
        at += 1
    forgotten: Sequence[tuple[Topic, Sequence[int]]] = ()
    rack_id = ""
    if body[at] == 1 and body[at + 1] == 1:  # nothing forgotten, no rack: the common case
        at += 2
    else:
        forgotten, at = _quick_forgotten(body, at, by_id)
        n = body[at]
        rack_id = _string(body, at + 1, n)
        at += n
    if body[at] or at + 1 != end:
        raise _Unusual
    return FetchCall(
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


def _fetch_topic(body: memoryview, at: int, by_id: bool) -> tuple[Topic, int, int]:
    """Read a topic and the number of entries that follow it."""
    topic: Topic
    if by_id:
        raw, count = _ID(body, at)
        topic = uuid_from(raw)
        at += 17
    else:
        n = body[at]
        topic = _string(body, at + 1, n)
        at += n
        count = body[at]
        at += 1
    if count > 127:
        count, at = read_uvarint(body, at - 1)
    if count == 0:
        raise _Unusual
    return topic, count - 1, at


def _quick_forgotten(body: memoryview, at: int, by_id: bool) -> tuple[list[tuple[Topic, list[int]]], int]:
    forgotten: list[tuple[Topic, list[int]]] = []
    topics_left = body[at]
    _check_count(topics_left)
    at += 1
    for _ in range(topics_left - 1):
        topic, count, at = _fetch_topic(body, at, by_id)
        if count > _QUICK_PARTITIONS_MAX:
            raise _Unusual
        forgotten.append((topic, list(Struct(f">{count}i").unpack_from(body, at))))
        at += 4 * count
        if body[at]:
            raise _Unusual
        at += 1
    return forgotten, at


_FETCH_HEAD: Final = Struct(">ihi").pack
_FETCH_PLACE: Final = Struct(">ihqqq").pack
_FETCH_PLACE_COMMITTED: Final = Struct(">ihqqqBi").pack
_ABORTED: Final = Struct(">qqx").pack
_REPLICA: Final = Struct(">i").pack


class FetchSession(NamedTuple):
    """The part of a Fetch response that applies to all partitions."""

    session_id: int = 0
    error_code: int = 0
    throttle_time_ms: int = 0


def write_fetch_response(
    topics: Iterable[tuple[Topic, Sequence[FetchAnswer]]], version: int, session: FetchSession
) -> list[bytes | memoryview]:
    """Encode a Fetch response of any version, without its header, as buffers: record data is not copied.

    Raises: EncodeError, UnsupportedVersion.
    """
    answers = topics if isinstance(topics, (list, tuple)) else list(topics)
    if version < FETCH_FLEXIBLE:
        return encode_parts(_fetch_response(answers, version, session), version)
    out: list[bytes | memoryview] = []
    try:
        # Bytes between two pieces of record data are collected here, into one buffer for the socket.
        text = _FETCH_HEAD(session.throttle_time_ms, session.error_code, session.session_id)
        text += _count(len(answers))
        for topic, parts in answers:
            text += _topic(topic, version >= FETCH_BY_ID) + _count(len(parts))
            for part in parts:
                text += _fetch_place(part)
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


def _fetch_place(part: FetchAnswer) -> bytes:
    if part.aborted is None:
        return _FETCH_PLACE_COMMITTED(*part[:5], 0, part.preferred_read_replica)
    aborted = b"".join([_ABORTED(producer_id, first) for producer_id, first in part.aborted])
    return b"".join(
        (
            _FETCH_PLACE(*part[:5]),
            _count(len(part.aborted)),
            aborted,
            _REPLICA(part.preferred_read_replica),
        )
    )


def _fetch_response(
    answers: Sequence[tuple[Topic, Sequence[FetchAnswer]]], version: int, session: FetchSession
) -> FetchResponse:
    by_id = version >= FETCH_BY_ID
    return FetchResponse(
        throttle_time_ms=session.throttle_time_ms,
        error_code=session.error_code,
        session_id=session.session_id,
        responses=tuple(
            FetchableTopicResponse(
                topic="" if by_id else _name(topic),
                topic_id=_id(topic) if by_id else NIL,
                partitions=tuple(_partition_data(part) for part in parts),
            )
            for topic, parts in answers
        ),
    )


def _partition_data(part: FetchAnswer) -> PartitionData:
    aborted = part.aborted
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


def _count(elements: int) -> bytes:
    """Encode a compact array's prefix."""
    return SHORT_UVARINTS[elements + 1] if elements < 127 else encode_uvarint(elements + 1)


def _compact(text: str) -> bytes:
    """Encode a compact string."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as wrong:
        raise EncodeError(str(wrong)) from wrong
    if len(raw) > STRING_BYTES_MAX:
        raise EncodeError(f"a string of {len(raw)} bytes, above {STRING_BYTES_MAX}")
    return encode_uvarint(len(raw) + 1) + raw


def _topic(topic: Topic, by_id: bool) -> bytes:
    return _id(topic).bytes if by_id else _compact(_name(topic))


def _name(topic: Topic) -> str:
    if isinstance(topic, str):
        return topic
    raise EncodeError(f"topic id {topic} in a version that names topics")


def _id(topic: Topic) -> UUID:
    if isinstance(topic, UUID):
        return topic
    raise EncodeError(f"topic {topic!r} in a version that has topic ids")
