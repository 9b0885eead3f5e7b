"""What follows from votes, decisions and what a cluster shows."""

from collections.abc import Mapping
from itertools import product

import pytest

from tallystick.admin.model import AbortCause, ForcedOutcome, TransactionDescription
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import (
    BATCHES_MAX,
    BatchWrite,
    Decision,
    DecisionNote,
    DecisionSummary,
    JobChecksums,
    MicroBatch,
    Participant,
    RowChecksum,
    Vote,
)
from tallystick.spark.protocol.decide import (
    DecisionLocation,
    NewCheckpoint,
    NewPrefix,
    ParticipantOutcome,
    QueryStart,
    TaskAction,
    VoteSummary,
    build_decision,
    filter_worker_ids,
    find_expired_votes,
    find_incomplete_decision,
    find_lost_decisions,
    plan_task,
    refuse_moved_decisions,
    resolve_outcome,
    resume_decision,
    summarize_votes,
)
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import (
    CheckpointsDiffer,
    DecisionBroken,
    DecisionsLost,
    DecisionsMissing,
    MixedVotes,
    PrefixTaken,
    UnknownCheckpoint,
    VoteLost,
)


def pair(epoch: int, producer_id: int = 1) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


ONE = Participant(transactional_id="p/w/0123456789abcdef/0", identity=pair(5))
TWO = Participant(transactional_id="p/w/0123456789abcdef/1", identity=pair(5))
VOTE = Vote(
    nonce="n",
    coordinator=pair(9),
    transaction_version=2,
    job=MicroBatch("q", 3),
    row_checksums=(RowChecksum(2, 10),),
    participant=ONE,
    mode="2pc",
)
LAST = Decision(
    nonce="m",
    participants=(),
    transaction_version=2,
    decided_ms=0,
    query_id="q",
    batches=(JobChecksums(2, (RowChecksum(4, 20),)),),
    writes=(JobChecksums("w", (RowChecksum(1, 1),)),),
    offsets="old",
)


def shown(state: str, writer: ProducerIdAndEpoch, **more: object) -> TransactionDescription:
    values: Mapping[str, object] = {"timeout_ms": None, "started_ms": 0, **more}
    return TransactionDescription(
        transactional_id="x",
        coordinator=0,
        state=state,
        writer=writer,
        partitions=frozenset(),
        **values,  # type: ignore[arg-type]
    )


def ballot_of(*votes: Vote | None) -> VoteSummary:
    found = summarize_votes(votes)
    assert isinstance(found, VoteSummary)
    return found


# --------------------------------------------------------------------------------------- the course


@pytest.mark.parametrize(
    ("batch_id", "way"), [(0, TaskAction.SKIP), (7, TaskAction.SKIP), (8, TaskAction.WRITE)]
)
def test_a_batch_up_to_the_last_decided_one_is_skipped(batch_id: int, way: TaskAction) -> None:
    """[SPK-22]"""
    decided = DecisionSummary(nonce="n", query_id="q", batch_id=7)
    assert plan_task(decided, MicroBatch("q", batch_id), NewCheckpoint.REFUSE) is way


def test_what_fits_nowhere_is_refused() -> None:
    """[SPK-22]"""
    decided = DecisionSummary(nonce="n", query_id="q", batch_id=7)
    assert isinstance(plan_task(decided, MicroBatch("q", 9), NewCheckpoint.RESTART), CheckpointsDiffer)
    for batch_id, choice in product((0, 7, 8), NewCheckpoint):
        found = plan_task(decided, MicroBatch("other", batch_id), choice)
        if choice is not NewCheckpoint.RESTART:
            assert isinstance(found, UnknownCheckpoint)
            assert "batch 7 of query q" in str(found)
        elif batch_id:
            assert isinstance(found, DecisionsMissing)
            assert (
                plan_task(decided, MicroBatch("other", batch_id), choice, NewPrefix.ADOPT) is TaskAction.WRITE
            )
        else:
            assert found is TaskAction.WRITE


@pytest.mark.parametrize("decided", [None, DecisionSummary(nonce="n", query_id=None, batch_id=None)])
def test_a_query_that_goes_on_without_its_decisions_needs_a_word(decided: DecisionSummary | None) -> None:
    """[SPK-29] It wrote with Spark's own sink until now; or its decisions are elsewhere, or lost."""
    refused = plan_task(decided, MicroBatch("q", 57), NewCheckpoint.REFUSE)
    assert isinstance(refused, DecisionsMissing)
    assert "onNewPrefix=adopt" in str(refused)
    assert plan_task(decided, MicroBatch("q", 57), NewCheckpoint.REFUSE, NewPrefix.ADOPT) is TaskAction.WRITE
    assert plan_task(decided, MicroBatch("q", 0), NewCheckpoint.REFUSE) is TaskAction.WRITE


@pytest.mark.parametrize(
    ("prefix", "place"), [("p", "there"), ("p", None), ("other", "here"), ("p/database", "x")]
)
def test_decisions_in_another_place_are_refused_unless_adopted(prefix: str, place: str | None) -> None:
    """[SPK-29] The checkpoint says where they were."""
    noted = [DecisionLocation(prefix="p", location="here")]
    assert refuse_moved_decisions((), prefix, place, NewPrefix.REFUSE) is None
    assert refuse_moved_decisions(noted, "p", "here", NewPrefix.REFUSE) is None
    assert isinstance(refuse_moved_decisions(noted, prefix, place, NewPrefix.REFUSE), DecisionsMissing)
    assert refuse_moved_decisions(noted, prefix, place, NewPrefix.ADOPT) is None


def test_a_further_sink_of_a_run_has_a_note_of_its_own() -> None:
    """[SPK-29] A prefix that this run does not write under is one that was changed."""
    noted = [DecisionLocation(prefix="a", location="here")]
    assert refuse_moved_decisions(noted, "b", "here", NewPrefix.REFUSE, {"a"}) is None
    noted.append(DecisionLocation(prefix="c", location="here"))
    refusal = refuse_moved_decisions(noted, "b", "here", NewPrefix.REFUSE, {"a"})
    assert isinstance(refusal, DecisionsMissing)
    assert "belongs to transactional.id.prefix 'c' with decisions in here" in str(refusal)
    noted.append(DecisionLocation(prefix="b", location="here"))
    assert refuse_moved_decisions(noted, "b", "here", NewPrefix.REFUSE) is None
    assert isinstance(refuse_moved_decisions(noted, "b", "there", NewPrefix.REFUSE, {"a"}), DecisionsMissing)


# -------------------------------------------------------------------------------------- the votes


def test_votes_are_summed_and_tasks_without_report_or_rows_are_left_out() -> None:
    ballot = ballot_of(VOTE, None, replace(VOTE, participant=TWO), replace(VOTE, participant=None, mode=""))
    assert ballot.participants == (ONE, TWO)
    assert ballot.row_checksums == (RowChecksum(6, 30),)
    assert (ballot.mode, ballot.job, ballot.is_skipped) == ("2pc", MicroBatch("q", 3), False)


@pytest.mark.parametrize(
    "other",
    [
        replace(VOTE, participant=TWO, nonce="m"),
        replace(VOTE, participant=TWO, coordinator=pair(8)),
        replace(VOTE, participant=TWO, job=MicroBatch("q", 4)),
        replace(VOTE, participant=None, is_skipped=True),
        replace(VOTE, participant=TWO, row_checksums=()),
        VOTE,
    ],
)
def test_votes_that_do_not_agree_decide_nothing(other: Vote) -> None:
    assert isinstance(summarize_votes([VOTE, other]), MixedVotes)
    assert isinstance(summarize_votes([None]), MixedVotes)


# ---------------------------------------------------------------------------------- the next decision


def test_a_decision_remembers_the_last_hundred() -> None:
    last: Decision | None = None
    for batch_id in range(3, 3 + BATCHES_MAX + 5):
        ballot = ballot_of(replace(VOTE, job=MicroBatch("q", batch_id)))
        made = build_decision("p", last, ballot, 1, f"offsets {batch_id}")
        assert isinstance(made, Decision)
        last = made
    assert last is not None
    assert [each.name for each in last.batches] == list(range(8, 8 + BATCHES_MAX))
    assert last.batch_id == 7 + BATCHES_MAX
    assert last.offsets == f"offsets {7 + BATCHES_MAX}"


def test_a_write_and_a_query_remember_each_other() -> None:
    made = build_decision("p", LAST, ballot_of(replace(VOTE, job=BatchWrite("v"))), 1, None)
    assert isinstance(made, Decision)
    assert (made.batches, made.offsets) == (LAST.batches, "old")
    assert [each.name for each in made.writes] == ["w", "v"]
    unnamed = build_decision("p", made, ballot_of(replace(VOTE, job=BatchWrite(""))), 1, None)
    assert isinstance(unnamed, Decision)
    assert unnamed.writes == made.writes
    made = build_decision("p", LAST, ballot_of(VOTE), 1, "new")
    assert isinstance(made, Decision)
    assert (made.writes, made.offsets, made.batch_id) == (LAST.writes, "new", 3)


def test_a_new_query_begins_anew() -> None:
    made = build_decision("p", LAST, ballot_of(replace(VOTE, job=MicroBatch("r", 0))), 1, None)
    assert isinstance(made, Decision)
    assert (made.query_id, made.batch_id) == ("r", 0)
    assert [each.name for each in made.batches] == [0]


@pytest.mark.parametrize("job", [MicroBatch("q", 2), MicroBatch("q", 4), BatchWrite("w")])
def test_a_batch_that_another_driver_decided_meanwhile_is_not_decided_again(
    job: MicroBatch | BatchWrite,
) -> None:
    """[SPK-25]"""
    assert isinstance(build_decision("p", LAST, ballot_of(replace(VOTE, job=job)), 1, None), PrefixTaken)


# ------------------------------------------------------------------------------------ the vote check


@pytest.mark.parametrize(
    ("found", "sound"),
    [
        (shown("Ongoing", pair(5)), True),
        (shown("Ongoing", pair(6)), False),
        (shown("CompleteAbort", pair(6)), False),
        (shown("Empty", pair(5)), False),
        (None, False),
        (shown("Ongoing", pair(5), timeout_ms=1_000, started_ms=9_300), True),
        (shown("Ongoing", pair(5), timeout_ms=1_000, started_ms=9_250), False),
        (shown("Ongoing", pair(5), timeout_ms=1_000, started_ms=5), False),
    ],
)
def test_only_what_is_prepared_and_will_last_is_decided_on(
    found: TransactionDescription | None, *, sound: bool
) -> None:
    """[SPK-21] Age counts where there is a timeout: three quarters of it."""
    refusal = find_expired_votes((ONE,), {ONE.transactional_id: found}, now_ms=10_000, began_ms=0)
    assert refusal is None if sound else isinstance(refusal, VoteLost)


@pytest.mark.parametrize("skew_ms", [-3_600_000, -2_500, 0, 2_500, 3_600_000])
@pytest.mark.parametrize(("began_ms", "sound"), [(99_700, True), (98_000, False)])
def test_a_clock_of_a_broker_neither_stops_a_batch_nor_lets_an_old_one_pass(
    began_ms: int, skew_ms: int, *, sound: bool
) -> None:
    """[SPK-21] A transaction is no older than the lease of its batch, which the driver's clock tells.

    Else a driver that is ahead finds every batch too old, and one that is behind finds none.
    """
    found = shown("Ongoing", pair(5), timeout_ms=1_000, started_ms=began_ms + skew_ms)
    refusal = find_expired_votes((ONE,), {ONE.transactional_id: found}, now_ms=100_000, began_ms=began_ms)
    assert refusal is None if sound else isinstance(refusal, VoteLost)


@pytest.mark.parametrize(
    ("number", "noted", "fits"),
    [(None, None, True), (None, 1, False), (2, None, True), (2, 1, True), (2, 2, True), (2, 3, False)],
)
def test_a_database_that_knows_less_than_the_cluster_was_told_has_lost_it(
    number: int | None, noted: int | None, *, fits: bool
) -> None:
    """[SPK-44]"""
    known = DecisionState(
        decision=None if number is None else replace(LAST, number=number),
        note=None
        if noted is None
        else DecisionNote(number=noted, description="batch 4 of query q", offsets="[5]"),
    )
    found = find_lost_decisions("p/database", known)
    if fits:
        assert found is None
    else:
        assert isinstance(found, DecisionsLost)
        assert "batch 4 of query q" in str(found)
        assert "resolve --prefix p --store URL --retire" in str(found)
        assert "sources at [5]" in str(found)


def test_a_decision_of_an_earlier_version_has_no_number_to_compare() -> None:
    """After a downgrade the note is older than the row."""
    known = DecisionState(decision=replace(LAST, number=0), note=DecisionNote(number=3, description="x"))
    assert find_lost_decisions("p", known) is None


# ------------------------------------------------------------------------------------------- fates

STATES = {
    "Ongoing": ParticipantOutcome.UNKNOWN,
    "PrepareCommit": ParticipantOutcome.COMMITTED,
    "PrepareAbort": ParticipantOutcome.ABORTED,
    "PrepareEpochFence": ParticipantOutcome.ABORTED,
    "CompleteCommit": ParticipantOutcome.COMMITTED,
    "CompleteAbort": ParticipantOutcome.ABORTED,
    "Empty": ParticipantOutcome.UNKNOWN,
    "Dead": ParticipantOutcome.UNKNOWN,
}


@pytest.mark.parametrize(("state", "epoch"), list(product(STATES, (5, 6, 7, 9))))
def test_the_fate_of_a_decided_transaction(state: str, epoch: int) -> None:
    """[SPK-23] Its own pair while it is open, one above when ended, further on when recovery completed it."""
    found = resolve_outcome(ONE, 2, shown(state, pair(epoch)))
    if epoch == 5:  # still its own pair: only open is possible, all else means that the cluster lost it
        assert found is (ParticipantOutcome.OPEN if state == "Ongoing" else ParticipantOutcome.UNKNOWN)
    else:
        assert found is STATES[state]


def test_what_a_broker_ended_for_a_client_is_not_committed() -> None:
    forced = ForcedOutcome(writer=pair(5), cause=AbortCause.TIMED_OUT, at_ms=1, partition=None)
    assert (
        resolve_outcome(ONE, 2, shown("CompleteCommit", pair(8), forced_outcomes=(forced,)))
        is ParticipantOutcome.ABORTED
    )
    assert resolve_outcome(ONE, 2, None) is ParticipantOutcome.UNKNOWN


def test_a_broken_decision_names_what_is_lost_and_what_to_do() -> None:
    fates = {"a": ParticipantOutcome.COMMITTED, "b": ParticipantOutcome.OPEN}
    assert find_incomplete_decision("p", LAST, fates) is None
    report = find_incomplete_decision("p", LAST, {**fates, "c": ParticipantOutcome.ABORTED})
    assert isinstance(report, DecisionBroken)
    assert "c: aborted by the cluster" in str(report)
    assert "resolve --prefix p --retire" in str(report)
    assert "a:" not in str(report)
    assert "resolve --prefix p --store URL --retire" in str(
        find_incomplete_decision("p/database", LAST, {"c": ParticipantOutcome.ABORTED})
    )


@pytest.mark.parametrize(
    ("mode", "why"),
    [("2pc", "aborted by hand"), ("keep", "longer than transaction.timeout.ms"), ("resume", "longer than")],
)
def test_a_broken_decision_says_what_may_have_broken_it(mode: str, why: str) -> None:
    """Two-phase commit has no timeout that could have."""
    report = str(find_incomplete_decision("p", replace(LAST, mode=mode), {"c": ParticipantOutcome.ABORTED}))
    assert why in report
    assert ("timeout" in report) == (mode != "2pc")


def test_orphans_are_the_workers_of_this_prefix() -> None:
    worker = "w/0123456789abcdef/0"
    ids = [f"p/{worker}", f"pp/{worker}", f"p/w/x/{worker}", "p/coordinator", "other"]
    assert filter_worker_ids("p", ids) == (f"p/{worker}",)


# --------------------------------------------------------------------------------------------- resume

A_AT_5, A_AT_0, B_AT_1 = '{"a":{"0":5}}', '{"a":{"0":0}}', '{"b": {"0": 1}}'


@pytest.mark.parametrize(
    ("kept", "starts", "sources", "why"),
    [
        (A_AT_5, (A_AT_5,), 1, None),
        (f"{A_AT_5}\n{B_AT_1}", ('{"b":{"0":1}}', '{"a": {"0": 5}}'), 2, None),
        (f"{A_AT_5}\n{A_AT_5}", (A_AT_5,), 2, None),
        (f"{A_AT_5}\n{B_AT_1}", (A_AT_5,), 2, "ended at"),
        (A_AT_5, (A_AT_5,), 2, "the 2 sources of this query began at"),
        (A_AT_5, (A_AT_0,), 1, f"began at {A_AT_0}"),
        (A_AT_5, (A_AT_5, A_AT_0), 1, "began at"),
        (A_AT_5, (), 1, "unreported offsets"),
        (f"{A_AT_5}\n-", (A_AT_5,), 2, "ended at"),
        (None, (A_AT_5,), 1, "were not kept"),
    ],
)
def test_a_query_resumes_only_where_the_last_decision_ended(
    kept: str | None, starts: tuple[str, ...], sources: int, why: str | None
) -> None:
    """[SPK-27] Else rows would be there twice or never, by an option that promises the contrary."""
    last = replace(LAST, offsets=kept)
    found = resume_decision(last, QueryStart(query_id="new", start_offsets=starts, source_count=sources))
    if why is None:
        assert found == DecisionSummary(nonce="m", query_id="new", batch_id=None)
    else:
        assert isinstance(found, UnknownCheckpoint)
        assert why in str(found)
        assert "Nothing was written" in str(found)


def test_a_query_that_keeps_state_resumes_nothing() -> None:
    """[SPK-27] Its state was in the checkpoint that is gone."""
    last = replace(LAST, offsets=A_AT_5)
    beginning = QueryStart(query_id="new", start_offsets=(A_AT_5,), source_count=1, is_stateful=True)
    assert "the state of query q was in its checkpoint" in str(resume_decision(last, beginning))


def test_a_query_that_is_known_is_asked_nothing() -> None:
    """Its own decisions count, and before any decision there is nothing to follow."""
    nowhere = QueryStart(query_id="q")
    assert resume_decision(LAST, nowhere) == LAST.summary
    assert resume_decision(LAST, None) == LAST.summary
    assert resume_decision(None, nowhere) is None
    writes = replace(LAST, query_id=None, batches=())
    assert resume_decision(writes, nowhere) == writes.summary


def test_a_query_that_resumes_begins_with_its_first_batch() -> None:
    """[SPK-27] Later batches of it were decided elsewhere."""
    decided = DecisionSummary(nonce="m", query_id="new", batch_id=None)
    assert plan_task(decided, MicroBatch("new", 0), NewCheckpoint.RESUME) is TaskAction.WRITE
    assert isinstance(plan_task(decided, MicroBatch("new", 1), NewCheckpoint.RESUME), CheckpointsDiffer)
    assert isinstance(plan_task(decided, MicroBatch("q", 3), NewCheckpoint.RESUME), UnknownCheckpoint)


def test_without_the_checkpoint_nothing_is_resumed() -> None:
    """[SPK-27] The driver could not read the checkpoint, so the task has the old query's decision."""
    found = plan_task(LAST.summary, MicroBatch("new", 0), NewCheckpoint.RESUME)
    assert "give it as the option checkpointLocation" in str(found)
