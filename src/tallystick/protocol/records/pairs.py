"""Key and value of every record, for those who replay a whole log and look at nothing else.

A coordinator's log is mostly batches of one small record each. What it takes to make a header and a record
of those is five times what it takes to find key and value, so they are read in place.
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
from tallystick.protocol.records.record import walk
from tallystick.protocol.records.section import unpack_section

# Of the header: batch length, magic, attributes, record count.
_SHAPE: Final = Struct(">8xi4xb4xh34xi")
_UNUSUAL: Final = CODEC_MASK | CONTROL_BIT
# Every length in a record of this size takes two bytes at most.
_PLAIN_SIZE_MAX: Final = 0x1FFF

Pair = tuple[bytes | None, bytes | None]


def iter_pairs(buf: bytes) -> Iterator[Pair]:
    """Key and value of every record in whole batches, in order; control batches are left out.

    The CRCs are not checked again.
    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic.
    Cost: 1.2 us a record that has its batch to itself.
    """
    at, limit, shape = 0, len(buf), _SHAPE.unpack_from
    while at < limit:
        try:
            length, magic, attributes, count = shape(buf, at)
        except error:
            raise CorruptBatch(f"{limit - at} bytes are no batch", at) from None
        end = at + LOG_OVERHEAD + length
        if length <= 0 or end > limit or magic != MAGIC:
            next(iter_headers(buf, at))  # says what is wrong with it
        is_plain = count == 1 and not attributes & _UNUSUAL
        plain = _plain_pair(buf, at + HEADER_SIZE, end) if is_plain else None
        if plain is not None:
            yield plain
        elif not attributes & CONTROL_BIT:
            yield from _pairs_of(buf, at)
        at = end


def _pairs_of(buf: bytes, at: int) -> Iterator[Pair]:
    header = read_header(buf, at)
    section = unpack_section(buf, at, header)
    for _, _, key, _, value_at, size, _ in walk(section, header):
        yield key, None if size < 0 else section[value_at : value_at + size]


def _plain_pair(buf: bytes, at: int, end: int) -> Pair | None:
    """Key and value of the one record that fills `at` to `end`; None where it is anything unusual."""
    if end - at > _PLAIN_SIZE_MAX:
        return None
    try:
        at += 1 if buf[at] < 0x80 else 2  # its length
        at += 1  # its attributes
        at += 1 if buf[at] < 0x80 else 2  # its time
        if buf[at]:  # its offset: something was before it
            return None
        key, at = _short_bytes(buf, at + 1)
        value, at = _short_bytes(buf, at)
        # No headers, and nothing behind; else a length was not what it seemed.
        return None if at + 1 != end or buf[at] else (key, value)
    except IndexError:
        return None


def _short_bytes(buf: bytes, at: int) -> tuple[bytes | None, int]:
    raw = buf[at]
    if raw > 0x7F:
        raw += (buf[at := at + 1] << 7) - 0x80
    at += 1
    end = at + (raw >> 1)
    return (None, at) if raw & 1 else (buf[at:end], end)
