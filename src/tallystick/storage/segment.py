"""Pure: how the files of a segment are named, and where the valid bytes of one end.

A segment is a run of record batches, back to back. Reading it needs no state but the position: every
batch says how long it is. A scan proves each batch (length, CRC-32C, offsets going up, epoch not
falling is *not* asked: Kafka does not) and stops at the first that is not whole. What follows a bad
batch decides what it means, so the scan also looks for a valid batch behind it; see `recovery`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from tallystick.kernel.value import frozen
from tallystick.protocol.records import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    RecordsError,
    check_batch,
    read_header,
)

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"
CUT: Final = ".cut-"

# What a segment consists of; the snapshot belongs to its offset, not to the segment.
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

# One read of a scan. A batch that is longer is read on its own.
SCAN_BYTES: Final = 1 << 20
# A batch longer than this was never written by a broker whose frames end at 2 GiB.
_BATCH_BYTES_MAX: Final = (1 << 31) - 1

_NAME: Final = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)((?:\.cleaned|\.swap|\.deleted)?)"
)

# A batch may start where the upper bytes of offset and length are small and the magic is 2.
_CANDIDATE: Final = re.compile(rb"(?=\x00\x00.{6}[\x00-\x7f].{3}.{4}\x02)", re.DOTALL)

ReadAt = Callable[[int, int], bytes]
"""`(size, position) -> bytes`, shorter only at the end of the file: `File.pread`."""


def file_name(base_offset: int, suffix: str) -> str:
    """Kafka's name: the base offset in 20 digits."""
    return f"{base_offset:020d}{suffix}"


@frozen
class SegmentFile:
    """A parsed name: `00000000000000000007.index.swap` is (7, ".index", ".swap")."""

    base_offset: int
    suffix: str
    state: str


def parse_file_name(name: str) -> SegmentFile | None:
    """The parts of a segment file's or snapshot's name; None for every other name."""
    match = _NAME.fullmatch(name)
    return SegmentFile(int(match[1]), match[2], match[3]) if match else None


@frozen(kw_only=True)
class BadBatch:
    """Where a scan stopped and why. `valid_after` is the position of a whole batch behind it, if any."""

    position: int
    expected: str
    found: str
    offset_next: int
    valid_after: int | None


class Scanner:
    """Walks a segment from `at`, and holds what it knows afterwards: `valid_end`, `offset_next`, `bad`."""

    def __init__(self, read: ReadAt, size: int, offset_next: int, *, at: int = 0) -> None:
        self._read = read
        self._size = size
        self.valid_end = at
        self.offset_next = offset_next
        self.bad: BadBatch | None = None

    def batches(self) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Position, header and bytes of every valid batch; the bytes live until the next step."""
        start = self.valid_end
        chunk = memoryview(self._read(SCAN_BYTES, start))
        while self.valid_end < self._size:
            at = self.valid_end - start
            if needed := self._missing(chunk, at):
                start = self.valid_end
                chunk, at = memoryview(self._read(max(needed, SCAN_BYTES), start)), 0
            try:
                header = check_batch(chunk, at)
                self._check_offsets(header)
            except RecordsError as exc:
                self._stop(chunk, at, exc)
                return
            position = self.valid_end
            self.valid_end += header.size_bytes
            self.offset_next = header.next_offset
            yield position, header, chunk[at : at + header.size_bytes]

    def _missing(self, chunk: memoryview, at: int) -> int:
        """Bytes to read from the current position when `chunk` does not hold the batch; 0 when it does."""
        have = len(chunk) - at
        left = self._size - self.valid_end
        if have < min(HEADER_SIZE, left):
            return left if left < HEADER_SIZE else SCAN_BYTES
        if have < HEADER_SIZE:
            return 0
        length = int.from_bytes(chunk[at + 8 : at + 12], "big", signed=True) + LOG_OVERHEAD
        return length if have < length <= left else 0

    def _check_offsets(self, header: BatchHeader) -> None:
        if header.base_offset < self.offset_next:
            raise RecordsError(
                f"base offset is {header.base_offset}, at least {self.offset_next} was expected",
                self.valid_end,
            )

    def _stop(self, chunk: memoryview, at: int, exc: RecordsError) -> None:
        self.bad = BadBatch(
            position=self.valid_end,
            expected=f"a whole batch at offset {self.offset_next} or above",
            found=exc.reason,
            offset_next=self.offset_next,
            valid_after=find_valid_batch(self._read, self.valid_end + 1, self._size, self.offset_next),
        )


def find_valid_batch(read: ReadAt, at: int, size: int, offset_min: int) -> int | None:
    """Position of the first whole batch at or behind `at` with an offset at or above `offset_min`.

    Looks at every position where a header can be, so a hole of any size is crossed.
    Cost: one pass over the bytes at the speed of a regular expression.
    """
    while at + HEADER_SIZE <= size:
        chunk = read(SCAN_BYTES, at)
        for match in _CANDIDATE.finditer(chunk):
            position = at + match.start()
            if position + HEADER_SIZE <= size and _is_batch(read, position, size, offset_min):
                return position
        if len(chunk) < SCAN_BYTES:
            return None
        at += len(chunk) - HEADER_SIZE
    return None


def _is_batch(read: ReadAt, position: int, size: int, offset_min: int) -> bool:
    try:
        header = read_header(read(HEADER_SIZE, position))
        if header.base_offset < offset_min or header.size_bytes > size - position:
            return False
        check_batch(read(header.size_bytes, position))
    except RecordsError:
        return False
    return True
