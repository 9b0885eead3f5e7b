"""Names of segment files, and the scan for a segment's valid bytes. Pure functions, no I/O.

A segment is a sequence of record batches. Reading it needs no state but the position, because every batch
has its length. A scan checks each batch (length, CRC-32C, offsets ascending; like Kafka it does *not* check
that epochs do not fall) and stops at the first invalid one. The meaning of an invalid batch depends on what
follows, so the scan also looks for a valid batch after it; see `recovery`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import Value
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    CorruptBatch,
    RecordsError,
    check_batch,
    read_header,
)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
CUT_SUFFIX: Final = ".cut-"

# The files of a segment; a snapshot belongs to its offset, not to the segment.
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

# Bytes per read of a scan. A longer batch is read on its own.
SCAN_BYTES: Final = 1 << 20

_FILE_NAME: Final = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)((?:\.cleaned|\.swap|\.deleted)?)"
)

# A batch may start where the upper bytes of base offset and length are small and the magic is 2.
_HEADER_PATTERN: Final = re.compile(rb"(?=\x00\x00.{6}[\x00-\x7f].{3}.{4}\x02)", re.DOTALL)

ReadAt = Callable[[int, int], bytes]
"""`(size, position) -> bytes`, shorter only at the end of the file: `File.pread`."""


def make_file_name(base_offset: int, suffix: str) -> str:
    """Return Kafka's file name: the base offset in 20 digits, then the suffix."""
    return f"{base_offset:020d}{suffix}"


class SegmentFileName(Value):
    """A parsed name: `00000000000000000007.index.swap` is (7, ".index", ".swap")."""

    base_offset: int
    suffix: str
    state: str


def parse_file_name(name: str) -> SegmentFileName | None:
    """Parse the name of a segment file or snapshot; return None for every other name."""
    match = _FILE_NAME.fullmatch(name)
    return SegmentFileName(int(match[1]), match[2], match[3]) if match else None


class ScanFault(Value, kw_only=True):
    """Position and cause of the end of a scan. `valid_after`: position of a valid batch after it, if any."""

    position: int
    expected: str
    found: str
    next_offset: int
    valid_after: int | None


class SegmentScanner:
    """A scan of a segment from `at`; afterwards it holds `valid_end`, `next_offset` and `fault`."""

    def __init__(self, read: ReadAt, size: int, offset_next: int, *, at: int = 0) -> None:
        self._read = read
        self._size = size
        self.valid_end = at
        self.next_offset = offset_next
        # Of one segment: indexes store offsets relative to its base. The CRC does not cover base offsets.
        self._offset_max = offset_next + INT32_MAX
        self.fault: ScanFault | None = None

    def iter_batches(self) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Yield position, header and bytes of every valid batch; the bytes are valid until the next step."""
        chunk, at = memoryview(b""), 0
        while self.valid_end < self._size:
            try:
                # Twice, because only the header tells how long the batch is: a chunk may end anywhere in it.
                chunk, at = self._fill(chunk, at, HEADER_SIZE)
                chunk, at = self._fill(chunk, at, read_header(chunk, at).size_bytes)
                header = check_batch(chunk, at)
                self._check_offsets(header)
            except RecordsError as exc:
                self._record_fault(exc)
                return
            position, data = self.valid_end, chunk[at : at + header.size_bytes]
            at += header.size_bytes
            self.valid_end += header.size_bytes
            self.next_offset = header.next_offset
            yield position, header, data

    def _fill(self, chunk: memoryview, at: int, size: int) -> tuple[memoryview, int]:
        """Return a chunk that holds `size` bytes from `valid_end` on, and where they begin in it.

        Raises: CorruptBatch if the segment has fewer.
        """
        if len(chunk) - at >= size:
            return chunk, at
        bytes_left = self._size - self.valid_end
        if bytes_left < size:
            raise CorruptBatch(f"needs {size} bytes, {bytes_left} are there", self.valid_end)
        return memoryview(self._read(max(size, SCAN_BYTES), self.valid_end)), 0

    def _check_offsets(self, header: BatchHeader) -> None:
        if header.base_offset < self.next_offset:
            raise RecordsError(
                f"base offset is {header.base_offset}, expected at least {self.next_offset}",
                self.valid_end,
            )
        if header.last_offset > self._offset_max:
            raise RecordsError(
                f"last offset is {header.last_offset}, expected at most {self._offset_max}", self.valid_end
            )

    def _record_fault(self, exc: RecordsError) -> None:
        self.fault = ScanFault(
            position=self.valid_end,
            expected=f"a whole batch at offset {self.next_offset} or above",
            found=exc.reason,
            next_offset=self.next_offset,
            valid_after=find_valid_batch(self._read, self.valid_end + 1, self._size, self.next_offset),
        )


def find_valid_batch(read: ReadAt, at: int, size: int, offset_min: int) -> int | None:
    """Return the position of the first valid batch from `at` on with an offset of `offset_min` or more.

    Tries every position where a header can be, so it crosses a hole of any size.
    Cost: one pass over the bytes at the speed of a regular expression.
    """
    while at + HEADER_SIZE <= size:
        chunk = read(SCAN_BYTES, at)
        for match in _HEADER_PATTERN.finditer(chunk):
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
