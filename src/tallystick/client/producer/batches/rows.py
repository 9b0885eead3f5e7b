"""Batches from columns: all values of a batch, all keys, runs of equal timestamps. Pure.

The codec's extension encodes the columns. Without it `encode_records` does, record by record; the bytes are
the same [CLI-26].

For Arrow arrays see `arrow_rows.py`.

Source: the format is in protocol/records/record.py; docs/adr/0005.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final, Protocol

from tallystick.client.producer.batches.partitioner import hash_key_to_partition
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchHeader, Codec, Headers, native
from tallystick.protocol.records.batch import MAGIC, TRANSACTIONAL_BIT
from tallystick.protocol.records.record import Record, encode_headers, encode_records
from tallystick.protocol.records.section import build_batch

# Attributes, deltas, lengths and the number of headers of one record, at their longest.
# Source: DefaultRecord.MAX_RECORD_OVERHEAD.
RECORD_OVERHEAD: Final = 21
HEADER_OVERHEAD: Final = 10

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

    def select_rows(self, places: Sequence[int], *, with_keys: bool) -> "Rows":
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

    def select_rows(self, places: Sequence[int], *, with_keys: bool) -> "ListRows":
        return ListRows(
            values=[self.values[place] for place in places],
            keys=[self.keys[place] for place in places] if with_keys and self.keys is not None else None,
            headers=None if self.headers is None else [self.headers[place] for place in places],
            timestamp_runs=select_runs(self.timestamp_runs, places),
        )


def encode_tails(headers: Sequence[Headers]) -> list[bytes | None]:
    """Return each record's encoded headers. Consecutive identical headers are encoded once."""
    tails: list[bytes | None] = []
    before, tail = headers[0], encode_headers(headers[0])
    for record_headers in headers:
        if record_headers is not before:
            before, tail = record_headers, encode_headers(record_headers)
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
    number_bytes = None if codec is None else codec.partitions(len(keys), list(keys), partitions)
    if number_bytes is not None:
        for place, number in enumerate(memoryview(number_bytes).cast("i")):
            places.setdefault(number, []).append(place)
        return {None if number == -1 else number: of for number, of in places.items()}
    for place, key in enumerate(keys):
        places.setdefault(None if key is None else hash_key_to_partition(key, partitions), []).append(place)
    return dict(places)


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
