"""Recovery rules: the cases met when a log is opened, and the action for each. Pure, no I/O.

A log that was closed cleanly is trusted. Otherwise every segment from the recovery point on is read, batch by
batch. The meaning of an invalid batch depends on the recovery point. Below it the bytes were synced, so the
disk lost them: corruption, the log is refused and an operator must look. Above it nothing was guaranteed, so
power failed before they were synced: the log is cut there. Cut bytes that still hold whole batches are kept
beside the log.

Segments before the last: under `flush.policy=ack` each was synced before its successor was made [LOG-3], so
damage there is never a lost write. Under `interval` and `os` it can be.

See docs/adr/0006-durability-and-recovery.md.
"""

from enum import Enum, auto
from typing import Final

from tallystick.kernel.value import frozen
from tallystick.storage.fs import StorageFailure


class Finding(Enum):
    """The state of a scanned segment at its first invalid batch."""

    WHOLE = auto()  # no invalid batch: valid to the last byte
    TORN_TAIL = auto()  # in the last segment above the recovery point, no valid batch after it
    HOLE = auto()  # in the last segment above the recovery point, valid batches after it
    HOLE_BEFORE_LAST = auto()  # above the recovery point, later segments hold data, rolls are not synced
    DAMAGED_BEFORE_LAST = auto()  # the same, but this segment was synced before the next one was created
    DAMAGED = auto()  # below the recovery point
    SHORT = auto()  # every batch is valid, but the log ends below the recovery point


class Verdict(Enum):
    """The action for a finding."""

    KEEP = "kept whole"
    CUT = "cut the torn end off"
    CUT_AND_SET_ASIDE = "cut at the hole, and kept what is behind it beside the log"
    REFUSE = "refused: corruption"


# The reasons:
# A valid segment stays as it is.
# A torn tail is the write in progress at the crash; nothing followed it.
# A hole is power loss under write-back caching: later pages reached the disk, earlier ones did not. Batches
#   after it were never acknowledged under `ack`; under `os` they were, and Kafka drops them silently. We cut,
#   because only compaction may leave gaps in the offsets, and keep the bytes for an operator.
# A hole with later segments: the same, under a policy that does not sync before a roll.
# Damage in a synced segment, or missing synced records, cannot come from power loss. Cutting would lose
#   acknowledged records [LOG-7].
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
    """The facts about one scanned segment that determine its finding."""

    bad: bool
    ends_below_recovery_point: bool
    below_recovery_point: bool
    whole_batch_behind: bool
    later_segments_hold_data: bool
    rolls_are_synced: bool


def find(scan: Scan) -> Finding:
    """Classify the result of a scan."""
    if not scan.bad:
        return Finding.SHORT if scan.ends_below_recovery_point else Finding.WHOLE
    if scan.below_recovery_point:
        return Finding.DAMAGED
    if scan.later_segments_hold_data:
        return Finding.DAMAGED_BEFORE_LAST if scan.rolls_are_synced else Finding.HOLE_BEFORE_LAST
    return Finding.HOLE if scan.whole_batch_behind else Finding.TORN_TAIL


class CorruptLog(StorageFailure):
    """Synced bytes have changed or are missing. Attributes: file, position, expected, found."""

    def __init__(self, file: str, position: int, expected: str, found: str) -> None:
        super().__init__(file, f"corrupt at byte {position}: expected {expected}, found {found}")
        self.args = (file, position, expected, found)
        self.file, self.position, self.expected, self.found = file, position, expected, found


@frozen
class Repair:
    """One action of recovery."""

    file: str
    done: str

    def __str__(self) -> str:
        return f"{self.file}: {self.done}"


@frozen(kw_only=True)
class RecoveryReport:
    """The result of opening a log; each repair prints in one line."""

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

    DELETED = auto()  # waiting for its removal
    CLEANED = auto()  # compaction did not finish
    SWAP_BEFORE_CLEANED = auto()  # part of a complete set of compacted segments
    SWAP_WITH_CLEANED = auto()  # part of an incomplete set
    TEMPORARY = auto()  # a small file that was not yet renamed
    ORPHAN_INDEX = auto()  # an index whose log is gone


class LeftoverVerdict(Enum):
    REMOVE = "removed"
    RENAME = "swapped in"


# Source: LogLoader.removeTempFilesAndCollectSwapFiles. Only a complete set of swap files may replace
# segments: a .swap file with a .cleaned file at or below its offset belongs to an incomplete set.
LEFTOVERS: Final = {
    Leftover.DELETED: LeftoverVerdict.REMOVE,
    Leftover.CLEANED: LeftoverVerdict.REMOVE,
    Leftover.SWAP_BEFORE_CLEANED: LeftoverVerdict.RENAME,
    Leftover.SWAP_WITH_CLEANED: LeftoverVerdict.REMOVE,
    Leftover.TEMPORARY: LeftoverVerdict.REMOVE,
    Leftover.ORPHAN_INDEX: LeftoverVerdict.REMOVE,
}


def find_swap(base_offset: int, cleaned_base_offsets: frozenset[int]) -> Leftover:
    """Classify a swap file by whether its set is complete and it may be put in place."""
    complete = all(base_offset < cleaned for cleaned in cleaned_base_offsets)
    return Leftover.SWAP_BEFORE_CLEANED if complete else Leftover.SWAP_WITH_CLEANED
