"""Which ids a pool takes, when its leases count, and what it does with those that have expired."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.dualwrite.rules.leases import (
    DURATION_MS_MAX,
    DURATION_MS_MIN,
    RETRY_MS_MAX,
    GivingBack,
    Lease,
    LeaseList,
    LeaseRow,
    LeaseState,
    Lending,
    RecoveryAttempts,
    assess_giving_back,
    assess_lending,
    choose_leases,
    find_expired,
    find_lost,
)
from tallystick.kernel.settings import BadConfig

NOW_MS = 1_000


def row(number: int, holder: str = "", expires_at_ms: int = 0) -> LeaseRow:
    return LeaseRow(
        transactional_id=f"pay-{number}",
        base="pay",
        number=number,
        holder=holder,
        expires_at_ms=expires_at_ms,
    )


def leases(*rows: LeaseRow) -> LeaseList:
    return LeaseList(NOW_MS, rows)


def chosen(count: int, *rows: LeaseRow, barred: frozenset[str] = frozenset()) -> list[tuple[int, bool]]:
    """Return the numbers that are chosen, and whether each is in the table."""
    return [(r.number, now is not None) for r, now in choose_leases("pay", leases(*rows), count, barred)]


@pytest.mark.parametrize(
    ("each", "state"),
    [
        (row(0), LeaseState.FREE),
        (row(0, "", NOW_MS + 1), LeaseState.FREE),
        (row(0, "a", NOW_MS + 1), LeaseState.HELD),
        (row(0, "a", NOW_MS), LeaseState.EXPIRED),
        (row(0, "a", NOW_MS - 1), LeaseState.EXPIRED),
    ],
)
def test_a_lease_is_free_held_or_expired(each: LeaseRow, state: LeaseState) -> None:
    assert each.classify(NOW_MS) is state


def test_free_ids_are_taken_first_then_expired_ones_then_new_numbers() -> None:
    rows = (row(4), row(0, "a", 2_000), row(1, "b", 10), row(3))
    assert chosen(5, *rows) == [(3, True), (4, True), (1, True), (2, False), (5, False)]
    assert chosen(1, *rows) == [(3, True)]
    assert chosen(0, *rows) == []
    assert chosen(2) == [(0, False), (1, False)]


def test_what_the_pool_has_or_could_not_recover_is_not_chosen_again() -> None:
    barred = frozenset({"pay-0", "pay-1", "pay-2"})
    assert chosen(2, row(0), row(1, "b", 10), barred=barred) == [(3, False), (4, False)]


STATES = st.sampled_from([("", 0), ("a", NOW_MS - 1), ("a", NOW_MS + 1)])


@given(st.dictionaries(st.integers(0, 8), STATES), st.integers(0, 5), st.frozensets(st.integers(0, 8)))
def test_a_choice_is_as_many_ids_as_asked_for_and_none_that_is_held(
    states: dict[int, tuple[str, int]], count: int, barred_numbers: frozenset[int]
) -> None:
    """[DW-15] And each names what is in the table, so that a change in between is noticed."""
    rows = [row(number, *state) for number, state in states.items()]
    barred = frozenset(f"pay-{number}" for number in barred_numbers)
    pairs = choose_leases("pay", leases(*rows), count, barred)
    assert len({taken.transactional_id for taken, _ in pairs}) == len(pairs) == count
    for taken, former in pairs:
        assert taken.transactional_id not in barred
        assert former == (row(taken.number, *states[taken.number]) if taken.number in states else None)
        assert former is None or former.classify(NOW_MS) is not LeaseState.HELD


def test_expired_ones_are_recovered_but_for_those_that_failed_a_short_time_ago() -> None:
    found = find_expired(leases(row(2, "a", 10), row(0), row(1, "a", 20), row(3, "a", 2_000)), {"pay-2"})
    assert [each.number for each in found] == [1]


def test_a_renewal_names_what_was_lost() -> None:
    assert find_lost(["pay-0", "pay-1", "pay-2"], {"pay-1", "pay-9"}) == ["pay-0", "pay-2"]


@pytest.mark.parametrize(
    ("usable_until_ms", "lending"),
    [(None, Lending.DROP), (NOW_MS, Lending.PARK), (NOW_MS - 1, Lending.PARK), (NOW_MS + 1, Lending.LEND)],
)
def test_a_writer_is_lent_while_its_lease_lasts(usable_until_ms: int | None, lending: Lending) -> None:
    assert assess_lending(usable_until_ms, NOW_MS) is lending


def test_only_what_is_finished_is_given_back_at_once() -> None:
    judged = {
        (ready, busy): assess_giving_back(is_ready=ready, is_busy=busy)
        for ready, busy in product((False, True), repeat=2)
    }
    assert judged == {
        (True, False): GivingBack.RELEASE,
        (False, False): GivingBack.RECOVER,
        (True, True): GivingBack.EXPIRE,
        (False, True): GivingBack.EXPIRE,
    }


def test_a_renewal_may_fail_twice_before_the_lease_expires() -> None:
    for duration_ms in (DURATION_MS_MIN, 30_000, DURATION_MS_MAX):
        lease = Lease(duration_ms=duration_ms)
        assert 0 < lease.delay_ms(failed=True) < lease.delay_ms(failed=False)
        assert lease.delay_ms(failed=False) + 2 * lease.delay_ms(failed=True) < duration_ms


@pytest.mark.parametrize("duration_ms", [0, -1, DURATION_MS_MIN - 1, DURATION_MS_MAX + 1])
def test_a_duration_out_of_range_is_refused(duration_ms: int) -> None:
    with pytest.raises(BadConfig, match="duration_ms"):
        Lease(duration_ms=duration_ms).check()
    Lease(duration_ms=DURATION_MS_MIN).check()
    Lease(duration_ms=DURATION_MS_MAX).check()


def test_an_id_that_cannot_be_recovered_is_tried_less_and_less_often() -> None:
    attempts = RecoveryAttempts(1_000)
    now_ms, delays = 0, []
    for _ in range(12):
        attempts.note_failure("pay-0", now_ms, is_contradiction=False)
        due_ms = next(at for at in (now_ms + 500 * n for n in range(2_000)) if not attempts.barred_ids(at))
        delays.append(due_ms - now_ms)
        now_ms = due_ms
    assert delays[:4] == [1_000, 2_000, 4_000, 8_000]
    assert delays[-2:] == [RETRY_MS_MAX, RETRY_MS_MAX]
    attempts.note_failure("pay-0", now_ms, is_contradiction=False)
    attempts.forget("pay-0")
    assert not attempts.barred_ids(now_ms)


def test_a_contradiction_waits_for_people_at_once() -> None:
    attempts = RecoveryAttempts(1_000)
    attempts.note_failure("pay-0", 5, is_contradiction=True)
    attempts.note_failure("pay-1", 5, is_contradiction=False)
    assert attempts.barred_ids(5) == {"pay-0", "pay-1"}
    assert attempts.barred_ids(RETRY_MS_MAX + 4) == {"pay-0"}
    assert not attempts.barred_ids(RETRY_MS_MAX + 5)
