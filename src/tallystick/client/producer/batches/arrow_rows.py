"""Records from Arrow arrays. Pure.

The codec's extension encodes a section from the arrays' buffers, without an object per record. Without it
the arrays become lists. The bytes are the same [CLI-26].

numpy and pyarrow are loaded on the first use of an Arrow array, not before.

Source: docs/adr/0005.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Final, Protocol, Self, cast

from tallystick import _lazy
from tallystick.client.producer.batches.rows import (
    RECORD_OVERHEAD,
    ListRows,
    TimestampRun,
    encode_tails,
    estimate_headers_size,
    group_by_partition,
    select_runs,
    slice_runs,
)
from tallystick.protocol.records import Headers, native

_INT16_MAX: Final = 2**15 - 1


class ArrowArray(Protocol):
    """Subset of an Arrow array's methods that is used here. The array may be chunked."""

    type: object
    offset: int

    def buffers(self) -> list[object]: ...
    def __len__(self) -> int: ...
    def cast(self, target_type: object) -> Self: ...
    def slice(self, offset: int, length: int) -> Self: ...
    def take(self, indices: object) -> Self: ...
    def to_pylist(self) -> list[bytes | None]: ...


class Int64Array(Protocol):
    """Subset of the methods of a numpy array of int64 that is used here."""

    def __add__(self, other: object) -> "Int64Array": ...


class ArrowRows:
    """Records as one or two arrays of `large_binary`, with timestamps and headers in lists."""

    __slots__ = ("_keys", "_values", "headers", "timestamp_runs")

    def __init__(
        self,
        values: ArrowArray,
        keys: ArrowArray | None,
        runs: Sequence[TimestampRun],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        self._values, self._keys, self.timestamp_runs, self.headers = values, keys, runs, headers

    @classmethod
    def from_arrays(
        cls,
        values: ArrowArray,
        keys: ArrowArray | None,
        runs: Sequence[TimestampRun],
        headers: Sequence[Headers] | None = None,
    ) -> "ArrowRows":
        """Make rows of arrays of any binary or string type, chunked or not.

        Raises: TypeError for other types.
        """
        return cls(_to_large_binary(values), None if keys is None else _to_large_binary(keys), runs, headers)

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def group_by_partition(self, partitions: int) -> dict[int | None, Sequence[int]]:
        keys = self._keys
        if keys is None:
            return {None: range(self.count)}
        codec = native.codec
        number_bytes = None if codec is None else codec.partitions(self.count, _get_buffers(keys), partitions)
        if number_bytes is None:
            return group_by_partition(keys.to_pylist(), partitions)
        np = _lazy.load("numpy")
        numbers = np.frombuffer(number_bytes, dtype=np.int32)
        # The stable sort of small integers takes linear time.
        order = np.argsort(numbers.astype(np.int16) if partitions <= _INT16_MAX else numbers, kind="stable")
        distinct, begins = np.unique(numbers[order], return_index=True)
        groups = zip(distinct.tolist(), np.split(order, begins[1:]), strict=True)
        return {None if number < 0 else number: places.tolist() for number, places in groups}

    def encode_section(self) -> bytes:
        if native.codec is not None:
            keys = None if self._keys is None else _get_buffers(self._keys)
            tails = None if self.headers is None else encode_tails(self.headers)
            section = native.codec.encode(
                self.count, list(self.timestamp_runs), _get_buffers(self._values), keys, tails
            )
            if section is not None:
                return section
        return self._to_lists().encode_section()

    def _to_lists(self) -> ListRows:
        keys = None if self._keys is None else self._keys.to_pylist()
        return ListRows(
            values=self._values.to_pylist(),
            keys=keys,
            headers=self.headers,
            timestamp_runs=self.timestamp_runs,
        )

    def compute_size_bounds(self) -> Sequence[int]:
        np = _lazy.load("numpy")
        sizes = _compute_sizes(self._values) + RECORD_OVERHEAD
        if self._keys is not None:
            sizes = sizes + _compute_sizes(self._keys)
        if self.headers is not None:
            sizes = sizes + np.fromiter(map(estimate_headers_size, self.headers), np.int64, self.count)
        return cast(Sequence[int], np.concatenate(([0], np.cumsum(sizes))))

    def slice_rows(self, begin: int, end: int) -> "ArrowRows":
        length = end - begin
        return ArrowRows(
            self._values.slice(begin, length),
            None if self._keys is None else self._keys.slice(begin, length),
            slice_runs(self.timestamp_runs, begin, end),
            None if self.headers is None else self.headers[begin:end],
        )

    def select_rows(self, places: Sequence[int], *, with_keys: bool) -> "ArrowRows":
        indices = _lazy.load("numpy").asarray(places)
        return ArrowRows(
            self._values.take(indices),
            self._keys.take(indices) if with_keys and self._keys is not None else None,
            select_runs(self.timestamp_runs, places),
            None if self.headers is None else [self.headers[place] for place in places],
        )


def is_arrow_array(column: object) -> bool:
    """Return whether the column is a pyarrow array."""
    return type(column).__module__.partition(".")[0] == "pyarrow"


def _get_buffers(array: ArrowArray) -> native.TextColumn:
    """Return the buffers of a `large_binary` array in the form the extension takes."""
    validity, offsets, data = array.buffers()
    return validity, offsets, data, array.offset


def _compute_sizes(array: ArrowArray) -> Int64Array:
    """Return the sizes of the array's values; 0 for null."""
    np, pc = _lazy.load("numpy"), _lazy.load("pyarrow.compute")
    lengths = pc.fill_null(pc.binary_length(array), 0)
    return cast(Int64Array, lengths.to_numpy(zero_copy_only=False).astype(np.int64))


def _to_large_binary(column: ArrowArray) -> ArrowArray:
    pa: ModuleType = _lazy.load("pyarrow")
    if isinstance(column, pa.ChunkedArray):
        column = cast(ArrowArray, column.combine_chunks())
    large_binary = pa.large_binary()
    kinds = (pa.binary(), pa.string(), pa.large_string(), large_binary)
    if column.type not in kinds:
        raise TypeError(f"keys and values are binary or string arrays, not {column.type}")
    return column if column.type == large_binary else column.cast(large_binary)
