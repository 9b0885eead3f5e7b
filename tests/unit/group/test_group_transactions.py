"""Offsets in transactions, driven: what shares a batch, what a marker waits for, and what it does not."""

import asyncio
import gc

import pytest
from tests.support.groups import T0, G, MemoryTopic, World, commit, on_a_loop

from tallystick.broker.coordinator.log_order import AppendOrder
from tallystick.broker.group.codec import decode_batches
from tallystick.broker.group.logic import REFUSALS
from tallystick.broker.group.machine.commands import (
    CommitTxnOffsets,
    Heartbeat,
    OffsetPartitionErrors,
    OffsetToCommit,
)
from tallystick.broker.group.machine.events import OffsetsCommitted
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
from tallystick.protocol.records import ControlType, EndTransactionMarker, encode_marker, read_header
from tallystick.storage.log.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.state.producer_state import VerificationStateEntry


def producer(number: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(number), ProducerEpoch(0))


P, Q = producer(7), producer(8)
T1 = TopicPartition("t", 1)


def in_transaction(
    offset: int, who: ProducerIdAndEpoch = P, partition: TopicPartition = T0
) -> CommitTxnOffsets:
    return CommitTxnOffsets(identity=who, offsets={partition: OffsetToCommit(offset=Offset(offset))})


def ask(world: World, command: CommitTxnOffsets, guard: TxnGuard = NO_GUARD) -> "asyncio.Task[object]":
    return asyncio.ensure_future(world.coordinator.commit_transactional(G, command, guard))


def end(
    world: World, who: ProducerIdAndEpoch = P, outcome: ControlType = ControlType.COMMIT, index: int = 0
) -> "asyncio.Task[AppendResult | Reject]":
    batch = encode_marker(
        EndTransactionMarker(control_type=outcome, coordinator_epoch=0), who, timestamp_ms=1
    )
    return asyncio.ensure_future(world.coordinator.write_marker(index, batch, TxnGuard()))


@on_a_loop
async def test_offsets_of_a_transaction_go_into_a_batch_of_its_producer_with_the_guard() -> None:
    async with World() as world:
        log = world.topic.partitions[0]
        guard = TxnGuard(VerificationStateEntry(0, 0, True, 0))
        assert await ask(world, in_transaction(5), guard) == OffsetPartitionErrors()
        header = read_header(log.batches[-1])
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 0)
        assert header.is_transactional
        assert not header.is_control
        assert log.guards[-1] is guard
        assert world.coordinator.list_pending_producers(G) == {P.producer_id}
        assert await end(world) == AppendResult(Offset(1), Offset(1), -1, Offset(0))
        assert world.group().offsets[T0].offset == 5
        assert world.coordinator.list_pending_producers(G) == frozenset()


@on_a_loop
async def test_commits_of_different_producers_share_a_sync_but_no_batch() -> None:
    async with World() as world:
        log = world.topic.partitions[0]
        log.gate.clear()
        first = world.ask(commit(1))
        queued = [world.ask(commit(2)), world.ask(commit(3))]
        queued += [ask(world, in_transaction(4)), ask(world, in_transaction(5, Q))]  # type: ignore[list-item]
        queued += [world.ask(commit(6)), world.ask(commit(7))]
        await world.settle()
        assert len(log.batches) == 1
        log.gate.set()
        assert await asyncio.gather(first, *queued) == [OffsetPartitionErrors()] * 7
        signed = [(read_header(b).producer_id, read_header(b).record_count) for b in log.batches]
        assert signed == [(-1, 1), (-1, 2), (7, 1), (8, 1), (-1, 2)]


@on_a_loop
async def test_a_commit_that_the_log_refuses_changes_nothing_and_says_why() -> None:
    """A marker came while the commit queued: its guard is void, and the offsets must not open anything."""
    async with World() as world:
        log = world.topic.partitions[0]
        log.refusal = Reject(ErrorCode.INVALID_TXN_STATE, "not verified")
        assert await ask(world, in_transaction(5)) == log.refusal
        assert world.coordinator.get_group(G) is None
        log.refusal = None
        assert await ask(world, in_transaction(6)) == OffsetPartitionErrors()


@on_a_loop
async def test_a_marker_takes_no_place_in_the_queue_and_waits_for_its_turn() -> None:
    """[GRP-7] A group's queue is busy, and the marker is appended all the same, and applied behind it."""
    async with World() as world:
        log = world.topic.partitions[0]
        log.gate.clear()
        pending = ask(world, in_transaction(5))
        await world.settle()
        ended = end(world)
        queued = world.ask(commit(9))
        await world.settle()
        assert [read_header(batch).is_control for batch in log.batches] == [False, True]
        assert not pending.done()
        assert not ended.done()
        log.gate.set()
        assert await pending == OffsetPartitionErrors()
        assert isinstance(await ended, AppendResult)
        assert await queued == OffsetPartitionErrors()
        assert world.group().offsets[T0].offset == 9


@on_a_loop
async def test_a_marker_that_is_found_durable_first_is_not_applied_first() -> None:
    """[GRP-7] The offsets are synced, the news of it is still on its way; the marker needs no news."""
    async with World() as world:
        log = world.topic.partitions[0]
        log.gate.clear()
        pending = ask(world, in_transaction(5))
        await world.settle()
        log.gate.closed = False  # what is appended from here on is durable at once
        ended = end(world)
        other = end(world, Q)
        await world.settle()
        assert len(log.batches) == 3
        assert not ended.done()
        assert world.coordinator.get_group(G) is None
        log.gate.set()
        await asyncio.gather(pending, ended, other)
        assert world.group().offsets[T0].offset == 5
        assert not world.group().pending_offsets


@on_a_loop
async def test_a_marker_ends_the_transaction_in_every_group_of_its_partition_and_in_no_other_partition() -> (
    None
):
    async with World(MemoryTopic(2)) as world:
        names = [GroupId(f"g{number}") for number in range(8)]
        for name in names:
            await world.coordinator.commit_transactional(name, in_transaction(5), NO_GUARD)
        assert isinstance(await end(world, index=1), AppendResult)
        for name in names:
            group = world.coordinator.get_group(name)
            assert group is not None
            assert not isinstance(group, Reject)
            assert bool(group.pending_offsets) == (world.coordinator.partition_for(name) == 0)
            assert bool(group.offsets) == (world.coordinator.partition_for(name) == 1)


@on_a_loop
async def test_a_restart_finds_what_is_pending_and_a_marker_ends_it() -> None:
    async with World() as world:
        await ask(world, in_transaction(5))
    again = World(world.topic)
    assert await end(again) == REFUSALS.loading
    async with again:
        assert again.coordinator.list_pending_producers(G) == {P.producer_id}
        await end(again)
        assert again.group().offsets[T0].offset == 5


@on_a_loop
async def test_a_marker_is_refused_until_its_partition_is_read_and_when_it_is_not_there() -> None:
    world = World()
    assert await end(world) == REFUSALS.loading
    world.coordinator.start()
    await world.settle()
    missing = await end(world, index=1)
    assert isinstance(missing, Reject)
    assert missing.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.topic.partitions[0].full = True
    full = await end(world)
    assert isinstance(full, Reject)
    assert full.code is ErrorCode.KAFKA_STORAGE_ERROR
    world.topic.partitions[0].full = False
    world.topic.partitions[0].refusal = Reject(ErrorCode.TRANSACTION_COORDINATOR_FENCED, "older")
    assert await end(world) == world.topic.partitions[0].refusal
    await world.coordinator.stop()
    assert await end(world) == REFUSALS.stopped


@pytest.mark.parametrize("first", ["offsets", "marker"])
@on_a_loop
async def test_after_a_failed_append_nothing_behind_it_is_applied(first: str) -> None:
    """[GRP-7] Durable or not is unknown, for the one that failed and so for all that follow (style R3)."""
    async with World() as world:
        log = world.topic.partitions[0]
        await ask(world, in_transaction(5, Q))
        log.gate.clear()
        asked = [ask(world, in_transaction(5)), end(world)]
        if first == "marker":
            asked.reverse()
        await world.settle()
        last = end(world, Q)
        await world.settle()
        log.failure = OSError("disk on fire")
        log.gate.fail(log.failure)
        assert await asyncio.gather(*asked, last) == [REFUSALS.lost, REFUSALS.lost, REFUSALS.lost]
        assert world.coordinator.get_group(G) == REFUSALS.lost
        assert await end(world) == REFUSALS.lost


@on_a_loop
async def test_a_transaction_ends_though_its_groups_cannot_be_read() -> None:
    """Else its producer would wait for ever. The marker is in the log, for a restart that can read it."""
    topic = MemoryTopic()
    async with World(topic) as world:
        await ask(world, in_transaction(5))
    log = topic.partitions[0]
    readable = list(log.batches)
    log.batches = [b"\0" * 100]
    async with World(topic) as world:
        assert world.coordinator.get_group(G) == REFUSALS.lost
        assert isinstance(await end(world), AppendResult)
    log.batches[:1] = readable
    async with World(topic) as world:
        assert world.group().offsets[T0].offset == 5


@on_a_loop
async def test_a_caller_that_is_cancelled_does_not_undo_the_marker() -> None:
    async with World() as world:
        log = world.topic.partitions[0]
        await ask(world, in_transaction(5))
        log.gate.clear()
        ended = end(world)
        await world.settle()
        ended.cancel()
        await world.settle()
        log.gate.set()
        await world.settle()
        assert world.group().offsets[T0].offset == 5


@on_a_loop
async def test_a_stable_read_waits_for_what_was_asked_for_before_it_and_for_nothing_after() -> None:
    """KIP-447: it sees every commit that was accepted before; commits that go on do not keep it waiting."""
    async with World() as world:
        log = world.topic.partitions[0]
        log.gate.clear()
        asked = [world.ask(commit(1)), ask(world, in_transaction(5))]
        read = asyncio.ensure_future(world.coordinator.get_settled_group(G))
        await world.settle()
        later = world.ask(commit(2))
        await world.settle()
        assert not read.done()
        log.gate.waiting.pop(0).set_result(None)  # the first commit; the second is appended
        await world.settle()
        assert not read.done()
        log.gate.waiting.pop(0).set_result(None)
        group = await read
        assert group is not None
        assert not isinstance(group, Reject)
        assert group.has_pending_offset(T0)
        assert not later.done()
        log.gate.set()
        await asyncio.gather(later, *asked)


@on_a_loop
async def test_a_stable_read_behind_a_hanging_disk_is_answered() -> None:
    """[GRP-6]"""
    async with World(offset_commit_timeout_ms=5_000) as world:
        world.topic.partitions[0].gate.clear()
        first = world.ask(commit(1))
        await world.settle()
        read = asyncio.ensure_future(world.coordinator.get_settled_group(G))
        await world.settle()
        await world.pass_time(5_000)
        assert await first == REFUSALS.timed_out
        assert await read == REFUSALS.timed_out


@on_a_loop
async def test_a_member_that_heartbeats_does_not_notice_markers() -> None:
    async with World() as world:
        joined = await world.member()
        await ask(world, in_transaction(5))
        world.topic.partitions[0].gate.clear()
        ended = end(world)
        await world.settle()
        beat = Heartbeat(member_id=joined.member_id, generation=joined.generation)
        assert not isinstance(await world.coordinator.execute(G, beat), Reject)
        world.topic.partitions[0].gate.set()
        await ended
        assert world.group().members.keys() == {joined.member_id}


@on_a_loop
async def test_what_queues_behind_a_full_queue_is_one_transaction_after_the_other() -> None:
    """Offsets of one transaction in several requests keep their order."""
    async with World() as world:
        log = world.topic.partitions[0]
        log.gate.clear()
        asked = [ask(world, in_transaction(offset)) for offset in range(5)]
        await world.settle()
        log.gate.set()
        await asyncio.gather(*asked)
        events = [entry.event for batch in log.batches for entry in decode_batches(batch)]
        told = [e.offsets[T0].offset for e in events if isinstance(e, OffsetsCommitted)]
        assert told == list(range(5))
        await end(world)
        assert world.group().offsets[T0].offset == 4


@on_a_loop
async def test_the_order_ends_with_the_first_event_that_cannot_be_applied() -> None:
    """[GRP-7]"""
    lost: list[Exception] = []
    applied: list[str] = []
    order = AppendOrder(lost.append)
    loop = asyncio.get_running_loop()
    held: list[asyncio.Future[None]] = [loop.create_future() for _ in range(2)]

    def broken() -> None:
        raise ValueError("an invariant is broken")

    turns = [
        order.apply_when_durable(held[0], lambda: applied.append("first")),
        order.apply_when_durable(held[1], broken),
        order.apply_when_durable(None, lambda: applied.append("third")),
    ]
    held[1].set_result(None)
    held[0].set_result(None)
    assert await asyncio.gather(*turns) == [True, False, False]
    assert applied == ["first"]
    assert [str(exc) for exc in lost] == ["an invariant is broken"]
    assert not await order.apply_when_durable(None, lambda: applied.append("late"))


@on_a_loop
async def test_what_becomes_of_an_append_behind_a_lost_one_is_no_surprise() -> None:
    """[GRP-7] One failed sync fails every append that waited for it; the order ends with the first."""
    order = AppendOrder(lambda cause: None)
    loop = asyncio.get_running_loop()
    unhandled: list[str] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context["message"]))
    held: list[asyncio.Future[None]] = [loop.create_future() for _ in range(3)]
    turns = [order.apply_when_durable(durable, lambda: None) for durable in held[:2]]
    for durable in held:
        durable.set_exception(OSError("the disk is broken"))
    assert await asyncio.gather(*turns) == [False, False]
    assert not await order.apply_when_durable(held[2], lambda: None)
    del held, durable
    gc.collect()
    assert unhandled == []
