"""Rules for a job that comes again after its decision. Pure.

Spark runs a batch again until its own commit log has it, under its number and with the same offsets of its
sources (ADR 0036). Its number, its sinks and these offsets are what is stable. Its rows need not be: sums of
floating-point numbers depend on the order in which they are added, which after a shuffle is any; and rand,
uuid, the time, a lookup or what a schema registry knows may be different now. So what was decided stands
wherever the offsets show that it is the same batch, and the query goes on: the rows that its readers have
seen are one right answer, and to stop would lose the state of the query and bring nothing back.

    the sinks are others      refused: this job was decided for them, and these have nothing of it
    the rows are the same     it was decided before
    the offsets are others    refused: the checkpoint is another one, and rows of this batch may be missing
    the offsets are the same  what was decided stands; `onChangedRows=fail` refuses
    they are not known        refused; `onChangedRows=skip` lets what was decided stand

Not every source has offsets that tell. Spark's source of files counts the entries of a list in the
checkpoint, and some sources count what they have handed out: an old copy of a checkpoint comes to the same
number with other files. Such offsets are none that are known.
Source: Spark's `FileStreamSourceOffset`, which is {"logOffset": n}, and `LongOffset`.
"""

import json
from enum import Enum
from typing import Final

from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import BatchWrite, Decision, Job, JobChecksums, MicroBatch
from tallystick.spark.protocol.decide import VoteSummary, normalize_offsets
from tallystick.spark.protocol.errors import CheckpointsDiffer, SinkError


class ChangedRows(Enum):
    """`onChangedRows`: the action if a decided job comes again with other rows."""

    FAIL = "fail"
    COMPARE_OFFSETS = "compare-offsets"
    SKIP = "skip"


class RepetitionRules(Value, kw_only=True):
    """The repetitions that the user allows.

    accepts_other_sinks  what was decided for other sinks stands, and the query goes on with these
    """

    on_changed_rows: ChangedRows = ChangedRows.COMPARE_OFFSETS
    accepts_other_sinks: bool = False


DEFAULT_RULES: Final = RepetitionRules()


def assess_repetition(
    last_decision: Decision | None,
    vote_summary: VoteSummary,
    offsets: str | None = None,
    rules: RepetitionRules = DEFAULT_RULES,
) -> SinkError | str:
    """Return why a job that was decided before must not be dropped; else what to log about it, if anything.

    Args:
        offsets: the sources' offsets at the end of the batch, as the checkpoint has them; None if unknown.

    [SPK-22]
    """
    job = vote_summary.job
    before = _find_decided(last_decision, job)
    now = " and ".join(map(str, vote_summary.row_checksums))
    if before is None:
        count = 0 if last_decision is None else len(_list_decided(last_decision, job))
        return CheckpointsDiffer(
            f"checkpoint and decisions differ: {job} came again with {now}, and the decisions "
            f"tell only of the last {count}. It was neither written nor skipped. The checkpoint is an "
            "old one: restore a newer one, or begin anew with a new checkpoint and transactional.id.prefix"
        )
    if before.sinks and vote_summary.sinks and sorted(before.sinks) != sorted(vote_summary.sinks):
        return _assess_other_sinks(before, vote_summary, rules)
    if _are_same_rows(before, vote_summary):
        return ""
    then = " and ".join(map(str, before.row_checksums))
    difference = f"{job} came again with {now}; what was decided is {then}"
    return _assess_changed_rows(last_decision, job, offsets, rules, difference)


def _list_decided(last_decision: Decision, job: Job) -> tuple[JobChecksums, ...]:
    return last_decision.batches if isinstance(job, MicroBatch) else last_decision.writes


def _find_decided(last_decision: Decision | None, job: Job) -> JobChecksums | None:
    name = job.batch_id if isinstance(job, MicroBatch) else job.write_id
    jobs = () if last_decision is None else _list_decided(last_decision, job)
    return next((each for each in jobs if each.name == name), None)


def _are_same_rows(before: JobChecksums, vote_summary: VoteSummary) -> bool:
    """Compare the checksums, by sink where the sinks of both are known."""
    if not before.sinks or not vote_summary.sinks:
        return before.row_checksums == vote_summary.row_checksums
    then, now = (
        sorted((name, each.rows, each.checksum) for name, each in zip(names, checksums, strict=True))
        for names, checksums in (
            (before.sinks, before.row_checksums),
            (vote_summary.sinks, vote_summary.row_checksums),
        )
    )
    return then == now


def _assess_other_sinks(
    before: JobChecksums, vote_summary: VoteSummary, rules: RepetitionRules
) -> SinkError | str:
    job = vote_summary.job
    then, now = " and ".join(before.sinks), " and ".join(vote_summary.sinks)
    text = f"this prefix has decided {job} for {then}, and now it came for {now}"
    if isinstance(job, BatchWrite):
        return CheckpointsDiffer(
            f"{text}: nothing was written. Give each target a transactional.id.prefix of its own, or this "
            "write another write.id"
        )
    if rules.accepts_other_sinks:
        return f"{text}: what was decided stands, and nothing of it was written for {now}"
    return CheckpointsDiffer(
        f"{text}: nothing was written, and nothing skipped. Two sinks of one query need a "
        "transactional.id.prefix each, or one foreach_batch with both. If the query's sinks were changed, "
        "start it once with onNewPrefix=adopt: this batch stays what it is, and the next one is the "
        "first for the new sinks"
    )


def _assess_changed_rows(
    last_decision: Decision | None, job: Job, offsets: str | None, rules: RepetitionRules, difference: str
) -> SinkError | str:
    stands = f"{difference}. What was decided stands, and nothing was written again: {_CAUSES}"
    refusal = f"checkpoint and decisions differ: {difference}. It was neither written again nor skipped. "
    if isinstance(job, BatchWrite):
        if rules.on_changed_rows is ChangedRows.SKIP:
            return stands
        return CheckpointsDiffer(
            f"{refusal}If these rows are to be written as well, give the write a name of its own. If they "
            f"are the same rows computed anew ({_CAUSES}), onChangedRows=skip lets what was decided stand"
        )
    were = None
    if last_decision is not None and last_decision.batch_id == job.batch_id:
        were = last_decision.offsets
    if were is not None and offsets is not None and normalize_offsets(were) != normalize_offsets(offsets):
        return CheckpointsDiffer(
            f"{refusal}The decided batch ended at {_join(were)}, this one ends at {_join(offsets)}: the "
            "checkpoint is another one than the query had, or an old copy. Restore the one that it had, or "
            "find out what the topic lacks, and go on with a new checkpoint and onNewCheckpoint"
        )
    if rules.on_changed_rows is ChangedRows.FAIL:
        return CheckpointsDiffer(
            f"{refusal}Either {_CAUSES}. onChangedRows=compare-offsets, the default, lets what was decided "
            "stand where the sources' offsets are the same"
        )
    is_same_batch = were is not None and offsets is not None and not _has_counts(offsets)
    if rules.on_changed_rows is ChangedRows.SKIP or is_same_batch:
        return stands
    return CheckpointsDiffer(
        f"{refusal}Either the checkpoint is an old copy, or {_CAUSES}. Which of them cannot be told, because "
        f"the sources' offsets at the end of that batch {_explain_unknown(offsets)}. If "
        "the checkpoint is the one that the query had, onChangedRows=skip lets what was decided stand, and "
        "the query goes on with its state"
    )


def _has_counts(offsets: str) -> bool:
    """Return whether a source's offset is a number of its own or of the checkpoint, as that of files is."""
    return any(_is_count(line) for line in offsets.splitlines())


def _is_count(line: str) -> bool:
    try:
        offset = json.loads(line)
    except ValueError:
        return False
    return isinstance(offset, (int, float)) or (isinstance(offset, dict) and set(offset) == {"logOffset"})


def _explain_unknown(offsets: str | None) -> str:
    if offsets is not None and _has_counts(offsets):
        return f"are counts, which another copy of it may have for other rows ({_join(offsets)})"
    return "are not known: give the sink checkpointLocation"


def _join(offsets: str) -> str:
    return " and ".join(offsets.splitlines())


_CAUSES: Final = (
    "the rows are computed in another way each time (floating-point numbers added in another order, rand, "
    "uuid, the time), or the query, a table that it looks up or a registered schema was changed"
)
