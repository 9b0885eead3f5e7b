"""The transaction coordinator on a log in memory: the order of effects, what waits, appends that fail."""

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
    code_of,
    commit,
    on_a_loop,
    other_than,
)

from tallystick.broker.coordinator.reload import BACKOFF_MS
from tallystick.broker.txn.logic import REFUSALS
from tallystick.broker.txn.machine.commands import (
    DONE,
    PENDING_POLICIES,
    AbortTimedOut,
    AddPartitions,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
    PendingPolicy,
    RecordForcedMarker,
    RemoveExpiredId,
    TxnCommand,
    VerifyPartitions,
    VerifyPartitionsResult,
    find_pending_policy,
)
from tallystick.broker.txn.machine.model import OngoingPhase, TxnState
from tallystick.broker.txn.marker_sender import MarkerResult
from tallystick.broker.txn.producer_id_pool import NO_PRODUCER_ID, POOL_SIZE
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Offset,
    ProducerEpoch,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import replace
from tallystick.storage.disk.fs import StorageFailure

# ---- order of effects


@on_a_loop
async def test_nothing_is_answered_seen_or_sent_before_the_record_is_durable() -> None:
    """[TXN-1]"""
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        asked = world.ask(commit(who))
        await world.settle()
        assert world.log.states()[-1] == "PrepareCommit"
        assert not asked.done()
        assert world.entry().state is TxnState.ONGOING
        assert not world.markers.written
        world.log.sync()
        assert isinstance(await asked, EndTxnResult)
        assert world.entry().state is TxnState.PREPARE_COMMIT
        await world.settle()
        assert world.markers.partitions() == [P0]
        assert world.entry().state is TxnState.COMPLETE_COMMIT


@on_a_loop
async def test_the_answer_does_not_wait_for_the_markers() -> None:
    async with World() as world:
        who = await world.begin()
        world.markers.answers[P0] = asyncio.get_running_loop().create_future()
        assert isinstance(await world.ask(commit(who)), EndTxnResult)
        assert world.entry().state is TxnState.PREPARE_COMMIT


@on_a_loop
async def test_where_nothing_waits_for_the_disk_a_command_is_through_at_once() -> None:
    async with World() as world:
        who = await world.begin()
        assert world.ask(add(who, P1)).done()
        assert world.ask(commit(who)).done()


@on_a_loop
async def test_the_completion_of_a_transaction_is_not_waited_for() -> None:
    async with World() as world:
        who = await world.begin()
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        world.log.hold()
        await world.settle()
        assert world.log.states()[-1] == "CompleteCommit"
        assert world.entry().state is TxnState.COMPLETE_COMMIT
        assert world.log.syncs == []
        asked = world.ask(add(ended.client, P1))
        await world.settle()
        assert not asked.done()
        world.log.sync()
        assert await asked == DONE


@on_a_loop
async def test_markers_are_signed_with_the_leader_epoch_of_the_id_s_partition() -> None:
    async with World() as world:
        who = await world.begin(P0, P1)
        await world.ask(commit(who))
        await world.settle()
        assert world.markers.partitions() == [P0, P1]
        assert {epoch for _, _, epoch in world.markers.written} == {7}
        assert {send.marker_identity for send, _, _ in world.markers.written} == {
            ProducerIdAndEpoch(who.producer_id, ProducerEpoch(who.epoch + 1))
        }


# ---- while a Step is pending


def commands_of(row: PendingPolicy, who: ProducerIdAndEpoch) -> list[TxnCommand]:
    wanted: dict[type, list[TxnCommand]] = {
        InitProducerId: [InitProducerId(timeout_ms=1000), InitProducerId(timeout_ms=0)],
        AddPartitions: [
            AddPartitions(identity=pair, partitions=frozenset({P1}), transaction_version=0)
            for pair in (who, other_than(who))
        ],
        AddPartitionsByLeader: [add(who, P1)],
        VerifyPartitions: [VerifyPartitions(identity=who, partitions=frozenset({P0, P1}))],
        EndTxn: [commit(who, version=0), commit(who), commit(other_than(who))],
        AbortTimedOut: [AbortTimedOut()],
        MarkersWritten: [MarkersWritten(marker_identity=who, offsets={})],
        RecordForcedMarker: [RecordForcedMarker(writer=who, partition=P0)],
        RemoveExpiredId: [RemoveExpiredId()],
    }
    assert wanted.keys() == PENDING_POLICIES.keys()
    found = [command for kind in wanted.values() for command in kind if find_pending_policy(command) is row]
    assert found
    return found


@on_a_loop
async def test_what_is_refused_while_a_step_is_pending() -> None:
    """[TXN-5]"""
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        pending = world.ask(add(who, P2))
        for command in commands_of(PendingPolicy.REFUSE, who):
            assert code_of(await world.ask(command)) is ErrorCode.CONCURRENT_TRANSACTIONS
        world.log.sync()
        assert await pending == DONE
        assert world.entry().phase.partitions == {P0, P2}  # type: ignore[union-attr]


@on_a_loop
async def test_an_old_client_s_end_learns_first_that_its_pair_is_wrong() -> None:
    """[TXN-5]"""
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        world.ask(add(who, P2))
        for command in commands_of(PendingPolicy.CHECK_IDENTITY, who):
            assert code_of(await world.ask(command)) is ErrorCode.CONCURRENT_TRANSACTIONS
        wrong = world.ask(commit(other_than(who), version=0))
        assert code_of(await wrong) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@on_a_loop
async def test_a_verification_passes_and_sees_what_is_durable() -> None:
    """[TXN-5] KAFKA-14904."""
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        world.ask(add(who, P1))
        for command in commands_of(PendingPolicy.DECIDE_AT_ONCE, who):
            asked = world.ask(command)
            assert asked.done()
            assert await asked == VerifyPartitionsResult(errors={P1: ErrorCode.TRANSACTION_ABORTABLE})


@on_a_loop
async def test_what_the_coordinator_asks_of_itself_waits_its_turn() -> None:
    """[TXN-5]"""
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        first = world.ask(add(who, P1))
        waiting = [world.ask(command) for command in commands_of(PendingPolicy.WAIT, who)]
        await world.settle()
        assert not any(asked.done() for asked in waiting)
        world.log.sync()
        await first
        while not all(asked.done() for asked in waiting):
            world.log.sync()
            await Turn()
        assert not [answer for answer in await asyncio.gather(*waiting) if isinstance(answer, Reject)]
        assert [forced.writer for forced in world.entry().forced_outcomes] == [who]


@on_a_loop
async def test_implicit_adds_that_wait_share_one_append() -> None:
    """[TXN-5] A transaction over many partitions costs neither a storm of 51 nor a sync a partition."""
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        before = len(world.log.batches)
        asked = [world.ask(add(who, TopicPartition("data", index))) for index in range(3, 40)]
        await world.settle()
        assert len(world.log.batches) == before + 1
        world.log.sync()
        await world.settle()
        assert len(world.log.batches) == before + 2
        assert [future.done() for future in asked].count(True) == 1
        world.log.sync()
        assert [await future for future in asked] == [DONE] * 37
        phase = world.entry().phase
        assert isinstance(phase, OngoingPhase)
        assert len(phase.partitions) == 38


@on_a_loop
async def test_another_pair_s_add_is_not_merged_with_the_client_s() -> None:
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        first, wrong, right = (
            world.ask(add(who, P1)),
            world.ask(add(other_than(who), P2)),
            world.ask(add(who, P2)),
        )
        world.log.sync()
        await world.settle()
        world.log.sync()
        assert [await first, await right] == [DONE, DONE]
        assert code_of(await wrong) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@on_a_loop
async def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    """[TXN-5] KAFKA-18575, KAFKA-18654: neither 51 nor a lost partition."""
    async with World() as world:
        who = await world.begin()
        slow: asyncio.Future[MarkerResult] = asyncio.get_running_loop().create_future()
        world.markers.answers[P0] = slow
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        waiting = [world.ask(add(ended.client, P1)), world.ask(add(ended.client, P2))]
        await world.settle()
        assert not any(asked.done() for asked in waiting)
        before = len(world.log.batches)
        slow.set_result(Offset(5))
        assert [await asked for asked in waiting] == [DONE, DONE]
        assert world.log.states()[-2:] == ["CompleteCommit", "Ongoing"]
        assert len(world.log.batches) == before + 2
        phase = world.entry().phase
        assert isinstance(phase, OngoingPhase)
        assert phase.partitions == {P1, P2}


@on_a_loop
async def test_it_waits_no_longer_than_its_time() -> None:
    """[TXN-5]"""
    async with World(answer_timeout_ms=5_000) as world:
        who = await world.begin()
        world.markers.answers[P0] = asyncio.get_running_loop().create_future()
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        waiting = world.ask(add(ended.client, P1))
        await world.settle()
        await world.pass_time(4_999)
        assert not waiting.done()
        await world.pass_time(1)
        assert code_of(await waiting) is ErrorCode.CONCURRENT_TRANSACTIONS


@on_a_loop
async def test_who_gave_up_waiting_for_markers_is_not_kept() -> None:
    """A partition that takes no marker may be like that for days, and its client goes on asking."""
    async with World() as world:
        who = await world.begin()
        world.markers.answers[P0] = asyncio.get_running_loop().create_future()
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        for _ in range(3):
            world.ask(add(ended.client, P1))
            await world.pass_time(world.settings.answer_timeout_ms)
        assert len(world.coordinator._logic._waiting_for_completion[T]) == 1


@on_a_loop
async def test_who_gave_up_waiting_for_the_disk_is_not_kept() -> None:
    async with World() as world:
        who = await world.begin()
        world.log.hold()
        world.ask(add(who, P1))
        for _ in range(3):
            world.ask(add(who, P1))
            await world.pass_time(world.settings.answer_timeout_ms)
        assert len(world.coordinator._runtime.command_queues[T].waiting) == 1
        world.log.sync()


@on_a_loop
async def test_an_older_pair_does_not_wait_for_markers() -> None:
    async with World() as world:
        who = await world.begin()
        world.markers.answers[P0] = asyncio.get_running_loop().create_future()
        await world.ask(commit(who))
        assert code_of(await world.ask(add(who, P1))) is ErrorCode.PRODUCER_FENCED


@on_a_loop
async def test_other_ids_go_on_while_one_waits_for_the_disk() -> None:
    async with World(MemoryTopic(2)) as world:
        place = world.coordinator.partition_for
        other = next(TransactionalId(name) for name in "abcdef" if place(TransactionalId(name)) != place(T))
        world.topic.partitions[place(T)].hold()
        asked = world.ask(InitProducerId(timeout_ms=1000))
        await world.begin(name=other)
        assert not asked.done()


# ---- appends that fail


@pytest.mark.parametrize(
    ("refused", "answered"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (FULL, ErrorCode.NOT_COORDINATOR),
        (StorageFailure("/data", "input/output error, taken back"), ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_refused_append_changes_nothing(refused: ErrorCode | Exception, answered: ErrorCode) -> None:
    @on_a_loop
    async def run() -> None:
        async with World() as world:
            who = await world.begin()
            before = world.entry()
            world.log.refusal = refused if isinstance(refused, Exception) else Reject(refused, "")
            assert code_of(await world.ask(commit(who))) is answered
            assert world.entry() is before
            world.log.refusal = None
            assert isinstance(await world.ask(commit(who)), EndTxnResult)

    run()


@on_a_loop
async def test_a_failed_sync_takes_the_partition_off_until_it_is_read_back() -> None:
    """[TXN-1] Durable or not? Nobody is told anything that rests on it, and nothing more is decided on it."""
    async with World(answer_timeout_ms=5_000) as world:
        who = await world.begin()
        world.log.hold()
        current, queued = world.ask(add(who, P1)), world.ask(add(who, P2))
        await world.settle()
        world.log.sync(OSError("input/output error"))
        assert [await current, await queued] == [REFUSALS.lost, REFUSALS.lost]
        assert world.coordinator.get_entry(T) == REFUSALS.lost
        assert world.coordinator.list_entries() == REFUSALS.loading
        assert await world.ask(commit(who)) == REFUSALS.lost
        world.log.syncs = None
        await world.pass_time(BACKOFF_MS)
        phase = world.entry().phase
        assert isinstance(phase, OngoingPhase)
        assert phase.partitions == {P0, P1}


@on_a_loop
async def test_a_failed_append_takes_the_partition_offline_and_no_other() -> None:
    async with World(MemoryTopic(2)) as world:
        place = world.coordinator.partition_for
        other = next(TransactionalId(name) for name in "abcdef" if place(TransactionalId(name)) != place(T))
        who = await world.begin()
        world.topic.partitions[place(T)].refusal = OSError("input/output error")
        assert await world.ask(commit(who)) == REFUSALS.lost
        await world.begin(name=other)


@on_a_loop
async def test_who_waits_for_markers_learns_that_the_partition_was_lost() -> None:
    """Its markers are not written any more, so that nobody would answer it but the clock."""
    async with World() as world:
        who = await world.begin()
        world.markers.answers[P0] = asyncio.get_running_loop().create_future()
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        waiting = world.ask(add(ended.client, P1))
        assert not waiting.done()
        world.log.refusal = OSError("input/output error")
        assert await world.ask(InitProducerId(timeout_ms=1000), TransactionalId("other")) == REFUSALS.lost
        assert waiting.done()
        assert await waiting == REFUSALS.lost


@on_a_loop
async def test_a_hanging_disk_does_not_make_anybody_wait_for_ever() -> None:
    """What is being appended may still happen; what queued behind it must not."""
    async with World(answer_timeout_ms=5_000) as world:
        who = await world.begin()
        world.log.hold()
        end = world.ask(commit(who))
        queued = world.ask(RecordForcedMarker(writer=who, partition=P0))
        await world.pass_time(5_000)
        assert [await end, await queued] == [REFUSALS.timed_out, REFUSALS.timed_out]
        assert code_of(await world.ask(commit(who))) is ErrorCode.CONCURRENT_TRANSACTIONS
        world.log.sync()
        await world.settle()
        assert world.entry().state is TxnState.COMPLETE_COMMIT
        assert not world.entry().forced_outcomes


# ---- producer ids


@on_a_loop
async def test_more_ids_at_once_than_are_at_hand() -> None:
    async with World() as world:
        names = [TransactionalId(f"id-{number}") for number in range(4 * POOL_SIZE)]
        asked = [world.ask(InitProducerId(timeout_ms=1000), name) for name in names]
        answers = await asyncio.gather(*asked)
        ids = {answer.client.producer_id for answer in answers if isinstance(answer, InitProducerIdResult)}
        assert len(ids) == len(names)


@on_a_loop
async def test_without_producer_ids_a_client_is_told_to_ask_again() -> None:
    async with World() as world:
        world.no_ids = OSError("disk full")
        names = [TransactionalId(f"id-{number}") for number in range(POOL_SIZE + 1)]
        answers = await asyncio.gather(*[world.ask(InitProducerId(timeout_ms=1000), name) for name in names])
        assert answers.count(NO_PRODUCER_ID) == 1
        world.no_ids = None
        await world.init()


@on_a_loop
async def test_without_producer_ids_whatever_needs_none_is_decided() -> None:
    """[TXN-14] A prepared transaction can be committed although the metadata store hands out no more ids."""
    async with World() as world:
        who = await world.begin()
        world.no_ids = OSError("disk full")
        names = [TransactionalId(f"id-{number}") for number in range(POOL_SIZE + 1)]
        answers = [await world.ask(InitProducerId(timeout_ms=1000), name) for name in names]
        assert answers[-1] == NO_PRODUCER_ID
        given = [answer.client.producer_id for answer in answers if isinstance(answer, InitProducerIdResult)]
        ended = await world.ask(commit(who))
        assert isinstance(ended, EndTxnResult)
        assert ended.client.producer_id == who.producer_id
        world.no_ids = None
        later = await world.ask(InitProducerId(timeout_ms=1000), names[-1])
        assert isinstance(later, InitProducerIdResult)
        assert later.client.producer_id not in {who.producer_id, *given}


@on_a_loop
async def test_a_full_disk_uses_up_no_producer_ids() -> None:
    """An end may need one, and has to be possible on a full disk, too: what was refused gives its id back."""
    async with World() as world:
        who = await world.begin()
        world.no_ids, world.log.refusal = OSError("disk full"), FULL
        for number in range(2 * POOL_SIZE):
            refused = await world.ask(InitProducerId(timeout_ms=1000), TransactionalId(f"id-{number}"))
            assert code_of(refused) is ErrorCode.NOT_COORDINATOR
        world.log.refusal = None
        assert isinstance(await world.ask(commit(who)), EndTxnResult)


@on_a_loop
async def test_who_waits_for_a_producer_id_learns_that_the_partition_was_lost_meanwhile() -> None:
    async with World() as world:
        world.log.hold()
        world.no_ids = asyncio.Event()
        names = [TransactionalId(f"id-{number}") for number in range(POOL_SIZE + 1)]
        asked = [world.ask(InitProducerId(timeout_ms=1000), name) for name in names]
        world.log.sync(OSError("input/output error"))
        await world.settle()
        assert [future.done() for future in asked] == [True] * POOL_SIZE + [False]
        world.no_ids.set()
        assert set(await asyncio.gather(*asked)) == {REFUSALS.lost}
        assert len(world.log.batches) == POOL_SIZE


# ---- additions that take effect before they are durable


async def begin_again(world: World) -> ProducerIdAndEpoch:
    """Complete a transaction, hold the disk, and open the next one as a leader that waits for itself."""
    who = await world.begin()
    ended = await world.ask(commit(who))
    assert isinstance(ended, EndTxnResult)
    await world.settle()
    world.log.hold()
    asked = world.ask(replace(add(ended.client, P1), needs_durable=False))
    assert asked.done()
    assert await asked == DONE
    return ended.client


@on_a_loop
async def test_who_waits_for_an_addition_is_told_when_it_is_durable() -> None:
    """[TXN-1]"""
    async with World() as world:
        await begin_again(world)
        assert world.entry().state is TxnState.ONGOING
        durable = world.coordinator.when_durable(T)
        assert durable is not None
        world.log.sync()
        await durable
        world.log.syncs = None
        assert world.coordinator.when_durable(T) is None
        assert world.coordinator.when_durable(TransactionalId("other")) is None


@on_a_loop
async def test_an_end_behind_an_addition_waits_for_the_disk_as_ever() -> None:
    """[TXN-1] One log: what is durable has everything before it."""
    async with World() as world:
        who = await begin_again(world)
        asked = world.ask(commit(who))
        await world.settle()
        assert not asked.done()
        assert world.log.states()[-2:] == ["Ongoing", "PrepareCommit"]
        assert world.markers.partitions() == [P0]
        world.log.sync()
        assert isinstance(await asked, EndTxnResult)


@on_a_loop
async def test_an_addition_that_cannot_be_synced_costs_the_partition_once() -> None:
    """[TXN-1]"""
    async with World() as world:
        await begin_again(world)
        waiting = [world.coordinator.when_durable(T) for _ in range(2)]
        world.log.sync(OSError("input/output error"))
        await world.settle()
        assert all(each is not None and isinstance(each.exception(), OSError) for each in waiting)
        assert world.coordinator.get_entry(T) == REFUSALS.lost
        world.log.syncs = None
        await world.pass_time(BACKOFF_MS)
        assert world.entry().state is TxnState.ONGOING
        assert world.coordinator.reload_count == 1


@on_a_loop
async def test_an_addition_that_is_waited_for_is_not_merged_with_one_that_is_not() -> None:
    async with World() as world:
        who = await begin_again(world)
        first, second, third = (
            world.ask(add(who, P2)),
            world.ask(add(who, TopicPartition("data", 3))),
            world.ask(replace(add(who, TopicPartition("data", 4)), needs_durable=False)),
        )
        world.log.sync()
        await world.settle()
        assert first.done()
        assert not second.done()
        assert not third.done()
        world.log.sync()
        assert [await second, await third] == [DONE, DONE]
