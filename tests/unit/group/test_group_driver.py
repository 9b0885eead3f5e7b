"""The group coordinator on a log in memory: order of effects, failing and hanging appends, replay."""

import asyncio

from tests.support.groups import T0, G, MemoryTopic, World, commit, on_a_loop

from tallystick.broker.group.codec import decode_batches
from tallystick.broker.group.logic import BATCH_METADATA_MAX, REFUSALS
from tallystick.broker.group.machine.commands import (
    DONE,
    CommitOffsets,
    DeleteGroup,
    Heartbeat,
    JoinGroupResult,
    LeaveGroup,
    LeavingMember,
    MemberIdRequired,
    OffsetPartitionErrors,
    OffsetToCommit,
)
from tallystick.broker.group.machine.model import GroupState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, MemberId, Offset


@on_a_loop
async def test_a_commit_is_neither_answered_nor_visible_before_it_is_durable() -> None:
    """[GRP-1]"""
    async with World() as world:
        partition = world.topic.partitions[0]
        partition.gate.clear()
        asked = world.ask(commit(5))
        await world.settle()
        assert partition.batches
        assert not asked.done()
        assert world.coordinator.get_group(G) is None
        partition.gate.set()
        await asked
        assert world.group().offsets[T0].offset == 5


@on_a_loop
async def test_commands_of_one_group_keep_their_order_while_another_group_goes_on() -> None:
    async with World(MemoryTopic(2)) as world:
        other = next(
            GroupId(name)
            for name in "hijkl"
            if world.coordinator.partition_for(GroupId(name)) != world.coordinator.partition_for(G)
        )
        partition = world.topic.partitions[world.coordinator.partition_for(G)]
        partition.gate.clear()
        asked = [world.ask(commit(offset)) for offset in (1, 2, 3)]
        deleted = world.ask(DeleteGroup())
        await world.settle()
        await world.coordinator.execute(other, commit(9))
        assert len(partition.batches) == 1
        stable_read = asyncio.ensure_future(world.coordinator.get_settled_group(G))
        partition.gate.set()
        await asyncio.gather(*asked, deleted)
        assert await stable_read is None
        events = [entry.event for batch in partition.batches for entry in decode_batches(batch)]
        assert [type(event).__name__ for event in events] == [
            "OffsetsCommitted", "OffsetsCommitted", "OffsetsCommitted", "OffsetsDeleted", "GroupRemoved"
        ]  # fmt: skip


@on_a_loop
async def test_a_hanging_disk_does_not_make_clients_wait_for_ever() -> None:
    """[GRP-6] The one being appended may still happen; those queued behind it must not."""
    async with World(offset_commit_timeout_ms=5_000) as world:
        partition = world.topic.partitions[0]
        partition.gate.clear()
        first, second = world.ask(commit(1)), world.ask(commit(2))
        await world.settle()
        await world.pass_time(4_999)
        assert not first.done()
        await world.pass_time(1)
        assert await first == REFUSALS.timed_out
        assert await second == REFUSALS.timed_out
        partition.gate.set()
        await world.settle()
        assert world.group().offsets[T0].offset == 1
        assert len(partition.batches) == 1


@on_a_loop
async def test_commits_that_queue_share_one_append_and_keep_their_order() -> None:
    async with World() as world:
        joined = await world.member()
        log = world.topic.partitions[0]
        log.gate.clear()
        before = len(log.batches)
        asked = [world.ask(commit(offset, joined)) for offset in range(10)]
        asked.insert(5, world.ask(Heartbeat(member_id=joined.member_id, generation=joined.generation)))
        await world.settle()
        log.gate.set()
        assert all(not isinstance(answer, Reject) for answer in await asyncio.gather(*asked))
        assert len(log.batches) - before == 2
        offsets = world.group().offsets
        assert offsets[T0].offset == 9
    again = World(world.topic)
    async with again:
        assert again.group().offsets == offsets


def with_metadata(offset: int, metadata: str) -> CommitOffsets:
    return CommitOffsets(offsets={T0: OffsetToCommit(offset=Offset(offset), metadata=metadata)})


@on_a_loop
async def test_commits_that_are_too_large_together_are_appended_one_by_one() -> None:
    """Each is fine alone, so none may be refused for its neighbours; one that is not is refused alone."""
    async with World(offset_metadata_max_bytes=10_000) as world:
        partition = world.topic.partitions[0]
        partition.gate.clear()
        first = world.ask(commit(1))
        sizes = (1_000, 1_000, 9_000, 1_000)
        queued = [world.ask(with_metadata(at, "x" * size)) for at, size in enumerate(sizes, 2)]
        await world.settle()
        partition.most = 2_500
        partition.gate.set()
        assert await first == OffsetPartitionErrors()
        answers = await asyncio.gather(*queued)
        assert [answer == OffsetPartitionErrors() for answer in answers] == [True, True, False, True]
        refused = answers[2]
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert world.group().offsets[T0].offset == 5


@on_a_loop
async def test_commits_share_a_batch_of_bounded_bytes() -> None:
    async with World(offset_metadata_max_bytes=20_000) as world:
        partition = world.topic.partitions[0]
        partition.gate.clear()
        first = world.ask(commit(1))
        queued = [world.ask(with_metadata(at, "é" * 16_000)) for at in range(2, 20)]
        await world.settle()
        partition.gate.set()
        assert await asyncio.gather(first, *queued) == [OffsetPartitionErrors()] * 19
        sizes = list(map(len, partition.batches))
        assert BATCH_METADATA_MAX < max(sizes) < 3 * BATCH_METADATA_MAX
        assert world.group().offsets[T0].offset == 19


@on_a_loop
async def test_a_refused_append_changes_nothing() -> None:
    async with World() as world:
        await world.coordinator.execute(G, commit(1))
        world.topic.partitions[0].refusal = Reject(ErrorCode.MESSAGE_TOO_LARGE, "too large")
        refused = await world.coordinator.execute(G, commit(2))
        assert refused == Reject(ErrorCode.UNKNOWN_SERVER_ERROR, "too large")
        world.topic.partitions[0].refusal = None
        assert world.group().offsets[T0].offset == 1
        await world.coordinator.execute(G, commit(3))
        assert world.group().offsets[T0].offset == 3


@on_a_loop
async def test_a_full_disk_refuses_commits_and_keeps_the_group() -> None:
    """Nothing was written, so nothing is unknown: the client looks for the coordinator again and retries."""
    async with World() as world:
        joined = await world.member()
        partition = world.topic.partitions[0]
        partition.full = True
        refused = await world.coordinator.execute(G, commit(1, joined))
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.NOT_COORDINATOR
        beat = Heartbeat(member_id=joined.member_id, generation=joined.generation)
        assert await world.coordinator.execute(G, beat) == DONE
        partition.full = False
        await world.coordinator.execute(G, commit(2, joined))
        assert world.group().offsets[T0].offset == 2


@on_a_loop
async def test_after_a_failed_append_the_partition_is_offline_and_no_client_waits() -> None:
    """Durable or not is unknown, so no answer may be given from this state any more (style R3)."""
    async with World() as world:
        joined = await world.member()
        required = await world.coordinator.execute(G, world.join(None, "b"))
        assert isinstance(required, MemberIdRequired)
        parked = world.ask(world.join(required.member_id, "b"))
        await world.settle()
        world.topic.partitions[0].failure = OSError("disk on fire")
        failing = world.ask(commit(1, joined))
        queued = world.ask(commit(2, joined))
        assert await failing == REFUSALS.lost
        assert await queued == REFUSALS.lost
        assert await parked == REFUSALS.lost
        beat = Heartbeat(member_id=joined.member_id, generation=joined.generation)
        assert await world.coordinator.execute(G, beat) == REFUSALS.lost
        assert world.coordinator.get_group(G) == REFUSALS.lost


@on_a_loop
async def test_who_gave_up_waiting_for_the_disk_is_not_kept_in_line() -> None:
    async with World(offset_commit_timeout_ms=100) as world:
        partition = world.topic.partitions[0]
        partition.gate.clear()
        world.ask(commit(1))
        for offset in range(3):
            world.ask(commit(offset))
            await world.settle()
            await world.pass_time(200)
        assert len(world.coordinator._runtime.command_queues[G].waiting) == 1


@on_a_loop
async def test_a_parked_join_is_answered_by_time() -> None:
    async with World() as world:
        joined = await world.member()
        required = await world.coordinator.execute(G, world.join(None, "b"))
        assert isinstance(required, MemberIdRequired)
        parked = world.ask(world.join(required.member_id, "b"))
        await world.settle()
        beat = Heartbeat(member_id=joined.member_id, generation=joined.generation)
        assert isinstance(await world.coordinator.execute(G, beat), Reject)
        assert not parked.done()
        await world.pass_time(10_000)  # the first member's session
        second = await parked
        assert isinstance(second, JoinGroupResult)
        assert second.leader_id == second.member_id


@on_a_loop
async def test_a_restart_finds_members_offsets_and_generation() -> None:
    async with World() as world:
        joined = await world.member()
        await world.coordinator.execute(G, commit(7, joined))
        before = world.group()
    again = World(world.topic)
    assert isinstance(await again.coordinator.execute(G, DeleteGroup()), Reject)
    async with again:
        after = again.group()
        assert (after.state, after.generation, after.leader_id) == (
            GroupState.STABLE,
            before.generation,
            before.leader_id,
        )
        assert after.offsets == before.offsets
        beat = Heartbeat(member_id=joined.member_id, generation=joined.generation)
        assert await again.coordinator.execute(G, beat) == DONE
        await again.pass_time(10_000)
        assert again.group().state is GroupState.EMPTY


@on_a_loop
async def test_groups_answer_loading_until_their_partition_is_read() -> None:
    world = World(MemoryTopic(3))
    world.coordinator.start()
    assert world.coordinator.get_group(G) == REFUSALS.loading
    assert world.coordinator.list_groups() == REFUSALS.loading
    assert await world.coordinator.execute(G, DeleteGroup()) == REFUSALS.loading
    await world.settle()
    assert world.coordinator.list_groups() == ()
    await world.coordinator.stop()
    assert await world.coordinator.execute(G, DeleteGroup()) == REFUSALS.stopped


@on_a_loop
async def test_a_partition_that_cannot_be_read_takes_only_its_own_groups_offline() -> None:
    topic = MemoryTopic(2)
    async with World(topic) as world:
        bad = world.coordinator.partition_for(G)
    topic.partitions[bad].batches = [b"\0" * 100]
    async with World(topic) as again:
        assert again.coordinator.get_group(G) == REFUSALS.lost
        other = next(GroupId(n) for n in "hijkl" if again.coordinator.partition_for(GroupId(n)) != bad)
        await again.coordinator.execute(other, commit(1))


@on_a_loop
async def test_stopping_answers_what_is_parked() -> None:
    world = World()
    async with world:
        await world.member()
        required = await world.coordinator.execute(G, world.join(None, "b"))
        assert isinstance(required, MemberIdRequired)
        parked = world.ask(world.join(required.member_id, "b"))
        await world.settle()
    assert await parked == REFUSALS.stopped


@on_a_loop
async def test_a_broker_that_will_stop_parks_no_client_and_finishes_what_it_appends() -> None:
    async with World() as world:
        joined = await world.member()
        required = await world.coordinator.execute(G, world.join(None, "b"))
        assert isinstance(required, MemberIdRequired)
        world.topic.partitions[0].gate.clear()
        committed = world.ask(commit(7, joined))
        await world.settle()
        queued = world.ask(world.join(required.member_id, "b"))
        await world.settle()
        world.coordinator.begin_shutdown()
        assert await world.coordinator.execute(G, commit(8, joined)) == REFUSALS.stopped
        assert not committed.done()
        world.topic.partitions[0].gate.set()
        assert await queued == REFUSALS.stopped
        assert isinstance(await committed, OffsetPartitionErrors)


@on_a_loop
async def test_a_client_that_hangs_up_does_not_disturb_the_rebalance() -> None:
    async with World() as world:
        joined = await world.member()
        required = await world.coordinator.execute(G, world.join(None, "b"))
        assert isinstance(required, MemberIdRequired)
        gone = world.ask(world.join(required.member_id, "b"))
        await world.settle()
        gone.cancel()
        await world.settle()
        again = await world.coordinator.execute(G, world.join(joined.member_id))
        assert isinstance(again, JoinGroupResult)
        assert len(again.members) == 2


@on_a_loop
async def test_old_offsets_expire_and_their_group_with_them() -> None:
    async with World(offsets_retention_ms=100_000, offsets_retention_check_interval_ms=60_000) as world:
        await world.coordinator.execute(G, commit(1))
        await world.pass_time(60_000)
        assert world.group().offsets
        await world.pass_time(60_000)
        assert world.coordinator.get_group(G) is None


@on_a_loop
async def test_a_fenced_member_hears_of_it_while_parked() -> None:
    """KIP-345: the duplicate with the older member id fails, at once."""
    async with World(group_initial_rebalance_delay_ms=3_000) as world:
        first = world.ask(world.join(None, "a", instance="i"))
        await world.settle()
        second = world.ask(world.join(None, "a", instance="i"))
        answer = await first
        assert isinstance(answer, Reject)
        assert answer.code is ErrorCode.FENCED_INSTANCE_ID
        await world.pass_time(3_000)
        await world.pass_time(60_000)
        assert isinstance(await second, JoinGroupResult)


@on_a_loop
async def test_many_sessions_end_in_one_tick() -> None:
    async with World() as world:
        for number in range(50):
            await world.coordinator.execute(GroupId(f"g{number}"), world.join(None, "x"))
        await world.pass_time(10_000)
        groups = world.coordinator.list_groups()
        assert isinstance(groups, tuple)
        assert all(not group.pending_members for group in groups)
        left = LeaveGroup(members=(LeavingMember(member_id=MemberId("x")),))
        assert not isinstance(await world.coordinator.execute(GroupId("g1"), left), Reject)
