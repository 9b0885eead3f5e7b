"""The history of transactional ids in the coordinator: who did what, within bounds, over restarts."""

import asyncio

from tests.support.txn_coordinator import P0, P1, T, World, add, commit, on_a_loop
from tests.support.txn_words import ident

from tallystick.broker.coordinator.reload import BACKOFF_MS
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn import history
from tallystick.broker.txn.codec import encode_record
from tallystick.broker.txn.history import CLIENT_ID_MAX, HISTORY_MAX, TransactionHistory
from tallystick.broker.txn.machine.commands import (
    EndTxnResult,
    EntryStored,
    InitProducerId,
    RecordForcedMarker,
)
from tallystick.broker.txn.machine.model import IdlePhase, TxnEntry
from tallystick.kernel.ids import TimestampMs, TransactionalId
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.protocol.transaction_history import TransitionKind

K = TransitionKind
EIO = OSError("input/output error")


def someone(
    client_id: str = "orders", client_host: str = "10.0.0.7", client_port: int = 40_001
) -> RequestContext:
    return RequestContext(
        ApiKey.INIT_PRODUCER_ID, 0, 1, client_id, client_host, connection_id=1, client_port=client_port
    )


def kinds(world: World, name: TransactionalId = T) -> list[TransitionKind | int]:
    return [each.kind for each in world.coordinator.list_transitions(name)]


@on_a_loop
async def test_a_transaction_is_told_from_its_first_client_to_its_last_marker() -> None:
    async with World() as world:
        who = await world.begin(P0)
        await world.ask(add(who, P1))
        await world.ask(commit(who))
        await world.settle()
        told = world.coordinator.list_transitions(T)
        assert [each.kind for each in told] == [
            K.INITIALIZED,
            K.BEGUN,
            K.PARTITIONS_ADDED,
            K.COMMITTED,
            K.COMPLETED,
        ]
        assert [each.state for each in told] == [
            "Empty",
            "Ongoing",
            "Ongoing",
            "PrepareCommit",
            "CompleteCommit",
        ]
        assert [each.partition_count for each in told] == [0, 1, 2, 2, 2]
        assert [each.producer for each in told[:3]] == [who] * 3
        assert told[3].producer == ident(who.producer_id, who.epoch + 1), "from the decision on the markers'"


@on_a_loop
async def test_it_names_the_client_that_asked_and_no_client_for_actions_of_the_broker() -> None:
    async with World() as world:
        first, second = someone(), someone("billing", "10.0.0.8", 40_002)
        await world.coordinator.execute(T, InitProducerId(timeout_ms=1_000), first)
        who = world.entry().client
        await world.coordinator.execute(T, add(who, P0), first)
        await world.coordinator.execute(T, InitProducerId(timeout_ms=1_000, keep_prepared=True), second)
        await world.pass_time(20_000)
        told = [(each.kind, each.client_id, each.address) for each in world.coordinator.list_transitions(T)]
        assert told == [
            (K.INITIALIZED, "orders", "10.0.0.7:40001"),
            (K.BEGUN, "orders", "10.0.0.7:40001"),
            (K.KEPT, "billing", "10.0.0.8:40002"),
            (K.TIMED_OUT, None, None),
            (K.COMPLETED, None, None),
        ]


@on_a_loop
async def test_the_ends_that_no_client_asked_for_have_their_own_names() -> None:
    async with World() as world:
        who = await world.begin(P0, P1)
        await world.ask(RecordForcedMarker(writer=who, partition=P1))
        await world.ask(InitProducerId(timeout_ms=1_000))
        await world.settle()
        await world.init()
        assert kinds(world)[2:] == [K.MARKER_FORCED, K.TERMINATED, K.COMPLETED, K.INITIALIZED]


@on_a_loop
async def test_nothing_is_noted_before_the_log_has_it() -> None:
    """[HIS-1] An append that failed has told nothing."""
    async with World() as world:
        who = await world.begin(P0)
        world.log.hold()
        answer = world.ask(commit(who))
        assert kinds(world) == [K.INITIALIZED, K.BEGUN]
        world.log.sync()
        assert isinstance(await answer, EndTxnResult)
        await world.settle()
        assert K.COMMITTED in kinds(world)
        world.log.refusal = EIO
        await world.ask(InitProducerId(timeout_ms=1_000))
        assert kinds(world)[-1] is not K.INITIALIZED


@on_a_loop
async def test_a_restart_reads_it_back_without_who_asked() -> None:
    """[HIS-1]"""
    async with World() as world:
        await world.coordinator.execute(T, InitProducerId(timeout_ms=1_000), someone())
        who = world.entry().client
        world.clock.advance(5)
        await world.coordinator.execute(T, add(who, P0), someone())
        before = world.coordinator.list_transitions(T)
        await world.restart()
        after = world.coordinator.list_transitions(T)
        assert [(e.kind, e.at_ms, e.producer) for e in after] == [
            (e.kind, e.at_ms, e.producer) for e in before
        ]
        assert {(each.client_id, each.address) for each in after} == {(None, None)}


@on_a_loop
async def test_a_partition_that_is_read_back_repeats_nothing_and_adds_what_was_unheard() -> None:
    async with World() as world:
        await world.coordinator.execute(T, InitProducerId(timeout_ms=1_000), someone())
        who = world.entry().client
        world.clock.advance(5)
        await world.coordinator.execute(T, add(who, P0), someone())
        world.clock.advance(5)
        world.log.unheard = EIO
        await world.ask(commit(who))
        world.log.unheard = None
        await world.pass_time(BACKOFF_MS)
        assert kinds(world) == [K.INITIALIZED, K.BEGUN, K.COMMITTED, K.COMPLETED]
        assert world.coordinator.list_transitions(T)[0].client_id == "orders"


@on_a_loop
async def test_a_record_that_only_the_history_reads_does_not_keep_an_id_from_its_clients() -> None:
    """A state of a newer version that was replaced since is no reason to refuse the id."""
    async with World() as world:
        await world.init()
        key, _ = encode_record(EntryStored(entry=world.entry()), 2)
        world.log.append(encode_batch([Record(0, 0, key, b"\0\x63 of a newer version")], BatchMeta()), None)  # type: ignore[arg-type]
        world.clock.advance(5)
        who = await world.init()
        await world.restart()
        assert world.entry().client == who
        assert kinds(world) == [K.INITIALIZED, K.INITIALIZED]


@on_a_loop
async def test_an_id_that_expired_says_so_when_it_is_used_again() -> None:
    async with World() as world:
        await world.init()
        await world.pass_time(700_000_000)
        assert world.coordinator.get_entry(T) is None
        await world.init()
        assert kinds(world) == [K.INITIALIZED, K.EXPIRED, K.INITIALIZED]
        await world.restart()
        assert kinds(world) == [K.INITIALIZED], "what was before a tombstone is gone"


# ------------------------------------------------------------------------------------ bounds


def entry(name: str, epoch: int) -> TxnEntry:
    return TxnEntry(
        transactional_id=TransactionalId(name),
        phase=IdlePhase(),
        client=ident(1, epoch),
        previous_identity=None,
        timeout_ms=1_000,
        transaction_version=2,
        updated_ms=TimestampMs(epoch),
    )


def test_an_id_keeps_its_last_transitions() -> None:
    """[HIS-2]"""
    kept = TransactionHistory()
    for epoch in range(3 * HISTORY_MAX):
        kept.note(entry("t", epoch), None)
    told = kept.list_transitions(T)
    assert [each.at_ms for each in told] == list(range(2 * HISTORY_MAX, 3 * HISTORY_MAX))
    assert kept._state_count == HISTORY_MAX + 1


def test_the_ids_that_were_quiet_for_longest_go_first() -> None:
    """[HIS-2]"""
    kept = TransactionHistory(states_max=6)
    for name in ("a", "b", "c"):
        kept.note(entry(name, 0), None)
        kept.note(entry(name, 1), None)
    kept.note(entry("a", 2), None)
    assert [len(kept.list_transitions(TransactionalId(name))) for name in "abc"] == [3, 0, 2]
    assert kept._state_count <= 6


def test_a_long_client_id_is_cut() -> None:
    """[HIS-2] 32 kB would be kept for each of its transitions."""
    kept = TransactionHistory()
    kept.note(entry("t", 0), someone(client_id="x" * 32_000))
    (told,) = kept.list_transitions(T)
    assert told.client_id == "x" * CLIENT_ID_MAX


@on_a_loop
async def test_a_start_reads_a_bounded_number_of_records_again() -> None:
    async with World() as world:
        names = [TransactionalId(f"id-{number}") for number in range(1_100)]
        for name in names:
            await world.init(name)
        await world.restart()
        await asyncio.sleep(0)
        while world.coordinator.is_loading:
            await world.settle()
        known = [name for name in names if kinds(world, name)]
        assert known == names[-1_024:]
        assert world.coordinator._logic.history._state_count <= history.STATES_MAX
