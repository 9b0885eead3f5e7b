"""A partition of `__transaction_state` is lost while the broker runs, and read back without a person."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.txn_coordinator import P0, P1, MemoryTopic, T, World, add, code_of, commit, on_a_loop

from harness.transactions import durable_view
from tallystick.broker.coordinator.reload import BACKOFF_MS
from tallystick.broker.txn import logic
from tallystick.broker.txn.codec import decode_batches
from tallystick.broker.txn.logic import REFUSALS
from tallystick.broker.txn.machine.commands import DONE, EndTxnResult, EntryStored, InitProducerId, TxnAnswer
from tallystick.broker.txn.machine.model import IdlePhase, TxnEntry, TxnState
from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, TransactionalId
from tallystick.protocol.errors import EncodeError

EIO = OSError("input/output error")
U = TransactionalId("u")


@pytest.mark.parametrize("step", ["decide", "encode_batch_of"])
def test_what_fails_before_the_append_is_refused_and_costs_no_other_client(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EncodeError("int too large to convert")

    @on_a_loop
    async def run() -> None:
        async with World() as world:
            who = await world.begin()
            before, ids = world.entry(), next(world.ids)
            with monkeypatch.context() as patch:
                patch.setattr(logic, step, fail)
                refused = await world.ask(InitProducerId(timeout_ms=1_000), U)
                assert code_of(refused) is ErrorCode.UNKNOWN_SERVER_ERROR
            assert world.entry() is before
            assert (await world.init(U)).producer_id < ids, "the producer id was given back"
            assert isinstance(await world.ask(commit(who)), EndTxnResult)

    run()


@on_a_loop
async def test_a_broken_invariant_takes_the_partition_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InvariantBroken("impossible")

    async with World() as world:
        who = await world.begin()
        with monkeypatch.context() as patch:
            patch.setattr(logic, "decide", fail)
            assert await world.ask(commit(who)) == REFUSALS.lost
        await world.pass_time(BACKOFF_MS)
        assert isinstance(await world.ask(commit(who)), EndTxnResult)
        assert (world.coordinator.offline_partition_count, world.coordinator.reload_count) == (0, 1)


@on_a_loop
async def test_a_decision_without_an_answer_is_read_back_and_finished() -> None:
    """The append of a decision is in the log, and raised: the client asks again, and is told the outcome."""
    async with World() as world:
        who = await world.begin(P0, P1)
        world.log.unheard = EIO
        assert await world.ask(commit(who)) == REFUSALS.lost
        assert not world.markers.written
        world.log.unheard = None
        await world.pass_time(BACKOFF_MS)
        assert world.markers.partitions() == [P0, P1]
        assert world.entry().state is TxnState.COMPLETE_COMMIT
        assert isinstance(await world.ask(commit(who)), EndTxnResult)


@on_a_loop
async def test_ids_answer_loading_while_their_partition_is_read_back_and_others_go_on() -> None:
    async with World(MemoryTopic(2)) as world:
        place = world.coordinator.partition_for
        other = next(TransactionalId(name) for name in "abcdef" if place(TransactionalId(name)) != place(T))
        who, log = await world.begin(), world.topic.partitions[place(T)]
        log.unheard = EIO
        assert await world.ask(add(who, P1)) == REFUSALS.lost
        log.unheard = None
        log.hold()
        await world.pass_time(BACKOFF_MS)
        assert await world.ask(commit(who)) == REFUSALS.loading
        assert world.coordinator.list_entries() == REFUSALS.loading
        await world.init(other)
        log.sync()
        log.syncs = None
        await world.settle()
        assert isinstance(await world.ask(commit(who)), EndTxnResult)


@on_a_loop
async def test_what_cannot_be_read_back_is_tried_again() -> None:
    async with World() as world:
        who = await world.begin()
        world.log.refusal = world.log.unreadable = EIO
        assert await world.ask(commit(who)) == REFUSALS.lost
        await world.pass_time(BACKOFF_MS)
        assert await world.ask(commit(who)) == REFUSALS.lost
        world.log.refusal = world.log.unreadable = None
        await world.pass_time(2 * BACKOFF_MS)
        assert isinstance(await world.ask(commit(who)), EndTxnResult)


@on_a_loop
async def test_a_partition_that_could_not_be_read_at_the_start_is_tried_again() -> None:
    async with World() as world:
        await world.begin()
        world.log.unreadable = EIO
        await world.restart()
        assert world.coordinator.get_entry(T) == REFUSALS.lost
        world.log.unreadable = None
        await world.pass_time(BACKOFF_MS)
        assert world.entry().state is TxnState.ONGOING


@on_a_loop
async def test_markers_that_were_put_off_begin_anew() -> None:
    """What was on its way when the partition was lost is not told to what was read back."""
    async with World() as world:
        who = await world.begin(P0)
        world.markers.answers[P0] = Reject(ErrorCode.KAFKA_STORAGE_ERROR, "full")
        await world.ask(commit(who))
        await world.settle()
        world.log.refusal = EIO
        assert await world.ask(InitProducerId(timeout_ms=1000), U) == REFUSALS.lost
        assert not world.markers.written
        del world.markers.answers[P0]
        world.log.refusal = None
        await world.pass_time(20 * BACKOFF_MS)
        assert world.markers.partitions() == [P0]
        assert world.entry().state is TxnState.COMPLETE_COMMIT


@on_a_loop
async def test_a_marker_in_flight_is_not_told_to_what_was_read_back() -> None:
    async with World() as world:
        who = await world.begin(P0)
        slow: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        world.markers.answers[P0] = slow
        await world.ask(commit(who))
        await world.settle()
        world.log.refusal = EIO
        assert await world.ask(InitProducerId(timeout_ms=1000), U) == REFUSALS.lost
        world.log.refusal = None
        world.markers.answers[P0] = Reject(ErrorCode.KAFKA_STORAGE_ERROR, "full")
        await world.pass_time(BACKOFF_MS)
        slow.set_result(Offset(100))
        await world.settle()
        assert world.entry().state is TxnState.PREPARE_COMMIT
        del world.markers.answers[P0]
        await world.pass_time(20 * BACKOFF_MS)
        assert world.entry().state is TxnState.COMPLETE_COMMIT


# ---- under any order

NAMES = [TransactionalId(name) for name in "abc"]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["init", "add", "commit"]), st.sampled_from(NAMES)),
        st.sampled_from(["unheard", "refused", "unreadable", "sound", "hold", "sync", "fail", "later"]),
    ),
    max_size=40,
)


def stored(world: World) -> dict[TransactionalId, TxnEntry]:
    entries: dict[TransactionalId, TxnEntry] = {}
    for batch in world.log.batches:
        for record in decode_batches(batch):
            assert isinstance(record, EntryStored)
            entries[record.entry.transactional_id] = record.entry
    return entries


async def ask(world: World, what: str, name: TransactionalId) -> "asyncio.Future[TxnAnswer] | None":
    if what == "init":
        return world.ask(InitProducerId(timeout_ms=60_000), name)
    entry = world.coordinator.get_entry(name)
    if not isinstance(entry, TxnEntry):
        return None
    return world.ask(add(entry.client, P0) if what == "add" else commit(entry.client), name)


async def play(events: list[object]) -> None:
    async with World() as world:
        asked = []
        for event in events:
            match event:
                case (str() as what, str() as name):
                    asked.append(await ask(world, what, TransactionalId(name)))
                case "unheard":
                    world.log.unheard = EIO
                case "refused":
                    world.log.refusal = EIO
                case "unreadable":
                    world.log.unreadable = EIO
                case "sound":
                    world.log.unheard = world.log.refusal = world.log.unreadable = None
                case "hold" if world.log.syncs is None:
                    world.log.hold()
                case "sync" | "fail" if world.log.syncs is not None:
                    world.log.sync(EIO if event == "fail" else None)
                case "later":
                    await world.pass_time(BACKOFF_MS)
            await world.settle()
        world.log.unheard = world.log.refusal = world.log.unreadable = None
        if world.log.syncs is not None:
            world.log.sync()
        world.log.syncs = None
        await world.pass_time(60_000)
        found = world.coordinator.list_entries()
        assert isinstance(found, tuple)
        assert {e.transactional_id: durable_view(e) for e in found} == stored(world)
        for future in asked:
            assert future is None or future.done(), "nobody waits for what was lost"
        await finish(world)


async def finish(world: World) -> None:
    """Every transaction that is under way can be ended, and is."""
    for name in stored(world):
        entry = world.entry(name)
        if entry.state is TxnState.ONGOING:
            assert isinstance(await world.ask(commit(entry.client), name), EndTxnResult)
        await world.settle()
        assert isinstance(world.entry(name).phase, IdlePhase)
        who = await world.init(name)
        assert await world.ask(add(who, P1), name) == DONE


@settings(deadline=None, max_examples=examples(quick=10, gate=80, full=400))
@given(EVENTS)
def test_after_any_loss_what_serves_is_what_the_log_says(events: list[object]) -> None:
    """[TXN-2] And every transaction comes to its end."""
    asyncio.run(play(events))
