"""The record codec's compiled half, where there is one.

Callers read `native.codec` when they need it, and go the Python way where it is None or answers None. Both
ways give the same bytes and the same records [CLI-70]. A test that wants one of them sets it.

Source: docs/adr/0005.
"""

from typing import Final, Protocol, TypeVar, cast

from tallystick import _lazy
from tallystick.protocol.records.batch import BatchHeader

R = TypeVar("R", bound=tuple[object, ...])

INTERFACE: Final = 1
"""What these sources expect; an extension that was compiled before an upgrade is left alone."""

Texts = tuple[object, object, object, int]
"""Buffers of an Arrow array of `large_binary`: validity or None, offsets, data or None, its first place."""

Column = list[bytes | None] | Texts

Batch = tuple[int, int, int | None, int, int]
"""Base offset and time, the time of all records if they have one, their number, the last offset delta."""

Part = tuple[bytes, Batch, bytes, int, int, int]
"""Section, batch, topic, partition, timestamp type, first offset that is wanted."""

Strings = tuple[int, bytes | None, bytes, bytes]
"""Buffers of an Arrow array of `binary`: length, validity, offsets, data."""

Numbers = tuple[bytes, bytes, bytes, bytes, bytes]
"""Offsets, times, partitions, timestamp types, the bounds of lists of headers."""

Table = tuple[int, int, Numbers, tuple[Strings, Strings, Strings, Strings, Strings]]
"""Rows, rows that were too many, numbers, and texts: topic, key, value, names and values of headers."""


class Extension(Protocol):
    """`tallystick._native`, written in C. Every answer of None means: ask Python."""

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
        """The section of `count` records. A tail is a record's encoded headers."""

    def partitions(self, count: int, keys: Column, partitions: int, /) -> bytes | None:
        """The partition of each key as an int32, -1 for null."""

    def partition_of(self, key: bytes, partitions: int, /) -> int:
        """The partition of one key."""

    def records(
        self, section: bytes, batch: Batch, record: type[R], origin: tuple[object, ...], /
    ) -> list[R] | None:
        """All records, as ConsumerRecord; `origin`: topic, partition, timestamp type, leader epoch."""

    def columns(self, parts: list[Part], most: int, /) -> Table | None:
        """The wanted records of all parts, the first `most` of them."""


class Scanner(Protocol):
    """`scan` of the extension, which one that was compiled earlier may lack."""

    def __call__(
        self, section: bytes, batch: Batch, earliest: int, latest: int, most: int, /
    ) -> tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]] | None:
        """How many records have no key, the first of them, and the first that are not within the times."""


def _load() -> Extension | None:
    try:
        found = cast(Extension, _lazy.load("tallystick._native"))
    except ImportError:
        return None
    return found if found.INTERFACE == INTERFACE else None


codec = _load()
scan: Scanner | None = getattr(codec, "scan", None)


def batch_of(header: BatchHeader) -> Batch:
    """What the extension has to know of a batch."""
    return (
        header.base_offset,
        header.base_timestamp,
        header.log_append_time_ms,
        header.record_count,
        header.last_offset_delta,
    )
