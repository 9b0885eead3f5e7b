"""Column-wise reader for batches whose records all have one shape. Pure.

Most batches hold records that differ only in their content: no headers, keys and values of one size.
Such records have the same length, so the n-th byte of each is a slice with a stride: a byte that is the same
in all of them (a length, the attributes) is checked for a whole run at once, and numbers are read a column at
a time. That takes a third of the time of reading record by record.

`read_regular` returns None for a batch of another kind, which is left to the thorough reader; its results
equal those of that reader. Nothing is assumed: every byte of the section is either content or was compared
with its expected value [CLI-37].

A run ends where a number grows by a byte: after the 64th and the 8192nd record, and where the time has moved
on 64 ms and 8.2 s from the first record's.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import repeat
from typing import Final

from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchHeader

# Fewest records in a batch for which columns pay.
RECORDS_MIN: Final = 16
# Number of shorter runs after which a batch is left to the thorough reader.
_SHORT_RUNS_MAX: Final = 8
# Longer sizes and times are rare.
_VARINT_BYTES_MAX: Final = 4
# Offset deltas of up to this many bytes are kept in a table: the first 8192.
_CACHED_DELTA_BYTES_MAX: Final = 2

# Far below the point where Java's addition wraps.
_TIMESTAMP_MAX: Final = 2**62

_UNZIGZAG: Final = tuple((raw >> 1) ^ -(raw & 1) for raw in range(128))
_HIGH_BIT: Final = bytes(byte >> 7 for byte in range(256))

FieldContent = bytes | None
RecordColumns = tuple[list[int], list[FieldContent], list[FieldContent]]
"""Timestamps, keys and values; offsets count up from the batch's base."""


class _RecordLayout(Value):
    """Layout of a run's records: positions from the record's first byte, and sizes."""

    constant_bytes: tuple[tuple[int, int], ...]  # position and content of every byte that is the same in all
    time_at: int
    time_size: int
    delta_at: int
    delta_size: int
    key: tuple[int, int] | None
    value: tuple[int, int] | None
    size: int


def has_plain_offsets(header: BatchHeader) -> bool:
    """Tell whether the batch has a record for every offset, and producer times that cannot overflow."""
    return (
        header.record_count == header.last_offset_delta + 1
        and header.log_append_time_ms is None
        and 0 <= header.base_timestamp <= _TIMESTAMP_MAX
    )


def read_regular(section: bytes, header: BatchHeader) -> RecordColumns | None:
    """Return all records of a plain batch's section; None if they are not regular or malformed."""
    count = header.record_count
    if count < RECORDS_MIN:
        return None
    times: list[int] = []
    keys: list[FieldContent] = []
    values: list[FieldContent] = []
    at = done = short = 0
    while done < count:
        shape = _parse_layout(section, at)
        run = 0 if shape is None else _count_run(section, at, shape, done, count - done)
        if shape is None or not run:
            return None
        short += run < RECORDS_MIN
        if short > _SHORT_RUNS_MAX:
            return None
        end = at + run * shape.size
        columns = [section[at + shape.time_at + i : end : shape.size] for i in range(shape.time_size)]
        times += _decode_timestamps(columns, header.base_timestamp)
        keys += _slice_contents(section, at, end, shape.size, shape.key)
        values += _slice_contents(section, at, end, shape.size, shape.value)
        at, done = end, done + run
    return (times, keys, values) if at == len(section) else None


def _parse_layout(section: bytes, at: int) -> _RecordLayout | None:
    """Return the layout of the record at `at`; None if this module does not read it."""
    begin, fixed = at, []
    try:
        size, at = _read_varint(section, at)
        fixed += [(i - begin, section[i]) for i in range(begin, at)]
        end = at + (size >> 1)
        fixed.append((at - begin, 0))
        time_at = at = at + 1
        _, at = _read_varint(section, at)
        delta_at = at
        _, at = _read_varint(section, at)
        delta_end = at
        key_size, key_at = _read_varint(section, at)
        at = key_at if key_size & 1 else key_at + (key_size >> 1)
        value_size, value_at = _read_varint(section, at)
        lengths = (*range(delta_end, key_at), *range(at, value_at))
        at = value_at if value_size & 1 else value_at + (value_size >> 1)
        fixed += [(i - begin, section[i]) for i in lengths]
        fixed.append((at - begin, 0))  # no headers
        if size & 1 or at + 1 != end:
            return None
    except (IndexError, OverflowError):
        return None
    return _RecordLayout(
        tuple(fixed),
        time_at - begin,
        delta_at - time_at,
        delta_at - begin,
        delta_end - delta_at,
        None if key_size & 1 else (key_at - begin, key_size >> 1),
        None if value_size & 1 else (value_at - begin, value_size >> 1),
        end - begin,
    )


def _read_varint(section: bytes, at: int) -> tuple[int, int]:
    """Return a number, still in zigzag, and its end. Raises: OverflowError for a long one, IndexError."""
    raw = 0
    for i in range(_VARINT_BYTES_MAX):
        byte = section[at + i]
        raw |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return raw, at + i + 1
    raise OverflowError


def _count_run(section: bytes, at: int, shape: _RecordLayout, first: int, most: int) -> int:
    """Count the records from `at` that have this shape and the offset deltas from `first` on."""
    size = shape.size
    run = min(most, (len(section) - at) // size)
    for position, byte in shape.constant_bytes:
        column = section[at + position : at + run * size : size]
        run = len(column) - len(column.lstrip(bytes((byte,))))
    for i in range(shape.time_size):
        column = section[at + shape.time_at + i : at + run * size : size].translate(_HIGH_BIT)
        run = len(column) - len(column.lstrip(b"\1" if i < shape.time_size - 1 else b"\0"))
    # Offsets count up by one: their bytes are known.
    run = min(run, (1 << 7 * shape.delta_size - 1) - first)
    for i, column in enumerate(_encode_deltas(shape.delta_size, first, run)):
        if section[at + shape.delta_at + i : at + run * size : size] != column:
            return 0
    return max(run, 0)


def _encode_deltas(size: int, first: int, run: int) -> Iterable[bytes]:
    """Return the columns of the varints of `first`, `first` + 1, ..., each of `size` bytes."""
    if size <= _CACHED_DELTA_BYTES_MAX:
        return [column[first : first + run] for column in _encode_all_deltas(size)]
    return _encode_varint_columns(range(first, first + run), size)


@cache
def _encode_all_deltas(size: int) -> tuple[bytes, ...]:
    return tuple(_encode_varint_columns(range(1 << 7 * size - 1), size))


def _encode_varint_columns(numbers: range, size: int) -> Iterator[bytes]:
    for i in range(size):
        high = 0x80 if i < size - 1 else 0
        yield bytes([number << 1 >> 7 * i & 0x7F | high for number in numbers])


def _decode_timestamps(columns: list[bytes], base: int) -> list[int]:
    if len(columns) == 1:
        return list(map([base + delta for delta in _UNZIGZAG].__getitem__, columns[0]))
    raws = [raw & 0x7F for raw in columns[0]]
    for i, column in enumerate(columns[1:], 1):
        raws = [raw | (more & 0x7F) << 7 * i for raw, more in zip(raws, column, strict=True)]
    return [base + ((raw >> 1) ^ -(raw & 1)) for raw in raws]


def _slice_contents(
    section: bytes, at: int, end: int, stride: int, field: tuple[int, int] | None
) -> list[FieldContent]:
    if field is None:
        return list(repeat(None, (end - at) // stride))
    begin, size = at + field[0], field[1]
    return [section[i : i + size] for i in range(begin, end, stride)]
