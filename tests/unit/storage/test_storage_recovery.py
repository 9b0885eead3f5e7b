"""The decision table of recovery, over all combinations of what can be found."""

from itertools import product

from tallystick.storage.disk.fs import CorruptLog
from tallystick.storage.log.recovery import (
    LEFTOVER_ACTIONS,
    RECOVERY_ACTIONS,
    LeftoverFile,
    RecoveryReport,
    Repair,
    SegmentCondition,
    SegmentRecoveryAction,
    SegmentScan,
    classify_scan,
    classify_swap_file,
)


def test_every_combination_has_a_verdict_and_promised_bytes_are_never_cut() -> None:
    """[LOG-7]: what was below the recovery point is kept or refused, never cut."""
    seen = set()
    for bad, short, below, behind, later, synced in product((False, True), repeat=6):
        scan = SegmentScan(
            has_invalid_batch=bad,
            is_end_below_recovery_point=short,
            is_below_recovery_point=below,
            has_valid_batch_after=behind,
            has_later_data=later,
            are_rolls_synced=synced,
        )
        finding = classify_scan(scan)
        seen.add(finding)
        verdict = RECOVERY_ACTIONS[finding]
        promised = (bad and (below or (later and synced))) or (not bad and short)
        assert (verdict is SegmentRecoveryAction.REFUSE) == promised, scan
        if verdict is SegmentRecoveryAction.TRUNCATE:
            assert not behind, "whole batches are never dropped without a copy"
            assert not later
        if not bad:
            assert verdict in (SegmentRecoveryAction.KEEP, SegmentRecoveryAction.REFUSE)
    assert seen == set(SegmentCondition) == set(RECOVERY_ACTIONS)


def test_a_swap_file_is_used_only_when_its_whole_set_was_finished() -> None:
    for swap, cleaned in product(range(4), range(4)):
        expected = LeftoverFile.SWAP_BEFORE_CLEANED if swap < cleaned else LeftoverFile.SWAP_WITH_CLEANED
        assert classify_swap_file(swap, frozenset({cleaned})) is expected
    assert classify_swap_file(3, frozenset()) is LeftoverFile.SWAP_BEFORE_CLEANED
    assert set(LEFTOVER_ACTIONS) == set(LeftoverFile)


def test_a_report_is_one_line() -> None:
    report = RecoveryReport(was_clean=False, scanned_bytes=9, repairs=(Repair("a.log", "cut"),))
    assert str(report) == "scanned 9 bytes: a.log: cut"
    assert str(RecoveryReport(was_clean=True)) == "opened after a clean stop"
    error = CorruptLog("a.log", 7, "x", "y")
    assert str(error).startswith("a.log: corrupt at byte 7: expected x, found y.")
