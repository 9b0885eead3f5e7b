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
    Columns,
    Run,
    by_partition,
    headers_size,
    part_of_runs,
    picked_runs,
    tails_of,
)
from tallystick.protocol.records import Headers, native

# Values at which a varint becomes one byte longer; a record's size is below 2^31.
_STEPS: Final = (1 << 7, 1 << 14, 1 << 21, 1 << 28)
_NULL: Final = 1  # zigzag of -1
_INT16_MAX: Final = 2**15 - 1


class Array(Protocol):
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


class Numbers(Protocol):
    """Subset of the methods of a numpy array of int64 that is used here."""

    def __len__(self) -> int: ...
    def __add__(self, other: object) -> "Numbers": ...
    def __radd__(self, other: int) -> "Numbers": ...
    def __mul__(self, other: object) -> "Numbers": ...
    def __ge__(self, other: object) -> "Numbers": ...
    def __gt__(self, other: object) -> "Numbers": ...
    def __and__(self, other: object) -> "Numbers": ...
    def __or__(self, other: object) -> "Numbers": ...
    def astype(self, kind: object) -> "Numbers": ...
    def __rshift__(self, other: object) -> "Numbers": ...
    def __getitem__(self, at: object) -> "Numbers": ...
    def tolist(self) -> list[int]: ...


class ArrowRows:
    """Records as one or two arrays of `large_binary`, with timestamps and headers in lists."""

    __slots__ = ("_keys", "_values", "headers", "runs")

    def __init__(
        self,
        values: Array,
        keys: Array | None,
        runs: Sequence[Run],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        self._values, self._keys, self.runs, self.headers = values, keys, runs, headers

    @classmethod
    def of(
        cls,
        values: Array,
        keys: Array | None,
        runs: Sequence[Run],
        headers: Sequence[Headers] | None = None,
    ) -> "ArrowRows":
        """Make rows of arrays of any binary or string type, chunked or not.

        Raises: TypeError for other types.
        """
        return cls(_plain(values), None if keys is None else _plain(keys), runs, headers)

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def keyed(self) -> bool:
        return self._keys is not None

    def by_partition(self, partitions: int) -> dict[int | None, Sequence[int]]:
        keys = self._keys
        if keys is None:
            return {None: range(self.count)}
        codec = native.codec
        hashed = None if codec is None else codec.partitions(self.count, _buffers(keys), partitions)
        if hashed is None:
            return by_partition(keys.to_pylist(), partitions)
        np = _lazy.load("numpy")
        numbers = np.frombuffer(hashed, dtype=np.int32)
        # The stable sort of small integers takes linear time.
        order = np.argsort(numbers.astype(np.int16) if partitions <= _INT16_MAX else numbers, kind="stable")
        found, begins = np.unique(numbers[order], return_index=True)
        groups = zip(found.tolist(), np.split(order, begins[1:]), strict=True)
        return {None if number < 0 else number: places.tolist() for number, places in groups}

    def section(self) -> bytes:
        if native.codec is not None:
            keys = None if self._keys is None else _buffers(self._keys)
            tails = None if self.headers is None else tails_of(self.headers)
            made = native.codec.encode(self.count, list(self.runs), _buffers(self._values), keys, tails)
            if made is not None:
                return made
        if self.headers is not None or len(self.runs) > 1:
            return self._listed().section()
        return self._joined()

    def _listed(self) -> Columns:
        keys = None if self._keys is None else self._keys.to_pylist()
        return Columns(values=self._values.to_pylist(), keys=keys, headers=self.headers, runs=self.runs)

    def _joined(self) -> bytes:
        """Return the section of records without headers, all with one timestamp."""
        np, pc = _lazy.load("numpy"), _lazy.load("pyarrow.compute")
        offsets = np.arange(self.count, dtype=np.int64)
        values = _Column(self._values)
        columns = [values.texts]
        one = np.ones(self.count, dtype=np.int64)
        if self._keys is None:
            key_size, around_key = one * _NULL, one
            heads = [(values.zigzag, values.width)]
        else:
            keys = _Column(self._keys)
            key_size, around_key = keys.zigzag, keys.width + keys.sizes
            columns = [keys.texts, _varints([(values.zigzag, values.width)]), values.texts]
            heads = []
        places = offsets * 2
        # Attributes, time, offset, key, value, number of headers.
        size = (2 + _width(places) + around_key + values.width + values.sizes + 1) * 2
        zero = one * 0
        key_width = one if self._keys is None else _width(key_size)
        attributes = time = no_headers = (zero, one)
        # A head begins with the last byte of the record before: its number of headers.
        head = [no_headers, (size, _width(size)), attributes, time, (places, _width(places))]
        joined = pc.binary_join_element_wise(
            _varints([*head, (key_size, key_width), *heads]), *columns, _nothing()
        )
        _, bounds, data = joined.buffers()
        end = int(np.frombuffer(bounds, dtype=np.int64, count=self.count + 1)[-1])
        return b"".join((memoryview(data)[1:end], b"\0"))

    def upto(self) -> Sequence[int]:
        np = _lazy.load("numpy")
        sizes = _sizes(self._values) + RECORD_OVERHEAD
        if self._keys is not None:
            sizes = sizes + _sizes(self._keys)
        if self.headers is not None:
            sizes = sizes + np.fromiter(map(headers_size, self.headers), np.int64, self.count)
        return cast(Sequence[int], np.concatenate(([0], np.cumsum(sizes))))

    def part(self, begin: int, end: int) -> "ArrowRows":
        length = end - begin
        return ArrowRows(
            self._values.slice(begin, length),
            None if self._keys is None else self._keys.slice(begin, length),
            part_of_runs(self.runs, begin, end),
            None if self.headers is None else self.headers[begin:end],
        )

    def pick(self, places: Sequence[int], *, keyed: bool) -> "ArrowRows":
        indices = _lazy.load("numpy").asarray(places)
        return ArrowRows(
            self._values.take(indices),
            self._keys.take(indices) if keyed and self._keys is not None else None,
            picked_runs(self.runs, places),
            None if self.headers is None else [self.headers[place] for place in places],
        )


def is_arrow(column: object) -> bool:
    """Tell whether the column is a pyarrow array."""
    return type(column).__module__.partition(".")[0] == "pyarrow"


def _buffers(array: Array) -> native.Texts:
    """Return the buffers of a `large_binary` array in the form the extension takes."""
    validity, offsets, data = array.buffers()
    return validity, offsets, data, array.offset


def _sizes(array: Array) -> Numbers:
    """Return the sizes of the array's values; 0 for null."""
    np, pc = _lazy.load("numpy"), _lazy.load("pyarrow.compute")
    lengths = pc.fill_null(pc.binary_length(array), 0)
    return cast(Numbers, lengths.to_numpy(zero_copy_only=False).astype(np.int64))


class _Column:
    """Sizes of an array's values (0 for null), as zigzag numbers (-1 for null), and their varints' widths."""

    __slots__ = ("sizes", "texts", "width", "zigzag")

    def __init__(self, array: Array) -> None:
        np, pc = _lazy.load("numpy"), _lazy.load("pyarrow.compute")
        lengths = pc.binary_length(array)
        self.texts: Array = array
        if lengths.null_count:
            self.texts = array.fill_null(b"")
            zigzag = pc.fill_null(pc.multiply(lengths, 2), _NULL)
            self.zigzag: Numbers = zigzag.to_numpy(zero_copy_only=False).astype(np.int64)
            lengths = pc.fill_null(lengths, 0)
            self.sizes: Numbers = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            self.sizes = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
            self.zigzag = self.sizes * 2
        self.width = _width(self.zigzag)


def _plain(column: Array) -> Array:
    pa: ModuleType = _lazy.load("pyarrow")
    if isinstance(column, pa.ChunkedArray):
        column = cast(Array, column.combine_chunks())
    wanted = pa.large_binary()
    kinds = (pa.binary(), pa.string(), pa.large_string(), wanted)
    if column.type not in kinds:
        raise TypeError(f"keys and values are binary or string arrays, not {column.type}")
    return column if column.type == wanted else column.cast(wanted)


def _nothing() -> object:
    pa = _lazy.load("pyarrow")
    return pa.scalar(b"", pa.large_binary())


def _width(numbers: Numbers) -> Numbers:
    """Return how many bytes the varint of each number takes."""
    width = (numbers >= _STEPS[0]) + (numbers >= _STEPS[1]) * 1
    for step in _STEPS[2:]:
        width = width + (numbers >= step)
    return width + 1


def _varints(fields: list[tuple[Numbers, Numbers]]) -> Array:
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
    return cast(Array, pa.Array.from_buffers(pa.large_binary(), n, buffers))
