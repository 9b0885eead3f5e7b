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

from tallystick.client.producer.partitioner import hash_key_to_partition
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchHeader, Codec, Headers, native
from tallystick.protocol.records.batch import MAGIC, TRANSACTIONAL_BIT
from tallystick.protocol.records.record import Record, encode_headers, encode_records, encode_zigzag
from tallystick.protocol.records.section import build_batch

# Attributes, deltas, lengths and the number of headers of one record, at their longest.
# Source: DefaultRecord.MAX_RECORD_OVERHEAD.
RECORD_OVERHEAD: Final = 21
HEADER_OVERHEAD: Final = 10

# Varints of value sizes below this, and of all offsets, come from tables.
_VARINT_TABLE_SIZE: Final = 8192
_TABLE_VALUE_SIZE_MAX: Final = _VARINT_TABLE_SIZE - RECORD_OVERHEAD
# Fewest records for which filling a column pays.
_RUN_MIN: Final = 8

TimestampRun = tuple[int, int]
"""First place of a run of records with equal timestamps, and the timestamp."""


class Rows(Protocol):
    """Records of one batch, in whatever form they came."""

    @property
    def count(self) -> int: ...
    @property
    def timestamp_runs(self) -> Sequence[TimestampRun]: ...
    def encode_section(self) -> bytes:
        """Return the record section, uncompressed."""
        ...

    def compute_size_bounds(self) -> Sequence[int]:
        """Return the upper bound in bytes of all records before each place, and of all records."""
        ...

    def slice_rows(self, begin: int, end: int) -> "Rows":
        """Return the records from `begin` up to `end`."""
        ...

    @property
    def has_keys(self) -> bool:
        """Whether any record has a key."""
        ...

    def group_by_partition(self, partitions: int) -> "Mapping[int | None, Sequence[int]]":
        """Return the places of the records by partition; under None those without a key."""
        ...

    def select_rows(self, places: Sequence[int], *, keyed: bool) -> "Rows":
        """Return the records at these places, with or without their keys."""
        ...


class ListRows(Value, kw_only=True):
    """Records as lists of equal length; `keys` or `headers` is None where no record has any."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    timestamp_runs: Sequence[TimestampRun]

    @property
    def count(self) -> int:
        return len(self.values)

    def encode_section(self) -> bytes:
        section = self._encode_natively()
        if section is not None:
            return section
        if self.keys is None and self.headers is None and None not in self.values:
            section = _encode_values_only(cast(Sequence[bytes], self.values), self.timestamp_runs)
            if section is not None:
                return section
        return encode_records(list(self.iter_records()), 0, self.timestamp_runs[0][1])

    def _encode_natively(self) -> bytes | None:
        if native.codec is None:
            return None
        keys = None if self.keys is None else list(self.keys)
        tails = None if self.headers is None else encode_tails(self.headers)
        return native.codec.encode(self.count, list(self.timestamp_runs), list(self.values), keys, tails)

    def iter_records(self) -> Iterator[Record]:
        """Return the records one by one, with offsets from 0."""
        n = self.count
        keys = self.keys if self.keys is not None else (None,) * n
        headers = self.headers if self.headers is not None else ((),) * n
        times = _expand_runs(self.timestamp_runs, n)
        return map(Record, range(n), times, keys, self.values, headers)

    def compute_size_bounds(self) -> list[int]:
        sizes = [len(value or b"") + RECORD_OVERHEAD for value in self.values]
        if self.keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, self.keys, strict=True)]
        if self.headers is not None:
            sizes = [size + estimate_headers_size(h) for size, h in zip(sizes, self.headers, strict=True)]
        return list(accumulate(sizes, initial=0))

    def slice_rows(self, begin: int, end: int) -> "ListRows":
        return ListRows(
            values=self.values[begin:end],
            keys=None if self.keys is None else self.keys[begin:end],
            headers=None if self.headers is None else self.headers[begin:end],
            timestamp_runs=slice_runs(self.timestamp_runs, begin, end),
        )

    @property
    def has_keys(self) -> bool:
        return self.keys is not None

    def group_by_partition(self, partitions: int) -> "dict[int | None, Sequence[int]]":
        return {None: range(self.count)} if self.keys is None else group_by_partition(self.keys, partitions)

    def select_rows(self, places: Sequence[int], *, keyed: bool) -> "ListRows":
        return ListRows(
            values=[self.values[place] for place in places],
            keys=[self.keys[place] for place in places] if keyed and self.keys is not None else None,
            headers=None if self.headers is None else [self.headers[place] for place in places],
            timestamp_runs=select_runs(self.timestamp_runs, places),
        )


def encode_tails(headers: Sequence[Headers]) -> list[bytes | None]:
    """Return each record's encoded headers. Consecutive identical headers are encoded once."""
    tails: list[bytes | None] = []
    before, tail = headers[0], encode_headers(headers[0])
    for own in headers:
        if own is not before:
            before, tail = own, encode_headers(own)
        tails.append(tail)
    return tails


def estimate_headers_size(headers: Headers) -> int:
    """Return the most bytes that the headers take."""
    return sum(HEADER_OVERHEAD + len(name.encode()) + len(content or b"") for name, content in headers)


def find_timestamp(runs: Sequence[TimestampRun], place: int) -> int:
    """Return the timestamp of one record."""
    return runs[bisect_right(runs, place, key=_run_start) - 1][1]


def slice_runs(runs: Sequence[TimestampRun], begin: int, end: int) -> list[TimestampRun]:
    """Return the runs of the records from `begin` up to `end`."""
    first = bisect_right(runs, begin, key=_run_start) - 1
    last = bisect_right(runs, end - 1, key=_run_start)
    return [(max(at - begin, 0), ms) for at, ms in runs[first:last]]


def select_runs(runs: Sequence[TimestampRun], places: Sequence[int]) -> list[TimestampRun]:
    """Return the runs of the records at these places."""
    if len(runs) == 1:
        return list(runs)
    return build_runs([find_timestamp(runs, place) for place in places])


def build_runs(times: Sequence[int]) -> list[TimestampRun]:
    """Return the runs of equal timestamps, given one for each record."""
    before = chain((None,), times)
    return [(place, ms) for place, (ms, last) in enumerate(zip(times, before, strict=False)) if ms != last]


def _run_start(run: TimestampRun) -> int:
    return run[0]


def _expand_runs(runs: Sequence[TimestampRun], count: int) -> Iterator[int]:
    ends = [at for at, _ in runs[1:]] + [count]
    for (begin, ms), end in zip(runs, ends, strict=True):
        yield from [ms] * (end - begin)


def split_rows(rows: Rows, room: int) -> Iterator[tuple[Rows, int]]:
    """Yield parts of at most `room` bytes, at least one record each, with their sizes."""
    upto = rows.compute_size_bounds()
    begin, n = 0, rows.count
    while begin < n:
        end = max(bisect_right(upto, upto[begin] + room) - 1, begin + 1)
        yield rows if end - begin == n else rows.slice_rows(begin, end), int(upto[end] - upto[begin])
        begin = end


def group_by_partition(keys: Sequence[bytes | None], partitions: int) -> dict[int | None, Sequence[int]]:
    """Return the places of the records by partition; under None those without a key."""
    places: dict[int | None, list[int]] = {}
    codec = native.codec
    hashed = None if codec is None else codec.partitions(len(keys), list(keys), partitions)
    if hashed is not None:
        for place, number in enumerate(memoryview(hashed).cast("i")):
            places.setdefault(number, []).append(place)
        return {None if number == -1 else number: of for number, of in places.items()}
    for place, key in enumerate(keys):
        places.setdefault(None if key is None else hash_key_to_partition(key, partitions), []).append(place)
    return dict(places)


# --------------------------------------------------------------------------------- sections


def _encode_values_only(values: Sequence[bytes], runs: Sequence[TimestampRun]) -> bytes | None:
    """Return the section of records without key and headers; None where columns do not pay."""
    n = len(values)
    base = runs[0][1]
    if (
        len(runs) * _RUN_MIN > n + _RUN_MIN
        or not 0 <= max(runs, key=_run_timestamp)[1] - base < _VARINT_TABLE_SIZE
    ):
        return None
    if min(runs, key=_run_timestamp)[1] < base:
        return None
    sizes = list(map(len, values))
    longest = max(sizes)
    if longest > _TABLE_VALUE_SIZE_MAX:
        return None
    same = sizes.count(longest) == n
    where = get_offset_varints(n)
    parts: list[bytes] = [b""] * (4 * n)
    parts[1::4] = where[:n]
    parts[3::4] = values
    tail = _build_size_varints()
    parts[2::4] = [tail[longest]] * n if same else map(tail.__getitem__, sizes)
    for begin, end, when in _iter_varint_stretches(runs, n):
        head = _get_record_heads(when - base, len(where[begin]))
        parts[4 * begin : 4 * end : 4] = (
            [head[longest]] * (end - begin) if same else map(head.__getitem__, sizes[begin:end])
        )
    # A head begins with the last byte of the record before: its number of headers, 0.
    parts[0] = parts[0][1:]
    parts.append(b"\0")
    return b"".join(parts)


def _run_timestamp(run: TimestampRun) -> int:
    return run[1]


def _iter_varint_stretches(runs: Sequence[TimestampRun], count: int) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and timestamp of stretches of records whose varints have the same length."""
    bounds = [at for at in _OFFSET_STEPS if at < count]
    starts = sorted({at for at, _ in runs}.union(bounds))
    for begin, end in zip(starts, [*starts[1:], count], strict=True):
        yield begin, end, find_timestamp(runs, begin)


# Offsets at which the varint becomes one byte longer.
_OFFSET_STEPS: Final = (64, 8192, 1 << 20, 1 << 27)


def get_offset_varints(count: int) -> list[bytes]:
    """Return, for `count` places or more, the offset's varint followed by "no key"."""
    if len(_OFFSET_VARINTS) < count:
        _OFFSET_VARINTS.extend(encode_zigzag(n) + b"\x01" for n in range(len(_OFFSET_VARINTS), count))
    return _OFFSET_VARINTS


_OFFSET_VARINTS: Final[list[bytes]] = []


@lru_cache(512)
def _get_record_heads(delta: int, offset_bytes: int) -> "_RecordHeads":
    return _RecordHeads(encode_zigzag(delta), offset_bytes)


class _RecordHeads(dict[int, bytes]):
    """Heads by the size of the value: the end of the record before, this record's size, attributes, time."""

    def __init__(self, when: bytes, offset_bytes: int) -> None:
        super().__init__()
        # Attributes, time, offset with "no key", and the number of headers.
        self._time_varint, self._fixed_bytes = b"\0" + when, 1 + len(when) + offset_bytes + 1

    def __missing__(self, size: int) -> bytes:
        whole = self._fixed_bytes + len(encode_zigzag(size)) + size
        head = self[size] = b"\0" + encode_zigzag(whole) + self._time_varint
        return head


@cache
def _build_size_varints() -> tuple[bytes, ...]:
    return tuple(encode_zigzag(n) for n in range(_VARINT_TABLE_SIZE))


# ---------------------------------------------------------------------------------- batches


class BatchProducerState(Value, kw_only=True):
    """Producer id and epoch of a batch, its first sequence number, and whether it is transactional."""

    identity: ProducerIdAndEpoch | None = None
    base_sequence: int = -1
    is_transactional: bool = False


def assemble_batch(rows: Rows, payload: bytes, codec: Codec, signature: BatchProducerState) -> bytes:
    """Return a whole batch: header, CRC, and the packed section that is given."""
    who = signature.identity
    times = [ms for _, ms in rows.timestamp_runs]
    return build_batch(
        BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=codec | (TRANSACTIONAL_BIT if signature.is_transactional else 0),
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
