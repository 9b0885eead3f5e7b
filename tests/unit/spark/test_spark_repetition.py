"""What becomes of a job that comes again after its decision."""

import pytest

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.spark.protocol.committable import (
    BatchWrite,
    Decision,
    Job,
    JobChecksums,
    MicroBatch,
    RowChecksum,
    Vote,
)
from tallystick.spark.protocol.decide import VoteSummary, summarize_votes
from tallystick.spark.protocol.errors import CheckpointsDiffer
from tallystick.spark.protocol.repetition import ChangedRows, RepetitionRules, assess_repetition

OFFSETS = '{"a":{"0":5, "1":7}}'
SAME_OFFSETS = '{"a":{"1":7,"0":5}}'
ROWS, OTHER_ROWS = RowChecksum(4, 20), RowChecksum(4, 21)
BATCH, WRITE = MicroBatch("q", 2), BatchWrite("w")


def decide(sinks: tuple[str, ...] = (), offsets: str | None = OFFSETS) -> Decision:
    return Decision(
        nonce="m",
        participants=(),
        transaction_version=2,
        decided_ms=0,
        query_id="q",
        batches=(
            JobChecksums(1, (ROWS,) * max(1, len(sinks)), sinks),
            JobChecksums(2, (ROWS,) * max(1, len(sinks)), sinks),
        ),
        writes=(JobChecksums("w", (ROWS,) * max(1, len(sinks)), sinks),),
        offsets=offsets,
    )


def repeat(job: Job, *rows: RowChecksum, sinks: tuple[str, ...] = ()) -> VoteSummary:
    vote = Vote(
        nonce="n",
        coordinator=ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(9)),
        transaction_version=2,
        job=job,
        row_checksums=rows,
        is_skipped=True,
        sinks=sinks,
    )
    found = summarize_votes([vote])
    assert isinstance(found, VoteSummary)
    return found


@pytest.mark.parametrize("job", [BATCH, WRITE])
def test_the_same_rows_were_decided_before(job: Job) -> None:
    """[SPK-22] Whether earlier versions said for which sinks, or not."""
    assert assess_repetition(decide(), repeat(job, ROWS)) == ""
    assert assess_repetition(decide(), repeat(job, ROWS, sinks=("topic a",))) == ""
    assert assess_repetition(decide(("topic a",)), repeat(job, ROWS, sinks=("topic a",))) == ""


def test_what_is_too_old_to_be_compared_is_refused() -> None:
    """[SPK-22]"""
    found = assess_repetition(decide(), repeat(MicroBatch("q", 0), ROWS), OFFSETS)
    assert isinstance(found, CheckpointsDiffer)
    assert "tell only of the last 2" in str(found)
    assert isinstance(assess_repetition(None, repeat(WRITE, ROWS)), CheckpointsDiffer)


@pytest.mark.parametrize(
    ("were", "are", "fail", "compare", "skip"),
    [
        (OFFSETS, SAME_OFFSETS, "refused", "stands", "stands"),
        (OFFSETS, '{"a":{"0":6,"1":7}}', "refused", "refused", "refused"),
        (OFFSETS, OFFSETS + "\n0", "refused", "refused", "refused"),
        (OFFSETS, None, "refused", "refused", "stands"),
        (None, OFFSETS, "refused", "refused", "stands"),
        # Files: the same number of another copy of the checkpoint has other files.
        ('{"logOffset":5}', '{"logOffset":5}', "refused", "refused", "stands"),
        ('{"logOffset":5}', '{"logOffset":6}', "refused", "refused", "refused"),
        (OFFSETS + "\n5", SAME_OFFSETS + "\n5", "refused", "refused", "stands"),
        (OFFSETS + "\n-", SAME_OFFSETS + "\n-", "refused", "stands", "stands"),
    ],
)
def test_what_was_decided_stands_where_the_offsets_are_the_same(
    were: str | None, are: str | None, fail: str, compare: str, skip: str
) -> None:
    """[SPK-22] Floating-point numbers were added in another order; or the checkpoint is another one."""
    for choice, wanted in zip(ChangedRows, (fail, compare, skip), strict=True):
        rules = RepetitionRules(on_changed_rows=choice)
        found = assess_repetition(decide(offsets=were), repeat(BATCH, OTHER_ROWS), are, rules)
        assert isinstance(found, str) == (wanted == "stands"), choice
        assert "added in another order" in str(found) or "is another one than the query had" in str(found)


def test_counts_of_a_checkpoint_are_named() -> None:
    """[SPK-22]"""
    files = '{"logOffset":5}'
    found = assess_repetition(decide(offsets=files), repeat(BATCH, OTHER_ROWS), files)
    assert "are counts" in str(found)
    assert "onChangedRows=skip" in str(found)


def test_of_an_earlier_batch_the_offsets_are_not_kept() -> None:
    """[SPK-22]"""
    found = assess_repetition(decide(), repeat(MicroBatch("q", 1), OTHER_ROWS), OFFSETS)
    assert "onChangedRows=skip" in str(found)
    assert isinstance(found, CheckpointsDiffer)


def test_a_named_write_with_other_rows_needs_a_word() -> None:
    """[SPK-22]"""
    found = assess_repetition(decide(), repeat(WRITE, OTHER_ROWS))
    assert isinstance(found, CheckpointsDiffer)
    assert "give the write a name of its own" in str(found)
    skips = RepetitionRules(on_changed_rows=ChangedRows.SKIP)
    assert isinstance(assess_repetition(decide(), repeat(WRITE, OTHER_ROWS), None, skips), str)


@pytest.mark.parametrize(("job", "name"), [(BATCH, "batch 2 of query q"), (WRITE, "write 'w'")])
def test_a_job_for_another_sink_is_no_repetition(job: Job, name: str) -> None:
    """[SPK-22] The rows are the same, and the other sink has none of them."""
    found = assess_repetition(decide(("topic a",)), repeat(job, ROWS, sinks=("topic b",)), OFFSETS)
    assert isinstance(found, CheckpointsDiffer)
    assert f"this prefix has decided {name} for topic a, and now it came for topic b" in str(found)


def test_other_sinks_need_a_word_once() -> None:
    """[SPK-22] The batch stays where it is, and the log says so."""
    rules = RepetitionRules(accepts_other_sinks=True)
    found = assess_repetition(decide(("topic a",)), repeat(BATCH, ROWS, sinks=("topic b",)), OFFSETS, rules)
    assert isinstance(found, str)
    assert "nothing of it was written for topic b" in found


def test_the_order_of_the_sinks_does_not_matter() -> None:
    """[SPK-22]"""
    last = decide(("topic a", "table t"))
    assert assess_repetition(last, repeat(BATCH, ROWS, ROWS, sinks=("table t", "topic a"))) == ""
    swapped = repeat(BATCH, OTHER_ROWS, ROWS, sinks=("table t", "topic a"))
    assert isinstance(assess_repetition(last, swapped), CheckpointsDiffer)
