"""Markers in real partitions: which are written, which end nothing, and which have to wait."""

import asyncio

import pytest
from tests.support.leading import TOPIC, Leader, leader, turns
from tests.support.memory_broker import on_a_loop

from tallystick.broker.txn import start_comparison
from tallystick.broker.txn.machine.commands import MarkerRequest
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.broker.txn.marker_sender import MarkerResult
from tallystick.broker.txn.markers import LocalMarkerWriter
from tallystick.broker.txn.start_comparison import find_marker_result
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, ProducerEpoch, ProducerIdAndEpoch, TimestampMs, TopicPartition
from tallystick.protocol.records import iter_headers, read_marker
from tallystick.protocol.records.control import ControlType, EndTransactionMarker
from tallystick.storage.disk.fs import DiskFull
from tallystick.storage.log.log import AppendResult, TxnGuard

P0 = TopicPartition(TOPIC, 0)
OFFSETS_0 = TopicPartition("__consumer_offsets", 0)


def send(
    marker: ProducerIdAndEpoch, outcome: TransactionResult = TransactionResult.COMMIT, version: int = 2
) -> MarkerRequest:
    return MarkerRequest(
        marker_identity=marker, outcome=outcome, partitions=frozenset({P0}), transaction_version=version
    )


def after(who: ProducerIdAndEpoch, by: int = 1) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(who.producer_id, ProducerEpoch(who.epoch + by))


class Desk:
    """The sink under test, over a broker whose coordinator does not decide here."""

    def __init__(self, world: Leader) -> None:
        self.world = world
        broker = world.broker
        self.sink = LocalMarkerWriter(broker.topics, broker.groups, broker.clock)

    async def write(self, what: MarkerRequest, to: TopicPartition = P0, epoch: int = 0) -> MarkerResult:
        marked = self.sink.write(what, to, epoch)
        if marked is None or isinstance(marked, int | Reject):
            return marked
        return await marked

    def markers(self) -> list[tuple[EndTransactionMarker, ProducerIdAndEpoch | None]]:
        found = []
        for piece in self.world.partition().iter_batches(1 << 20):
            for at, header in iter_headers(piece):
                if header.is_control:
                    marker = read_marker(piece, at)
                    assert marker is not None
                    found.append((marker, header.producer_id_and_epoch))
        return found


@on_a_loop
async def test_a_marker_ends_the_transaction_and_says_who_wrote_it() -> None:
    """[TXN-9]"""
    async with leader() as world:
        desk, who = Desk(world), await world.identity()
        assert await world.write(who) is ErrorCode.NONE
        assert world.partition().log.reader.last_stable_offset == 0
        assert await desk.write(send(after(who), TransactionResult.ABORT), epoch=3) == 1
        assert desk.markers() == [
            (EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=3), after(who))
        ]
        assert world.partition().log.reader.last_stable_offset == 2


@on_a_loop
async def test_the_partition_that_is_not_there_needs_none() -> None:
    async with leader() as world:
        who = await world.identity()
        assert await Desk(world).write(send(who), TopicPartition("gone", 0)) is None
        assert await Desk(world).write(send(who), TopicPartition(TOPIC, 99)) is None


@on_a_loop
async def test_a_repeated_marker_is_written_again_and_ends_nothing() -> None:
    """KAFKA-19999: a coordinator that is loaded anew sends what was there already."""
    async with leader() as world:
        desk, who = Desk(world), await world.identity()
        await world.write(who)
        assert await desk.write(send(after(who))) == 1
        assert await desk.write(send(after(who))) == 2


@on_a_loop
async def test_a_marker_that_a_later_transaction_has_overtaken_ends_nothing() -> None:
    """KAFKA-19446: the next transaction is open, with the marker's own epoch."""
    async with leader() as world:
        desk, who = Desk(world), await world.identity()
        await world.write(who)
        following = await world.end(who, TransactionResult.COMMIT)
        assert following == after(who)
        assert await world.write(following) is ErrorCode.NONE
        assert await desk.write(send(after(who))) is None
        assert await desk.write(send(who)) is None
        assert world.partition().log.reader.last_stable_offset == 2


@on_a_loop
async def test_a_higher_coordinator_epoch_that_was_seen_there_is_taken_over() -> None:
    """Else an administrator's marker would keep this id undecided for ever."""
    async with leader() as world:
        desk, who = Desk(world), await world.identity()
        await world.write(who)
        assert await desk.write(send(after(who), TransactionResult.ABORT), epoch=40) == 1
        assert await desk.write(send(after(who, 2)), epoch=4) == 2
        assert [marker.coordinator_epoch for marker, _ in desk.markers()] == [40, 40]


@on_a_loop
async def test_a_full_disk_is_a_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leader() as world:
        who = await world.identity()

        def refuse(*args: object, **kwargs: object) -> None:
            raise DiskFull("data", "no space left")

        monkeypatch.setattr(world.partition().log, "_write", refuse)
        refused = await Desk(world).write(send(after(who)))
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR


@on_a_loop
async def test_a_marker_counts_when_it_is_on_the_disk() -> None:
    async with leader(flush_policy="ack") as world:
        desk, who = Desk(world), await world.identity()
        world.disk.holding = True
        writing = asyncio.ensure_future(desk.write(send(after(who))))
        await turns()
        assert not writing.done()
        world.disk.sync()
        assert await writing == 0


@on_a_loop
async def test_a_topic_deleted_meanwhile_needs_no_marker() -> None:
    async with leader(flush_policy="ack") as world:
        desk, who = Desk(world), await world.identity()
        world.disk.holding = True
        writing = asyncio.ensure_future(desk.write(send(after(who))))
        await turns()
        await world.broker.topic_controller.delete(TOPIC)
        assert await writing is None


class Groups:
    """Takes markers as the group coordinator does, and remembers them."""

    def __init__(self, answer: AppendResult | Reject) -> None:
        self.answer = answer
        self.asked: list[tuple[int, TxnGuard]] = []

    async def write_marker(self, index: int, batch: bytes, guard: TxnGuard) -> AppendResult | Reject:
        self.asked.append((index, guard))
        return self.answer


@pytest.mark.parametrize(
    ("answer", "marked"),
    [
        (AppendResult(Offset(9), Offset(9), -1, Offset(0)), Offset(9)),
        (Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""), None),
        (Reject(ErrorCode.INVALID_PRODUCER_EPOCH, ""), None),
        (Reject(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_markers_of_offsets_go_through_the_groups(
    answer: AppendResult | Reject, marked: Offset | ErrorCode | None
) -> None:
    @on_a_loop
    async def run() -> None:
        async with leader() as world:
            assert await world.broker.groups.ensure_topic() is None
            who, groups = await world.identity(), Groups(answer)
            desk = Desk(world)
            desk.sink = LocalMarkerWriter(world.broker.topics, groups, world.broker.clock)
            found = await desk.write(send(after(who), version=1), OFFSETS_0)
            assert (found.code if isinstance(found, Reject) else found) == marked
            assert groups.asked == [(0, TxnGuard(transaction_version=1))]

    run()


@pytest.mark.parametrize("outcome", TransactionResult)
@pytest.mark.parametrize("later_ms", [0, 1, 86_400_000])
def test_a_marker_is_found_although_the_clock_was_set_back_before_it(
    outcome: TransactionResult, later_ms: int
) -> None:
    """Else a transaction whose decision power loss took would be decided anew, and perhaps otherwise."""

    @on_a_loop
    async def run() -> None:
        async with leader() as world:
            who = await world.identity()
            await world.write(who)
            await world.end(who, outcome)
            began_ms = TimestampMs(world.clock.now_ms() + later_ms)
            assert await find_marker_result(world.partition(), after(who), began_ms) is outcome
            assert await find_marker_result(world.partition(), who, began_ms) is None

    run()


@on_a_loop
async def test_others_have_the_loop_while_a_marker_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client can have one looked for that is not there: a log of any size, read at a start."""
    monkeypatch.setattr(start_comparison, "SCAN_BYTES", 1)  # a batch at a time
    async with leader() as world:
        who = await world.identity()
        await world.write(who)
        await world.end(who, TransactionResult.COMMIT)
        batches = 2
        looking = asyncio.ensure_future(find_marker_result(world.partition(), who, TimestampMs(0)))
        turns = 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        assert await looking is None
        assert turns > batches
        monkeypatch.setattr(start_comparison, "SCAN_BYTES_MAX", 1)
        assert await find_marker_result(world.partition(), after(who), TimestampMs(0)) is None, (
            "and no further"
        )
