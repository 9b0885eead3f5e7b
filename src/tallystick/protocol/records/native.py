"""The optional native part of the record codec.

Callers use `native.codec` if present, and fall back to Python if it is None or returns None. Both give the
same bytes and the same records [CLI-70]. A test can set it to force either.

Source: docs/adr/0005.
"""

from typing import Final, Protocol, TypeVar, cast

from tallystick import _lazy
from tallystick.protocol.records.batch import BatchHeader

R = TypeVar("R", bound=tuple[object, ...])

INTERFACE: Final = 1
"""The interface that these sources expect; an extension compiled before an upgrade is not used."""

TextColumn = tuple[object, object, object, int]
"""Buffers of an Arrow array of `large_binary`: validity or None, offsets, data or None, start index."""

Column = list[bytes | None] | TextColumn

Batch = tuple[int, int, int | None, int, int]
"""Base offset and timestamp, LogAppendTime or None, record count, last offset delta."""

BatchRun = tuple[bytes, Batch, bytes, int, int, int]
"""Section, batch, topic, partition, timestamp type, first offset wanted."""

StringColumn = tuple[int, bytes | None, bytes, bytes]
"""Buffers of an Arrow array of `binary`: length, validity, offsets, data."""

NumberColumns = tuple[bytes, bytes, bytes, bytes, bytes]
"""Offsets, timestamps, partitions, timestamp types, bounds of the header lists."""

Table = tuple[
    int, int, NumberColumns, tuple[StringColumn, StringColumn, StringColumn, StringColumn, StringColumn]
]
"""Rows, rows beyond the limit, numbers, and strings: topic, key, value, names and values of headers."""


class Extension(Protocol):
    """`tallystick._native`, written in C. None from any function means: fall back to Python."""

    INTERFACE: int

    def encode(
        self,
        count: int,
        runs: list[tuple[int, int]],
        values: Column,
        keys: Column | None,
        tails: list[bytes | None] | None,
        /,
    ) -> bytes | None:
        """Encode the section of `count` records. A tail is a record's encoded headers."""

    def partitions(self, count: int, keys: Column, partitions: int, /) -> bytes | None:
        """Return the partition of each key as an int32, -1 for null."""

    def partition_of(self, key: bytes, partitions: int, /) -> int:
        """Return the partition of one key."""

    def records(
        self, section: bytes, batch: Batch, record: type[R], origin: tuple[object, ...], /
    ) -> list[R] | None:
        """Decode all records as ConsumerRecord; `origin`: topic, partition, timestamp type, leader epoch."""

    def columns(self, parts: list[BatchRun], most: int, /) -> Table | None:
        """Decode the wanted records of all parts, at most `most` of them."""


class NativeScanner(Protocol):
    """`scan` of the extension, missing in one that was compiled from earlier sources."""

    def __call__(
        self, section: bytes, batch: Batch, earliest: int, latest: int, most: int, /
    ) -> tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]] | None:
        """Return the number of records without a key, the first of them, and the first late records."""


def _load_extension() -> Extension | None:
    try:
        extension = cast(Extension, _lazy.load("tallystick._native"))
    except ImportError:
        return None
    return extension if extension.INTERFACE == INTERFACE else None


codec = _load_extension()
scan: NativeScanner | None = getattr(codec, "scan", None)


def make_native_batch(header: BatchHeader) -> Batch:
    """Return the facts about a batch that the extension needs."""
    return (
        header.base_offset,
        header.base_timestamp,
        header.log_append_time_ms,
        header.record_count,
        header.last_offset_delta,
    )
