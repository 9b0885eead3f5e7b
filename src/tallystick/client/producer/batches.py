"""Record sections built from columns: all values of a batch, all keys, runs of equal timestamps. Pure.

`records.encode_batch` works record by record. Here a section is the concatenation of columns, and each column
is filled by one call. For records without key and headers the columns are

    size, attributes and time | offset, no key | value's size | value | no headers, and the next record

where the second column is a slice of a table. If all values have one size, the first and third are one
constant; otherwise they are looked up by size. That is four pointers per record and no bytecode. Everything
else goes through `encode_records`. The codec's extension, where there is one, does all of it. The result is
the same bytes [CLI-26].

For Arrow arrays see `arrow_rows.py`.

Source: the format is in protocol/records/record.py; docs/adr/0005.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain
from typing import Final, Protocol, cast

from tallystick.client.producer.partitioner import partition_of
from tallystick.kernel.ids import Identity
from tallystick.kernel.value import frozen
from tallystick.protocol.records import BatchHeader, Codec, Headers, native
from tallystick.protocol.records.batch import MAGIC, TRANSACTIONAL_BIT
from tallystick.protocol.records.record import Record, encode_headers, encode_records, encode_zigzag
from tallystick.protocol.records.section import seal

# Attributes, deltas, lengths and the number of headers of one record, at their longest.
# Source: DefaultRecord.MAX_RECORD_OVERHEAD.
RECORD_OVERHEAD: Final = 21
HEADER_OVERHEAD: Final = 10

# Varints of value sizes below this, and of all offsets, come from tables.
_TABLE: Final = 8192
_SIZES_MAX: Final = _TABLE - RECORD_OVERHEAD
# Fewest records for which filling a column pays.
_RUN_MIN: Final = 8

Run = tuple[int, int]
"""First place of a run of records with equal timestamps, and the timestamp."""


class Rows(Protocol):
    """Records of one batch, in whatever form they came."""

    @property
    def count(self) -> int: ...
    @property
    def runs(self) -> Sequence[Run]: ...
    def section(self) -> bytes:
        """Return the record section, uncompressed."""
        ...

    def upto(self) -> Sequence[int]:
        """Return the upper bound in bytes of all records before each place, and of all records."""
        ...

    def part(self, begin: int, end: int) -> "Rows":
        """Return the records from `begin` up to `end`."""
        ...

    @property
    def keyed(self) -> bool:
        """Whether any record has a key."""
        ...

    def by_partition(self, partitions: int) -> "Mapping[int | None, Sequence[int]]":
        """Return the places of the records by partition; under None those without a key."""
        ...

    def pick(self, places: Sequence[int], *, keyed: bool) -> "Rows":
        """Return the records at these places, with or without their keys."""
        ...


@frozen(kw_only=True)
class Columns:
    """Records as lists of equal length; `keys` or `headers` is None where no record has any."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    runs: Sequence[Run]

    @property
    def count(self) -> int:
        return len(self.values)

    def section(self) -> bytes:
        section = self._section_natively()
        if section is not None:
            return section
        if self.keys is None and self.headers is None and None not in self.values:
            section = _values_alone(cast(Sequence[bytes], self.values), self.runs)
            if section is not None:
                return section
        return encode_records(list(self.records()), 0, self.runs[0][1])

    def _section_natively(self) -> bytes | None:
        if native.codec is None:
            return None
        keys = None if self.keys is None else list(self.keys)
        tails = None if self.headers is None else tails_of(self.headers)
        return native.codec.encode(self.count, list(self.runs), list(self.values), keys, tails)

    def records(self) -> Iterator[Record]:
        """Return the records one by one, with offsets from 0."""
        n = self.count
        keys = self.keys if self.keys is not None else (None,) * n
        headers = self.headers if self.headers is not None else ((),) * n
        times = _times(self.runs, n)
        return map(Record, range(n), times, keys, self.values, headers)

    def upto(self) -> list[int]:
        sizes = [len(value or b"") + RECORD_OVERHEAD for value in self.values]
        if self.keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, self.keys, strict=True)]
        if self.headers is not None:
            sizes = [size + headers_size(h) for size, h in zip(sizes, self.headers, strict=True)]
        return list(accumulate(sizes, initial=0))

    def part(self, begin: int, end: int) -> "Columns":
        return Columns(
            values=self.values[begin:end],
            keys=None if self.keys is None else self.keys[begin:end],
            headers=None if self.headers is None else self.headers[begin:end],
            runs=part_of_runs(self.runs, begin, end),
        )

    @property
    def keyed(self) -> bool:
        return self.keys is not None

    def by_partition(self, partitions: int) -> "dict[int | None, Sequence[int]]":
        return {None: range(self.count)} if self.keys is None else by_partition(self.keys, partitions)

    def pick(self, places: Sequence[int], *, keyed: bool) -> "Columns":
        return Columns(
            values=[self.values[place] for place in places],
            keys=[self.keys[place] for place in places] if keyed and self.keys is not None else None,
            headers=None if self.headers is None else [self.headers[place] for place in places],
            runs=picked_runs(self.runs, places),
        )


def tails_of(headers: Sequence[Headers]) -> list[bytes | None]:
    """Return each record's encoded headers. Consecutive identical headers are encoded once."""
    tails: list[bytes | None] = []
    before, tail = headers[0], encode_headers(headers[0])
    for own in headers:
        if own is not before:
            before, tail = own, encode_headers(own)
        tails.append(tail)
    return tails


def headers_size(headers: Headers) -> int:
    """Return the most bytes that the headers take."""
    return sum(HEADER_OVERHEAD + len(name.encode()) + len(content or b"") for name, content in headers)


def time_at(runs: Sequence[Run], place: int) -> int:
    """Return the timestamp of one record."""
    return runs[bisect_right(runs, place, key=_begin) - 1][1]


def part_of_runs(runs: Sequence[Run], begin: int, end: int) -> list[Run]:
    """Return the runs of the records from `begin` up to `end`."""
    first = bisect_right(runs, begin, key=_begin) - 1
    last = bisect_right(runs, end - 1, key=_begin)
    return [(max(at - begin, 0), ms) for at, ms in runs[first:last]]


def picked_runs(runs: Sequence[Run], places: Sequence[int]) -> list[Run]:
    """Return the runs of the records at these places."""
    if len(runs) == 1:
        return list(runs)
    return runs_of([time_at(runs, place) for place in places])


def runs_of(times: Sequence[int]) -> list[Run]:
    """Return the runs of equal timestamps, given one for each record."""
    before = chain((None,), times)
    return [(place, ms) for place, (ms, last) in enumerate(zip(times, before, strict=False)) if ms != last]


def _begin(run: Run) -> int:
    return run[0]


def _times(runs: Sequence[Run], count: int) -> Iterator[int]:
    ends = [at for at, _ in runs[1:]] + [count]
    for (begin, ms), end in zip(runs, ends, strict=True):
        yield from [ms] * (end - begin)


def cut(rows: Rows, room: int) -> Iterator[tuple[Rows, int]]:
    """Yield parts of at most `room` bytes, at least one record each, with their sizes."""
    upto = rows.upto()
    begin, n = 0, rows.count
    while begin < n:
        end = max(bisect_right(upto, upto[begin] + room) - 1, begin + 1)
        yield rows if end - begin == n else rows.part(begin, end), int(upto[end] - upto[begin])
        begin = end


def by_partition(keys: Sequence[bytes | None], partitions: int) -> dict[int | None, Sequence[int]]:
    """Return the places of the records by partition; under None those without a key."""
    places: dict[int | None, list[int]] = {}
    codec = native.codec
    hashed = None if codec is None else codec.partitions(len(keys), list(keys), partitions)
    if hashed is not None:
        for place, number in enumerate(memoryview(hashed).cast("i")):
            places.setdefault(number, []).append(place)
        return {None if number == -1 else number: of for number, of in places.items()}
    for place, key in enumerate(keys):
        places.setdefault(None if key is None else partition_of(key, partitions), []).append(place)
    return dict(places)


# --------------------------------------------------------------------------------- sections


def _values_alone(values: Sequence[bytes], runs: Sequence[Run]) -> bytes | None:
    """Return the section of records without key and headers; None where columns do not pay."""
    n = len(values)
    base = runs[0][1]
    if len(runs) * _RUN_MIN > n + _RUN_MIN or not 0 <= max(runs, key=_ms)[1] - base < _TABLE:
        return None
    if min(runs, key=_ms)[1] < base:
        return None
    sizes = list(map(len, values))
    longest = max(sizes)
    if longest > _SIZES_MAX:
        return None
    same = sizes.count(longest) == n
    where = offsets_table(n)
    parts: list[bytes] = [b""] * (4 * n)
    parts[1::4] = where[:n]
    parts[3::4] = values
    tail = _value_sizes()
    parts[2::4] = [tail[longest]] * n if same else map(tail.__getitem__, sizes)
    for begin, end, when in _stretches(runs, n):
        head = _heads(when - base, len(where[begin]))
        parts[4 * begin : 4 * end : 4] = (
            [head[longest]] * (end - begin) if same else map(head.__getitem__, sizes[begin:end])
        )
    # A head begins with the last byte of the record before: its number of headers, 0.
    parts[0] = parts[0][1:]
    parts.append(b"\0")
    return b"".join(parts)


def _ms(run: Run) -> int:
    return run[1]


def _stretches(runs: Sequence[Run], count: int) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and timestamp of stretches of records whose varints have the same length."""
    bounds = [at for at in _OFFSET_STEPS if at < count]
    starts = sorted({at for at, _ in runs}.union(bounds))
    for begin, end in zip(starts, [*starts[1:], count], strict=True):
        yield begin, end, time_at(runs, begin)


# Offsets at which the varint becomes one byte longer.
_OFFSET_STEPS: Final = (64, 8192, 1 << 20, 1 << 27)


def offsets_table(count: int) -> list[bytes]:
    """Return, for `count` places or more, the offset's varint followed by "no key"."""
    if len(_OFFSETS) < count:
        _OFFSETS.extend(encode_zigzag(n) + b"\x01" for n in range(len(_OFFSETS), count))
    return _OFFSETS


_OFFSETS: Final[list[bytes]] = []


@lru_cache(512)
def _heads(delta: int, offset_bytes: int) -> "_Heads":
    return _Heads(encode_zigzag(delta), offset_bytes)


class _Heads(dict[int, bytes]):
    """Heads by the size of the value: the end of the record before, this record's size, attributes, time."""

    def __init__(self, when: bytes, offset_bytes: int) -> None:
        super().__init__()
        # Attributes, time, offset with "no key", and the number of headers.
        self._when, self._beside = b"\0" + when, 1 + len(when) + offset_bytes + 1

    def __missing__(self, size: int) -> bytes:
        whole = self._beside + len(encode_zigzag(size)) + size
        made = self[size] = b"\0" + encode_zigzag(whole) + self._when
        return made


@cache
def _value_sizes() -> tuple[bytes, ...]:
    return tuple(encode_zigzag(n) for n in range(_TABLE))


# ---------------------------------------------------------------------------------- batches


@frozen(kw_only=True)
class Signature:
    """Producer id and epoch of a batch, its first sequence number, and whether it is transactional."""

    identity: Identity | None = None
    base_sequence: int = -1
    transactional: bool = False


def sealed(rows: Rows, payload: bytes, codec: Codec, signature: Signature) -> bytes:
    """Return a whole batch: header, CRC, and the packed section that is given."""
    who = signature.identity
    times = [ms for _, ms in rows.runs]
    return seal(
        BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=codec | (TRANSACTIONAL_BIT if signature.transactional else 0),
            last_offset_delta=rows.count - 1,
            base_timestamp=times[0],
            max_timestamp=max(times),
            producer_id=-1 if who is None else who.producer_id,
            producer_epoch=-1 if who is None else who.epoch,
            base_sequence=signature.base_sequence,
            record_count=rows.count,
        ),
        payload,
    )
