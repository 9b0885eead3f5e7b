"""KIP-664's analysis over all small inputs, and the weak spots of Kafka's tool one by one."""

from dataclasses import dataclass
from itertools import product

import pytest

from tallystick.admin.model import OpenTransaction, TransactionDescription
from tallystick.admin.txn.hanging import (
    HARM_BY_VERDICT,
    VERDICT_BY_FINDING,
    AbortHarm,
    ClusterSnapshot,
    HangingCase,
    HangingFinding,
    HangingVerdict,
    assess_transactions,
    is_late,
)
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import replace

HERE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)
NOW, LIMIT = 1_000_000, 1_000
STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence", "Invented",
)  # fmt: skip


def identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def opened(epoch: int = 5, *, start: int = 10, last_ms: int | None = 0) -> OpenTransaction:
    return OpenTransaction(
        partition=HERE,
        writer=identity(7, epoch),
        coordinator_epoch=None,
        start_offset=start,
        last_timestamp_ms=last_ms,
    )


def coordinated(
    state: str = "Ongoing", epoch: int = 5, *partitions: TopicPartition, **more: int | None
) -> TransactionDescription:
    return TransactionDescription(
        transactional_id="pay",
        coordinator=1,
        state=state,
        writer=identity(more.get("producer_id") or 7, epoch),
        timeout_ms=more.get("timeout_ms", 60_000),
        started_ms=more.get("started_ms", NOW - 10),
        partitions=frozenset(partitions),
    )


def look(
    view: TransactionDescription | None = None, one: OpenTransaction | None = None, *, complete: bool = True
) -> ClusterSnapshot:
    return ClusterSnapshot(
        at_ms=NOW,
        open_transactions=(one or opened(),),
        ids_by_producer={ProducerId(7): ("pay",)} if view else {},
        descriptions={"pay": view} if view else {},
        is_complete=complete,
    )


def found(at: ClusterSnapshot) -> HangingFinding:
    (case,) = assess_transactions(at, LIMIT)
    return case.finding


def test_every_finding_has_a_verdict_and_every_verdict_says_what_ending_it_breaks() -> None:
    assert set(VERDICT_BY_FINDING) == set(HangingFinding)
    assert set(HARM_BY_VERDICT) == set(HangingVerdict)
    assert set(HARM_BY_VERDICT.values()) == set(AbortHarm)


@dataclass(frozen=True)
class World:
    """What is really going on, of which each side tells a part."""

    listed: bool
    described: bool
    forgotten: bool
    complete: bool
    state: str
    epoch: int
    included: bool
    timeout_ms: int | None
    started_ms: int


WORLDS = [
    World(*each)
    for each in product(
        (True, False), (True, False), (True, False), (True, False),
        STATES, (3, 4, 5, 6, 7), (True, False), (60_000, None), (NOW - 10, NOW - LIMIT - 1),
    )
]  # fmt: skip


def look_at(world: World) -> ClusterSnapshot:
    view = coordinated(
        world.state,
        world.epoch,
        *([HERE] if world.included else [ELSEWHERE]),
        timeout_ms=world.timeout_ms,
        started_ms=world.started_ms,
    )
    return ClusterSnapshot(
        at_ms=NOW,
        open_transactions=(opened(5),),
        ids_by_producer={ProducerId(7): ("pay",)} if world.listed else {},
        descriptions={"pay": view} if world.described else {},
        expired_ids=frozenset({"pay"}) if world.forgotten else frozenset(),
        is_complete=world.complete,
    )


def will_be_ended(world: World) -> bool | None:
    """Does somebody end the partition's transaction, as what it is? None: nothing that was told decides it.

    Written down once more and differently, from what coordinators do.
    """
    if not world.listed:
        return False if world.complete else None
    if world.forgotten:
        return False
    if not world.described or world.state == "Invented":
        return None
    if world.epoch < 5:
        return None  # it cannot be: no verdict but CONTRADICTION
    if not world.included or world.state in ("Empty", "CompleteCommit", "CompleteAbort", "Dead"):
        return False
    if world.state == "Ongoing":
        return world.epoch == 5
    return world.epoch in (5, 6)  # the markers' epoch, before and from transaction version 2 on


def test_all_small_inputs() -> None:
    """[ADM-1] HANGING takes two looks, and only where nobody will end it."""
    seen = set()
    for world in WORLDS:
        first = assess_transactions(look_at(world), LIMIT)
        (again,) = assess_transactions(look_at(world), LIMIT, first)
        seen.add(again.finding)
        assert first[0].finding is again.finding
        assert first[0].verdict is not HangingVerdict.HANGING, world
        ended = will_be_ended(world)
        assert (again.verdict is HangingVerdict.HANGING) == (ended is False), world
        if ended:
            assert again.verdict in (
                HangingVerdict.IN_DOUBT,
                HangingVerdict.SLOW,
                HangingVerdict.OPEN,
                HangingVerdict.ENDING,
            ), world
        if ended is None:
            assert again.verdict in (HangingVerdict.UNKNOWN, HangingVerdict.CONTRADICTION), world
        if ended and world.state == "Ongoing" and world.timeout_ms is None:
            assert again.verdict is HangingVerdict.IN_DOUBT, world
    assert seen == set(HangingFinding)


def test_a_second_look_must_be_at_the_same_transaction() -> None:
    """[ADM-1] Another transaction of the same producer in the same partition is suspected, not hanging."""
    first = assess_transactions(look(), LIMIT)
    assert first[0].verdict is HangingVerdict.SUSPECTED
    for other in (opened(start=11), opened(6)):
        assert assess_transactions(look(one=other), LIMIT, first)[0].verdict is HangingVerdict.SUSPECTED
    assert assess_transactions(look(), LIMIT, first)[0].verdict is HangingVerdict.HANGING


def test_a_transaction_that_ran_on_in_the_first_look_is_not_hanging_in_the_second() -> None:
    running = assess_transactions(look(coordinated("Ongoing", 5, HERE)), LIMIT)
    assert (
        assess_transactions(look(coordinated("CompleteCommit", 6)), LIMIT, running)[0].verdict
        is HangingVerdict.SUSPECTED
    )


def test_a_later_transaction_with_the_same_partition_does_not_hide_an_older_one() -> None:
    """Kafka's tool compares no epochs: `hanging if partition absent from the described set`."""
    assert found(look(coordinated("Ongoing", 6, HERE))) is HangingFinding.STALE_EPOCH


def test_a_coordinator_that_did_not_answer_makes_nothing_hang() -> None:
    assert found(look(complete=False)) is HangingFinding.MAYBE_UNLISTED
    assert found(look()) is HangingFinding.UNKNOWN_PRODUCER_ID


def test_an_id_that_moved_to_another_producer_id_no_longer_answers_for_this_one() -> None:
    moved = replace(look(coordinated("Ongoing", 0, HERE, producer_id=8)))
    assert found(moved) is HangingFinding.UNKNOWN_PRODUCER_ID


def test_of_two_ids_with_one_producer_id_the_more_careful_finding_holds() -> None:
    gone, prepared = coordinated("Empty", 6), coordinated("Ongoing", 5, HERE, timeout_ms=None)
    for names in (("gone", "prepared"), ("prepared", "gone")):
        at = ClusterSnapshot(
            at_ms=NOW,
            open_transactions=(opened(),),
            ids_by_producer={ProducerId(7): names},
            descriptions={"gone": gone, "prepared": prepared},
            is_complete=True,
        )
        assert found(at) is HangingFinding.TWO_PHASE


@pytest.mark.parametrize("last_ms", [None, NOW + 1])
def test_timestamps_that_say_nothing_hide_nothing(last_ms: int | None) -> None:
    (case,) = assess_transactions(look(one=opened(last_ms=last_ms)), LIMIT)
    assert case.idle_ms is None
    assert is_late(case, LIMIT)


def test_lateness_is_measured_from_the_start_where_a_coordinator_knows_it() -> None:
    def case(last_ms: int, started_ms: int) -> HangingCase:
        view = coordinated("Ongoing", 5, HERE, started_ms=started_ms)
        return assess_transactions(look(view, opened(last_ms=last_ms)), LIMIT)[0]

    busy = case(last_ms=NOW, started_ms=NOW - LIMIT - 1)
    assert (busy.verdict, is_late(busy, LIMIT)) == (HangingVerdict.SLOW, True)
    assert not is_late(case(last_ms=NOW, started_ms=NOW), LIMIT)
    old_records = case(last_ms=0, started_ms=NOW)
    assert (old_records.verdict, is_late(old_records, LIMIT)) == (HangingVerdict.OPEN, False)
