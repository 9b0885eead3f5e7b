"""Counts of the records that a group will receive between offsets of one partition. Pure.

The distance of two offsets is no number of records: markers, records of aborted transactions and what
compaction has removed lie in between. Below the last stable offset the outcome of every record is known and
does not change any more, so a count is kept once it is made [CON-4].

`PartitionCounts` keeps, for one unbroken range that ends at the last stable offset, the sums up to some
points: the offsets that groups have committed, and further ones so that a group that moves on needs little to
be read again. `plan` says which ranges to read, `RangeCounter` counts the batches that are fetched for one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from tallystick.client.consumer.decode import AbortedTransactions
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.value import Value
from tallystick.protocol.records import HEADER_SIZE, BatchHeader, Buffer, read_header, scan_keys

GRAIN_BYTES: Final = 256 * KIB
"""About so much is read again for a group that has moved on."""

STEP_BYTES: Final = 4 * MIB
"""So much is read at once towards a group that is far behind."""

POINTS_MAX: Final = 10_000
FIRST_BYTES_PER_OFFSET: Final = 200.0


class Counts(Value):
    """Numbers of records: data for a `read_committed` reader, markers, and those of aborted transactions."""

    data: int = 0
    markers: int = 0
    aborted: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(self.data + other.data, self.markers + other.markers, self.aborted + other.aborted)

    def minus(self, other: "Counts") -> "Counts":
        return Counts(self.data - other.data, self.markers - other.markers, self.aborted - other.aborted)


class CountedRange(Value):
    """The offsets from `first` up to but excluding `end`, with points in between at which sums are wanted."""

    first: int
    end: int
    stops: tuple[int, ...] = ()


class RangeCounter:
    """Counts the records of one range. `position` is the offset to fetch next."""

    def __init__(self, wanted: CountedRange) -> None:
        self.position = wanted.first
        self.bytes_read = 0
        self._end = wanted.end
        self._stops = [each for each in sorted({*wanted.stops, wanted.end}) if wanted.first < each]
        self._sum = Counts()
        self._grain_bytes = 0
        self.sums: list[tuple[int, Counts]] = [(wanted.first, self._sum)]

    @property
    def is_complete(self) -> bool:
        return self.position >= self._end

    def feed(self, data: Buffer, aborted: Iterable[tuple[int, int]]) -> None:
        """Count fetched batches, from `position` on; the last one may be incomplete.

        Args:
            data: empty if there is nothing more in the range, which compaction may have emptied.
            aborted: producer id and first offset of the aborted transactions of this answer.

        Raises: RecordsError.
        """
        transactions, at = AbortedTransactions(aborted), 0
        if not len(data):
            self._pass_stops(self._end)
            self.position = self._end
        while not self.is_complete and len(data) - at >= HEADER_SIZE:
            header = read_header(data, at)
            if header.size_bytes > len(data) - at:
                break
            is_hidden = transactions.is_hidden(header, data, at)
            if header.next_offset > self.position:
                self._count_batch(data, at, header, is_hidden=is_hidden)
            at += header.size_bytes
        self.bytes_read += at

    def _count_batch(self, data: Buffer, at: int, header: BatchHeader, *, is_hidden: bool) -> None:
        self._pass_stops(header.base_offset)  # nothing is between the batch before and this one
        counted = _count_before(data, at, header, self.position)
        base = self._sum
        while self._stops and self._stops[0] < header.next_offset:
            stop = self._stops.pop(0)
            number = _count_before(data, at, header, stop) - counted
            self.sums.append((stop, base.plus(_classify(number, header, is_hidden=is_hidden))))
            if stop == self._end:
                self.position = stop
                return
        number = header.record_count - counted
        self._sum = base.plus(_classify(number, header, is_hidden=is_hidden))
        self.position = min(header.next_offset, self._end)
        self._grain_bytes += header.size_bytes
        self._pass_stops(self.position)
        if self._grain_bytes >= GRAIN_BYTES:
            if self.sums[-1][0] < self.position:
                self.sums.append((self.position, self._sum))
            self._grain_bytes = 0

    def _pass_stops(self, offset: int) -> None:
        while self._stops and self._stops[0] <= offset:
            self.sums.append((self._stops.pop(0), self._sum))
        if offset >= self._end:
            self.position = self._end


def _count_before(data: Buffer, at: int, header: BatchHeader, offset: int) -> int:
    """Return how many records of a batch are before an offset."""
    if offset <= header.base_offset:
        return 0
    if offset >= header.next_offset:
        return header.record_count
    if header.record_count == header.last_offset_delta + 1:
        return offset - header.base_offset
    return sum(record.offset < offset for record in scan_keys(data, at))  # compaction has left gaps


def _classify(number: int, header: BatchHeader, *, is_hidden: bool) -> Counts:
    if header.is_control:
        return Counts(markers=number)
    return Counts(aborted=number) if is_hidden else Counts(data=number)


class PartitionCounts:
    """Sums at some offsets of one partition."""

    def __init__(self) -> None:
        self._points: list[int] = []
        self._sums: list[Counts] = []
        self.bytes_per_offset = FIRST_BYTES_PER_OFFSET

    @property
    def points(self) -> tuple[int, ...]:
        return tuple(self._points)

    def count(self, first: int) -> Counts | None:
        """Return what is from `first` up to the end of the range; None where it is not known."""
        index = bisect_left(self._points, first)
        if index == len(self._points) or self._points[index] != first:
            return None
        return self._sums[-1].minus(self._sums[index])

    def restart(self, end: int) -> None:
        """Forget everything; the range ends at `end` and is empty."""
        self._points, self._sums = [end], [Counts()]

    def plan(
        self, committed: Iterable[int], end: int, step_bytes: int = STEP_BYTES
    ) -> Iterator[CountedRange]:
        """Yield the ranges to read; each is to be read and added before the next one is asked for.

        Args:
            committed: where groups are, none of them after `end`.
            end: the last stable offset.
            step_bytes: about so much is read at once towards a group that is far behind.
        """
        wanted = sorted(set(committed), reverse=True)
        if not self._points or end < self._points[-1]:
            self.restart(end)  # nothing is known, or the log is another one
        if self._points[-1] < end:
            last = self._points[-1]
            yield CountedRange(last, end, tuple(each for each in wanted if last < each))
        for each in wanted:
            while self._points[-1] == end and self.count(each) is None:
                following = self._points[bisect_right(self._points, each)]
                first = each
                if each < self._points[0]:  # towards a group that is far behind, step by step
                    first = max(each, following - int(step_bytes / self.bytes_per_offset) - 1)
                yield CountedRange(first, following, tuple(o for o in wanted if first < o < following))
                if self.count(first) is None:
                    return  # it was not read

    def add(self, counter: RangeCounter, wanted: CountedRange) -> None:
        """Take the sums of a range that `plan` has asked for and that was read to its end."""
        span = wanted.end - wanted.first
        self.bytes_per_offset = max(1.0, counter.bytes_read / max(1, span))
        if wanted.first == self._points[-1]:
            base = self._sums[-1]
            for offset, each in counter.sums[1:]:
                self._points.append(offset)
                self._sums.append(base.plus(each))
            return
        index = bisect_left(self._points, wanted.end)
        total = counter.sums[-1][1]
        base = self._sums[index].minus(total)
        known = set(self._points)
        new = [(offset, base.plus(each)) for offset, each in counter.sums if offset not in known]
        self._points[index:index] = [offset for offset, _ in new]
        self._sums[index:index] = [each for _, each in new]

    def give_up(self, counter: RangeCounter, wanted: CountedRange) -> None:
        """Note that a range is too large to be read: what comes before it cannot be counted now."""
        if counter.position > wanted.first:
            self.bytes_per_offset = max(1.0, counter.bytes_read / (counter.position - wanted.first))
        if wanted.first == self._points[-1]:
            self.restart(wanted.end)

    def prune(self, committed: Iterable[int]) -> None:
        """Forget what is before every group, and what is farthest back if there are too many points."""
        first = min(committed, default=self._points[-1] if self._points else 0)
        start = max(bisect_left(self._points, first), len(self._points) - POINTS_MAX)
        if self._points:
            start = min(start, len(self._points) - 1)
        del self._points[:start]
        del self._sums[:start]
