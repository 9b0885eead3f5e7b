"""What the views of a transaction come to: the word, and the command that a person can paste."""

import shlex
from itertools import product

import pytest
from tests.meta.test_commands_in_texts import find_problem
from tests.support.console_facts import (
    SERVERS,
    STORE,
    describe,
    make_case,
    make_prefix,
    make_row,
    make_store,
    pair,
)

from tallystick.admin.txn.completion import CompletionOutcome, decide_outcome
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.client.transactions.modes import TxnDescription
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.actions.request import find_action_url
from tallystick.console.model.assessment import (
    SparkRole,
    SparkSide,
    StoreSide,
    TransactionViews,
    assess,
    needs_assessment,
)
from tallystick.console.model.health import Health, Limits
from tallystick.dualwrite.rules import recovery
from tallystick.dualwrite.rules.leases import LeaseState
from tallystick.spark.protocol.committable import Participant

LIMITS = Limits(grace_ms=60_000, limit_ms=900_000)
STAGES_MS = (0, 60_000, 60_001, 900_000, 900_001)


def store_views(
    finding: recovery.Finding, verdict: recovery.Verdict, lease_state: LeaseState | None = None
) -> TransactionViews:
    side = StoreSide(
        store=make_store(make_row()),
        row=make_row(),
        finding=finding,
        verdict=verdict,
        lease_state=lease_state,
    )
    return TransactionViews(transactional_id="pay-1", writer=pair(5, 3), description=describe(), store=side)


@pytest.mark.parametrize("finding", list(recovery.Finding))
def test_every_finding_of_recovery_has_its_health(finding: recovery.Finding) -> None:
    healths = {
        verdict: assess(store_views(finding, verdict), 0, SERVERS, LIMITS).health
        for (each, _), verdict in recovery.VERDICTS.items()
        if each is finding
    }
    for verdict, health in healths.items():
        if finding is recovery.Finding.UNSEEN:  # in each mode: a missing right contradicts nothing
            assert health is Health.UNKNOWN
        elif verdict in (recovery.Verdict.TEAR, recovery.Verdict.LACK, recovery.Verdict.HALT):
            assert health is Health.BROKEN
        else:
            assert health is Health.OK


@pytest.mark.parametrize(
    ("verdict", "stage_ms", "lease_state", "expected"),
    [
        (recovery.Verdict.COMMIT, 60_000, None, Health.OK),
        (recovery.Verdict.COMMIT, 60_001, None, Health.RECOVER),
        (recovery.Verdict.COMMIT, 0, LeaseState.EXPIRED, Health.RECOVER),
        (recovery.Verdict.COMMIT, 0, LeaseState.HELD, Health.OK),
        (recovery.Verdict.ABORT, 900_000, None, Health.OK),
        (recovery.Verdict.ABORT, 900_001, None, Health.RECOVER),
        (recovery.Verdict.ABORT, 0, LeaseState.EXPIRED, Health.RECOVER),
    ],
)
def test_a_decision_waits_for_the_grace_and_a_transaction_for_the_limit(
    verdict: recovery.Verdict, stage_ms: int, lease_state: LeaseState | None, expected: Health
) -> None:
    finding = recovery.Finding.DECIDED if verdict is recovery.Verdict.COMMIT else recovery.Finding.STALE
    assessment = assess(store_views(finding, verdict, lease_state), stage_ms, SERVERS, LIMITS)
    assert assessment.health is expected
    if expected is Health.RECOVER:
        assert shlex.split(assessment.command)[-4:] == ["--store", STORE, "--transactional-id", "pay-1"]


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_markers_that_do_not_come_are_slow_and_nothing_to_be_ended(state: str) -> None:
    views = TransactionViews(transactional_id="t", writer=pair(5, 4), description=describe("t", state))
    assert assess(views, 60_000, SERVERS, LIMITS).health is Health.OK
    late = assess(views, 60_001, SERVERS, LIMITS)
    assert late.health is Health.SLOW
    assert "orders-0" in late.reason


@pytest.mark.parametrize(
    ("timeout_ms", "expected"), [(None, Health.ORPHAN), (60_000, Health.SLOW)], ids=["2pc", "timeout"]
)
def test_what_nothing_here_names_is_an_orphan_unless_it_times_out(
    timeout_ms: int | None, expected: Health
) -> None:
    views = TransactionViews(
        transactional_id="t", writer=pair(5, 3), description=describe("t", timeout_ms=timeout_ms)
    )
    assert assess(views, 900_000, SERVERS, LIMITS).health is Health.OK
    assert assess(views, 900_001, SERVERS, LIMITS).health is expected


def test_an_orphan_says_what_each_stored_state_means() -> None:
    """As `admin.txn.completion` decides: a later state than the open one must hide no loss."""
    views = TransactionViews(transactional_id="t", writer=pair(5, 3), description=describe("t"))
    reason = assess(views, 900_001, SERVERS, LIMITS).reason
    for number, outcome, words in (
        (3, CompletionOutcome.COMMIT, "5:3 means commit"),
        (4, CompletionOutcome.BEHIND, "5 with a number above 3 means that the cluster lost"),
        (2, CompletionOutcome.ABORT, "anything else or no row means abort"),
    ):
        assert decide_outcome(PreparedTxnState.of(pair(5, number)), describe("t"), 2) is outcome
        assert words in reason


def spark_views(role: SparkRole, *, known: bool = True, state: str = "Ongoing") -> TransactionViews:
    name = f"loud/w/{'a' * 16}/0"
    participant = Participant(transactional_id=name, identity=pair(5, 3))
    side = SparkSide(
        prefix="loud",
        role=role if known else SparkRole.UNREAD,
        facts=make_prefix("loud", participant) if known else None,
        participant=participant if known and role is SparkRole.DECIDED else None,
    )
    return TransactionViews(
        transactional_id=name,
        writer=pair(5, 3),
        description=describe(name, state, pair(5, 3 if state == "Ongoing" else 4)),
        spark=side,
    )


@pytest.mark.parametrize(
    ("views", "stage_ms", "expected"),
    [
        (spark_views(SparkRole.DECIDED), 60_000, Health.OK),
        (spark_views(SparkRole.DECIDED), 60_001, Health.RECOVER),
        (spark_views(SparkRole.UNDECIDED), 900_000, Health.OK),
        (spark_views(SparkRole.UNDECIDED), 900_001, Health.RECOVER),
        (spark_views(SparkRole.UNDECIDED, known=False), 900_001, Health.ORPHAN),
        (spark_views(SparkRole.DECIDED, state="CompleteAbort"), 0, Health.BROKEN),
    ],
)
def test_a_spark_batch_is_judged_by_its_decision(
    views: TransactionViews, stage_ms: int, expected: Health
) -> None:
    assert assess(views, stage_ms, SERVERS, LIMITS).health is expected


@pytest.mark.parametrize(
    ("prefix", "source", "options"),
    [
        ("loud", "__tallystick_decisions", "--prefix loud"),
        ("loud", "of.loud", "--prefix loud --decisions of.loud"),
        ("loud/database", "sqlite:///shop.db", "--prefix loud --store sqlite:///shop.db"),
    ],
)
def test_the_command_for_a_prefix_names_the_place_of_its_decisions(
    prefix: str, source: str, options: str
) -> None:
    """Elsewhere it would find no decision, and abort what is decided."""
    side = SparkSide(prefix=prefix, role=SparkRole.UNDECIDED, facts=make_prefix(prefix, source=source))
    name = f"{prefix}/w/{'a' * 16}/0"
    views = TransactionViews(transactional_id=name, writer=pair(5, 3), description=describe(name), spark=side)
    assert assess(views, 900_001, SERVERS, LIMITS).command.endswith(f" {options}")


@pytest.mark.parametrize(
    ("prefix", "options"),
    [("loud", "--decisions TOPIC"), ("loud/database", "--store URL")],
)
def test_a_query_whose_decisions_are_not_read_is_not_said_to_be_undecided(prefix: str, options: str) -> None:
    name = f"{prefix}/w/{'a' * 16}/0"
    side = SparkSide(prefix=prefix, role=SparkRole.UNREAD, facts=None)
    views = TransactionViews(transactional_id=name, writer=pair(5, 3), description=describe(name), spark=side)
    assessment = assess(views, 900_001, SERVERS, LIMITS)
    assert assessment.health is Health.ORPHAN
    assert assessment.command.endswith(f"--prefix loud {options}")
    assert "the Spark query loud," in assessment.reason
    assert find_action_url(assessment.command) == ""
    assert assess(views, 900_000, SERVERS, LIMITS).health is Health.OK


def test_a_decided_transaction_that_the_cluster_aborted_is_shown_though_it_is_closed() -> None:
    assert needs_assessment(spark_views(SparkRole.DECIDED, state="CompleteAbort"))
    assert not needs_assessment(spark_views(SparkRole.DECIDED, state="CompleteCommit"))


@pytest.mark.parametrize("finding", list(HangingFinding))
@pytest.mark.parametrize("verdict", list(HangingVerdict))
@pytest.mark.slow
def test_only_what_was_seen_twice_is_called_hanging(finding: HangingFinding, verdict: HangingVerdict) -> None:
    views = TransactionViews(
        transactional_id=None,
        writer=pair(77, 0),
        description=None,
        cases=(make_case(finding, None, pair(77, 0), verdict=verdict),),
        is_stranger=True,
    )
    health = assess(views, 0, SERVERS, LIMITS).health
    assert (health is Health.HANGING) == (verdict is HangingVerdict.HANGING)
    assert (health is Health.BROKEN) == (verdict is HangingVerdict.CONTRADICTION)


def test_every_command_can_be_typed_and_whatever_needs_action_has_one() -> None:
    views = [
        *(
            store_views(f, v, lease)
            for (f, _), v in recovery.VERDICTS.items()
            for lease in (None, *LeaseState)
        ),
        *(spark_views(role, known=known) for role, known in product(SparkRole, (True, False))),
        spark_views(SparkRole.DECIDED, state="CompleteAbort"),
        TransactionViews(transactional_id="t", writer=pair(5, 4), description=describe("t", "PrepareCommit")),
        TransactionViews(transactional_id="a b'c", writer=pair(5, 3), description=describe("a b'c")),
        TransactionViews(
            transactional_id=None,
            writer=pair(7, 0),
            description=None,
            cases=(make_case(HangingFinding.UNKNOWN_PRODUCER_ID, verdict=HangingVerdict.HANGING),),
            is_stranger=True,
        ),
    ]
    commands = set()
    for each, stage_ms in product(views, STAGES_MS):
        assessment = assess(each, stage_ms, SERVERS, LIMITS)
        assert assessment.command or not assessment.health.needs_action
        commands |= {assessment.command} - {""}
    assert len(commands) >= 6
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "tallystick"
        assert find_problem(words) is None, command


def test_txn_descriptions_of_recovery_are_what_assess_is_given() -> None:
    """A guard for the tests above: `Ongoing` and the pair of the row is what recovery calls DECIDED."""
    side = recovery.ClusterSide(
        txn_state=TxnDescription(state="Ongoing", identity=pair(5, 3)), cluster_id="cluster-1"
    )
    assert recovery.compare_sides(make_row(state=pair(5, 3)), side) is recovery.Finding.DECIDED
