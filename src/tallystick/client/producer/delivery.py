"""What became of a record: the value `send` returns, and where it looks.

A batch of records has one `Outcome`. A `Delivery` is the outcome and a place in it, so that ten thousand
records are acknowledged by one assignment. It has the methods of `concurrent.futures.Future`, and can be
awaited in any event loop.
"""

import asyncio
import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from time import monotonic
from typing import Final, Self

from tallystick.client.errors import ClientError, TimedOut
from tallystick.client.forks import forked, this_process
from tallystick.client.producer.batches import Run, time_at
from tallystick.kernel.errors import Effect
from tallystick.kernel.ids import Offset, TimestampMs
from tallystick.kernel.value import frozen

_log = logging.getLogger("tallystick.client")

DeliveryCallback = Callable[["Delivery"], object]

_WAIT_MAX_S: Final = threading.TIMEOUT_MAX


@frozen
class RecordMetadata:
    """Where a record is.

    offset         None when the broker did not say: acks=0, or a repetition of records it has had for long
    timestamp_ms   the record's own, or the broker's where the topic wants its own clock
    """

    topic: str
    partition: int
    offset: Offset | None
    timestamp_ms: TimestampMs


@frozen
class BatchMetadata:
    """Where the records of one `send_batch` are: a part for each batch they went in, in order.

    first_offset is of the first record of the part, the others follow it; None as in RecordMetadata.
    """

    topic: str
    count: int
    parts: tuple["BatchPart", ...]


@frozen
class BatchPart:
    """Consecutive records in one partition: `rows` are their places in what was sent."""

    partition: int
    first_offset: Offset | None
    rows: Sequence[int]


class Outcome:
    """What became of one batch; settled once, by the engine, and read by anyone [CLI-20].

    No lock: a watcher is put in first and the outcome looked at after; the engine settles first and takes
    watchers out after. Whoever takes one out calls it.
    """

    __slots__ = (
        "_process",
        "_watchers",
        "base_offset",
        "error",
        "log_append_time_ms",
        "partition",
        "parts",
        "places",
        "runs",
        "settled",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.settled = False
        self.error: ClientError | None = None
        self.base_offset: int | None = None
        self.runs: Sequence[Run] = ()
        self.log_append_time_ms: int | None = None
        # Where records stand when it is not in the order of their tickets.
        self.places: dict[int, int] | None = None
        # The outcomes of the pieces it was divided into, and where in it each begins.
        self.parts: list[tuple[int, Outcome]] = []
        self._watchers: deque[tuple[DeliveryCallback, int]] = deque()
        self._process = this_process()

    def watch(self, callback: DeliveryCallback, ticket: int) -> None:
        """Call back when settled; at once, in this thread, if it is.

        Raises: IllegalState where it will never be: in a child that was forked off before [CLI-61].
        """
        if self._process is not this_process() and not self.settled:
            raise forked("waiting for a record's delivery")
        self._watchers.append((callback, ticket))
        if self.settled:
            self._tell()

    def settle(self, error: ClientError | None = None) -> None:
        """Say what happened; the fields beside `error` are set before."""
        self.error = error
        self.settled = True
        self._tell()

    def divide(self, begins: Sequence[int]) -> "list[Outcome]":
        """Outcomes of pieces that begin at these places; this one is settled when all of them are."""
        pieces = [Outcome(self.topic, self.partition) for _ in begins]
        self.parts = list(zip(begins, pieces, strict=True))
        left = len(pieces)

        def one_is_settled(delivery: "Delivery") -> None:
            nonlocal left
            left -= 1
            if not left:
                self.settle(next((piece.error for piece in pieces if piece.error is not None), None))

        for piece in pieces:
            piece.watch(one_is_settled, 0)
        return pieces

    def metadata(self, ticket: int) -> RecordMetadata:
        """Where a record is, when settled. Raises what it failed with."""
        return self._at(ticket if self.places is None else self.places[ticket])

    def _at(self, place: int) -> RecordMetadata:
        if self.parts:
            begin, piece = self.parts[bisect_right(self.parts, place, key=_begin) - 1]
            return piece._at(place - begin)
        if self.error is not None:
            raise self.error
        at = self.log_append_time_ms
        return RecordMetadata(
            self.topic,
            self.partition,
            None if self.base_offset is None else Offset(self.base_offset + place),
            TimestampMs(time_at(self.runs, place) if at is None else at),
        )

    def _tell(self) -> None:
        watchers = self._watchers
        while watchers:
            try:
                callback, ticket = watchers.popleft()
            except IndexError:  # another thread took the last
                return
            _call(callback, Delivery(self, ticket))


def _begin(part: tuple[int, Outcome]) -> int:
    return part[0]


def _call(callback: DeliveryCallback, delivery: "Delivery") -> None:
    try:
        callback(delivery)
    except Exception:
        # A callback's mistake is its author's to see, and must not stop the records of others.
        _log.exception("a delivery callback failed: %r", delivery)


class Delivery:
    """The future of one record: `result()` waits, `await` does so in an event loop."""

    __slots__ = ("outcome", "ticket")

    def __init__(self, outcome: Outcome, ticket: int) -> None:
        self.outcome, self.ticket = outcome, ticket

    def done(self) -> bool:
        """Is it known what became of the record?"""
        return self.outcome.settled

    def cancelled(self) -> bool:
        """Never: a record that was accepted is sent, or fails for a reason."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is; waits `timeout` seconds for it, or as long as it takes.

        It takes no longer than delivery.timeout.ms, which ends every batch.
        Raises: what the record failed with; TimedOut when `timeout` is over first: the record goes on, and
            may still be written.
        """
        self._wait(timeout)
        return self.outcome.metadata(self.ticket)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """What the record failed with, None if it did not; waits like `result`."""
        self._wait(timeout)
        try:
            self.outcome.metadata(self.ticket)
        except ClientError as exc:
            return exc
        return None

    def _wait(self, timeout: float | None) -> None:
        if self.outcome.settled:
            return
        waiting = threading.Lock()
        waiting.acquire()
        self.outcome.watch(lambda _: waiting.release(), self.ticket)
        if not waiting.acquire(timeout=-1 if timeout is None else min(timeout, _WAIT_MAX_S)):
            late = TimedOut("timeout", int((timeout or 0) * 1000), "waiting for a record's delivery")
            raise late.after(Effect.UNKNOWN)  # it goes on, and may be written already

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call back with this delivery when it is done, in the engine's thread; at once if it is."""
        self.outcome.watch(lambda _: callback(self), self.ticket)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self.outcome.settled:
            yield from self._settled()
        return self.result(0)

    def _settled(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self.outcome.watch(lambda _: loop.call_soon_threadsafe(_wake, done), self.ticket)
        return done

    def __repr__(self) -> str:
        outcome = self.outcome
        how = "pending" if not outcome.settled else "failed" if outcome.error else "done"
        return f"<Delivery {outcome.topic}-{outcome.partition} #{self.ticket} {how}>"


class BatchDelivery:
    """The future of many records that were sent in one call."""

    __slots__ = ("_pieces", "_rows", "topic")

    def __init__(self, topic: str, parts: Sequence[tuple[Outcome, Sequence[int]]]) -> None:
        self.topic = topic
        self._pieces = [Delivery(outcome, 0) for outcome, _ in parts]
        self._rows = [rows for _, rows in parts]

    def done(self) -> bool:
        """Is it known of all records what became of them?"""
        return all(piece.done() for piece in self._pieces)

    def result(self, timeout: float | None = None) -> BatchMetadata:
        """Where the records are; waits `timeout` seconds for all of them together.

        Raises: what the first part that failed failed with; TimedOut.
        """
        until = None if timeout is None else monotonic() + timeout
        for piece in self._pieces:
            piece._wait(None if until is None else max(until - monotonic(), 0.0))
        pieces = zip(self._pieces, self._rows, strict=True)
        parts = tuple(part for piece, rows in pieces for part in _parts(piece, rows))
        return BatchMetadata(self.topic, sum(map(len, self._rows)), parts)

    def __await__(self) -> Generator[object, None, BatchMetadata]:
        for piece in self._pieces:
            if not piece.done():
                yield from piece._settled()
        return self.result(0)


def _parts(piece: Delivery, rows: Sequence[int]) -> list[BatchPart]:
    outcome = piece.outcome
    begins = [begin for begin, _ in outcome.parts] or [0]
    parts = []
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        first = outcome.metadata(begin)
        parts.append(BatchPart(first.partition, first.offset, rows[begin:end]))
    return parts


def _wake(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
