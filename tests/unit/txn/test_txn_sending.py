"""Markers that are put off are taken up again, each at its own time."""

import asyncio

from tests.support.txn_coordinator import MemoryMarkers, on_a_loop
from tests.support.txn_words import ident

from tallystick.broker.txn.machine.commands import DONE, MarkerRequest, MarkersWritten, TxnAnswer
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.broker.txn.marker_sender import BACKOFF_MS, MarkerSender
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition, TransactionalId
from tallystick.testing import FakeClock

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Owner:
    """Every transaction stays decided; `wakes` is what the timer was set to."""

    def __init__(self) -> None:
        self.wakes: list[int] = []

    def is_awaiting_markers(self, transactional_id: TransactionalId, marker: ProducerIdAndEpoch) -> bool:
        return True

    def count_losses(self, transactional_id: TransactionalId) -> int:
        return 0

    def submit_markers_written(
        self, transactional_id: TransactionalId, command: MarkersWritten
    ) -> "asyncio.Future[TxnAnswer]":
        told: asyncio.Future[TxnAnswer] = asyncio.get_running_loop().create_future()
        told.set_result(DONE)
        return told

    def wake_at(self, at_ms: int) -> None:
        self.wakes.append(at_ms)


@on_a_loop
async def test_who_is_put_off_later_is_not_forgotten_when_the_first_is_due() -> None:
    markers, owner, clock = MemoryMarkers(), Owner(), FakeClock()
    markers.answers = {A: OSError("full"), B: OSError("full")}
    sender = MarkerSender(markers, owner, clock)

    async def send(number: int, partition: TopicPartition) -> None:
        command = MarkerRequest(
            marker_identity=ident(number, 1),
            outcome=TransactionResult.COMMIT,
            partitions=frozenset({partition}),
            transaction_version=2,
        )
        sender.send(TransactionalId(f"t{number}"), command, 0)
        await asyncio.sleep(0)

    await send(1, A)
    clock.advance(BACKOFF_MS // 2)
    await send(2, B)
    first, second = owner.wakes
    clock.advance(first - clock.monotonic_ms())
    owner.wakes.clear()
    sender.retry_due(clock.monotonic_ms())
    assert owner.wakes[0] == second
    markers.answers.clear()
    clock.advance(second - clock.monotonic_ms())
    sender.retry_due(clock.monotonic_ms())
    await asyncio.sleep(0)
    assert markers.partitions() == [A, B]
    sender.stop()
