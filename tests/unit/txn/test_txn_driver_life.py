"""The transaction coordinator from start to stop: replay, markers, time, and the end."""

import asyncio

import pytest
from tests.support.txn_coordinator import (
    FULL,
    P0,
    P1,
    P2,
    MemoryTopic,
    T,
    Turn,
    World,
    add,
    commit,
    on_a_loop,
)

from tallystick.broker.txn.codec import decode_batches
from tallystick.broker.txn.logic import REFUSALS
from tallystick.broker.txn.machine.commands import (
    DONE,
    AbortTimedOut,
    EndTxnResult,
    EntryRemoved,
    InitProducerId,
    InitProducerIdResult,
    RemoveExpiredId,
)
from tallystick.broker.txn.machine.model import DecidedPhase, IdlePhase, TxnConfig, TxnEntry, TxnState
from tallystick.broker.txn.marker_sender import BACKOFF_MS, MARKERS_PER_SLICE
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Offset,
    ProducerId,
    TopicPartition,
    TransactionalId,
)

# ---- replay


@on_a_loop
async def test_what_is_replayed_is_what_was() -> None:
    """[TXN-2]"""
    async with World() as world:
        who = await world.begin(P0, P1)
        assert isinstance(await world.ask(commit(who)), EndTxnResult)
        await world.settle()
        await world.begin(P2, name=TransactionalId("u"))
        before = world.coordinator.list_entries()
        await world.restart()
        assert world.coordinator.list_entries() == before
        assert [entry.transactional_id for entry in before] == ["t", "u"]  # type: ignore[union-attr]


@on_a_loop
async def test_ids_answer_loading_until_all_is_replayed() -> None:
    async with World() as world:
        await world.begin()
        await world.coordinator.stop()
        again = world.coordinator = world.new_coordinator()
        again.start()
        assert await again.execute(T, InitProducerId(timeout_ms=1000)) == REFUSALS.loading
        assert again.list_entries() == REFUSALS.loading
        assert again.get_entry(T) == REFUSALS.loading
        await world.settle()
        assert isinstance(again.get_entry(T), TxnEntry)


@on_a_loop
async def test_after_a_restart_all_markers_of_a_decided_transaction_are_sent_again() -> None:
    async with World() as world:
        who = await world.begin(P0, P1)
        world.markers.answers[P1] = asyncio.get_running_loop().create_future()
        await world.ask(commit(who))
        await world.settle()
        phase = world.entry().phase
        assert isinstance(phase, DecidedPhase)
        assert phase.unmarked_partitions == {P1}
        world.markers.answers.clear()
        world.markers.written.clear()
        await world.restart()
        assert world.markers.partitions() == [P0, P1]
        assert world.entry().state is TxnState.COMPLETE_COMMIT


@on_a_loop
async def test_an_unreadable_partition_takes_its_own_ids_offline() -> None:
    async with World(MemoryTopic(2)) as world:
        place = world.coordinator.partition_for
        other = next(TransactionalId(name) for name in "abcdef" if place(TransactionalId(name)) != place(T))
        await world.begin()
        await world.begin(name=other)
        world.topic.partitions[place(T)].batches.append(b"\0" * 80)
        await world.restart()
        assert world.coordinator.get_entry(T) == REFUSALS.lost
        assert isinstance(world.coordinator.get_entry(other), TxnEntry)


# ---- markers


@on_a_loop
async def test_a_partition_that_is_gone_needs_no_marker() -> None:
    """[TXN-9]"""
    async with World() as world:
        who = await world.begin(P0, P1)
        world.markers.answers[P1] = None
        await world.ask(commit(who))
        await world.settle()
        assert world.entry().state is TxnState.COMPLETE_COMMIT


@pytest.mark.parametrize("refusal", [Reject(ErrorCode.KAFKA_STORAGE_ERROR, "full"), OSError("eio")])
def test_a_marker_is_tried_until_its_partition_has_it(refusal: Reject | Exception) -> None:
    """[TXN-9] Nothing is complete before, and the others do not wait for it."""

    @on_a_loop
    async def run() -> None:
        async with World() as world:
            who = await world.begin(P0, P1)
            world.markers.answers[P1] = refusal
            await world.ask(commit(who))
            for doubling in range(4):
                await world.pass_time(BACKOFF_MS << doubling)
            phase = world.entry().phase
            assert isinstance(phase, DecidedPhase)
            assert phase.unmarked_partitions == {P1}
            assert world.markers.partitions() == [P0]
            del world.markers.answers[P1]
            await world.pass_time(BACKOFF_MS << 4)
            assert world.entry().state is TxnState.COMPLETE_COMMIT
            assert world.markers.partitions() == [P0, P1]

    run()


@on_a_loop
async def test_a_completion_that_does_not_fit_on_the_disk_is_tried_again() -> None:
    async with World() as world:
        who = await world.begin(P0)
        assert isinstance(await world.ask(commit(who)), EndTxnResult)
        world.log.refusal = FULL
        await world.settle()
        assert world.entry().state is TxnState.PREPARE_COMMIT
        await world.pass_time(BACKOFF_MS)
        world.log.refusal = None
        await world.pass_time(2 * BACKOFF_MS)
        assert world.entry().state is TxnState.COMPLETE_COMMIT
        assert world.markers.partitions() == [P0]


@on_a_loop
async def test_markers_of_a_large_transaction_leave_room_for_others() -> None:
    async with World() as world:
        many = [TopicPartition("data", index) for index in range(3 * MARKERS_PER_SLICE)]
        who = await world.begin(*many)
        await world.ask(commit(who))
        await Turn()
        assert 0 < len(world.markers.written) <= MARKERS_PER_SLICE
        await world.settle()
        assert world.markers.partitions() == many
        assert world.entry().state is TxnState.COMPLETE_COMMIT


# ---- time


@on_a_loop
async def test_a_transaction_that_is_open_too_long_is_aborted() -> None:
    async with World() as world:
        who = await world.init(timeout_ms=15_000)
        await world.ask(add(who, P0))
        await world.pass_time(10_000)
        assert world.entry().state is TxnState.ONGOING
        await world.pass_time(10_000)
        assert world.entry().state is TxnState.COMPLETE_ABORT
        assert [forced.writer for forced in world.entry().forced_outcomes] == [who]
        assert isinstance(await world.ask(commit(who)), Reject)


@on_a_loop
async def test_two_phase_commit_never_times_out() -> None:
    """[TXN-7]"""
    config = TxnConfig(transaction_two_phase_commit_enable=True)
    async with World(config=config) as world:
        answer = await world.ask(InitProducerId(timeout_ms=0, enable_2pc=True))
        assert isinstance(answer, InitProducerIdResult)
        await world.ask(add(answer.client, P0))
        await world.pass_time(10_000_000_000)
        assert world.entry().state is TxnState.ONGOING


@on_a_loop
async def test_unused_ids_are_forgotten_all_of_them_a_few_at_a_time() -> None:
    async with World(config=TxnConfig(transactional_id_expiration_ms=1_000_000)) as world:
        await world.begin(name=TransactionalId("open"))
        for number in range(1_000):
            await world.init(TransactionalId(f"id-{number}"))
        await world.pass_time(3_600_000)
        entries = world.coordinator.list_entries()
        assert isinstance(entries, tuple)
        assert [entry.transactional_id for entry in entries] == ["open"]
        assert isinstance(entries[0].phase, IdlePhase)  # it timed out, and that was a use of it
        gone = [record for batch in world.log.batches for record in decode_batches(batch)]
        assert sum(isinstance(record, EntryRemoved) for record in gone) == 1_000


# ---- reading, stopping


@on_a_loop
async def test_a_writer_is_found_by_the_producer_id_that_is_in_the_partitions() -> None:
    async with World() as world:
        who = await world.begin()
        found = world.coordinator.find_by_producer_id(who.producer_id)
        assert found is world.entry()
        assert world.coordinator.find_by_producer_id(ProducerId(5)) is None
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        await world.settle()
        world.clock.advance(world.settings.config.transactional_id_expiration_ms)
        assert await world.ask(RemoveExpiredId()) == DONE
        another = await world.init()
        assert another.producer_id != who.producer_id
        assert world.coordinator.find_by_producer_id(who.producer_id) is None


@on_a_loop
async def test_stopping_answers_everybody_and_finishes_what_is_being_appended() -> None:
    async with World(answer_timeout_ms=5_000) as world:
        who = await world.begin()
        world.markers.answers[P0] = asyncio.get_running_loop().create_future()
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        held = world.ask(add(ended.client, P1))
        world.log.hold()
        u = TransactionalId("u")
        pending = world.ask(InitProducerId(timeout_ms=1000), u)
        queued = world.ask(AbortTimedOut(), u)
        world.coordinator.begin_shutdown()
        assert [await held, await queued] == [REFUSALS.stopped, REFUSALS.stopped]
        assert await world.coordinator.execute(T, AbortTimedOut()) == REFUSALS.stopped
        assert world.coordinator.list_entries() == REFUSALS.stopped
        assert await world.coordinator.ensure_topic() == REFUSALS.stopped
        stopping = asyncio.ensure_future(world.coordinator.stop())
        await world.settle()
        assert not stopping.done()
        world.log.sync()
        await stopping
        assert isinstance(await pending, InitProducerIdResult)


@on_a_loop
async def test_a_caller_that_goes_away_undoes_nothing() -> None:
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        task = asyncio.ensure_future(world.coordinator.execute(T, commit(who)))
        await world.settle()
        task.cancel()
        world.log.sync()
        await world.settle()
        assert world.entry().state is TxnState.COMPLETE_COMMIT


@on_a_loop
async def test_what_is_decided_is_completed_while_the_broker_is_stopping() -> None:
    async with World() as world:
        who = await world.begin()
        slow = world.markers.answers[P0] = asyncio.get_running_loop().create_future()
        await world.ask(commit(who))
        await world.settle()
        world.coordinator.begin_shutdown()
        slow.set_result(Offset(9))
        await world.settle()
        assert world.log.states()[-1] == "CompleteCommit"


@on_a_loop
async def test_nothing_is_swept_before_all_is_loaded() -> None:
    async with World() as world:
        await world.begin()
        await world.coordinator.stop()
        world.clock.advance(1_000_000)
        again = world.coordinator = world.new_coordinator()
        again.start()
        world.clock.advance(10_000)
        assert again.tick() > world.clock.monotonic_ms()
        await world.settle()
        await world.pass_time(100)
        assert world.entry().state is TxnState.COMPLETE_ABORT
