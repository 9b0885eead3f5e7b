"""The dry run: what it says of each side, when it needs a reason, when it is refused."""

from collections.abc import Iterable
from itertools import product

import pytest
from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    SERVERS,
    STORE,
    WRITER,
    describe,
    make_case,
    make_prefix,
    make_row,
    make_snapshot,
    make_store,
    pair,
)

from tallystick.admin.model import (
    GroupDescription,
    MemberDescription,
    OpenTransaction,
    TransactionDescription,
)
from tallystick.admin.txn.hanging import HARM_BY_VERDICT, AbortHarm, HangingFinding, HangingVerdict
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.console.actions.plan import ActionPlan, Guard, describe_state, list_changes
from tallystick.console.actions.planning import plan_action
from tallystick.console.actions.readings import (
    AbortReading,
    CompletionOutlook,
    OffsetMove,
    PrefixReading,
    ResetReading,
    TransactionReading,
    narrow_stores,
)
from tallystick.console.actions.request import (
    AbortPartition,
    CompleteByState,
    ForceTerminate,
    ResetOffsets,
    ResetTarget,
    ResolvePrefix,
    ResolveRow,
)
from tallystick.console.model.snapshot import PartStatus, PipelineFacts, StoreFacts
from tallystick.console.model.transactions import find_views
from tallystick.dualwrite.rules import recovery
from tallystick.dualwrite.rules.leases import LeaseRow
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.decide import ParticipantOutcome

NAME = "pay-1"
WORKER = f"loud/w/{'a' * 16}/0"
RESOLVE = ResolveRow(transactional_id=NAME, store=STORE)
TERMINATE = ForceTerminate(transactional_id=NAME)
ABORT = AbortPartition(partition=ORDERS, start_offset=10)
OPENED = OpenTransaction(
    partition=ORDERS, writer=WRITER, coordinator_epoch=None, start_offset=10, last_timestamp_ms=None
)

DESCRIPTIONS = (
    None,
    describe(),
    describe(timeout_ms=60_000),
    *(
        describe(state=state, writer=pair(5, 4))
        for state in ("PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty")
    ),
)
ROWS = (
    None,
    make_row(),
    *(
        make_row(state=state, settled=settled)
        for state in (pair(5, 2), WRITER, pair(5, 9), pair(4, 7))
        for settled in (False, True)
    ),
)


def read(
    description: TransactionDescription | None = None,
    row: StoredState | None = None,
    *more: StoreFacts,
    name: str = NAME,
    leases: tuple[LeaseRow, ...] = (),
    known: bool = True,
    participants: Iterable[Participant] = (),
    outlook: CompletionOutlook | None = None,
) -> TransactionReading:
    """Return a fresh reading with at most one row."""
    rows = () if row is None else (row,)
    snapshot = make_snapshot(
        *(() if description is None else (description,)),
        stores=[make_store(*rows, leases=leases), *more],
        prefixes=[make_prefix("loud", *participants)] if participants else (),
        unknown_ids=() if description is not None or not known else (name,),
    )
    is_open = description is not None and description.state == "Ongoing"
    return TransactionReading(
        snapshot=snapshot,
        transactional_id=name,
        open_transactions=(OPENED,) if is_open else (),
        ends={ORDERS: 25} if is_open else {},
        completion=outlook,
    )


def effects(plan: ActionPlan) -> dict[str, str]:
    return {side.name: side.effect for side in plan.sides}


@pytest.mark.parametrize(("description", "row"), list(product(DESCRIPTIONS, ROWS)))
def test_resolve_does_what_recovery_would_and_nothing_else(
    description: TransactionDescription | None, row: StoredState | None
) -> None:
    """Over every small combination of sides: the plan's verdict is `dualwrite.rules.recovery`'s."""
    reading = read(description, row)
    plan = plan_action(RESOLVE, reading, SERVERS)
    side = find_views(reading.snapshot, NAME).store
    if side is None:
        assert plan.guard is Guard.REFUSED
        return
    is_possible = side.verdict in (recovery.Verdict.COMMIT, recovery.Verdict.ABORT)
    assert (plan.guard is Guard.READY) is is_possible, side.verdict
    assert plan.guard is not Guard.REASON
    assert bool(plan.objections) is not is_possible
    assert ("It is committed" in effects(plan)["Kafka"]) is (side.verdict is recovery.Verdict.COMMIT)
    assert ("It is aborted" in effects(plan)["Kafka"]) is (side.verdict is recovery.Verdict.ABORT)
    assert bool(plan.consequences) is (side.verdict is recovery.Verdict.ABORT)
    assert bool(plan.look_ups) is is_possible
    if not is_possible:
        assert set(effects(plan).values()) == {"Nothing changes here."}


@pytest.mark.parametrize(("description", "row"), list(product(DESCRIPTIONS, ROWS)))
@pytest.mark.slow
def test_what_may_be_committed_elsewhere_is_not_terminated_without_a_reason(
    description: TransactionDescription | None, row: StoredState | None
) -> None:
    """[ACT-2] Ready only if nothing of it is in doubt and the database would not have it committed."""
    reading = read(description, row)
    plan = plan_action(TERMINATE, reading, SERVERS)
    side = find_views(reading.snapshot, NAME).store
    if description is None or description.state != "Ongoing":
        assert plan.guard is Guard.REFUSED
        return
    is_harmless = side is None or side.verdict in (
        recovery.Verdict.ABORT,
        recovery.Verdict.NOTHING,
        recovery.Verdict.ALLOW,
    )
    expected = Guard.READY if is_harmless and not description.in_doubt else Guard.REASON
    assert plan.guard is expected
    assert plan.forces is description.in_doubt
    if side is not None:
        is_torn = "the two sides differ from then on" in effects(plan)[STORE]
        assert is_torn is (side.verdict is recovery.Verdict.COMMIT)
    assert ("--force" in plan.command) is description.in_doubt
    assert plan.consequences == (
        "Its records in orders-0, at most 15 from offset 10 on, will never be read.",
    )


def test_a_cluster_that_does_not_show_the_id_leaves_the_comparison_to_recovery() -> None:
    """KIP-939's recipe needs no description: InitProducerId tells what is open."""
    plan = plan_action(RESOLVE, read(None, make_row(state=WRITER), known=False), SERVERS)
    assert plan.guard is Guard.READY
    assert "exactly what the row names, and aborted otherwise" in effects(plan)["Kafka"]
    assert "does not describe it" in plan.sides[0].now[0]
    assert plan_action(TERMINATE, read(None, known=False), SERVERS).guard is Guard.REFUSED


def test_a_store_that_cannot_be_read_is_an_objection() -> None:
    """[ACT-2] It may have committed what would be aborted."""
    away = replace(
        make_store(name="mysql://away/shop"), status=PartStatus(failures=("OperationalError: away",))
    )
    plan = plan_action(TERMINATE, read(describe(timeout_ms=60_000), None, away), SERVERS)
    assert plan.guard is Guard.REASON
    assert plan.objections == ("mysql://away/shop could not be read: it may have committed it.",)
    (side,) = [side for side in plan.sides if side.name == "mysql://away/shop"]
    assert side.now == ("It could not be read.",)
    assert plan.failures == ("mysql://away/shop: OperationalError: away",)
    otherwise = replace(away, status=PartStatus(failures=("it has not answered for 7 s",)))
    again = plan_action(TERMINATE, read(describe(timeout_ms=60_000), None, otherwise), SERVERS)
    assert list_changes(plan, again) == ()
    resolved = plan_action(
        ResolveRow(transactional_id=NAME, store=away.name), read(None, None, away), SERVERS
    )
    assert resolved.guard is Guard.REFUSED
    assert "OperationalError: away" in resolved.objections[0]


def test_decisions_that_cannot_be_read_are_an_objection_for_spark_alone() -> None:
    """[ACT-2]"""
    pipelines = PipelineFacts(status=PartStatus(failures=("decisions: not authorized",)))
    for name, guard in ((WORKER, Guard.REASON), (NAME, Guard.READY)):
        reading = read(describe(name, timeout_ms=60_000), name=name)
        reading = replace(reading, snapshot=replace(reading.snapshot, pipelines=pipelines))
        assert plan_action(ForceTerminate(transactional_id=name), reading, SERVERS).guard is guard


def test_what_spark_has_decided_is_not_terminated_without_a_reason() -> None:
    """[ACT-2]"""
    participant = Participant(transactional_id=WORKER, identity=WRITER)
    request = ForceTerminate(transactional_id=WORKER)
    reading = read(describe(WORKER, timeout_ms=60_000), name=WORKER, participants=[participant])
    plan = plan_action(request, reading, SERVERS)
    assert plan.guard is Guard.REASON
    assert "loud has decided to commit it" in plan.objections[0]
    other = Participant(transactional_id=WORKER, identity=pair(5, 2))
    reading = read(describe(WORKER, timeout_ms=60_000), name=WORKER, participants=[other])
    assert plan_action(request, reading, SERVERS).guard is Guard.READY


def test_what_to_look_at_names_every_state_that_an_action_leaves() -> None:
    """[ACT-3] A termination initialises the id, which leaves it Empty; a completion leaves how it ended."""
    terminated = plan_action(TERMINATE, read(describe()), SERVERS).look_ups[0].meaning
    assert "Empty, CompleteAbort or PrepareAbort: it was done" in terminated
    assert "Ongoing with producer id and epoch 5:3: it was not" in terminated
    committed = plan_action(RESOLVE, read(describe(), make_row(state=WRITER)), SERVERS).look_ups[0].meaning
    assert committed.startswith("CompleteCommit or PrepareCommit: it was done")
    aborted = plan_action(RESOLVE, read(describe(), make_row()), SERVERS).look_ups[0].meaning
    assert aborted.startswith("CompleteAbort or PrepareAbort: it was done")


@pytest.mark.parametrize(
    ("row", "outcome", "guard"),
    [
        (None, "commit", Guard.REASON),
        (None, "abort", Guard.REASON),
        (make_row(state=WRITER), "commit", Guard.READY),
        (make_row(state=WRITER), "abort", Guard.REASON),
        (make_row(), "commit", Guard.REASON),
        (make_row(), "abort", Guard.REASON),
        (make_row(state=pair(5, 9)), "commit", Guard.REASON),
        (make_row(state=pair(5, 9)), "abort", Guard.REASON),
    ],
)
def test_a_state_by_hand_that_a_database_contradicts_needs_a_reason(
    row: StoredState | None, outcome: str, guard: Guard
) -> None:
    """[ACT-2]"""
    outlook = CompletionOutlook(outcome=outcome, text="so it is", sends_request=True)
    request = CompleteByState(transactional_id=NAME, state="5:3")
    plan = plan_action(request, read(describe(), row, outlook=outlook), SERVERS)
    assert plan.guard is guard
    assert (plan.objections != ()) is (guard is Guard.REASON)
    assert plan.cautions[0] == "By state 5:3: so it is."


def test_a_completion_that_aborts_what_has_a_timeout_needs_no_reason() -> None:
    """[ACT-2] It is in no doubt: it would have been aborted soon."""
    outlook = CompletionOutlook(outcome="abort", text="so it is", sends_request=True)
    request = CompleteByState(transactional_id=NAME, state="")
    plan = plan_action(request, read(describe(timeout_ms=60_000), outlook=outlook), SERVERS)
    assert (plan.guard, plan.objections) == (Guard.READY, ())


@pytest.mark.parametrize("outcome", ["nothing", "committed", "lost", "unknown", "behind"])
def test_a_state_that_comes_to_nothing_is_refused(outcome: str) -> None:
    outlook = CompletionOutlook(outcome=outcome, text="nothing is in doubt", sends_request=False)
    request = CompleteByState(transactional_id=NAME, state="")
    plan = plan_action(request, read(describe(state="Empty"), outlook=outlook), SERVERS)
    assert plan.guard is Guard.REFUSED
    assert plan.objections == ("By the empty state: nothing is in doubt.",)
    assert set(effects(plan).values()) == {"Nothing changes here."}
    assert plan_action(request, read(None), SERVERS).guard is Guard.REFUSED


@pytest.mark.parametrize("verdict", list(HangingVerdict))
@pytest.mark.parametrize("finding", list(HangingFinding))
@pytest.mark.slow
def test_a_marker_by_hand_has_the_guards_of_the_command(
    finding: HangingFinding, verdict: HangingVerdict
) -> None:
    """[ACT-2]"""
    reading = AbortReading(case=make_case(finding, None, verdict=verdict), guarded=True, end=25)
    plan = plan_action(ABORT, reading, SERVERS)
    harm = HARM_BY_VERDICT[verdict]
    assert plan.guard is (Guard.READY if harm is AbortHarm.NOTHING else Guard.REASON)
    assert plan.forces is (harm is not AbortHarm.NOTHING)
    assert plan.confirmation == "orders-0"
    assert "CurrentTransactionStartOffset of 10" in plan.look_ups[0].meaning


def test_a_marker_looks_at_the_database_of_the_id() -> None:
    """[ACT-2] The partition hangs, and the transaction that it belonged to is committed in a database."""
    description = describe(timeout_ms=60_000)
    case = make_case(HangingFinding.NOT_INCLUDED, description, verdict=HangingVerdict.HANGING)
    owner = read(description, make_row(state=WRITER))
    plan = plan_action(ABORT, AbortReading(case=case, guarded=False, owner=owner, end=25), SERVERS)
    assert plan.guard is Guard.REASON
    assert f"{STORE} has committed it" in plan.objections[0]
    assert "does not check the start offset" in plan.cautions[0]
    assert [side.name for side in plan.sides] == ["Kafka, orders-0", "Kafka", STORE]


def test_a_marker_for_what_is_not_open_is_refused() -> None:
    plan = plan_action(ABORT, AbortReading(case=None, missing="nothing is open there"), SERVERS)
    assert (plan.guard, plan.consequences) == (Guard.REFUSED, ())


def test_a_prefix_is_planned_by_what_spark_found() -> None:
    prefix = make_prefix("loud", Participant(transactional_id=WORKER, identity=WRITER))
    reading = PrefixReading(
        source="decisions",
        decision=prefix.decision,
        outcomes={WORKER: ParticipantOutcome.OPEN},
        undecided_ids=("loud/w/b/0",),
        lost_ids=(),
    )
    request = ResolvePrefix(prefix="loud")
    plan = plan_action(request, reading, SERVERS)
    assert plan.guard is Guard.READY
    assert "Committed: 1 transaction of the decision. Aborted: 1" in effects(plan)["Kafka"]
    assert plan.consequences == ("Rows in no decision are written again when the query is started.",)
    assert plan.command.endswith("--prefix loud --decisions decisions")
    assert plan.look_ups[0].command == f"{plan.command} --dry-run"
    many = replace(reading, undecided_ids=tuple(f"loud/w/{n}/0" for n in range(60)))
    other = replace(many, undecided_ids=(*many.undecided_ids[:-1], "loud/w/99/0"))
    assert list_changes(plan_action(request, many, SERVERS), plan_action(request, other, SERVERS))
    ended = {**reading.outcomes, "loud/w/c/0": ParticipantOutcome.COMMITTED}
    assert (
        "Committed: 1 transaction of"
        in effects(plan_action(request, replace(reading, outcomes=ended), SERVERS))["Kafka"]
    )
    lost = replace(reading, outcomes={WORKER: ParticipantOutcome.ABORTED}, lost_ids=(WORKER,))
    assert plan_action(request, lost, SERVERS).guard is Guard.REFUSED
    nothing = replace(reading, outcomes={}, undecided_ids=())
    assert plan_action(request, nothing, SERVERS).guard is Guard.REFUSED


# ------------------------------------------------------------------------------------ offsets


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset)


def read_group(
    current: int | None = 4, target: int = 10, members: tuple[MemberDescription, ...] = ()
) -> ResetReading:
    group = GroupDescription(
        group_id="g", coordinator=1, state="Empty", type="classic", assignor="", members=members
    )
    move = OffsetMove(current=None if current is None else at(current), target=at(target))
    return ResetReading(group=group, moves={ORDERS: move}, pending=frozenset({ORDERS}))


@pytest.mark.parametrize(
    ("current", "target", "text"),
    [
        (4, 10, "orders-0: from 4 to 10: 6 offsets are passed over."),
        (10, 4, "orders-0: from 10 to 4: 6 offsets are read again."),
        (None, 4, "orders-0: from nothing to 4."),
    ],
)
def test_a_reset_says_what_is_read_again_and_what_is_passed_over(
    current: int | None, target: int, text: str
) -> None:
    plan = plan_action(
        ResetOffsets(group_id="g", target=ResetTarget.EARLIEST), read_group(current, target), SERVERS
    )
    assert (plan.guard, plan.consequences) == (Guard.READY, (text,))
    assert "a transaction that is not decided yet would replace it" in plan.sides[0].now[1]


def test_a_group_with_members_is_not_moved() -> None:
    member = MemberDescription(
        member_id="m", instance_id=None, client_id="app", host="/h", partitions=frozenset()
    )
    request = ResetOffsets(group_id="g", target=ResetTarget.EARLIEST)
    plan = plan_action(request, read_group(members=(member,)), SERVERS)
    assert plan.guard is Guard.REFUSED
    assert "app" in plan.objections[0]
    assert plan_action(request, read_group(4, 4), SERVERS).objections == ("No offset would change.",)
    unknown = plan_action(request, ResetReading(group=None, moves={}), SERVERS)
    assert unknown.guard is Guard.REFUSED


def test_the_end_may_grow_while_the_page_is_read_and_no_other_target_may_move() -> None:
    """[ACT-1] What is committed are the offsets that were shown."""
    for target, may_move in ((ResetTarget.LATEST, True), (ResetTarget.EARLIEST, False)):
        request = ResetOffsets(group_id="g", target=target)
        before = plan_action(request, read_group(4, 10), SERVERS)
        after = plan_action(request, read_group(4, 12), SERVERS)
        assert (list_changes(before, after) == ()) is may_move
        assert list_changes(before, plan_action(request, read_group(5, 10), SERVERS)) != ()


def test_a_partition_that_is_not_listed_counts_in_the_digest() -> None:
    """[ACT-1]"""
    request = ResetOffsets(group_id="g", target=ResetTarget.EARLIEST)
    moves = {TopicPartition("orders", n): OffsetMove(current=at(5), target=at(0)) for n in range(300)}
    before = plan_action(request, replace(read_group(), moves=moves), SERVERS)
    last = TopicPartition("orders", 299)
    moves[last] = OffsetMove(current=at(6), target=at(0))
    after = plan_action(request, replace(read_group(), moves=moves), SERVERS)
    assert before.sides == after.sides
    assert list_changes(before, after)


def test_the_same_offsets_in_another_cluster_are_not_moved() -> None:
    """[ACT-1] A mirror that takes over the address has the group and its offsets, too."""
    request = ResetOffsets(group_id="g", target=ResetTarget.EARLIEST)
    one, other = (
        plan_action(request, replace(read_group(), cluster_id=name), SERVERS) for name in ("one", "other")
    )
    assert list_changes(one, other) == ("another cluster answers: other, and no longer one",)


# ------------------------------------------------------------------------------ what has changed


@pytest.mark.parametrize(
    "later",
    [
        read(describe(state="CompleteCommit", writer=pair(5, 4)), make_row(state=WRITER)),
        read(describe(writer=pair(5, 5)), make_row(state=WRITER)),
        read(describe(age_ms=5_000), make_row(state=WRITER)),
        read(describe(), make_row(state=WRITER, settled=True)),
        read(describe(), replace(make_row(state=WRITER), owner="another")),
        read(describe(), None),
        replace(read(describe(), make_row(state=WRITER)), open_transactions=()),
    ],
    ids=["ended", "another epoch", "another begin", "settled", "claimed", "no row", "marker written"],
)
def test_whatever_moves_is_said(later: TransactionReading) -> None:
    """[ACT-1]"""
    before = plan_action(RESOLVE, read(describe(), make_row(state=WRITER)), SERVERS)
    after = plan_action(RESOLVE, later, SERVERS)
    changes = list_changes(before, after)
    assert changes
    assert any(", now: " in change or ", before: " in change for change in changes)


def test_what_only_grows_is_no_change() -> None:
    """[ACT-1] Others write to the same partition, and time goes by."""
    reading = read(describe(), make_row())
    before = plan_action(RESOLVE, reading, SERVERS)
    grown = replace(
        reading, ends={ORDERS: 99}, snapshot=replace(reading.snapshot, number=9, at_ms=NOW_MS + 60_000)
    )
    after = plan_action(RESOLVE, grown, SERVERS)
    assert before.consequences != after.consequences
    assert list_changes(before, after) == ()


def test_a_lease_that_is_held_is_said_and_counts() -> None:
    row = make_row(state=WRITER)
    held = LeaseRow(
        transactional_id=NAME,
        base="pay",
        number=1,
        holder="token",
        holder_info="host 7",
        expires_at_ms=NOW_MS + 1,
    )
    plan = plan_action(RESOLVE, read(describe(), row, leases=(held,)), SERVERS)
    assert plan.guard is Guard.READY
    assert "its process is alive" in plan.cautions[0]
    expired = replace(held, expires_at_ms=NOW_MS)
    later = plan_action(RESOLVE, read(describe(), row, leases=(expired,)), SERVERS)
    assert any("has expired; host 7" in change for change in list_changes(plan, later))


def test_a_form_keeps_nothing_of_other_ids() -> None:
    """So many forms may come back, and a store may have a million rows."""
    prefix = make_prefix("loud", Participant(transactional_id=WORKER, identity=WRITER))
    store = replace(make_store(make_row(NAME), make_row("other")), prefixes=(prefix,))
    (narrow,) = narrow_stores([store], NAME)
    assert list(narrow.rows) == [NAME]
    assert (narrow.prefixes, narrow.name, narrow.status) == ((), store.name, store.status)
    for name in (WORKER, "loud/coordinator"):
        assert narrow_stores([store], name)[0].prefixes == (prefix,)


def test_the_state_is_one_line_for_the_audit_log() -> None:
    plan = plan_action(RESOLVE, read(describe(), make_row(state=WRITER)), SERVERS)
    text = describe_state(plan)
    assert "\n" not in text
    assert "Ongoing, producer id and epoch 5:3" in text
    assert f"{STORE}: The last transaction that it has committed is 5:3" in text


def test_a_reading_of_another_kind_is_a_defect() -> None:
    with pytest.raises(TypeError, match="is no reading for"):
        plan_action(ABORT, read(), SERVERS)


def test_other_rows_and_other_stores_are_refused_by_name() -> None:
    other = ResolveRow(transactional_id=NAME, store="mysql://other/shop")
    plan = plan_action(other, read(describe(), make_row()), SERVERS)
    assert plan.objections == ("mysql://other/shop is no store of this console.",)
    second = make_store(name="mysql://other/shop")
    plan = plan_action(other, read(describe(), make_row(state=WRITER), second), SERVERS)
    assert plan.objections == (f"The row that counts is the one in {STORE}.",)
    plan = plan_action(RESOLVE, read(describe(), None), SERVERS)
    assert plan.objections == (f"{STORE} has no row of pay-1.",)
