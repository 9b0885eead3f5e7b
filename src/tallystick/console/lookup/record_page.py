"""Fetched batches as records, with what became of the transaction of each. Pure.

Below the last stable offset every transaction has ended. A Fetch of committed records names the aborted ones
there, and `AbortedTransactions`, which consumers use, tells which batches are theirs. From the last stable
offset on nothing is named: there the marker that follows tells, if it is among the fetched batches, and else
the leader's list of open transactions. Without either a record is `ended`, which claims nothing [CON-12].

A record is cut to its first bytes, so that a page is small whatever is in the topic.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from tallystick.client.consumer.decode import AbortedTransactions
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    ControlType,
    Record,
    TimestampType,
    check_batch,
    iter_records,
    read_header,
    read_marker,
)

CLIP_BYTES: Final = 4_096
HEADERS_MAX: Final = 50
HEADER_BYTES: Final = 256


RECORDS_MAX: Final = 50
OFFSET_MAX: Final = 2**63 - 1


class Format(Enum):
    """The format of keys, values and headers."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"


class RecordQuery(Value, kw_only=True):
    """One page of records.

    offset   the first one; None: the last page of the partition, unless a time is given
    time_ms  begin with the first record of this time or later
    """

    partition: TopicPartition
    offset: int | None = None
    time_ms: int | None = None


class BadQuery(TallystickError):
    """A part of the URL that says nothing; the text quotes it."""


def parse_query(topic: str, query: Mapping[str, str]) -> RecordQuery | None:
    """Return what a URL asks for; None if it asks for no records. Raises: BadQuery."""
    if not query.get("partition"):
        return None
    partition = _parse_number("partition", query["partition"], INT32_MAX)
    offset, time = query.get("offset", ""), query.get("time", "")
    return RecordQuery(
        partition=TopicPartition(topic, partition),
        offset=_parse_number("offset", offset, OFFSET_MAX) if offset else None,
        time_ms=_parse_time(time) if time and not offset else None,
    )


def parse_format(query: Mapping[str, str]) -> Format:
    """Return the wanted format; text if there is none of that name."""
    wanted = query.get("as", "")
    return next((each for each in Format if each.value == wanted), Format.TEXT)


def _parse_number(name: str, text: str, largest: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= largest):
        raise BadQuery(f"{name}: {text[:40]!r} is not a number from 0 to {largest}")
    return int(text)


def _parse_time(text: str) -> int:
    """Return milliseconds since the epoch, given as such or as ISO 8601; without a zone it is UTC."""
    if text.isascii() and text.isdecimal():
        return _parse_number("time", text, OFFSET_MAX)
    try:
        at = datetime.fromisoformat(text)
        return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError) as exc:
        raise BadQuery(f"time: {text[:40]!r} is neither 2026-11-25T10:00 nor milliseconds") from exc


class RecordVerdict(Enum):
    """The verdict on a record; the value is the word that pages show."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    ENDED = "ended"  # not open any more, and its marker was not fetched
    CONTROL = "control"
    PLAIN = "not transactional"


class Clip(Value):
    """The first bytes of something, and its whole size."""

    data: bytes
    size: int

    @property
    def is_cut(self) -> bool:
        return len(self.data) < self.size


class BrowsedRecord(Value, kw_only=True):
    """One record.

    is_held_back       `read_committed` readers do not see it yet, whatever its verdict
    marker             of a control record: COMMIT, ABORT, or another kind's name
    coordinator_epoch  of a marker
    producer           None if its producer is neither idempotent nor transactional
    header_count       of which `headers` are the first
    """

    offset: int
    timestamp_ms: int
    is_append_time: bool
    verdict: RecordVerdict
    is_held_back: bool = False
    marker: str = ""
    coordinator_epoch: int | None = None
    producer: ProducerIdAndEpoch | None = None
    key: Clip | None = None
    value: Clip | None = None
    headers: tuple[tuple[str, Clip | None], ...] = ()
    header_count: int = 0


class RecordPage(Value, kw_only=True):
    """Records of one partition, and where they stand in it.

    first        the offset that the page begins with
    next_offset  of the next page
    start, last_stable, end  of the partition; None if they could not be read
    is_cut       the limit of bytes or of time was reached before the page was full
    failure      what keeps it from being read; "" if nothing does
    """

    partition: TopicPartition
    first: int | None = None
    next_offset: int | None = None
    start: int | None = None
    last_stable: int | None = None
    end: int | None = None
    records: tuple[BrowsedRecord, ...] = ()
    is_cut: bool = False
    failure: str = ""


def clip(data: Buffer | None, size: int = CLIP_BYTES) -> Clip | None:
    """Return the first bytes of a key, a value or a header; None if it is null."""
    return None if data is None else Clip(bytes(data[:size]), len(data))


def read_stable(
    data: Buffer, position: int, aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, list[BrowsedRecord]]]:
    """Yield the records of each batch below the last stable offset, with the offset after the batch.

    Args:
        aborted: producer id and first offset of the aborted transactions of this answer.

    Raises: RecordsError.
    """
    transactions = AbortedTransactions(aborted)
    for batch in _iter_batches(data):
        is_hidden = transactions.is_hidden(batch.header, data, batch.at)
        verdict = RecordVerdict.ABORTED if is_hidden else RecordVerdict.COMMITTED
        if batch.header.next_offset > position:
            yield batch.header.next_offset, _build_records(data, batch, position, verdict, is_held_back=False)


def read_unstable(
    data: Buffer, position: int, open_starts: Mapping[int, int]
) -> Iterator[tuple[int, list[BrowsedRecord]]]:
    """Yield the records of each batch from the last stable offset on, with the offset after the batch.

    Args:
        open_starts: the first offset of each open transaction, by producer id.

    Raises: RecordsError.
    """
    batches = list(_iter_batches(data))
    markers = [(batch, read_marker(data[batch.at : batch.at + batch.header.size_bytes])) for batch in batches]
    # Read backwards: the first marker of a producer after a batch is the one that ends its transaction.
    outcomes: dict[int, RecordVerdict] = {}
    verdicts: list[RecordVerdict] = []
    for batch, marker in reversed(markers):
        producer_id = batch.header.producer_id
        if marker is not None:
            is_commit = marker.control_type is ControlType.COMMIT
            outcomes[producer_id] = RecordVerdict.COMMITTED if is_commit else RecordVerdict.ABORTED
        start = open_starts.get(producer_id)
        is_open = start is not None and start <= batch.header.last_offset
        unmarked = RecordVerdict.OPEN if is_open else RecordVerdict.ENDED
        verdicts.append(outcomes.get(producer_id, unmarked))
    for batch, verdict in zip(batches, reversed(verdicts), strict=True):
        if batch.header.next_offset > position:
            yield batch.header.next_offset, _build_records(data, batch, position, verdict, is_held_back=True)


class WholeBatches(NamedTuple):
    """The complete batches of an answer, and the offset after them; 0 if there are none."""

    data: bytes
    next_offset: int


def cut_to_batches(data: bytes) -> WholeBatches:
    """Return an answer's data without a last batch that is cut off. Raises: RecordsError."""
    end, next_offset = 0, 0
    for at, header in _iter_batches(data):
        end, next_offset = at + header.size_bytes, header.next_offset
    return WholeBatches(data[:end], next_offset)


class _Batch(NamedTuple):
    at: int
    header: BatchHeader


def _iter_batches(data: Buffer) -> Iterator[_Batch]:
    """Yield the complete batches; the last one of an answer may be cut off. Raises: RecordsError."""
    at = 0
    while len(data) - at >= HEADER_SIZE:
        header = read_header(data, at)
        if header.size_bytes > len(data) - at:
            return
        check_batch(data, at)
        yield _Batch(at, header)
        at += header.size_bytes


def _build_records(
    data: Buffer, batch: _Batch, position: int, verdict: RecordVerdict, *, is_held_back: bool
) -> list[BrowsedRecord]:
    at, header = batch
    marker = None
    if header.is_control:
        verdict = RecordVerdict.CONTROL
        marker = read_marker(data[at : at + header.size_bytes])
    elif not header.is_transactional:
        verdict = RecordVerdict.PLAIN
    # No more than a page has, and one to show where the next begins: a batch may have a million.
    wanted = (record for record in iter_records(data, at) if record.offset >= position)
    producer = None
    if header.producer_id >= 0:
        producer = ProducerIdAndEpoch(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
    return [
        BrowsedRecord(
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            is_append_time=header.timestamp_type is TimestampType.LOG_APPEND_TIME,
            verdict=verdict,
            is_held_back=is_held_back,
            marker=_name_marker(header, marker.control_type if marker is not None else None),
            coordinator_epoch=None if marker is None else marker.coordinator_epoch,
            producer=producer,
            key=clip(record.key),
            value=clip(record.value),
            headers=_clip_headers(record),
            header_count=len(record.headers),
        )
        for record in islice(wanted, RECORDS_MAX + 1)
    ]


def _name_marker(header: BatchHeader, kind: ControlType | None) -> str:
    if kind is not None:
        return kind.name
    return "of another kind" if header.is_control else ""


def _clip_headers(record: Record) -> tuple[tuple[str, Clip | None], ...]:
    return tuple(
        (name[:HEADER_BYTES], clip(value, HEADER_BYTES)) for name, value in record.headers[:HEADERS_MAX]
    )
