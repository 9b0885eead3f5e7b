"""Both sides of each transaction: what is shown, and when it counts."""

import pytest
from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    WRITER,
    describe,
    make_case,
    make_prefix,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)

from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.console.model.assessment import SparkRole, Stage
from tallystick.console.model.health import Health, Limits
from tallystick.console.model.snapshot import NEVER_MS, PartitionOffsets, Snapshot
from tallystick.console.model.transactions import AssessedTransaction, join_views
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Participant

LIMITS = Limits(grace_ms=60_000, limit_ms=900_000)


def join(snapshot: Snapshot, earlier: tuple[AssessedTransaction, ...] | None = None) -> AssessedTransaction:
    (each,) = join_views(snapshot, LIMITS, earlier)
    return each


def test_views_of_one_id_are_one_transaction() -> None:
    description = describe()
    case = make_case(HangingFinding.TWO_PHASE, description)
    each = join(
        make_snapshot(
            description,
            cases=[case],
            stores=[make_store(make_row(state=WRITER))],
            offsets={ORDERS: PartitionOffsets(start=0, last_stable=10, end=25)},
        )
    )
    assert each.transactional_id == "pay-1"
    assert each.views.cases == (case,)
    assert each.views.store is not None
    assert each.stage is Stage.DECIDED
    assert each.held_back_count == 15


def test_only_the_first_transaction_of_a_partition_holds_its_readers_back() -> None:
    first, second = describe("a", writer=pair(5, 3)), describe("b", writer=pair(6, 0))
    cases = [
        make_case(HangingFinding.TWO_PHASE, second, pair(6, 0), start_offset=20),
        make_case(HangingFinding.TWO_PHASE, first, pair(5, 3), start_offset=10),
    ]
    offsets = {ORDERS: PartitionOffsets(start=0, last_stable=10, end=25)}
    transactions = join_views(make_snapshot(first, second, cases=cases, offsets=offsets), LIMITS)
    assert {each.transactional_id: each.held_back_count for each in transactions} == {"a": 15, "b": 0}


def test_what_is_finished_on_both_sides_is_not_shown() -> None:
    done = describe(state="CompleteCommit", writer=pair(5, 4), partitions=())
    assert join_views(make_snapshot(done, stores=[make_store(make_row(state=WRITER))]), LIMITS) == ()


def test_a_settled_row_whose_id_was_not_described_is_not_shown() -> None:
    settled = make_store(make_row(state=WRITER, settled=True))
    assert join_views(make_snapshot(stores=[settled]), LIMITS) == ()
    unsettled = make_store(make_row(state=WRITER))
    assert join(make_snapshot(stores=[unsettled])).health is Health.UNKNOWN


def test_sides_that_differ_are_shown_although_nothing_is_open() -> None:
    aborted = describe(state="CompleteAbort", writer=pair(5, 4), partitions=())
    snapshot = make_snapshot(aborted, stores=[make_store(make_row(state=WRITER))])
    assert join(snapshot).health is Health.UNSETTLED
    assert join(read_again(snapshot), join_views(snapshot, LIMITS)).health is Health.BROKEN


@pytest.mark.parametrize("part", ["stores", "transactions"])
def test_a_view_that_was_not_read_again_confirms_nothing(part: str) -> None:
    """[CON-1] A snapshot may hold a part that is as old as that of the one before."""
    aborted = describe(state="CompleteAbort", writer=pair(5, 4), partitions=())
    first = make_snapshot(aborted, stores=[make_store(make_row(state=WRITER))])
    half_new = replace(read_again(first), **{part: getattr(first, part)})
    looked_once = join_views(first, LIMITS)
    looked_twice = join_views(half_new, LIMITS, looked_once)
    assert looked_twice[0].health is Health.UNSETTLED
    whole = read_again(half_new)
    assert join(whole, looked_twice).health is Health.BROKEN
    assert join(read_again(whole), join_views(whole, LIMITS, looked_twice)).health is Health.BROKEN


def test_sides_are_called_broken_only_if_two_readings_show_the_same() -> None:
    """[CON-1] A live writer moves on between the reading of the store and that of the cluster."""
    aborted = describe(state="CompleteAbort", writer=pair(5, 4), partitions=())
    first = make_snapshot(aborted, stores=[make_store(make_row(state=WRITER))])
    moved = make_snapshot(
        describe(state="CompleteAbort", writer=pair(5, 6), partitions=()),
        stores=[make_store(make_row(state=pair(5, 5)))],
    )
    looked_once = join_views(first, LIMITS)
    assert join(read_again(moved), looked_once).health is Health.UNSETTLED
    assert join(read_again(first), looked_once).health is Health.BROKEN


def test_a_transaction_of_no_coordinator_stands_alone() -> None:
    description = describe("pay-1", "CompleteCommit", pair(5, 9), partitions=())
    cases = [
        make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING),
        make_case(
            HangingFinding.STALE_EPOCH,
            description,
            pair(5, 3),
            partition=TopicPartition("orders", 1),
            verdict=HangingVerdict.HANGING,
        ),
    ]
    transactions = join_views(make_snapshot(description, cases=cases), LIMITS)
    assert [each.transactional_id for each in transactions] == [None, "pay-1"]
    assert {each.health for each in transactions} == {Health.HANGING}
    assert all(each.views.is_stranger for each in transactions)


def test_a_stage_begins_when_it_is_first_seen() -> None:
    """A long transaction that is decided now is not one whose writer died after the decision."""
    undecided = make_snapshot(describe(age_ms=120_000), stores=[make_store(make_row())])
    decided = replace(undecided, stores=(make_store(make_row(state=WRITER)),))
    first = join_views(undecided, LIMITS)
    each = join(decided, first)
    assert (each.stage, each.stage_since_ms, each.health) == (Stage.DECIDED, NOW_MS, Health.OK)
    later = replace(decided, at_ms=NOW_MS + 60_001)
    assert join(later, (each,)).health is Health.RECOVER


def test_a_decision_that_is_there_at_the_first_look_is_as_old_as_its_transaction() -> None:
    snapshot = make_snapshot(describe(age_ms=120_000), stores=[make_store(make_row(state=WRITER))])
    assert join(snapshot).health is Health.RECOVER


def test_of_two_stores_the_row_that_names_the_transaction_counts() -> None:
    stores = [
        make_store(make_row(state=pair(5, 1)), name="a"),
        make_store(make_row(state=WRITER), name="b"),
    ]
    side = join(make_snapshot(describe(), stores=stores)).views.store
    assert side is not None
    assert (side.store.name, side.other_stores) == ("b", ("a",))


def test_participants_of_a_decision_are_told_from_other_attempts() -> None:
    name = f"loud/w/{'a' * 16}/0"
    participant = Participant(transactional_id=name, identity=pair(5, 3))
    prefixes = [make_prefix("loud", participant)]
    decided = join(make_snapshot(describe(name), prefixes=prefixes)).views.spark
    assert decided is not None
    assert decided.role is SparkRole.DECIDED
    other = join(make_snapshot(describe(name, writer=pair(5, 4)), prefixes=prefixes)).views.spark
    assert other is not None
    assert other.role is SparkRole.UNDECIDED


def test_a_note_alone_tells_nothing_of_what_a_database_has_decided() -> None:
    name = f"loud/database/w/{'a' * 16}/0"
    noted = replace(make_prefix("loud/database"), decision=None, is_noted_only=True)
    for prefixes in ([noted], []):
        spark = join(make_snapshot(describe(name), prefixes=prefixes)).views.spark
        assert spark is not None
        assert spark.role is SparkRole.UNREAD


@pytest.mark.parametrize("is_read", [True, False])
def test_nothing_is_called_an_orphan_while_a_store_was_never_read(is_read: bool) -> None:
    """It may be the one that has its row; once it was read, an outage of it changes nothing."""
    read_ms = NOW_MS if is_read else NEVER_MS
    store = make_store(name="late", failures=("late: no answer yet",), read_ms=read_ms)
    each = join(make_snapshot(describe(age_ms=10**7), stores=[store]))
    assert each.health is (Health.ORPHAN if is_read else Health.UNKNOWN)
    assert is_read or "was not read yet: late" in each.assessment.reason


def test_the_worst_comes_first_and_then_the_oldest() -> None:
    old, young = describe("old", age_ms=9_000), describe("young", age_ms=1_000)
    orphan = describe("orphan", age_ms=1_000_000)
    names = [each.transactional_id for each in join_views(make_snapshot(young, old, orphan), LIMITS)]
    assert names == ["orphan", "old", "young"]
