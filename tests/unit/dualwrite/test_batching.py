"""Which units share a dual write: the scheduler's decisions, without threads, clocks or databases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.errors import AbortRequired, ConnectionLost, TooLarge
from tallystick.dualwrite.batch_rules import BatchRolledBack, may_be_of_unit
from tallystick.dualwrite.errors import Fenced, Torn
from tallystick.dualwrite.rules.batching import Batch, Batching, BatchPhase, BatchScheduler, SavepointPolicy
from tallystick.kernel.settings import BadConfig

LIMITS = Batching(max_units=3, max_batch_wait_ms=100)


def scheduler(*units: str) -> BatchScheduler[str]:
    made: BatchScheduler[str] = BatchScheduler(LIMITS)
    for unit in units:
        made.add(unit)
    return made


def opened(units: BatchScheduler[str]) -> Batch[str]:
    batch = units.open()
    assert batch is not None
    return batch


def test_waiting_units_join_in_order_until_the_batch_is_full() -> None:
    units = scheduler("a", "b", "c", "d")
    batch = units.open()
    assert batch is not None
    for name in "abc":
        assert units.take(batch, 1) == name
        units.finish(batch, ready=True)
    assert units.take(batch, 1) is None
    assert batch.phase is BatchPhase.CLOSED
    assert units.end(batch) == ["a", "b", "c"]
    assert units.has_work


def test_one_batch_takes_units_at_a_time_and_the_next_while_it_commits() -> None:
    units = scheduler("a")
    first = units.open()
    assert first is not None
    assert units.take(first, 0) == "a"
    units.add("b")
    assert units.open() is None
    units.finish(first, ready=True)
    assert units.take(first, 0) == "b"
    units.finish(first, ready=True)
    assert units.take(first, 0) is None
    units.add("c")
    second = units.open()
    assert second is not None
    assert units.take(second, 1) == "c"
    assert units.end(first) == ["a", "b"]


def test_a_unit_that_failed_is_not_in_the_batch() -> None:
    units = scheduler("a", "b")
    batch = units.open()
    assert batch is not None
    units.take(batch, 0)
    units.finish(batch, ready=False)
    units.take(batch, 0)
    units.finish(batch, ready=True)
    assert units.end(batch) == ["b"]


def test_a_batch_takes_no_more_once_the_first_has_waited_long_enough() -> None:
    units = scheduler("a", "b")
    batch = units.open()
    assert batch is not None
    units.take(batch, 0)
    units.finish(batch, ready=True)
    assert units.take(batch, 100) is None
    assert units.withdraw("b")


def test_a_transaction_that_was_slow_to_begin_takes_its_first_unit() -> None:
    units = scheduler("a", "b")
    batch = units.open()
    assert batch is not None
    assert units.take(batch, 5000) == "a"
    units.finish(batch, ready=True)
    assert units.take(batch, 5099) == "b"


def test_a_held_up_batch_is_overtaken_and_what_was_ready_comes_first() -> None:
    units = scheduler("a", "slow", "c")
    batch = units.open()
    assert batch is not None
    units.take(batch, 0)
    units.finish(batch, ready=True)
    units.take(batch, 0)
    batch.can_be_ended = True
    assert units.find_late(99) is None
    assert units.ms_until_late(99) == 1
    assert units.find_late(100) is batch
    ready = units.overtake(batch)
    assert ready == ["a"]
    assert batch.phase is BatchPhase.OVERTAKEN
    units.add_again(ready, alone=False)
    following = units.open()
    assert following is not None
    assert units.take(following, 101) == "a"
    assert units.take(following, 101) == "c"
    units.finish(batch, ready=True)
    assert units.take(batch, 101) is None
    assert units.end(batch) == ["slow"]


def test_a_batch_of_many_quick_units_is_not_held_up_by_the_last_one() -> None:
    """It is taken for a slow one only when it has run for half of the limit itself."""
    units = scheduler("a", "b", "c", "d")
    batch = opened(units)
    batch.can_be_ended = True
    for name, began_ms in (("a", 0), ("b", 45)):
        assert units.take(batch, began_ms) == name
        units.finish(batch, ready=True)
    assert units.take(batch, 90) == "c"
    assert units.ms_until_late(100) == 40
    assert units.find_late(100) is None
    assert units.find_late(139) is None
    assert units.find_late(140) is batch


def test_a_batch_whose_transaction_cannot_be_ended_is_waited_for() -> None:
    units = scheduler("a", "slow", "c")
    batch = units.open()
    assert batch is not None
    units.take(batch, 0)
    units.finish(batch, ready=True)
    units.take(batch, 0)
    assert units.find_late(1000) is None
    assert units.ms_until_late(1000) is None
    assert units.open() is None
    units.finish(batch, ready=True)
    assert units.take(batch, 1000) is None
    assert units.end(batch) == ["a", "slow"]
    assert units.has_work


def test_a_slow_unit_that_holds_up_no_other_is_left_alone() -> None:
    units = scheduler("slow")
    batch = opened(units)
    batch.can_be_ended = True
    assert units.take(batch, 0) == "slow"
    assert units.find_late(1000) is None
    assert units.ms_until_late(1000) is None
    units.add("b")
    assert units.find_late(1000) is batch
    assert units.ms_until_late(1000) == 1


def test_a_batch_is_being_ended_from_the_moment_it_is_overtaken() -> None:
    units = scheduler("slow", "b")
    batch = opened(units)
    units.take(batch, 0)
    assert not batch.is_being_ended
    units.overtake(batch)
    assert batch.is_being_ended


def test_a_batch_that_is_closed_is_not_late() -> None:
    units = scheduler("failed", "b")
    batch = opened(units)
    batch.can_be_ended = True
    units.take(batch, 0)
    units.close(batch)
    assert units.find_late(1000) is None
    assert units.overtake(batch) == []


def test_another_driver_is_needed_for_what_one_leaves_undone() -> None:
    units = scheduler("a")
    assert not units.needs_another_driver(0)
    units.add_again(["b"], alone=True)
    assert units.needs_another_driver(0)  # one for the unit alone, and one for the batch


def test_another_driver_is_needed_to_watch_a_batch() -> None:
    units = scheduler("a", "b")
    batch = opened(units)
    units.take(batch, 0)
    units.add_again(["c"], alone=True)
    assert not units.needs_another_driver(0)
    batch.can_be_ended = True
    assert units.needs_another_driver(0)


def test_a_batch_that_commits_is_not_overtaken() -> None:
    units = scheduler("a")
    batch = units.open()
    assert batch is not None
    units.take(batch, 0)
    units.finish(batch, ready=True)
    units.take(batch, 0)
    batch.can_be_ended = True
    assert units.find_late(1000) is None
    assert units.overtake(batch) == []
    assert batch.phase is BatchPhase.CLOSED


def test_a_unit_that_runs_alone_shares_with_none() -> None:
    units = scheduler("c")
    units.add_again(["a", "b"], alone=True)
    first, second = units.open(), units.open()
    assert first is not None
    assert second is not None
    assert (first.is_alone, second.is_alone) == (True, True)
    assert units.take(first, 0) == "a"
    units.finish(first, ready=True)
    assert units.take(first, 0) is None
    assert units.take(second, 0) == "b"
    third = units.open()
    assert third is not None
    assert not third.is_alone


def test_units_run_in_savepoints_only_after_one_has_failed_without() -> None:
    units: BatchScheduler[str] = BatchScheduler(LIMITS, SavepointPolicy(units_min=2))
    for each in "abc":
        units.add(each)
    batch = opened(units)
    assert not batch.has_savepoints
    assert units.take(batch, 0) == "a"
    units.finish(batch, ready=True)
    assert units.take(batch, 0) == "b"
    units.take_back(batch)
    assert batch.phase is BatchPhase.TAKEN_BACK
    assert units.end(batch) == ["a"]
    units.add_again("ab", alone=False)
    careful = opened(units)
    assert careful.has_savepoints
    for each in "abc":
        assert units.take(careful, 0) == each
        units.finish(careful, ready=True)
    units.end(careful)
    units.add("d")
    assert not opened(units).has_savepoints


def test_units_that_keep_failing_are_seldom_run_without_savepoints() -> None:
    policy, careful, careless = SavepointPolicy(), 0, 0
    for _ in range(10_000):
        if policy.is_due:
            policy.count_units(64, has_savepoints=True)
            careful += 1
        else:
            policy.count_failure()
            careless += 1
    assert careless < careful / 400
    while policy.is_due:
        policy.count_units(64, has_savepoints=True)
    for _ in range(8):  # none fails any more
        policy.count_units(1, has_savepoints=False)
    policy.count_failure()
    policy.count_units(256, has_savepoints=True)
    assert not policy.is_due


@given(
    st.lists(st.sampled_from(["add", "open", "take", "ready", "fail", "end", "overtake", "alone", "tick"]))
)
def test_every_unit_is_in_one_place(events: list[str]) -> None:
    units: BatchScheduler[int] = BatchScheduler(LIMITS)
    added, settled, now, batches = 0, [], 0, []
    for event in events:
        batch = batches[-1] if batches else None
        match event:
            case "add":
                units.add(added)
                added += 1
            case "tick":
                now += 60
            case "open":
                batches += [opened] if (opened := units.open()) else []
                for each in batches[-1:]:
                    each.can_be_ended = len(batches) % 2 == 0
            case "take" if batch is not None and batch.running is None:
                units.take(batch, now)
            case "ready" if batch is not None:
                units.finish(batch, ready=True)
            case "fail" if batch is not None and batch.running is not None:
                settled.append(batch.running)
                units.finish(batch, ready=False)
            case "end" if batch is not None and batch.running is None:
                settled += units.end(batch)
            case "alone" if batch is not None and batch.running is None:
                units.add_again(units.end(batch), alone=True)
            case "overtake" if (late := units.find_late(now)) is not None:
                units.add_again(units.overtake(late), alone=False)
    for each in batches:
        settled += [*units.end(each), *([] if each.running is None else [each.running])]
    assert sorted([*settled, *units.clear()]) == list(range(added))


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (Batching(max_units=0), "max_units"),
        (Batching(max_units=1001), "max_units"),
        (Batching(max_batch_wait_ms=0), "max_batch_wait_ms"),
        (Batching(max_units="8"), "max_units"),  # type: ignore[arg-type]
        (Batching(max_batch_wait_ms=0.5), "max_batch_wait_ms"),  # type: ignore[arg-type]
    ],
)
def test_limits_out_of_range(limits: Batching, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        limits.check()


class Invalidated(Exception):
    connection_invalidated = True


def test_whose_failure_it_is() -> None:
    failed = AbortRequired("a send failed")
    failed.__cause__ = TooLarge("Produce", "topic-0", 10)
    assert may_be_of_unit(failed)
    assert may_be_of_unit(BatchRolledBack("x"))
    assert may_be_of_unit(ValueError("x"))
    lost = AbortRequired("a send failed")
    lost.__cause__ = ConnectionLost("host:9092", "Produce", "reset")
    for writers in (Fenced("id", "owner"), Torn("x"), lost, Invalidated(), KeyboardInterrupt()):
        assert not may_be_of_unit(writers)
