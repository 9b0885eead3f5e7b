"""A sender and the engine in the accumulator at once, in every order of their lines [CLI-24].

The sender stops at one of its lines until the engine has come to one of its own; then it goes on until it is
done, or waits for the lock that the engine holds.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tallystick.client.errors import Closed
from tallystick.client.producer.batches import accumulator, producer_batch
from tallystick.client.producer.batches.accumulator import (
    AccumulatorEnv,
    AccumulatorLimits,
    RecordAccumulator,
)
from tallystick.client.producer.batches.delivery import Delivery
from tallystick.client.producer.batches.producer_batch import SealedBatch

PATIENCE_S = 30
MODULES = {accumulator.__file__, producer_batch.__file__}


class Lock:
    """Tells when somebody has to wait for it."""

    def __init__(self, waits: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._waits = waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits()
            self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


class Stop:
    """A trace function that calls `reached` before the line `number` that is run in the accumulator."""

    def __init__(self, number: int, reached: Callable[[], None]) -> None:
        self.left = number
        self._reached = reached

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in MODULES:
            return None
        if event == "line":
            self.left -= 1
            if self.left == -1:
                self._reached()
        return self


class Race:
    """One sender against one call of the engine's, on a topic with two partitions."""

    def __init__(self, sender_line: int, engine_line: int, *, begun: bool) -> None:
        self.may_go, self.has_stopped, self.is_through = (threading.Event() for _ in range(3))
        self.accumulator = RecordAccumulator(
            AccumulatorLimits(batch_bytes=2_000, linger_ms=5, buffer_bytes=1 << 25, record_bytes_max=1 << 20),
            AccumulatorEnv(
                now=lambda: 1_700_000_000.0,
                monotonic_ms=lambda: 1_000,
                uniform=lambda: 0.5,
                lock=Lock(self.is_through.set),
                wake=lambda: None,
            ),
        )
        self.accumulator.update_topic("t", 2, (0, 1))
        self.deliveries: list[Delivery] = []
        if begun:
            self.deliveries.append(self.accumulator.append("t", b"before", partition=1))
        self.refusal: Exception | None = None
        self._sender_stop = Stop(sender_line, self._hold)
        self._engine_stop = Stop(engine_line, self._let_go)
        self._sender = threading.Thread(target=self._send)

    def _hold(self) -> None:
        self.has_stopped.set()
        assert self.may_go.wait(PATIENCE_S)

    def _let_go(self) -> None:
        self.may_go.set()
        assert self.is_through.wait(PATIENCE_S)

    def _send(self) -> None:
        sys.settrace(self._sender_stop)
        try:
            # Of two partitions its key chooses the second one; of one, the only one.
            self.deliveries.append(self.accumulator.append("t", b"v", key=b"1"))
        except Closed as refusal:
            self.refusal = refusal
        finally:
            sys.settrace(None)
            self.has_stopped.set()
            self.is_through.set()

    def run(self, engine: Callable[[RecordAccumulator], object]) -> tuple[bool, bool, object]:
        """Whether the sender and the engine came to their lines, and what the engine's call returned."""
        self._sender.start()
        assert self.has_stopped.wait(PATIENCE_S)
        former = sys.gettrace()
        sys.settrace(self._engine_stop)
        try:
            answer = engine(self.accumulator)
        finally:
            sys.settrace(former)
        self.may_go.set()
        self._sender.join(PATIENCE_S)
        assert not self._sender.is_alive()
        return self._sender_stop.left < 0, self._engine_stop.left < 0, answer


def races(
    engine: Callable[[RecordAccumulator], object], *, begun: bool
) -> Iterator[tuple[str, Race, object]]:
    """Every pair of lines; ends when both have run out of them."""
    sender_line, more = 0, True
    while more:
        engine_line, met = 0, True
        while met:
            race = Race(sender_line, engine_line, begun=begun)
            more, met, answer = race.run(engine)
            yield f"the sender at its line {sender_line}, the engine at {engine_line}", race, answer
            engine_line += 1
        sender_line += 1


def everything_in(accumulator: RecordAccumulator) -> list[SealedBatch]:
    return [
        batch
        for queue in list(accumulator.active_queues)
        for batch in iter(lambda queue=queue: accumulator.take_batch(queue, 1_000, linger=False), None)  # type: ignore[misc]
    ]


def settle(batches: list[SealedBatch]) -> None:
    for batch in batches:
        batch.outcome.base_offset = 0
        batch.outcome.complete()


@pytest.mark.gate(0)
@pytest.mark.parametrize("begun", [False, True], ids=["an unopened batch", "an open batch"])
def test_a_record_on_its_way_to_a_queue_that_is_cut_off_is_in_a_batch(begun: bool) -> None:
    count = 0
    for where, race, answer in races(lambda accumulator: accumulator.drop_partitions("t", 1), begun=begun):
        assert isinstance(answer, list)
        batches = [*answer, *everything_in(race.accumulator)]
        settle(batches)
        assert all(delivery.done() for delivery in race.deliveries), where
        assert sum(batch.count for batch in batches) == len(race.deliveries) == 1 + begun, where
        count += 1
    assert count > 300


@pytest.mark.gate(0)
@pytest.mark.parametrize("begun", [False, True], ids=["an unopened batch", "an open batch"])
def test_a_record_on_its_way_to_a_gate_that_closes_is_sealed_or_refused(begun: bool) -> None:
    """[CLI-25] Whatever was taken before is in a sealed batch when `close_gate` returns, or is refused."""
    count = 0

    def close(accumulator: RecordAccumulator) -> int:
        accumulator.close_gate(lambda: Closed("the producer"))
        return sum(len(queue.sealed_batches) for queue in list(accumulator.active_queues))

    for where, race, sealed in races(close, begun=begun):
        batches = [batch for queue in list(race.accumulator.active_queues) for batch in queue.sealed_batches]
        settle(batches)
        assert all(delivery.done() for delivery in race.deliveries), where
        assert sum(batch.count for batch in batches) == len(race.deliveries), where
        assert (race.refusal is None) == (len(race.deliveries) == 1 + begun), where
        assert sealed == len(batches), where
        count += 1
    assert count > 300
