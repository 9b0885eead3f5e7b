"""Markers that are put off are taken up again, each at its own time."""

import asyncio
import logging

from tests.support.txn_coordinator import MemoryMarkers, on_a_loop
from tests.support.txn_words import ident

from tallystick.broker.coordinator.runtime import CoordinatorRuntime, PendingCommand
from tallystick.broker.coordinator.timer import CoordinatorTimer
from tallystick.broker.txn.machine.apply import TxnEntryTable
from tallystick.broker.txn.machine.commands import DONE, MarkerRequest, TxnAnswer, TxnCommand
from tallystick.broker.txn.machine.model import DecidedPhase, TransactionResult, TxnEntry
from tallystick.broker.txn.marker_sender import BACKOFF_MS, MarkerSender
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TimestampMs, TopicPartition, TransactionalId
from tallystick.testing import FakeClock

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Timer(CoordinatorTimer):
    """`wakes` is what the timer was set to."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, lambda: 0, logging.getLogger())
        self.wakes: list[int] = []

    def arm(self, at_ms: int) -> None:
        self.wakes.append(at_ms)


class Runtime(CoordinatorRuntime[TransactionalId, TxnCommand, TxnAnswer]):
    """Every report of markers is accepted, and nothing is lost."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.reloader = type("Reloader", (), {"loss_counts": {}})  # type: ignore[assignment]

    def submit_internal(self, key: TransactionalId, pending: PendingCommand[TxnCommand, TxnAnswer]) -> None:
        pending.future.set_result(DONE)


@on_a_loop
async def test_who_is_put_off_later_is_not_forgotten_when_the_first_is_due() -> None:
    markers, clock, entries = MemoryMarkers(), FakeClock(), TxnEntryTable(lambda name: 0)
    timer = Timer(clock)
    markers.answers = {A: OSError("full"), B: OSError("full")}
    sender = MarkerSender(markers, Runtime(timer), entries)

    async def send(number: int, partition: TopicPartition) -> None:
        name, identity = TransactionalId(f"t{number}"), ident(number, 1)
        decided = DecidedPhase(
            outcome=TransactionResult.COMMIT,
            marker_identity=identity,
            partitions=frozenset({partition}),
            started_ms=TimestampMs(0),
            timeout_ms=60_000,
        )
        entry = TxnEntry(
            transactional_id=name,
            phase=decided,
            client=identity,
            previous_identity=None,
            timeout_ms=60_000,
            transaction_version=2,
            updated_ms=TimestampMs(0),
        )
        entries.put(name, entry)
        command = MarkerRequest(
            marker_identity=identity,
            outcome=TransactionResult.COMMIT,
            partitions=frozenset({partition}),
            transaction_version=2,
        )
        sender.send(name, command, 0)
        await asyncio.sleep(0)

    await send(1, A)
    clock.advance(BACKOFF_MS // 2)
    await send(2, B)
    first, second = timer.wakes
    clock.advance(first - clock.monotonic_ms())
    timer.wakes.clear()
    sender.retry_due(clock.monotonic_ms())
    assert timer.wakes[0] == second
    markers.answers.clear()
    clock.advance(second - clock.monotonic_ms())
    sender.retry_due(clock.monotonic_ms())
    await asyncio.sleep(0)
    assert markers.partitions() == [A, B]
    sender.stop()
