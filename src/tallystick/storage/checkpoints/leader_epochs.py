"""The start offset of each leader epoch: answers OffsetForLeaderEpoch, kept in a checkpoint file.

Epochs and offsets both ascend. An epoch that wrote nothing is replaced by the next one. The log writes
`leader-epoch-checkpoint` when `assign` reports a change, before the append.

Source: KIP-101, KIP-279; LeaderEpochFileCache.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from tallystick.kernel.check import check


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch and the first offset after its last record."""

    epoch: int
    end_offset: int


class LeaderEpochCache:
    """The leader epochs of one log, oldest first. Owned by the log."""

    __slots__ = ("_starts",)

    def __init__(self, starts: Iterable[EpochEntry] = ()) -> None:
        self._starts: list[EpochEntry] = []
        for epoch, start_offset in starts:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._starts)

    @property
    def latest_epoch(self) -> int | None:
        """The latest epoch that wrote."""
        return self._starts[-1].epoch if self._starts else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` writes from `start_offset` on; return True if this changed anything.

        Entries that contradict the new one are dropped: the log is right, a checkpoint may be stale.
        Cost: constant for the latest epoch, which is the case of nearly every append.
        """
        check(epoch >= 0 and start_offset >= 0, f"epoch {epoch} from offset {start_offset}")
        starts = self._starts
        if starts and starts[-1].epoch == epoch and starts[-1].start_offset <= start_offset:
            return False
        while starts and (starts[-1].epoch >= epoch or starts[-1].start_offset >= start_offset):
            starts.pop()
        starts.append(EpochEntry(epoch, start_offset))
        return True

    def find_end_offset(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Return the last known epoch up to `epoch` and where it ended; None if unknown.

        An epoch older than the first known one ends where that one starts: its records are gone.
        Source: LeaderEpochFileCache.endOffsetFor; KIP-279 for the epoch in the answer.
        """
        if epoch < 0 or not self._starts or epoch > self._starts[-1].epoch:
            return None
        after = bisect_right(self._starts, epoch, key=_get_epoch)
        if after == len(self._starts):
            return EpochEnd(epoch, log_end_offset)
        floor_epoch = self._starts[after - 1].epoch if after else epoch
        return EpochEnd(floor_epoch, self._starts[after].start_offset)

    def find_epoch(self, offset: int) -> int | None:
        """Return the epoch that wrote the record at `offset`; None below the first one known."""
        after = bisect_right(self._starts, offset, key=_get_start_offset)
        return self._starts[after - 1].epoch if after else None

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget epochs that began at or after the new log end `end_offset`; return True if any did."""
        before = len(self._starts)
        while self._starts and self._starts[-1].start_offset >= end_offset:
            self._starts.pop()
        return len(self._starts) != before

    def truncate_from_start(self, start_offset: int) -> bool:
        """Start the epoch of `start_offset` there, forgetting older ones; return True if changed."""
        after = bisect_right(self._starts, start_offset, key=_get_start_offset)
        if not after or (after == 1 and self._starts[0].start_offset == start_offset):
            return False
        self._starts[:after] = [EpochEntry(self._starts[after - 1].epoch, start_offset)]
        return True


def _get_epoch(start: EpochEntry) -> int:
    return start.epoch


def _get_start_offset(start: EpochEntry) -> int:
    return start.start_offset
