"""The record of a completion waits for the next record of its id, and is left out if that comes soon."""

import asyncio

from tests.support.txn_coordinator import FULL, P0, P1, T, World, add, code_of, commit, on_a_loop

from tallystick.broker.coordinator.reload import BACKOFF_MS
from tallystick.broker.txn.codec import decode_batches
from tallystick.broker.txn.held_completions import HELD_MS_MAX
from tallystick.broker.txn.machine.commands import (
    DONE,
    EndTxnResult,
    EntryStored,
    InitProducerId,
    InitProducerIdResult,
    RemoveExpiredId,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from tallystick.broker.txn.machine.model import DecidedPhase, IdlePhase, TxnConfig, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Offset, ProducerIdAndEpoch, TransactionalId


async def complete(world: World, name: TransactionalId = T) -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch]:
    """Commit a transaction and let its markers be written; return its pair and the next one."""
    identity = await world.begin(name=name)
    answer = await world.ask(commit(identity), name)
    assert isinstance(answer, EndTxnResult)
    await world.settle()
    return identity, answer.client


def is_recorded(world: World) -> bool:
    return world.log.states()[-1] == "CompleteCommit"


@on_a_loop
async def test_a_transaction_with_its_last_marker_is_shown_complete_and_not_yet_recorded() -> None:
    async with World() as world:
        identity, _ = await complete(world)
        assert world.log.states() == ["Empty", "Ongoing", "PrepareCommit"]
        assert world.entry().state is TxnState.COMPLETE_COMMIT
        listed = world.coordinator.list_entries()
        assert isinstance(listed, tuple)
        assert [entry.state for entry in listed] == [TxnState.COMPLETE_COMMIT]
        found = world.coordinator.find_by_producer_id(identity.producer_id)
        assert found is not None
        assert found.state is TxnState.COMPLETE_COMMIT


@on_a_loop
async def test_the_next_transaction_takes_the_place_of_its_record() -> None:
    """[TXN-16]"""
    async with World() as world:
        _, client = await complete(world)
        assert await world.ask(add(client, P1)) == DONE
        await world.pass_time(HELD_MS_MAX)
        assert world.log.states() == ["Empty", "Ongoing", "PrepareCommit", "Ongoing"]


@on_a_loop
async def test_with_offsets_of_markers_both_records_are_one_batch() -> None:
    """A start after a power loss learns from the completion where the markers were (ADR 0019)."""
    async with World(config=TxnConfig(remember_marker_offsets=True)) as world:
        _, client = await complete(world)
        before = len(world.log.batches)
        assert await world.ask(add(client, P1)) == DONE
        await world.pass_time(HELD_MS_MAX)
        assert world.log.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "Ongoing"]
        assert len(world.log.batches) == before + 1
        completed, _ = decode_batches(world.log.batches[-1])
        assert isinstance(completed, EntryStored)
        assert isinstance(completed.entry.phase, IdlePhase)
        assert completed.entry.phase.marker_offsets == {P0: 100}


@on_a_loop
async def test_an_id_that_rests_gets_its_record() -> None:
    async with World() as world:
        await complete(world)
        await world.pass_time(HELD_MS_MAX - 1)
        assert not is_recorded(world)
        await world.pass_time(1)
        assert is_recorded(world)
        assert world.entry().state is TxnState.COMPLETE_COMMIT


@on_a_loop
async def test_each_of_many_ids_that_rest_gets_its_record() -> None:
    async with World() as world:
        names = [TransactionalId(f"id-{index}") for index in range(100)]
        for name in names:
            await complete(world, name)
        await world.pass_time(HELD_MS_MAX)
        assert world.log.states().count("CompleteCommit") == len(names)


@on_a_loop
async def test_commands_are_decided_on_the_completed_entry() -> None:
    async with World() as world:
        identity, client = await complete(world)
        # A repetition of the end is answered with the same pair, and leaves no record.
        assert await world.ask(commit(identity)) == EndTxnResult(client=client)
        verified = await world.ask(VerifyPartitions(identity=client, partitions=frozenset({P0})))
        assert verified == VerifyPartitionsResult(errors={P0: ErrorCode.TRANSACTION_ABORTABLE})
        assert code_of(await world.ask(add(identity, P0))) is ErrorCode.PRODUCER_FENCED
        assert not is_recorded(world)
        await world.pass_time(HELD_MS_MAX)
        assert is_recorded(world)


@on_a_loop
async def test_a_new_incarnation_need_not_wait_for_the_record() -> None:
    async with World() as world:
        await complete(world)
        answer = await world.ask(InitProducerId(timeout_ms=60_000))
        assert isinstance(answer, InitProducerIdResult)
        assert world.log.states()[-2:] == ["PrepareCommit", "Empty"]


@on_a_loop
async def test_a_record_that_the_disk_refuses_leaves_the_completion_to_be_recorded() -> None:
    async with World() as world:
        _, client = await complete(world)
        world.log.refusal = FULL
        assert code_of(await world.ask(add(client, P1))) is ErrorCode.NOT_COORDINATOR
        world.log.refusal = None
        await world.pass_time(HELD_MS_MAX)
        assert is_recorded(world)


@on_a_loop
async def test_the_entry_changes_with_the_record_that_takes_its_place() -> None:
    """[TXN-1]: nothing of the completion is applied before a record that tells of it is durable."""
    async with World() as world:
        _, client = await complete(world)
        world.log.hold()
        added = world.ask(add(client, P1))
        await world.settle()
        assert not added.done()
        before = world.coordinator._entries.get(T)
        assert before is not None
        assert isinstance(before.phase, DecidedPhase)
        world.log.sync()
        assert await added == DONE
        after = world.coordinator._entries.get(T)
        assert after is not None
        assert after.state is TxnState.ONGOING


@on_a_loop
async def test_a_restart_after_a_crash_sends_the_markers_again_and_completes_it() -> None:
    async with World() as world:
        await complete(world)
        crashed = world.coordinator
        world.coordinator = world.new_coordinator()
        world.coordinator.start()
        await world.settle()
        assert world.markers.partitions() == [P0, P0]
        assert world.entry().state is TxnState.COMPLETE_COMMIT
        await crashed.stop()


@on_a_loop
async def test_an_orderly_stop_records_it() -> None:
    async with World() as world:
        await complete(world)
        await world.restart()
        assert world.markers.partitions() == [P0]
        assert world.log.states()[-1] == "CompleteCommit"


@on_a_loop
async def test_a_pause_begins_with_all_of_them_recorded() -> None:
    async with World() as world:
        await complete(world)
        async with world.coordinator.pause_commands() as refusal:
            assert refusal is None
            assert is_recorded(world)


@on_a_loop
async def test_markers_that_are_written_during_a_pause_are_recorded_when_it_ends() -> None:
    async with World() as world:
        identity = await world.begin()
        slow: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        world.markers.answers[P0] = slow
        assert isinstance(await world.ask(commit(identity)), EndTxnResult)
        await world.settle()
        async with world.coordinator.pause_commands() as refusal:
            assert refusal is None
            slow.set_result(Offset(1))
            await world.settle()
            assert not is_recorded(world)
        await world.pass_time(HELD_MS_MAX)
        assert is_recorded(world)


@on_a_loop
async def test_a_lost_partition_takes_what_is_held_with_it() -> None:
    async with World() as world:
        _, client = await complete(world)
        world.log.unheard = OSError("disk")
        assert code_of(await world.ask(add(client, P1))) is ErrorCode.NOT_COORDINATOR
        world.log.unheard = None
        await world.pass_time(BACKOFF_MS)
        assert world.entry().state is TxnState.ONGOING
        await world.pass_time(HELD_MS_MAX)
        assert world.log.states()[-1] == "Ongoing"


@on_a_loop
async def test_an_id_expires_by_the_time_of_its_completion() -> None:
    async with World() as world:
        await complete(world)
        world.clock.advance(world.settings.config.transactional_id_expiration_ms)
        assert await world.ask(RemoveExpiredId()) == DONE
        assert world.log.states()[-1] == "gone"
        assert world.coordinator.get_entry(T) is None
