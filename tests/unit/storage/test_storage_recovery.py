"""The decision table of recovery, over all combinations of what can be found."""

from itertools import product

from tallystick.storage.recovery import (
    LEFTOVERS,
    VERDICTS,
    CorruptLog,
    Finding,
    Leftover,
    RecoveryReport,
    Repair,
    Scan,
    Verdict,
    find,
    find_swap,
)


def test_every_combination_has_a_verdict_and_promised_bytes_are_never_cut() -> None:
    """[LOG-7]: what was below the recovery point is kept or refused, never cut."""
    seen = set()
    for bad, short, below, behind, later, synced in product((False, True), repeat=6):
        scan = Scan(
            bad=bad,
            ends_below_recovery_point=short,
            below_recovery_point=below,
            whole_batch_behind=behind,
            later_segments_hold_data=later,
            rolls_are_synced=synced,
        )
        finding = find(scan)
        seen.add(finding)
        verdict = VERDICTS[finding]
        promised = (bad and (below or (later and synced))) or (not bad and short)
        assert (verdict is Verdict.REFUSE) == promised, scan
        if verdict is Verdict.CUT:
            assert not behind, "whole batches are never dropped without a copy"
            assert not later
        if not bad:
            assert verdict in (Verdict.KEEP, Verdict.REFUSE)
    assert seen == set(Finding) == set(VERDICTS)


def test_a_swap_file_is_used_only_when_its_whole_set_was_finished() -> None:
    for swap, cleaned in product(range(4), range(4)):
        expected = Leftover.SWAP_BEFORE_CLEANED if swap < cleaned else Leftover.SWAP_WITH_CLEANED
        assert find_swap(swap, frozenset({cleaned})) is expected
    assert find_swap(3, frozenset()) is Leftover.SWAP_BEFORE_CLEANED
    assert set(LEFTOVERS) == set(Leftover)


def test_a_report_is_one_line() -> None:
    report = RecoveryReport(clean=False, scanned_bytes=9, repairs=(Repair("a.log", "cut"),))
    assert str(report) == "scanned 9 bytes: a.log: cut"
    assert str(RecoveryReport(clean=True)) == "opened after a clean stop"
    error = CorruptLog("a.log", 7, "x", "y")
    assert str(error) == "a.log: corrupt at byte 7: expected x, found y"
