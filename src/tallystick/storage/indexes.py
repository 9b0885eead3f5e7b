"""The two sparse indexes of a segment, in Kafka's bytes.

`.index` has 8 bytes an entry: relative offset i32, position i32, where the offset is the *last* one of the
batch that starts at the position. `.timeindex` has 12: timestamp i64, relative offset i32, where the
offset is the last one of the batch that holds the greatest timestamp so far. Both are strictly growing,
which is what Kafka's own sanity check asks for. Files hold whole entries only: nothing is preallocated.

Source: Kafka's OffsetIndex, TimeIndex, and LogSegment.append (an entry a batch at most, as 4.x does).
"""

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

from tallystick.kernel.ids import INT32_MAX

OFFSET_ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12
NO_TIMESTAMP: Final = -1

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


class OffsetIndex:
    """Relative offset of a batch's end -> position of the batch. Grows at its end."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    @classmethod
    def decode(cls, data: bytes | None) -> "OffsetIndex | None":
        """Entries of a file (None: it is missing), or None when they have to be made again from the log."""
        if data is None or len(data) % OFFSET_ENTRY_SIZE:
            return None
        index = cls()
        for offset, position in _OFFSET_ENTRY.iter_unpack(data):
            index.offsets.append(offset)
            index.positions.append(position)
        return index if _grows(index.offsets) and _grows(index.positions) else None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * OFFSET_ENTRY_SIZE

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def encode_from(self, entry: int) -> bytes:
        """Bytes of the entries from number `entry` on."""
        pack = _OFFSET_ENTRY.pack
        return b"".join(map(pack, self.offsets[entry:], self.positions[entry:]))

    def find_position(self, relative_offset: int) -> int:
        """Where to start walking to reach an offset: at a batch that ends at or before it, or at 0."""
        slot = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[slot] if slot >= 0 else 0

    def find_position_before(self, position: int) -> int:
        """The last known start of a batch at or below a position."""
        slot = bisect_right(self.positions, position) - 1
        return self.positions[slot] if slot >= 0 else 0


class TimeIndex:
    """Greatest timestamp so far -> relative offset of the batch that brought it. Grows at its end."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    @classmethod
    def decode(cls, data: bytes | None) -> "TimeIndex | None":
        """As OffsetIndex.decode."""
        if data is None or len(data) % TIME_ENTRY_SIZE:
            return None
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        return index if _grows(index.timestamps) and _grows(index.offsets) else None

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def size_bytes(self) -> int:
        return len(self.timestamps) * TIME_ENTRY_SIZE

    def append_if_later(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless the last one already says as much."""
        if timestamp > (self.timestamps[-1] if self.timestamps else NO_TIMESTAMP):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def encode_from(self, entry: int) -> bytes:
        pack = _TIME_ENTRY.pack
        return b"".join(map(pack, self.timestamps[entry:], self.offsets[entry:]))

    @property
    def last(self) -> tuple[int, int] | None:
        """Timestamp and relative offset of the last entry."""
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def find_offset_before(self, timestamp: int) -> int:
        """A relative offset up to which every timestamp is below `timestamp`; 0 when none is known."""
        slot = bisect_left(self.timestamps, timestamp) - 1
        return self.offsets[slot] if slot >= 0 else 0


def fits_relative(offset: int, base_offset: int) -> bool:
    """True when an offset can be written into the indexes of a segment."""
    return 0 <= offset - base_offset <= INT32_MAX


def _grows(values: "array[int]") -> bool:
    """Strictly growing and not negative, apart from nothing at all."""
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
