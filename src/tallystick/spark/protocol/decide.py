"""Decision rules of the two-phase commit between Spark and Kafka. Pure.

One batch is one decision over many transactions [SPK-21]:

    begin    driver   claim P/coordinator, which fences every earlier driver; read the last decision and
                      complete it; abort every other open transaction of P's workers; return a lease
    attempt  task     write and prepare one transaction under an id of its process; vote
    commit   driver   count the votes, check that each transaction is still as it was prepared, record the
                      decision under the lease's producer id and epoch: the commit point. Then commit them all
    abort    driver   find out whether a decision was recorded; then complete it, or abort what is open

The protocol rests on four rules:

- No transaction is committed before the decision is in the log, and a decided one is never aborted: errors
  after the decision are retried or reported [SPK-21].
- A decided batch that Spark runs again is read to its end, counted, compared with the decision, and dropped
  if it is the same. Any other gap or repetition stops the query [SPK-22].
- A transactional id of the last decision is not initialised before the next decision is recorded
  (`worker_ids`): InitProducerId would erase the evidence of how its transaction ended [SPK-23].
- A transaction is ended by its id, under exactly the producer id and epoch that were seen, and never by
  initialising the id: a driver that stalls between looking and ending cannot end a transaction that a newer
  driver has begun since [SPK-28].

Refusals are returned as errors of `errors`; the callers raise them.

Source: docs/design/spark-sink.md.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from tallystick.admin.model import TransactionDescription
from tallystick.client.transactions.modes import (
    Mode,
    TxnDescription,
    TxnFinding,
    TxnToResolve,
    classify_outcome,
)
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import Value, replace
from tallystick.spark.protocol.committable import (
    BATCHES_MAX,
    WRITES_MAX,
    BatchWrite,
    Decision,
    DecisionSummary,
    Job,
    JobChecksums,
    MicroBatch,
    Participant,
    RowChecksum,
    Vote,
)
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import (
    CheckpointsDiffer,
    DecisionBroken,
    DecisionsLost,
    DecisionsMissing,
    MixedVotes,
    PrefixTaken,
    SinkError,
    UnknownCheckpoint,
    VoteLost,
)
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX, is_worker_id

TIMEOUT_MARGIN_DIVISOR: Final = 4
"""A transaction with less than a quarter of its timeout left is not decided on."""


# -------------------------------------------------------------------------------- in a task


class TaskAction(Enum):
    """The action of a task on its rows."""

    WRITE = "write them"
    SKIP = "count and drop them: they were decided before"


class NewCheckpoint(Enum):
    """`onNewCheckpoint`: the action if the prefix has decisions, but of another query."""

    REFUSE = "refuse"
    RESTART = "restart"
    RESUME = "resume"


class NewPrefix(Enum):
    """`onNewPrefix`: the action if a query continues and none of its decisions is known."""

    REFUSE = "refuse"
    ADOPT = "adopt"


class DecisionLocation(Value, kw_only=True):
    """The location of a query's decisions. Its checkpoint keeps a note of it, as each is useless alone.

    location  the topic and its cluster, or the database
    """

    prefix: str
    location: str


class QueryStart(Value, kw_only=True):
    """The beginning of a query according to its checkpoint, if the driver can read it.

    start_offsets  the start offsets of its sources, as JSON; of sources that noted them, each value once
    source_count   the number of sources
    is_stateful    some of its operators keep state
    """

    query_id: str
    start_offsets: tuple[str, ...] = ()
    source_count: int = 0
    is_stateful: bool = False


def plan_task(
    last_decision: DecisionSummary | None,
    batch: MicroBatch,
    on_new: NewCheckpoint,
    on_new_prefix: NewPrefix = NewPrefix.REFUSE,
) -> TaskAction | SinkError:
    """Return whether a task writes or skips this batch, or the refusal [SPK-22] [SPK-29].

    A driver that lags behind repeats batches before the last decided one, so those are skipped, too.
    """
    if last_decision is None or last_decision.query_id != batch.query_id:
        if (refusal := refuse_unknown_query(last_decision, batch.query_id, on_new)) is not None:
            return refusal
        return _refuse_missing_decisions(batch, on_new_prefix) or TaskAction.WRITE
    last_batch_id = -1 if last_decision.batch_id is None else last_decision.batch_id
    # Spark runs a batch again, under its number and with the same offsets, until its own commit log has it:
    # after an ordinary stop, too (ADR 0036).
    if batch.batch_id <= last_batch_id:
        return TaskAction.SKIP
    if batch.batch_id == last_batch_id + 1:
        return TaskAction.WRITE
    return CheckpointsDiffer(
        f"checkpoint and decisions differ: {batch} does not follow the last decided batch, which is "
        f"{'none' if last_batch_id < 0 else last_batch_id}. Batches in between were committed "
        "without this sink, or decisions were lost. Nothing was written. Find out which; to go on from here, "
        "give the sink a new transactional.id.prefix, and onNewPrefix=adopt until its first batch is decided"
    )


def _refuse_missing_decisions(batch: MicroBatch, on_new: NewPrefix) -> DecisionsMissing | None:
    """Refuse a batch that is not the query's first if none before it is decided, unless adopting."""
    # Spark numbers the batches of a checkpoint from 0, so any other number has a predecessor (ADR 0036).
    if batch.batch_id == 0 or on_new is NewPrefix.ADOPT:
        return None
    return DecisionsMissing(
        f"{batch} is not its first, and no decision of this query is known under this prefix: "
        "transactional.id.prefix, decisions.topic, the cluster or the database was changed, or the decisions "
        "were lost. The batch may have been decided there; nothing was written here. Take back what was "
        "changed. If the query comes from another sink, or this is meant: onNewPrefix=adopt writes this "
        "batch and goes on, whatever was written of it before"
    )


def refuse_moved_decisions(
    notes: Sequence[DecisionLocation],
    prefix: str,
    place: str | None,
    on_new: NewPrefix,
    sibling_prefixes: Container[str] = (),
) -> DecisionsMissing | None:
    """Refuse a query whose decisions are not in the place that its checkpoint notes [SPK-29].

    Args:
        notes: the notes in the checkpoint; none if there are none, or they cannot be read.
        place: the place where decisions are looked for now; None if there are none yet.
        sibling_prefixes: other prefixes under which this run of the query writes.
    """
    if on_new is NewPrefix.ADOPT:
        return None
    own = [note for note in notes if note.prefix == prefix]
    # A query may have several sinks, each with a prefix of its own and a note of its own.
    strange = own or [note for note in notes if note.prefix not in sibling_prefixes]
    if not strange or strange == [DecisionLocation(prefix=prefix, location=place or "")]:
        return None
    places = " and ".join(f"{note.prefix!r} with decisions in {note.location}" for note in strange)
    now = "nowhere yet" if place is None else f"in {place}"
    return DecisionsMissing(
        f"the checkpoint belongs to transactional.id.prefix {places}; the query was started with {prefix!r} "
        f"and decisions {now}. Batches decided there and not yet in the checkpoint would be written twice, "
        "so nothing was begun. Restore the old options; if the decisions were lost, compare the topic with "
        "the sources. If the change is intended, start the query once more as it was, so that no batch is "
        "left half-way, then with onNewPrefix=adopt"
    )


def refuse_unknown_query(
    last_decision: DecisionSummary | None, query_id: str, on_new: NewCheckpoint
) -> UnknownCheckpoint | None:
    """Refuse a query that is new to the prefix, unless an option allows it.

    A task checks this, because it always knows its query. A driver that can find out its query checks it
    before it claims the prefix, so that a mistyped prefix does not fence the query that owns it.
    """
    if last_decision is None or last_decision.query_id in (None, query_id) or on_new is NewCheckpoint.RESTART:
        return None
    introduction = (
        f"query {query_id} is new to this transactional.id.prefix: the last decision is batch "
        f"{last_decision.batch_id} of query {last_decision.query_id}."
    )
    if on_new is NewCheckpoint.RESUME:  # the driver would have told the tasks otherwise: `resume_decision`
        return UnknownCheckpoint(
            f"{introduction} Nothing was written. onNewCheckpoint=resume looks into the checkpoint, and "
            "the driver cannot read it: give it as the option checkpointLocation; under Spark Connect it "
            "must be a folder on the server's host. Otherwise, give the source startingOffsets and the sink "
            "onNewCheckpoint=restart: `tallystick transactions resolve --prefix ... --dry-run` shows the "
            "offsets"
        )
    return UnknownCheckpoint(
        f"{introduction} Its checkpoint was deleted or replaced, or another query has the prefix. "
        "Nothing was written. If the checkpoint is still there, use it. If not: onNewCheckpoint=resume goes "
        "on where the last decision ended, and needs the sources' options resume.from.prefix and "
        "checkpointLocation; onNewCheckpoint=restart writes what this query reads, whatever was written "
        "before. `tallystick transactions resolve --prefix ... --dry-run` shows the offsets of the last "
        "decision"
    )


def resume_decision(
    last_decision: Decision | None, beginning: QueryStart | None
) -> DecisionSummary | UnknownCheckpoint | None:
    """Return the last decision to put into the lease, under `onNewCheckpoint=resume` [SPK-27].

    A new query follows the old one if all of its sources begin where the last decision ended. Then none of
    its batches is decided yet, and its first one comes next.

    Args:
        beginning: the beginning of the query; None if the driver cannot see it. Then its tasks refuse.
    """
    if last_decision is None or beginning is None or last_decision.query_id in (None, beginning.query_id):
        return None if last_decision is None else last_decision.summary
    offsets = (last_decision.offsets or "").splitlines()
    at = f"batch {last_decision.batch_id} of query {last_decision.query_id}"
    if not offsets:
        why = f"the offsets of {at} were not kept: its driver could not read its checkpoint"
    elif beginning.is_stateful:
        query_id = last_decision.query_id
        why = f"the state of query {query_id} was in its checkpoint, and this query would begin without"
    elif beginning.source_count != len(offsets) or _normalize_all_offsets(
        beginning.start_offsets
    ) != _normalize_all_offsets(offsets):
        began = " and ".join(beginning.start_offsets) or "unreported offsets"
        why = (
            f"{at} ended at {' and '.join(offsets)}; the {beginning.source_count} sources of this query "
            f"began at {began}. Give each the options resume.from.prefix and checkpointLocation"
        )
    else:
        return DecisionSummary(nonce=last_decision.nonce, query_id=beginning.query_id, batch_id=None)
    return UnknownCheckpoint(
        f"query {beginning.query_id} cannot resume query {last_decision.query_id}: {why}. Nothing "
        "was written. Begin with another checkpoint when that is mended, or choose onNewCheckpoint=restart, "
        "which does not look"
    )


def _normalize_all_offsets(offsets: Iterable[str]) -> set[str]:
    """Normalise the JSON offsets of sources; text that is no JSON is kept as it is."""
    return {_normalize_offsets(each) for each in offsets}


def _normalize_offsets(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def normalize_offsets(text: str) -> list[str]:
    """Normalise the offsets of several sources, a line each."""
    return [_normalize_offsets(line) for line in text.splitlines()]


# ------------------------------------------------------------------------------- the votes


class VoteSummary(Value, kw_only=True):
    """The votes of a batch, combined: the values that all share, the participants and the row_checksums."""

    nonce: str
    coordinator: ProducerIdAndEpoch
    transaction_version: int
    job: Job
    is_skipped: bool
    participants: tuple[Participant, ...]
    row_checksums: tuple[RowChecksum, ...]
    mode: str
    began_ms: int
    last_nonce: str
    sinks: tuple[str, ...] = ()


def summarize_votes(votes: Iterable[Vote | None]) -> VoteSummary | MixedVotes:
    """Combine the votes of a batch. None is the vote of a task that did not report.

    Votes of killed attempts, and of attempts that lost to another one, do not arrive here. So their
    transactions are in no decision.
    """
    # Spark passes one message a partition, and None for a task that has not reported (ADR 0036).
    cast = [vote for vote in votes if vote is not None]
    if not cast:
        return MixedVotes("no task has voted")
    common_fields = {
        (
            v.nonce,
            v.coordinator,
            v.transaction_version,
            v.job,
            v.is_skipped,
            v.last_nonce,
            len(v.row_checksums),
            v.sinks,
        )
        for v in cast
    }
    if len(common_fields) != 1:
        vote_texts = "; ".join(
            sorted(f"{v.job} under {v.nonce}{' skipped' * v.is_skipped}" for v in cast)[:5]
        )
        return MixedVotes(f"the votes of one batch do not agree: {vote_texts}. Nothing was decided")
    participants = tuple(vote.participant for vote in cast if vote.participant is not None)
    if len({each.transactional_id for each in participants}) != len(participants):
        return MixedVotes("two votes name the same transactional id. Nothing was decided")
    first_vote, *other_votes = cast
    row_checksums = first_vote.row_checksums
    for vote in other_votes:
        row_checksums = tuple(a.combine(b) for a, b in zip(row_checksums, vote.row_checksums, strict=True))
    return VoteSummary(
        nonce=first_vote.nonce,
        coordinator=first_vote.coordinator,
        transaction_version=first_vote.transaction_version,
        job=first_vote.job,
        is_skipped=first_vote.is_skipped,
        participants=participants,
        row_checksums=row_checksums,
        mode=next((vote.mode for vote in cast if vote.mode), ""),
        began_ms=first_vote.began_ms,
        last_nonce=first_vote.last_nonce,
        sinks=first_vote.sinks,
    )


def build_decision(
    prefix: str, last_decision: Decision | None, vote_summary: VoteSummary, now_ms: int, offsets: str | None
) -> Decision | PrefixTaken:
    """Build the decision on this ballot, including the batches and writes that the last one kept.

    The tasks compared their job with the last decision in the lease. If there is a newer decision now, then
    another driver has decided since, and the lease has ended: PrefixTaken.
    """
    decision = Decision(
        nonce=vote_summary.nonce,
        participants=vote_summary.participants,
        transaction_version=vote_summary.transaction_version,
        decided_ms=now_ms,
        query_id=None if last_decision is None else last_decision.query_id,
        batches=() if last_decision is None else last_decision.batches,
        writes=() if last_decision is None else last_decision.writes,
        mode=vote_summary.mode,
        offsets=None if last_decision is None else last_decision.offsets,
        number=1 if last_decision is None else last_decision.number + 1,
    )
    if isinstance(vote_summary.job, BatchWrite):
        checksums = JobChecksums(vote_summary.job.write_id, vote_summary.row_checksums, vote_summary.sinks)
        if not checksums.name:
            return decision
        if checksums.name in {each.name for each in decision.writes}:
            return PrefixTaken(prefix, f"it has decided {vote_summary.job}")
        return replace(decision, writes=(*decision.writes, checksums)[-WRITES_MAX:])
    checksums = JobChecksums(vote_summary.job.batch_id, vote_summary.row_checksums, vote_summary.sinks)
    batches = decision.batches if decision.query_id == vote_summary.job.query_id else ()
    if batches and batches[-1].name != vote_summary.job.batch_id - 1:
        return PrefixTaken(prefix, f"it has decided batch {batches[-1].name}, this is {vote_summary.job}")
    return replace(
        decision,
        query_id=vote_summary.job.query_id,
        batches=(*batches, checksums)[-BATCHES_MAX:],
        offsets=offsets,
    )


def find_expired_votes(
    participants: Sequence[Participant],
    descriptions: Mapping[str, TransactionDescription | None],
    now_ms: int,
    began_ms: int,
) -> VoteLost | None:
    """Refuse to decide if a transaction is not as its task prepared it, or is near its timeout.

    A transaction that times out between the decision and its end is lost for good, so one that is near its
    timeout is not decided on. Under two-phase commit (KIP-939) transactions have no timeout.

    Source: KIP-939 "Kafka as a Participant in 2PC": a transaction that runs longer than the limit is aborted,
        which "would make a decision that may be different from the external transaction coordinator's".

    Args:
        began_ms: the time of the claim, by the clock of `now_ms`; 0 if it is not known.
    """
    problems = [
        why
        for each in participants
        if (why := _explain_undecidable(each, descriptions[each.transactional_id], now_ms, began_ms))
    ]
    if not problems:
        return None
    ellipsis = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
    return VoteLost(
        f"{len(problems)} of {len(participants)} prepared transactions cannot be decided on: "
        f"{'; '.join(problems[:3])}{ellipsis}. Nothing was decided: the batch is written again when the "
        "query is restarted"
    )


def _explain_undecidable(
    participant: Participant, description: TransactionDescription | None, now_ms: int, began_ms: int
) -> str | None:
    if description is None:
        return f"{participant.transactional_id}: unknown to the cluster"
    if not is_open(participant, description):
        return (
            f"{participant.transactional_id}: prepared as {participant.identity}, and the cluster has "
            f"{description.writer} {description.state}"
        )
    if description.timeout_ms is None or description.started_ms is None:
        return None
    age_ms = _compute_transaction_age_ms(description.started_ms, now_ms, began_ms)
    if age_ms < description.timeout_ms - description.timeout_ms // TIMEOUT_MARGIN_DIVISOR:
        return None
    return (
        f"{participant.transactional_id}: open for {age_ms} ms, and the cluster aborts it at "
        f"{description.timeout_ms} ms; raise kafka.transaction.timeout.ms, or make batches smaller"
    )


def _compute_transaction_age_ms(started_ms: int, now_ms: int, began_ms: int) -> int:
    """Return how long a transaction has been open, by the driver's clock; an upper bound if that is unknown.

    `started_ms` is a broker's time. A task of the lease began the transaction, so a time before the lease or
    after now only shows that the clocks differ, and is ignored.
    """
    if began_ms == 0 or began_ms <= started_ms <= now_ms:
        return now_ms - started_ms
    return now_ms - began_ms


# ------------------------------------------------------------------------ what was decided


class ParticipantOutcome(Enum):
    """The outcome of one decided transaction."""

    OPEN = "prepared: to be committed"
    COMMITTED = "committed"
    ABORTED = "aborted by the cluster"
    UNKNOWN = "no longer known"


# The hold rule makes this table safe [SPK-23]: between its vote and the next decision only recovery touches
# an id, and recovery only commits. So if the id has moved on, its state alone tells the outcome: a recovery
# completed the transaction and crashed before it could record that.
# KIP-939: "once the PREPARE_COMMIT record is written, the transaction is committed", markers or not.
_OUTCOME_BY_STATE: Final = {
    "PrepareCommit": ParticipantOutcome.COMMITTED,
    "CompleteCommit": ParticipantOutcome.COMMITTED,
    "PrepareAbort": ParticipantOutcome.ABORTED,
    "PrepareEpochFence": ParticipantOutcome.ABORTED,
    "CompleteAbort": ParticipantOutcome.ABORTED,
}
_OUTCOME_BY_FINDING: Final = {
    TxnFinding.OPEN: ParticipantOutcome.OPEN,
    TxnFinding.COMMITTED: ParticipantOutcome.COMMITTED,
    TxnFinding.ABORTED: ParticipantOutcome.ABORTED,
    TxnFinding.FORCED: ParticipantOutcome.ABORTED,
    TxnFinding.OTHER_OPEN: ParticipantOutcome.UNKNOWN,
    TxnFinding.GONE: ParticipantOutcome.UNKNOWN,
    TxnFinding.LOST: ParticipantOutcome.UNKNOWN,
}


def is_open(participant: Participant, description: TransactionDescription | None) -> bool:
    """Return whether exactly this transaction is open.

    Source: KIP-939 "Motivation": a producer id and epoch "uniquely identify the transaction" (KIP-890). Where
        an end does not bump the epoch, the attempt's InitProducerId does (ADR 0036).
    """
    return (
        description is not None
        and description.state == "Ongoing"
        and description.writer == participant.identity
    )


def resolve_outcome(
    participant: Participant, transaction_version: int, description: TransactionDescription | None
) -> ParticipantOutcome:
    """Return the outcome of a decided transaction, from its coordinator's description."""
    txn = TxnToResolve(writer=participant.identity, client=participant.identity, version=transaction_version)
    state = None if description is None else _to_txn_state(description)
    finding = classify_outcome(txn, state)
    if finding is TxnFinding.MOVED_ON and state is not None:
        return _OUTCOME_BY_STATE.get(state.state, ParticipantOutcome.UNKNOWN)
    return _OUTCOME_BY_FINDING[finding]


def _to_txn_state(description: TransactionDescription) -> TxnDescription:
    forced_writers = (each.writer for each in description.forced_outcomes if each.partition is None)
    return TxnDescription(
        state=description.state, identity=description.writer, forced_identities=frozenset(forced_writers)
    )


def find_incomplete_decision(
    prefix: str, decision: Decision, outcomes: Mapping[str, ParticipantOutcome]
) -> DecisionBroken | None:
    """Return an error if a decision cannot be completed; None if all of it is or can be committed."""
    lost_participants = [
        (name, outcome)
        for name, outcome in outcomes.items()
        if outcome in (ParticipantOutcome.ABORTED, ParticipantOutcome.UNKNOWN)
    ]
    if not lost_participants:
        return None
    outcome_texts = "; ".join(f"{name}: {outcome.value}" for name, outcome in lost_participants[:5])
    ellipsis = f", and {len(lost_participants) - 5} more" if len(lost_participants) > 5 else ""
    subject = f"the last decision under {prefix!r} ({decision})"
    return DecisionBroken(
        f"{subject} cannot be completed: {outcome_texts}{ellipsis}. Rows of these transactions are missing "
        "from the topic, or it is unknown whether they are there. The query stops; nothing else was changed. "
        f"{_explain_incomplete(decision.mode)}: compare the topic with the source of that batch, write what "
        f"is missing, then accept the loss with `{format_resolve_command(prefix)} --retire` and start the "
        "query with onNewPrefix=adopt, which writes that batch again unless the checkpoint has committed it"
    )


def format_resolve_command(prefix: str) -> str:
    """Return the command that completes or aborts the transactions of a prefix."""
    name = prefix.removesuffix(DATABASE_SUFFIX)
    where = "" if name == prefix else " --store URL"
    return f"tallystick transactions resolve --prefix {name}{where}"


def _explain_incomplete(mode: str) -> str:
    if mode and Mode(mode).never_expires:
        return (
            "A prepared transaction of two-phase commit does not end by itself: it was aborted by hand "
            "(`tallystick transactions abort`, kafka-transactions.sh), or the cluster lost what it had "
            "acknowledged; its log tells which"
        )
    return (
        "Without two-phase commit a cluster aborts what its driver leaves prepared for longer than "
        "transaction.timeout.ms"
    )


def find_lost_decisions(prefix: str, state: DecisionState) -> DecisionsLost | None:
    """Return an error if the database has lost decisions that are noted in the cluster [SPK-44]."""
    decision, note = state.decision, state.note
    if note is None or (decision is not None and (note.number <= decision.number or not decision.number)):
        return None  # number 0: an earlier version, which did not number its decisions
    has = "none" if decision is None else f"number {decision.number}: {decision}"
    return DecisionsLost(
        f"the database has lost decisions under {prefix!r} that it had acknowledged: number {note.number} "
        f"({note.description}) was decided, and Kafka's transactions of it are committed or will be; the "
        f"last one in the database is {has}. A restored backup, or a replica that was promoted and lagged, "
        "does this. Rows of the batches between are in the topics and not in the tables, and these batches "
        "would be written to the topics again. Nothing was begun. Bring the database to a state that has "
        "them. If they are lost: take them over from the topics by hand, accept that with "
        f"`{format_resolve_command(prefix)} --retire`, and begin with a new checkpoint, its sources at "
        f"{note.offsets or 'the end of that batch'}"
    )


def filter_worker_ids(prefix: str, open_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the open transactional ids of this prefix's workers.

    Right after a claim and the completion of the last decision, no decision will ever name them, because no
    task of the new lease exists yet. The filter is by name alone: a newer driver's may be among them.
    """
    return tuple(sorted(each for each in open_ids if is_worker_id(prefix, each)))
