"""A start that cannot read a partition of `__transaction_state` compares it when it is read back."""

from collections.abc import Mapping

import pytest
from tests.support.txn_coordinator import P0, P1, MemoryTopic, T, World, commit, on_a_loop

from tallystick.broker.coordinator.reload import BACKOFF_MS
from tallystick.broker.txn.machine.consistency import (
    PartitionStartState,
    PartitionStartStates,
    ProducerStartState,
)
from tallystick.broker.txn.machine.model import OngoingPhase, TransactionResult
from tallystick.broker.txn.start_comparison import CleanStartComparison, UncleanStartComparison
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)

EIO = OSError("input/output error")
STRANGER = ProducerIdAndEpoch(ProducerId(77), ProducerEpoch(0))


def seen(opened: Mapping[TopicPartition, tuple[ProducerIdAndEpoch, ...]], end: int) -> PartitionStartStates:
    return {
        at: PartitionStartState(
            log_end_offset=Offset(end),
            producers={
                writer.producer_id: ProducerStartState(
                    epoch=writer.epoch, last_timestamp_ms=TimestampMs(0), open_since_offset=Offset(1)
                )
                for writer in writers
            },
        )
        for at, writers in opened.items()
    }


async def find_no_outcome(
    at: TopicPartition, marker: ProducerIdAndEpoch, since_ms: TimestampMs
) -> TransactionResult | None:
    return None


def unclean(world: World, found: PartitionStartStates) -> UncleanStartComparison:
    return UncleanStartComparison(found, world.markers, find_no_outcome)


def elsewhere(world: World) -> TransactionalId:
    """An id in the other partition of the log than T."""
    place = world.coordinator.partition_for
    names = (TransactionalId(f"id-{number}") for number in range(100))
    return next(name for name in names if place(name) != place(T))


async def start(world: World, comparison: UncleanStartComparison | CleanStartComparison) -> None:
    """Restart while the partition of T cannot be read; a piece of it can."""
    own = world.topic.partitions[world.coordinator.partition_for(T)]
    own.unreadable = EIO
    await world.coordinator.stop()
    world.coordinator = world.new_coordinator()
    world.coordinator.start(comparison)
    await world.settle()
    own.unreadable = None


def hanging(
    comparison: UncleanStartComparison | CleanStartComparison,
) -> list[tuple[TopicPartition, ProducerIdAndEpoch]]:
    return [(found.partition, found.writer) for found in comparison.hanging_transactions]


@pytest.mark.parametrize("is_clean", [False, True], ids=["after a crash", "after a clean stop"])
@on_a_loop
async def test_a_transaction_does_not_hang_while_its_id_may_be_in_what_is_unread(*, is_clean: bool) -> None:
    """To end it by hand, as one that hangs, could take back what its coordinator has decided."""
    async with World(MemoryTopic(2)) as world:
        other = elsewhere(world)
        mine, theirs = await world.begin(P0), await world.begin(P1, name=other)
        found = seen({P0: (mine, STRANGER), P1: (theirs,)}, end=10)
        comparison = CleanStartComparison(found) if is_clean else unclean(world, found)
        await start(world, comparison)
        assert isinstance(world.entry(other).phase, OngoingPhase), "served, whatever the other partition does"
        refused = world.coordinator.get_entry(T)
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.NOT_COORDINATOR
        assert hanging(comparison) == []
        await world.pass_time(BACKOFF_MS)
        assert isinstance(world.entry().phase, OngoingPhase)
        assert hanging(comparison) == [(P0, STRANGER)]


@on_a_loop
async def test_a_marker_that_was_lost_is_written_again_when_its_decision_is_read_back() -> None:
    async with World(MemoryTopic(2)) as world:
        who = await world.begin(P0)
        await world.ask(commit(who))
        comparison = unclean(world, seen({P0: (who,)}, end=50))
        world.markers.written.clear()
        await start(world, comparison)
        assert world.markers.written == []
        await world.pass_time(BACKOFF_MS)
        assert world.markers.partitions() == [P0]
        assert world.markers.written[0][0].outcome is TransactionResult.COMMIT
        assert hanging(comparison) == []


@on_a_loop
async def test_a_partition_that_was_forgotten_is_added_again_before_its_id_is_served() -> None:
    async with World(MemoryTopic(2)) as world:
        who = await world.begin(P0)
        comparison = unclean(world, seen({P0: (who,), P1: (who,)}, end=10))
        await start(world, comparison)
        await world.pass_time(BACKOFF_MS)
        phase = world.entry().phase
        assert isinstance(phase, OngoingPhase)
        assert phase.partitions == {P0, P1}
        assert hanging(comparison) == []
