"""Key and value of every record, for a replay of a whole log that needs nothing else.

A coordinator's log consists mostly of batches with one small record. Building a header and a record for each
costs four times as much as finding key and value, so they are read in place; a start takes 1.4 to 2 times as
long without (docs/notes/performance.md).
"""

from collections.abc import Iterator
from struct import Struct, error
from typing import Final

from tallystick.protocol.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    iter_headers,
    read_header,
)
from tallystick.protocol.records.errors import CorruptBatch
from tallystick.protocol.records.record import iter_spans
from tallystick.protocol.records.section import decompress_section

# From the header: batch length, magic, attributes, record count.
_HEADER_FIELDS: Final = Struct(">8xi4xb4xh34xi")
_UNUSUAL_ATTRIBUTES: Final = CODEC_MASK | CONTROL_BIT
# In a record up to this size every length takes at most two bytes.
_PLAIN_SIZE_MAX: Final = 0x1FFF

KeyValue = tuple[bytes | None, bytes | None]


def iter_key_values(buf: bytes) -> Iterator[KeyValue]:
    """Yield key and value of every record in whole batches, in order, skipping control batches.

    The CRCs are not checked again.
    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic.
    Cost: 1.2 us per record that is alone in its batch.
    """
    at, limit, shape = 0, len(buf), _HEADER_FIELDS.unpack_from
    while at < limit:
        try:
            length, magic, attributes, count = shape(buf, at)
        except error:
            raise CorruptBatch(f"{limit - at} bytes are no batch", at) from None
        end = at + LOG_OVERHEAD + length
        if length <= 0 or end > limit or magic != MAGIC:
            next(iter_headers(buf, at))  # raises the reason
        is_plain = count == 1 and not attributes & _UNUSUAL_ATTRIBUTES
        plain = _read_plain_key_value(buf, at + HEADER_SIZE, end) if is_plain else None
        if plain is not None:
            yield plain
        elif not attributes & CONTROL_BIT:
            yield from _iter_batch(buf, at)
        at = end


def _iter_batch(buf: bytes, at: int) -> Iterator[KeyValue]:
    header = read_header(buf, at)
    section = decompress_section(buf, at, header)
    for _, _, key, _, value_at, size, _ in iter_spans(section, header):
        yield key, None if size < 0 else section[value_at : value_at + size]


def _read_plain_key_value(buf: bytes, at: int, end: int) -> KeyValue | None:
    """Return key and value of the one record that fills `at` to `end`; None for anything unusual."""
    if end - at > _PLAIN_SIZE_MAX:
        return None
    try:
        at += 1 if buf[at] < 0x80 else 2  # length
        at += 1  # attributes
        at += 1 if buf[at] < 0x80 else 2  # timestamp delta
        if buf[at]:  # offset delta: records before it were removed
            return None
        key, at = _read_short_bytes(buf, at + 1)
        value, at = _read_short_bytes(buf, at)
        # No headers and no bytes left over; anything else is unusual.
        return None if at + 1 != end or buf[at] else (key, value)
    except IndexError:
        return None


def _read_short_bytes(buf: bytes, at: int) -> tuple[bytes | None, int]:
    raw = buf[at]
    if raw > 0x7F:
        raw += (buf[at := at + 1] << 7) - 0x80
    at += 1
    end = at + (raw >> 1)
    return (None, at) if raw & 1 else (buf[at:end], end)
