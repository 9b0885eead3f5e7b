"""The two sparse indexes of a segment, in Kafka's file formats.

`.index` has 8 bytes per entry: relative offset int32, position int32; the offset is the *last* one of the
batch that starts at the position. `.timeindex` has 12: timestamp int64, relative offset int32; the offset
is the last one of the batch that holds the greatest timestamp so far. Both are strictly increasing, which
Kafka's own sanity check requires. Files hold whole entries only: nothing is preallocated.

Source: Kafka's OffsetIndex, TimeIndex, and LogSegment.append (at most one entry per batch, as 4.x does).
"""

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

OFFSET_ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12
NO_TIMESTAMP: Final = -1

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


class OffsetIndex:
    """Relative offset of a batch's end -> position of the batch. Append-only."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    @classmethod
    def decode(cls, data: bytes | None) -> "OffsetIndex | None":
        """Decode a file's entries (None: it is missing); return None if they must be rebuilt from the log."""
        if data is None or len(data) % OFFSET_ENTRY_SIZE:
            return None
        index = cls()
        for offset, position in _OFFSET_ENTRY.iter_unpack(data):
            index.offsets.append(offset)
            index.positions.append(position)
        return index if _is_increasing(index.offsets) and _is_increasing(index.positions) else None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * OFFSET_ENTRY_SIZE

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def encode_from(self, entry: int) -> bytes:
        """Encode the entries from number `entry` on."""
        pack = _OFFSET_ENTRY.pack
        return b"".join(map(pack, self.offsets[entry:], self.positions[entry:]))

    def find_position(self, relative_offset: int) -> int:
        """Return the position to scan from for an offset: a batch that ends at or before it, or 0."""
        slot = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[slot] if slot >= 0 else 0

    def find_position_before(self, position: int) -> int:
        """Return the last indexed batch start at or below a position."""
        slot = bisect_right(self.positions, position) - 1
        return self.positions[slot] if slot >= 0 else 0


class TimeIndex:
    """Greatest timestamp so far -> last relative offset of its batch. Append-only."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    @classmethod
    def decode(cls, data: bytes | None) -> "TimeIndex | None":
        """Decode a file as `OffsetIndex.decode` does."""
        if data is None or len(data) % TIME_ENTRY_SIZE:
            return None
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        return index if _is_increasing(index.timestamps) and _is_increasing(index.offsets) else None

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def size_bytes(self) -> int:
        return len(self.timestamps) * TIME_ENTRY_SIZE

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Append an entry unless the last one covers it."""
        if timestamp > (self.timestamps[-1] if self.timestamps else NO_TIMESTAMP):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def encode_from(self, entry: int) -> bytes:
        pack = _TIME_ENTRY.pack
        return b"".join(map(pack, self.timestamps[entry:], self.offsets[entry:]))

    @property
    def last_entry(self) -> tuple[int, int] | None:
        """Timestamp and relative offset of the last entry."""
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def find_offset_before(self, timestamp: int) -> int:
        """Return a relative offset up to which every timestamp is below `timestamp`; 0 if unknown."""
        slot = bisect_left(self.timestamps, timestamp) - 1
        return self.offsets[slot] if slot >= 0 else 0


def _is_increasing(values: "array[int]") -> bool:
    """Return True if the values are strictly increasing and not negative, or there are none."""
    if not values:
        return True
    previous = values[0]
    if previous < 0:
        return False
    for value in values[1:]:
        if value <= previous:
            return False
        previous = value
    return True
