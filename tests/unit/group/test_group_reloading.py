"""A partition of `__consumer_offsets` is lost while the broker runs, and read back without a person."""

import asyncio
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.groups import T0, G, MemoryTopic, World, commit, on_a_loop

from harness.groups import durable_view
from tallystick.broker.coordinator.reload import BACKOFF_MS
from tallystick.broker.group import group_writer, logic
from tallystick.broker.group.codec import decode_batches
from tallystick.broker.group.logic import REFUSALS
from tallystick.broker.group.machine.apply import GroupTable
from tallystick.broker.group.machine.commands import (
    DONE,
    CommitOffsets,
    CommitTxnOffsets,
    Heartbeat,
    MemberIdRequired,
    OffsetPartitionErrors,
    OffsetToCommit,
)
from tallystick.broker.group.machine.model import ClassicGroup
from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    GroupId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.protocol.errors import EncodeError
from tallystick.protocol.records import ControlType, EndTransactionMarker, encode_marker
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.log.log import NO_GUARD, AppendResult, TxnGuard

EIO = OSError("input/output error")
P = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))


def marker(who: ProducerIdAndEpoch = P) -> bytes:
    return encode_marker(
        EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=0), who, timestamp_ms=1
    )


async def lose(world: World, group_id: GroupId = G) -> None:
    """An append of whose outcome nobody knows; the batch is in the log."""
    partition = world.topic.partitions[world.coordinator.partition_for(group_id)]
    partition.unheard = EIO
    assert await world.coordinator.execute(group_id, commit(99)) == REFUSALS.lost
    partition.unheard = None


@pytest.mark.parametrize(("module", "step"), [(logic, "decide"), (group_writer, "encode_batch_of")])
def test_what_fails_before_the_append_is_refused_and_costs_no_other_client(
    module: ModuleType, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EncodeError("int too large to convert")

    @on_a_loop
    async def run() -> None:
        async with World() as world:
            joined = await world.member()
            with monkeypatch.context() as patch:
                patch.setattr(module, step, fail)
                refused = await world.coordinator.execute(G, commit(1, joined))
                assert isinstance(refused, Reject)
                assert refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert await world.coordinator.execute(G, commit(2, joined)) == OffsetPartitionErrors()

    run()


@on_a_loop
async def test_a_write_that_was_taken_back_is_refused_and_costs_no_other_client() -> None:
    async with World() as world:
        joined = await world.member()
        world.topic.partitions[0].refusal = StorageFailure("/data", "input/output error, taken back")
        refused = await world.coordinator.execute(G, commit(1, joined))
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.NOT_COORDINATOR
        ended = await world.coordinator.write_marker(0, marker(), NO_GUARD)
        assert isinstance(ended, Reject)
        assert ended.code is ErrorCode.KAFKA_STORAGE_ERROR
        world.topic.partitions[0].refusal = None
        assert await world.coordinator.execute(G, commit(2, joined)) == OffsetPartitionErrors()


@on_a_loop
async def test_members_live_on_when_their_partition_was_read_back() -> None:
    async with World() as world:
        joined = await world.member()
        required = await world.coordinator.execute(G, world.join(None, "b"))
        assert isinstance(required, MemberIdRequired)
        parked = world.ask(world.join(required.member_id, "b"))
        await world.settle()
        world.topic.partitions[0].unheard = EIO
        failing, queued = world.ask(commit(1, joined)), world.ask(commit(2, joined))
        assert [await failing, await queued, await parked] == [REFUSALS.lost] * 3
        world.topic.partitions[0].unheard = None
        beat = Heartbeat(member_id=joined.member_id, generation=joined.generation)
        assert await world.coordinator.execute(G, beat) == REFUSALS.lost
        await world.pass_time(BACKOFF_MS)
        assert await world.coordinator.execute(G, beat) == DONE
        assert world.group().offsets[T0].offset == 1, "it was in the log"
        assert (world.coordinator.offline_partition_count, world.coordinator.reload_count) == (0, 1)
        await world.pass_time(20_000)
        assert not world.group().members, "sessions run again"


@on_a_loop
async def test_groups_answer_loading_while_they_are_read_back_and_others_go_on() -> None:
    async with World(MemoryTopic(2)) as world:
        place = world.coordinator.partition_for
        other = next(GroupId(name) for name in "hijkl" if place(GroupId(name)) != place(G))
        await lose(world)
        log = world.topic.partitions[place(G)]
        log.gate.clear()
        await world.pass_time(BACKOFF_MS)
        assert await world.coordinator.execute(G, commit(1)) == REFUSALS.loading
        assert world.coordinator.list_groups() == REFUSALS.loading
        assert await world.coordinator.write_marker(place(G), marker(), NO_GUARD) == REFUSALS.loading
        assert await world.coordinator.execute(other, commit(1)) == OffsetPartitionErrors()
        log.gate.set()
        await world.settle()
        assert world.group().offsets[T0].offset == 99


@on_a_loop
async def test_a_transaction_ends_while_its_groups_are_off() -> None:
    """[GRP-7] The log takes the marker, and what is read back has it."""
    async with World() as world:
        pending = CommitTxnOffsets(identity=P, offsets={T0: OffsetToCommit(offset=Offset(5))})
        assert await world.coordinator.commit_transactional(G, pending, TxnGuard()) == OffsetPartitionErrors()
        await lose(world, GroupId("other"))
        assert isinstance(await world.coordinator.write_marker(0, marker(), NO_GUARD), AppendResult)
        await world.pass_time(BACKOFF_MS)
        assert world.group().offsets[T0].offset == 5
        assert not world.coordinator.list_pending_producers(G)


@on_a_loop
async def test_offsets_of_a_topic_that_was_deleted_meanwhile_go() -> None:
    async with World() as world:
        await world.coordinator.execute(G, commit(1))
        await lose(world)
        world.coordinator.delete_topic_offsets(T0.topic)
        await world.pass_time(BACKOFF_MS)
        assert T0 not in world.group().offsets


@on_a_loop
async def test_a_broken_invariant_takes_the_partition_off_and_who_queues_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise InvariantBroken("impossible")

    async with World() as world:
        joined = await world.member()
        partition = world.topic.partitions[0]
        partition.gate.clear()
        first = world.ask(commit(1, joined))
        queued = [world.ask(commit(number, joined)) for number in (2, 3)]
        await world.settle()
        written = len(partition.batches)
        with monkeypatch.context() as patch:
            patch.setattr(logic, "decide", fail)
            partition.gate.set()
            assert await first == OffsetPartitionErrors()
            await world.settle()
        assert [task.done() and task.result() for task in queued] == [REFUSALS.lost] * 2
        assert len(partition.batches) == written
        await world.pass_time(BACKOFF_MS)
        assert await world.coordinator.execute(G, commit(4, joined)) == OffsetPartitionErrors()


# ---- under any order

NAMES = st.sampled_from(["a", "b"]).map(GroupId)
PARTITIONS = st.builds(TopicPartition, st.just("t"), st.integers(0, 1))
OFFSETS = st.dictionaries(
    PARTITIONS, st.builds(OffsetToCommit, offset=st.integers(0, 99).map(Offset)), min_size=1
)
COMMANDS = st.one_of(
    st.builds(CommitOffsets, offsets=OFFSETS),
    st.builds(CommitTxnOffsets, identity=st.just(P), offsets=OFFSETS),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(NAMES, COMMANDS),
        st.tuples(NAMES, st.just("join")),
        st.sampled_from(
            ["marker", "unheard", "refused", "unreadable", "sound", "hold", "sync", "fail", "later"]
        ),
    ),
    max_size=40,
)


async def play(events: list[object]) -> None:
    async with World() as world:
        log = world.topic.partitions[0]
        asked: list[asyncio.Future[object]] = []
        for event in events:
            match event:
                case (str() as name, "join"):
                    asked.append(world.ask(world.join(None, "m"), GroupId(name)))  # type: ignore[arg-type]
                case (str() as name, command):
                    asked.append(world.ask(command, GroupId(name)))  # type: ignore[arg-type]
                case "marker":
                    written = world.coordinator.write_marker(0, marker(), NO_GUARD)
                    asked.append(asyncio.ensure_future(written))
                case "unheard":
                    log.unheard = EIO
                case "refused":
                    log.refusal = EIO
                case "unreadable":
                    log.unreadable = EIO
                case "sound":
                    log.unheard = log.refusal = log.unreadable = None
                case "hold":
                    log.gate.clear()
                case "sync":
                    log.gate.set()
                case "fail":
                    log.gate.fail(EIO)
                case "later":
                    await world.pass_time(BACKOFF_MS)
            await world.settle()
        log.unheard = log.refusal = log.unreadable = None
        log.gate.set()
        await world.pass_time(60_000)
        assert all(future.done() for future in asked), "nobody waits for what was lost"
        compare(world)
        for name in ("a", "b"):
            assert await world.coordinator.execute(GroupId(name), commit(7)) == OffsetPartitionErrors()
        await world.coordinator.write_marker(0, marker(), NO_GUARD)
        assert not world.coordinator.list_pending_producers(GroupId("a"))
        compare(world)


def compare(world: World) -> None:
    table = GroupTable({})
    for batch in world.topic.partitions[0].batches:
        for entry in decode_batches(batch):
            table.replay_event(entry)
    found = world.coordinator.list_groups()
    assert isinstance(found, tuple)
    live = {group.group_id: durable_view(group) for group in found if isinstance(group, ClassicGroup)}
    assert live == {name: durable_view(group) for name, group in table.groups.items()}


@pytest.mark.gate(1)
@settings(deadline=None, max_examples=examples(quick=10, gate=80, full=400))
@given(EVENTS)
def test_after_any_loss_what_serves_is_what_the_log_says(events: list[object]) -> None:
    """[GRP-4] [GRP-7]"""
    asyncio.run(play(events))
