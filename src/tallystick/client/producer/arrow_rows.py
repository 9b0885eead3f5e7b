"""Records from Arrow arrays, without an object per record. Pure.

The codec's extension writes a section from the arrays' buffers. Without it numpy lays it out and Arrow joins:

    size, attributes, time, offset, size of the key | key | size of the value | value | no headers

The first and third piece of a record are varints. numpy computes those of all records at once and scatters
their bytes into one buffer; Arrow's kernel then concatenates element by element. The data buffer of its
result is the section. Either way the bytes equal those of `encode_records` [CLI-26].

numpy and pyarrow are loaded on the first use of an Arrow array, not before.

Source: docs/adr/0005.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Final, Protocol, Self, cast

from tallystick import _lazy
from tallystick.client.producer.batches import (
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

# Values at which a varint becomes one byte longer; a record's size is below 2^31.
_VARINT_STEPS: Final = (1 << 7, 1 << 14, 1 << 21, 1 << 28)
_NULL_SIZE: Final = 1  # zigzag of -1
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
    def fill_null(self, value: bytes) -> Self: ...
    def to_pylist(self) -> list[bytes | None]: ...


class Int64Array(Protocol):
    """Subset of the methods of a numpy array of int64 that is used here."""

    def __len__(self) -> int: ...
    def __add__(self, other: object) -> "Int64Array": ...
    def __radd__(self, other: int) -> "Int64Array": ...
    def __mul__(self, other: object) -> "Int64Array": ...
    def __ge__(self, other: object) -> "Int64Array": ...
    def __gt__(self, other: object) -> "Int64Array": ...
    def __and__(self, other: object) -> "Int64Array": ...
    def __or__(self, other: object) -> "Int64Array": ...
    def astype(self, kind: object) -> "Int64Array": ...
    def __rshift__(self, other: object) -> "Int64Array": ...
    def __getitem__(self, at: object) -> "Int64Array": ...
    def tolist(self) -> list[int]: ...


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
        hashed = None if codec is None else codec.partitions(self.count, _get_buffers(keys), partitions)
        if hashed is None:
            return group_by_partition(keys.to_pylist(), partitions)
        np = _lazy.load("numpy")
        numbers = np.frombuffer(hashed, dtype=np.int32)
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
        if self.headers is not None or len(self.timestamp_runs) > 1:
            return self._to_lists().encode_section()
        return self._encode_joined()

    def _to_lists(self) -> ListRows:
        keys = None if self._keys is None else self._keys.to_pylist()
        return ListRows(
            values=self._values.to_pylist(),
            keys=keys,
            headers=self.headers,
            timestamp_runs=self.timestamp_runs,
        )

    def _encode_joined(self) -> bytes:
        """Return the section of records without headers, all with one timestamp."""
        np, pc = _lazy.load("numpy"), _lazy.load("pyarrow.compute")
        offsets = np.arange(self.count, dtype=np.int64)
        values = _ColumnLayout(self._values)
        columns = [values.values]
        one = np.ones(self.count, dtype=np.int64)
        if self._keys is None:
            key_size, around_key = one * _NULL_SIZE, one
            heads = [(values.size_zigzags, values.widths)]
        else:
            keys = _ColumnLayout(self._keys)
            key_size, around_key = keys.size_zigzags, keys.widths + keys.sizes
            columns = [keys.values, _encode_varints([(values.size_zigzags, values.widths)]), values.values]
            heads = []
        places = offsets * 2
        # Attributes, time, offset, key, value, number of headers.
        size = (2 + _compute_varint_widths(places) + around_key + values.widths + values.sizes + 1) * 2
        zero = one * 0
        key_width = one if self._keys is None else _compute_varint_widths(key_size)
        attributes = time = no_headers = (zero, one)
        # A head begins with the last byte of the record before: its number of headers.
        head = [
            no_headers,
            (size, _compute_varint_widths(size)),
            attributes,
            time,
            (places, _compute_varint_widths(places)),
        ]
        joined = pc.binary_join_element_wise(
            _encode_varints([*head, (key_size, key_width), *heads]), *columns, _build_empty_scalar()
        )
        _, bounds, data = joined.buffers()
        end = int(np.frombuffer(bounds, dtype=np.int64, count=self.count + 1)[-1])
        return b"".join((memoryview(data)[1:end], b"\0"))

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

    def select_rows(self, places: Sequence[int], *, keyed: bool) -> "ArrowRows":
        indices = _lazy.load("numpy").asarray(places)
        return ArrowRows(
            self._values.take(indices),
            self._keys.take(indices) if keyed and self._keys is not None else None,
            select_runs(self.timestamp_runs, places),
            None if self.headers is None else [self.headers[place] for place in places],
        )


def is_arrow_array(column: object) -> bool:
    """Tell whether the column is a pyarrow array."""
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


class _ColumnLayout:
    """Sizes of an array's values (0 for null), as zigzag numbers (-1 for null), and their varints' widths."""

    __slots__ = ("size_zigzags", "sizes", "values", "widths")

    def __init__(self, array: ArrowArray) -> None:
        np, pc = _lazy.load("numpy"), _lazy.load("pyarrow.compute")
        lengths = pc.binary_length(array)
        self.values: ArrowArray = array
        if lengths.null_count:
            self.values = array.fill_null(b"")
            zigzag = pc.fill_null(pc.multiply(lengths, 2), _NULL_SIZE)
            self.size_zigzags: Int64Array = zigzag.to_numpy(zero_copy_only=False).astype(np.int64)
            lengths = pc.fill_null(lengths, 0)
            self.sizes: Int64Array = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            self.sizes = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
            self.size_zigzags = self.sizes * 2
        self.widths = _compute_varint_widths(self.size_zigzags)


def _to_large_binary(column: ArrowArray) -> ArrowArray:
    pa: ModuleType = _lazy.load("pyarrow")
    if isinstance(column, pa.ChunkedArray):
        column = cast(ArrowArray, column.combine_chunks())
    wanted = pa.large_binary()
    kinds = (pa.binary(), pa.string(), pa.large_string(), wanted)
    if column.type not in kinds:
        raise TypeError(f"keys and values are binary or string arrays, not {column.type}")
    return column if column.type == wanted else column.cast(wanted)


def _build_empty_scalar() -> object:
    pa = _lazy.load("pyarrow")
    return pa.scalar(b"", pa.large_binary())


def _compute_varint_widths(numbers: Int64Array) -> Int64Array:
    """Return how many bytes the varint of each number takes."""
    width = (numbers >= _VARINT_STEPS[0]) + (numbers >= _VARINT_STEPS[1]) * 1
    for step in _VARINT_STEPS[2:]:
        width = width + (numbers >= step)
    return width + 1


def _encode_varints(fields: list[tuple[Int64Array, Int64Array]]) -> ArrowArray:
    """Return each record's varints, one field after the other; a field is numbers and their widths."""
    np, pa = _lazy.load("numpy"), _lazy.load("pyarrow")
    n = len(fields[0][0])
    ends = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.sum([width for _, width in fields], axis=0), out=ends[1:])
    out = np.zeros(int(ends[-1]), dtype=np.uint8)
    at = ends[:-1].copy()
    for numbers, width in fields:
        longest = int(np.max(width))
        for byte in range(longest):
            here = width > byte if byte else slice(None)
            more = np.where(width[here] > byte + 1, 0x80, 0)
            out[at[here] + byte] = (numbers[here] >> 7 * byte & 0x7F | more).astype(np.uint8)
        at += width
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(out)]
    return cast(ArrowArray, pa.Array.from_buffers(pa.large_binary(), n, buffers))
