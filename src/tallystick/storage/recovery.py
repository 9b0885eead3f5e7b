"""Pure: what is found when a log is opened, and what is done about it.

A log that was stopped cleanly is believed. After any other end every segment from the recovery point on is
read, batch by batch. A batch that is not whole means one of two things, and the difference is what was
promised about its bytes: below the recovery point they were on the disk, so the disk lost them
(corruption: stop, a person must look); above it nobody was promised anything, so power failed while they
were on their way (cut the log there). What is cut away and still holds whole batches is kept beside the log.

Segments before the last: under `flush.policy=ack` each was synced before its successor was made [LOG-3], so
damage there is never a lost write. Under `interval` and `os` it can be.

See docs/adr/0006-durability-and-recovery.md.
"""

from enum import Enum, auto
from typing import Final

from tallystick.kernel.value import frozen
from tallystick.storage.fs import StorageFailure


class Finding(Enum):
    """What is at the first bad batch of a segment that was scanned."""

    WHOLE = auto()  # there is none: valid to the last byte
    TORN_TAIL = auto()  # in the last segment above the recovery point, nothing whole behind it
    HOLE = auto()  # in the last segment above the recovery point, whole batches behind it
    HOLE_BEFORE_LAST = auto()  # above the recovery point, later segments hold data, rolls are not synced
    DAMAGED_BEFORE_LAST = auto()  # the same, but this segment was synced before the next one was made
    DAMAGED = auto()  # below the recovery point
    SHORT = auto()  # nothing is bad, but the log ends below the recovery point


class Verdict(Enum):
    """What is done."""

    KEEP = "kept whole"
    CUT = "cut the torn end off"
    CUT_AND_SET_ASIDE = "cut at the hole, and kept what is behind it beside the log"
    REFUSE = "refused: corruption"


# One row a case:
# A valid segment stays as it is.
# A torn tail is the write that was under way; nothing behind it existed.
# A hole is power loss under delayed writing: later pages reached the disk, earlier ones did not. What is
#   behind it was never acknowledged under `ack`; under `os` it was, and Kafka drops it silently. We cut,
#   because offsets must not have holes that were not compacted away, and keep the bytes for a person.
# A hole with later segments: the same, under a policy that lets a roll overtake the disk.
# Damage in a synced segment, or synced records that are not there, cannot come from power loss. To cut
#   would lose what was promised [LOG-7].
VERDICTS: Final = {
    Finding.WHOLE: Verdict.KEEP,
    Finding.TORN_TAIL: Verdict.CUT,
    Finding.HOLE: Verdict.CUT_AND_SET_ASIDE,
    Finding.HOLE_BEFORE_LAST: Verdict.CUT_AND_SET_ASIDE,
    Finding.DAMAGED_BEFORE_LAST: Verdict.REFUSE,
    Finding.DAMAGED: Verdict.REFUSE,
    Finding.SHORT: Verdict.REFUSE,
}


@frozen(kw_only=True)
class Scan:
    """Facts about one scanned segment, from which alone the finding follows."""

    bad: bool
    ends_below_recovery_point: bool
    below_recovery_point: bool
    whole_batch_behind: bool
    later_segments_hold_data: bool
    rolls_are_synced: bool


def find(scan: Scan) -> Finding:
    """Name what a scan met."""
    if not scan.bad:
        return Finding.SHORT if scan.ends_below_recovery_point else Finding.WHOLE
    if scan.below_recovery_point:
        return Finding.DAMAGED
    if scan.later_segments_hold_data:
        return Finding.DAMAGED_BEFORE_LAST if scan.rolls_are_synced else Finding.HOLE_BEFORE_LAST
    return Finding.HOLE if scan.whole_batch_behind else Finding.TORN_TAIL


class CorruptLog(StorageFailure):
    """Bytes that were on the disk are not what they were. Attributes: file, position, expected, found."""

    def __init__(self, file: str, position: int, expected: str, found: str) -> None:
        super().__init__(file, f"corrupt at byte {position}: expected {expected}, found {found}")
        self.args = (file, position, expected, found)
        self.file, self.position, self.expected, self.found = file, position, expected, found


@frozen
class Repair:
    """One thing recovery did."""

    file: str
    done: str

    def __str__(self) -> str:
        return f"{self.file}: {self.done}"


@frozen(kw_only=True)
class RecoveryReport:
    """What opening a log met and did; each repair prints in one line."""

    clean: bool
    scanned_bytes: int = 0
    repairs: tuple[Repair, ...] = ()

    def __str__(self) -> str:
        if self.clean and not self.repairs:
            return "opened after a clean stop"
        lines = "; ".join(map(str, self.repairs)) or "nothing to repair"
        return f"scanned {self.scanned_bytes} bytes: {lines}"


class Leftover(Enum):
    """A file that an interrupted operation left in a log's directory."""

    DELETED = auto()  # removal was decided
    CLEANED = auto()  # compaction was not finished
    SWAP_BEFORE_CLEANED = auto()  # finished segments of a compaction that finished as a whole
    SWAP_WITH_CLEANED = auto()  # one of several, and the rest was not finished
    TEMPORARY = auto()  # a small file that was to be renamed
    ORPHAN_INDEX = auto()  # an index whose log is gone


class LeftoverVerdict(Enum):
    REMOVE = "removed"
    RENAME = "swapped in"


# Source: LogLoader.removeTempFilesAndCollectSwapFiles. Only a complete set of swap files may replace
# anything: while a .cleaned file is left at or below it, a .swap file is of a set that was not complete.
LEFTOVERS: Final = {
    Leftover.DELETED: LeftoverVerdict.REMOVE,
    Leftover.CLEANED: LeftoverVerdict.REMOVE,
    Leftover.SWAP_BEFORE_CLEANED: LeftoverVerdict.RENAME,
    Leftover.SWAP_WITH_CLEANED: LeftoverVerdict.REMOVE,
    Leftover.TEMPORARY: LeftoverVerdict.REMOVE,
    Leftover.ORPHAN_INDEX: LeftoverVerdict.REMOVE,
}


def find_swap(base_offset: int, cleaned_base_offsets: frozenset[int]) -> Leftover:
    """Whether a swap file may be put in place."""
    complete = all(base_offset < cleaned for cleaned in cleaned_base_offsets)
    return Leftover.SWAP_BEFORE_CLEANED if complete else Leftover.SWAP_WITH_CLEANED
