"""Recovery rules: the cases met when a log is opened, and the action for each. Pure, no I/O.

A log that was closed cleanly is trusted. Otherwise every segment from the recovery point on is read, batch by
batch. The meaning of an invalid batch depends on the recovery point. Below it the bytes were synced, so the
disk lost them: corruption, the log is refused and an operator must look. Above it nothing was guaranteed, so
power failed before they were synced: the log is cut there. Cut bytes that still hold whole batches are kept
next to the log.

Segments before the last: under `flush.policy=ack` each was synced before its successor was made [LOG-3], so
damage there is never a lost write. Under `interval` and `os` it can be.

See docs/adr/0006-durability-and-recovery.md.
"""

from enum import Enum, auto
from typing import Final

from tallystick.kernel.value import Value


class SegmentCondition(Enum):
    """The state of a scanned segment at its first invalid batch."""

    WHOLE = auto()  # no invalid batch: valid to the last byte
    TORN_TAIL = auto()  # in the last segment above the recovery point, no valid batch after it
    HOLE = auto()  # in the last segment above the recovery point, valid batches after it
    HOLE_BEFORE_LAST = auto()  # above the recovery point, later segments hold data, rolls are not synced
    DAMAGED_BEFORE_LAST = auto()  # the same, but this segment was synced before the next one was created
    DAMAGED = auto()  # below the recovery point
    ENDS_EARLY = auto()  # every batch is valid, but the log ends below the recovery point


class SegmentRecoveryAction(Enum):
    """The action for a condition."""

    KEEP = "kept"
    TRUNCATE = "truncated the torn end"
    TRUNCATE_AND_SET_ASIDE = "truncated at the hole, and copied what is behind it to a file next to the log"
    REFUSE = "refused"


# The reasons:
# A valid segment stays as it is.
# A torn tail is the write in progress at the crash; nothing followed it.
# A hole is power loss under write-back caching: later pages reached the disk, earlier ones did not. Batches
#   after it were never acknowledged under `ack`; under `os` they were, and Kafka drops them silently. We cut,
#   because only compaction may leave gaps in the offsets, and keep the bytes for an operator.
# A hole with later segments: the same, under a policy that does not sync before a roll.
# Damage in a synced segment, or missing synced records, cannot come from power loss. Cutting would lose
#   acknowledged records [LOG-7].
RECOVERY_ACTIONS: Final = {
    SegmentCondition.WHOLE: SegmentRecoveryAction.KEEP,
    SegmentCondition.TORN_TAIL: SegmentRecoveryAction.TRUNCATE,
    SegmentCondition.HOLE: SegmentRecoveryAction.TRUNCATE_AND_SET_ASIDE,
    SegmentCondition.HOLE_BEFORE_LAST: SegmentRecoveryAction.TRUNCATE_AND_SET_ASIDE,
    SegmentCondition.DAMAGED_BEFORE_LAST: SegmentRecoveryAction.REFUSE,
    SegmentCondition.DAMAGED: SegmentRecoveryAction.REFUSE,
    SegmentCondition.ENDS_EARLY: SegmentRecoveryAction.REFUSE,
}


class SegmentScan(Value, kw_only=True):
    """The facts about one scanned segment that determine its condition."""

    has_invalid_batch: bool
    is_end_below_recovery_point: bool
    is_below_recovery_point: bool
    has_valid_batch_after: bool
    has_later_data: bool
    are_rolls_synced: bool


def classify_scan(scan: SegmentScan) -> SegmentCondition:
    """Classify the result of a scan."""
    if not scan.has_invalid_batch:
        return SegmentCondition.ENDS_EARLY if scan.is_end_below_recovery_point else SegmentCondition.WHOLE
    if scan.is_below_recovery_point:
        return SegmentCondition.DAMAGED
    if scan.has_later_data:
        return (
            SegmentCondition.DAMAGED_BEFORE_LAST
            if scan.are_rolls_synced
            else SegmentCondition.HOLE_BEFORE_LAST
        )
    return SegmentCondition.HOLE if scan.has_valid_batch_after else SegmentCondition.TORN_TAIL


class Repair(Value):
    """One action of recovery."""

    file: str
    action: str

    def __str__(self) -> str:
        return f"{self.file}: {self.action}"


class RecoveryReport(Value, kw_only=True):
    """The result of opening a log; each repair prints in one line."""

    was_clean: bool
    scanned_bytes: int = 0
    repairs: tuple[Repair, ...] = ()

    def __str__(self) -> str:
        if self.was_clean and not self.repairs:
            return "opened after a clean stop"
        lines = "; ".join(map(str, self.repairs)) or "nothing to repair"
        return f"scanned {self.scanned_bytes} bytes: {lines}"


class LeftoverFile(Enum):
    """A file that an interrupted operation left in a log's directory."""

    DELETED = auto()  # waiting for its removal
    CLEANED = auto()  # compaction did not finish
    SWAP_BEFORE_CLEANED = auto()  # part of a complete set of compacted segments
    SWAP_WITH_CLEANED = auto()  # part of an incomplete set
    TEMPORARY = auto()  # a small file that was not yet renamed
    ORPHAN_INDEX = auto()  # an index whose log is gone


class LeftoverAction(Enum):
    REMOVE = "removed"
    RENAME = "swapped in"


# Source: LogLoader.removeTempFilesAndCollectSwapFiles. Only a complete set of swap files may replace
# segments: a .swap file with a .cleaned file at or below its offset belongs to an incomplete set.
LEFTOVER_ACTIONS: Final = {
    LeftoverFile.DELETED: LeftoverAction.REMOVE,
    LeftoverFile.CLEANED: LeftoverAction.REMOVE,
    LeftoverFile.SWAP_BEFORE_CLEANED: LeftoverAction.RENAME,
    LeftoverFile.SWAP_WITH_CLEANED: LeftoverAction.REMOVE,
    LeftoverFile.TEMPORARY: LeftoverAction.REMOVE,
    LeftoverFile.ORPHAN_INDEX: LeftoverAction.REMOVE,
}


def classify_swap_file(base_offset: int, cleaned_base_offsets: frozenset[int]) -> LeftoverFile:
    """Classify a swap file by whether its set is complete and it may be put in place."""
    complete = all(base_offset < cleaned for cleaned in cleaned_base_offsets)
    return LeftoverFile.SWAP_BEFORE_CLEANED if complete else LeftoverFile.SWAP_WITH_CLEANED
