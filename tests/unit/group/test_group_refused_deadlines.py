"""A deadline of a group whose record is refused is tried again after a while, and the loop goes on."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.groups import G, MemoryPartition, MemoryTopic, Turn, World, commit, on_a_loop

from tallystick.broker.group.machine.commands import (
    GroupAnswer,
    JoinGroupResult,
    LeaveGroup,
    LeavingMember,
    MemberIdRequired,
    SyncGroupResult,
)
from tallystick.broker.group.machine.model import GroupState
from tallystick.broker.group.timeouts import BACKOFF_MS
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.value import replace
from tallystick.storage.disk.fs import DiskFull
from tallystick.storage.log.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin

REBALANCE_MS, SESSION_MS = 5_000, 10_000
# A coordinator that tries for ever gets through then, so that the test ends.
ENDLESS = 50

REFUSALS: list[Reject | Exception] = [
    DiskFull("/data", "no space left"),
    Reject(ErrorCode.KAFKA_STORAGE_ERROR, "too many open files"),
    Reject(ErrorCode.MESSAGE_TOO_LARGE, "more than a batch may have"),
]


class CountingPartition(MemoryPartition):
    """Counts the appends that it refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def append(
        self, batches: bytes, origin: AppendOrigin = AppendOrigin.CLIENT, guard: TxnGuard = NO_GUARD
    ) -> AppendResult | Reject:
        if self.refusal is not None:
            self.refused += 1
            if self.refused >= ENDLESS:
                self.refusal = None
        return super().append(batches, origin, guard)


class CountingTopic(MemoryTopic):
    """One partition; it can be gone, and then takes a turn of the loop to be refused."""

    def __init__(self) -> None:
        self.only = CountingPartition()
        self.partitions: list[MemoryPartition] = [self.only]
        self.refusal: Reject | None = None
        self.asked = 0

    @property
    def partition_count(self) -> int:
        return 1

    async def ensure_partition(self, index: int) -> MemoryPartition | Reject:
        await Turn()
        if self.refusal is not None:
            self.asked += 1
            if self.asked < ENDLESS:
                return self.refusal
            self.refusal = None
        self.partitions = [self.only]
        return self.only


async def _join(world: World, name: str = "a") -> "asyncio.Task[GroupAnswer]":
    """Join, with a rebalance timeout that is over before the session."""
    required = await world.coordinator.execute(G, world.join(None, name))
    assert isinstance(required, MemberIdRequired)
    join = world.join(required.member_id, name)
    asked = world.ask(replace(join, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS))
    await world.settle()
    return asked


async def _joined(world: World) -> JoinGroupResult:
    """A member of a group of one that waits for its assignment."""
    asked = await _join(world)
    await world.pass_time(0)
    joined = await asked
    assert isinstance(joined, JoinGroupResult)
    return joined


async def _rebalancing(world: World) -> None:
    """A member that does not come back to a rebalance, and nobody else in it any more."""
    first = await _joined(world)
    await world.coordinator.execute(G, world.sync(first, {first.member_id: b"all"}))
    asked = await _join(world, "b")
    assert not asked.done()
    (second,) = world.group().members.keys() - {first.member_id}
    leaving = LeavingMember(member_id=second, instance_id=None, reason=None)
    await world.coordinator.execute(G, LeaveGroup(members=(leaving,)))
    assert world.group().state is GroupState.PREPARING_REBALANCE


async def _syncing(world: World) -> None:
    """A member that does not fetch its assignment."""
    await _joined(world)
    assert world.group().state is GroupState.COMPLETING_REBALANCE


async def _stable(world: World) -> None:
    """A member whose session is over when its rebalance timeout would be."""
    await world.member()
    await world.pass_time(SESSION_MS - REBALANCE_MS)


@pytest.mark.parametrize("refusal", REFUSALS, ids=["full", "offline", "too large"])
@pytest.mark.parametrize("begin", [_stable, _rebalancing, _syncing], ids=["session", "join", "sync"])
@on_a_loop
async def test_a_timeout_that_is_refused_is_tried_again_after_a_back_off_and_comes_about_in_the_end(
    begin: Callable[[World], Awaitable[None]], refusal: Reject | Exception
) -> None:
    topic = CountingTopic()
    async with World(topic) as world:
        await begin(world)
        topic.only.refusal = refusal
        await world.pass_time(REBALANCE_MS)
        assert topic.only.refused == 1
        await world.pass_time(BACKOFF_MS - 1)
        assert topic.only.refused == 1
        await world.pass_time(1)
        assert topic.only.refused == 2
        assert world.group().members, "nothing changes before the log has it"
        topic.only.refusal = None
        await world.pass_time(BACKOFF_MS)
        assert world.group().state is GroupState.EMPTY
        assert not world.group().members


@on_a_loop
async def test_a_timeout_for_which_the_topic_cannot_be_made_is_put_off_like_any_other() -> None:
    topic = CountingTopic()
    async with World(topic) as world:
        await _syncing(world)
        topic.partitions = []
        topic.refusal = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no space left for __consumer_offsets")
        await world.pass_time(REBALANCE_MS)
        assert topic.asked == 1
        await world.pass_time(BACKOFF_MS)
        assert topic.asked == 2
        topic.refusal = None
        await world.pass_time(BACKOFF_MS)
        assert world.group().state is GroupState.EMPTY


@on_a_loop
async def test_a_member_that_comes_back_while_the_timeout_is_refused_completes_the_rebalance() -> None:
    topic = CountingTopic()
    async with World(topic) as world:
        await _rebalancing(world)
        topic.only.refusal = REFUSALS[0]
        await world.pass_time(REBALANCE_MS)
        (member_id,) = world.group().members
        joined = await world.coordinator.execute(G, world.join(member_id))
        assert isinstance(joined, JoinGroupResult)
        topic.only.refusal = None
        synced = await world.coordinator.execute(G, world.sync(joined, {member_id: b"all"}))
        assert isinstance(synced, SyncGroupResult)
        await world.pass_time(BACKOFF_MS)
        assert world.group().state is GroupState.STABLE, "what it was late for is over"


@on_a_loop
async def test_offsets_whose_expiry_is_refused_are_looked_at_again_after_the_interval() -> None:
    topic = CountingTopic()
    async with World(topic, offsets_retention_ms=1, offsets_retention_check_interval_ms=600_000) as world:
        await world.coordinator.execute(G, commit(1))
        topic.only.refusal = REFUSALS[0]
        await world.pass_time(600_000)
        assert topic.only.refused == 1
        await world.pass_time(599_999)
        assert topic.only.refused == 1
        topic.only.refusal = None
        await world.pass_time(1)
        assert world.coordinator.get_group(G) is None
