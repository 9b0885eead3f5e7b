"""Which leader epoch began at which offset: answers OffsetForLeaderEpoch, kept in a checkpoint file.

Both numbers ascend. An epoch that began and wrote nothing is replaced by the next one. Whoever owns
the log writes `leader-epoch-checkpoint` when `assign` says that something changed, before the append.

Source: KIP-101, KIP-279; LeaderEpochFileCache.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from tallystick.kernel.check import check


class EpochStart(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch and the first offset after its last record."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """The epochs of one log, oldest first. Owned by the log."""

    __slots__ = ("_starts",)

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._starts: list[EpochStart] = []
        for epoch, start_offset in starts:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    @property
    def latest(self) -> int | None:
        """The epoch that wrote last."""
        return self._starts[-1].epoch if self._starts else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` writes from `start_offset` on; True if this changed anything.

        Entries that contradict the new one are dropped: the log is right, a checkpoint may be stale.
        Cost: constant for the epoch that wrote last, which is the case of every append but one.
        """
        check(epoch >= 0 and start_offset >= 0, f"epoch {epoch} from offset {start_offset}")
        starts = self._starts
        if starts and starts[-1].epoch == epoch and starts[-1].start_offset <= start_offset:
            return False
        while starts and (starts[-1].epoch >= epoch or starts[-1].start_offset >= start_offset):
            starts.pop()
        starts.append(EpochStart(epoch, start_offset))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """The last known epoch up to `epoch`, and where it ended; None if nothing can be said.

        An epoch older than the first one known ends where that one starts: its records are gone.
        Source: LeaderEpochFileCache.endOffsetFor; KIP-279 for the epoch in the answer.
        """
        if epoch < 0 or not self._starts or epoch > self._starts[-1].epoch:
            return None
        after = bisect_right(self._starts, epoch, key=_epoch_of)
        if after == len(self._starts):
            return EpochEnd(epoch, log_end_offset)
        found = self._starts[after - 1].epoch if after else epoch
        return EpochEnd(found, self._starts[after].start_offset)

    def epoch_of(self, offset: int) -> int | None:
        """The epoch that wrote the record at `offset`; None below the first one known."""
        after = bisect_right(self._starts, offset, key=_start_of)
        return self._starts[after - 1].epoch if after else None

    def truncate_from_end(self, end_offset: int) -> bool:
        """The log now ends at `end_offset`: forget epochs that began there or later; True if any did."""
        before = len(self._starts)
        while self._starts and self._starts[-1].start_offset >= end_offset:
            self._starts.pop()
        return len(self._starts) != before

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log now starts at `start_offset`: the epoch that wrote it starts there; True if changed."""
        after = bisect_right(self._starts, start_offset, key=_start_of)
        if not after or (after == 1 and self._starts[0].start_offset == start_offset):
            return False
        self._starts[:after] = [EpochStart(self._starts[after - 1].epoch, start_offset)]
        return True


def _epoch_of(start: EpochStart) -> int:
    return start.epoch


def _start_of(start: EpochStart) -> int:
    return start.start_offset
