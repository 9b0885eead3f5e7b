"""Records inside a batch: encoding and decoding of the uncompressed record section.

Each record is a zigzag varint of its length, then attributes (one byte, unused), timestamp and offset
as deltas to the batch, key, value and headers, every length a zigzag varint, -1 for null.

Only this module works record by record, so its loops are unrolled: a varint of one or two bytes, which
nearly all are, is read inline or looked up in a table.

Source: Kafka's protocol guide, "Record" and "Record Header"; DefaultRecord.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tallystick.kernel.ids import INT64_MAX
from tallystick.kernel.limits import HEADERS_PER_RECORD_MAX
from tallystick.protocol.records.batch import BatchHeader
from tallystick.protocol.records.errors import InvalidBatch

Headers = tuple[tuple[str, bytes | None], ...]

INT64_MIN: Final = -INT64_MAX - 1
UINT64_MAX: Final = 2**64 - 1

_VARLONG_BYTES_MAX: Final = 10
_NULL: Final = b"\x01"  # zigzag of -1
_NO_HEADERS: Final = b"\x00"


class Record(NamedTuple):
    """One record, with its offset and timestamp."""

    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


# A record as `iter_spans` yields it: offset, timestamp, key, position after the deltas, position of the
# value, size of the value (-1 for null), end of the record. A plain tuple, because one is made for every
# record.
RecordSpan = tuple[int, int, bytes | None, int, int, int, int]


def encode_zigzag(value: int) -> bytes:
    """Encode a signed number as Kafka's varint or varlong, which differ only in range; wraps past 64 bits."""
    raw = ((value << 1) ^ -(value >> 63 & 1)) & UINT64_MAX
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def decode_zigzag(data: bytes, at: int = 0) -> tuple[int, int]:
    """Decode the signed number at `at`; return it and the position after it."""
    raw, last = read_long_varint(data, at)
    return (raw >> 1) ^ -(raw & 1), last + 1


def read_long_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read the varint at `at`; return it, still in zigzag, and the position of its *last* byte.

    Raises: InvalidBatch beyond 64 bits; IndexError at the end of the data.
    """
    raw = 0
    for position in range(at, at + _VARLONG_BYTES_MAX):
        byte = data[position]
        raw |= (byte & 0x7F) << 7 * (position - at)
        if byte <= 0x7F:
            if raw > UINT64_MAX:
                break
            return raw, position
    raise InvalidBatch(f"the varint at byte {at} of the records has more than 64 bits")


# Varints of one and two bytes, by value; enough except for large values and timestamp deltas.
_ZIGZAG_CACHED_MAX: Final = 8192
_ZIGZAG: Final = (
    *(bytes((2 * n,)) for n in range(64)),
    *(bytes((2 * n & 0x7F | 0x80, n >> 6)) for n in range(64, _ZIGZAG_CACHED_MAX)),
)


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Encode the uncompressed record section; offsets and timestamps are deltas to the two bases.

    Cost: about 250 ns per record.
    """
    table, small, join = _ZIGZAG, _ZIGZAG_CACHED_MAX, b"".join
    parts: list[bytes] = []
    for offset, timestamp, key, value, headers in records:
        delta = timestamp - base_timestamp
        when = table[delta] if 0 <= delta < small else encode_zigzag(delta)
        delta = offset - base_offset
        where = table[delta] if 0 <= delta < small else encode_zigzag(delta)
        if key is None:
            key_size, key = _NULL, b""
        else:
            size = len(key)
            key_size = table[size] if size < small else encode_zigzag(size)
        if value is None:
            value_size, value = _NULL, b""
        else:
            size = len(value)
            value_size = table[size] if size < small else encode_zigzag(size)
        tail = encode_headers(headers) if headers else _NO_HEADERS
        body = join((b"\0", when, where, key_size, key, value_size, value, tail))
        size = len(body)
        parts += (table[size] if size < small else encode_zigzag(size), body)
    return join(parts)


def _encode_cached_zigzag(value: int) -> bytes:
    return _ZIGZAG[value] if 0 <= value < _ZIGZAG_CACHED_MAX else encode_zigzag(value)


def encode_headers(headers: Headers) -> bytes:
    """Encode the number of headers, then key and value of each."""
    parts = [_encode_cached_zigzag(len(headers))]
    for name, value in headers:
        key = name.encode()
        parts += (_encode_cached_zigzag(len(key)), key)
        parts += (_NULL,) if value is None else (_encode_cached_zigzag(len(value)), value)
    return b"".join(parts)


def encode_span(span: RecordSpan, section: bytes, base_offset: int, base_timestamp: int) -> bytes:
    """Re-encode a record with deltas to other bases; key, value and headers are copied unchanged."""
    offset, timestamp, _, tail_at, _, _, end = span
    when, where = (
        _encode_cached_zigzag(timestamp - base_timestamp),
        _encode_cached_zigzag(offset - base_offset),
    )
    body = b"".join((b"\0", when, where, section[tail_at:end]))
    return _encode_cached_zigzag(len(body)) + body


def iter_spans(section: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Yield every record of an uncompressed section in turn, without parsing headers.

    Checks the section: as many records as announced, each within its length, offsets ascending and within
    the batch [REC-6], and no bytes left over.

    Raises: InvalidBatch.
    Cost: about 450 ns per record.
    """
    at, limit, previous, last = 0, len(section), -1, header.last_offset_delta
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    fixed_time, earliest, latest = header.log_append_time_ms, INT64_MIN, INT64_MAX
    try:
        for _ in range(header.record_count):
            raw = section[at]
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
                if raw > 0x3FFF:
                    raw, at = read_long_varint(section, at - 1)
            end = at + 1 + (raw >> 1)
            if raw & 1 or end > limit:
                raise InvalidBatch(f"a record ends at byte {end}, its section at {limit}")
            raw = section[at := at + 2]  # past the attributes
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
                if raw > 0x3FFF:
                    raw, at = read_long_varint(section, at - 1)
            timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1))
            if not earliest <= timestamp <= latest:
                timestamp = (timestamp - earliest & UINT64_MAX) + earliest  # wraps as in Java
            raw = section[at := at + 1]
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
                if raw > 0x3FFF:
                    raw, at = read_long_varint(section, at - 1)
            delta = raw >> 1
            if raw & 1 or not previous < delta <= last:
                raise InvalidBatch(f"offset delta {delta} after {previous}, the last one being {last}")
            previous = delta
            at += 1
            tail_at, raw, key = at, section[at], None
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
                if raw > 0x3FFF:
                    raw, at = read_long_varint(section, at - 1)
            at += 1
            if not raw & 1:
                key = section[at : at + (raw >> 1)]
                at += raw >> 1
            raw = section[at]
            if raw > 0x7F:
                raw += (section[at := at + 1] << 7) - 0x80
                if raw > 0x3FFF:
                    raw, at = read_long_varint(section, at - 1)
            at += 1
            value_size, value_end = (-1, at) if raw & 1 else (raw >> 1, at + (raw >> 1))
            if value_end >= end:
                raise InvalidBatch(f"key and value end at byte {value_end}, their record at {end}")
            if fixed_time is not None:
                timestamp = fixed_time
            yield base_offset + delta, timestamp, key, tail_at, at, value_size, end
            at = end
    except IndexError:
        raise InvalidBatch(f"{limit} bytes end inside a record") from None
    if at != limit:
        raise InvalidBatch(f"{limit - at} bytes follow the last of {header.record_count} records")


def iter_section(section: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield every record of an uncompressed section. Raises: InvalidBatch."""
    new, here, headers = tuple.__new__, Record, ()
    for offset, timestamp, key, _, at, value_size, end in iter_spans(section, header):
        value: bytes | None = None
        if value_size >= 0:
            value = section[at : at + value_size]
            at += value_size
        if section[at]:
            yield new(here, (offset, timestamp, key, value, decode_headers(section, at, end)))
        elif at + 1 == end:
            yield new(here, (offset, timestamp, key, value, headers))
        else:
            raise InvalidBatch(f"a record without headers ends at byte {at + 1}, its length says {end}")


def decode_headers(section: bytes, at: int, end: int) -> Headers:
    """Decode the headers that fill `at` to `end`.

    Names that are not UTF-8 are read as Java reads them, with replacement characters.
    """
    headers: list[tuple[str, bytes | None]] = []
    try:
        count, at = decode_zigzag(section, at)
        if not 0 <= count <= min(HEADERS_PER_RECORD_MAX, (end - at) // 2):
            raise InvalidBatch(f"{count} headers in {end - at} bytes, the most is {HEADERS_PER_RECORD_MAX}")
        for _ in range(count):
            size, at = decode_zigzag(section, at)
            if size < 0:
                raise InvalidBatch("a header has no name")
            name = section[at : at + size].decode("utf-8", "replace")
            at += size
            size, at = decode_zigzag(section, at)
            headers.append((name, None if size < 0 else section[at : at + size]))
            at += max(0, size)
    except IndexError:
        raise InvalidBatch(f"{len(section)} bytes end inside the headers of a record") from None
    if at != end:
        raise InvalidBatch(f"headers end at byte {at}, their record at {end}")
    return tuple(headers)
