"""Delivery futures: the value that `send` returns, and the outcome it refers to.

A batch of records has one `BatchOutcome`. A `Delivery` is the outcome and a place in it, so that ten thousand
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
from tallystick.client.net.waits import build_forked_error, check_may_wait, ends_program, get_process_token
from tallystick.client.producer.batches.rows import TimestampRun, find_timestamp
from tallystick.kernel.errors import Effect
from tallystick.kernel.ids import Offset, TimestampMs
from tallystick.kernel.value import Value

_log = logging.getLogger("tallystick.client")

DeliveryCallback = Callable[["Delivery"], object]

_WAIT_MAX_S: Final = threading.TIMEOUT_MAX
_WAITING: Final = "waiting for a record's delivery"


class RecordMetadata(Value):
    """Topic, partition, offset and timestamp of a written record.

    offset         None when the broker did not report it: acks=0, or a duplicate of old records
    timestamp_ms   the record's own, or the broker's where the topic uses log append time
    """

    topic: str
    partition: int
    offset: Offset | None
    timestamp_ms: TimestampMs


class BatchMetadata(Value):
    """Partitions and offsets of the records of one `send_batch`: a part for each of their batches, in order.

    first_offset is that of the part's first record, the others follow it; None as in RecordMetadata.
    """

    topic: str
    count: int
    parts: tuple["BatchPart", ...]


class BatchPart(Value):
    """Consecutive records in one partition: `rows` are their places in what was sent."""

    partition: int
    first_offset: Offset | None
    rows: Sequence[int]


class BatchOutcome:
    """Result of one batch; settled once, by the engine, and read from any thread [CLI-20].

    No lock: a watcher is added first and the outcome checked after; the engine settles first and removes
    watchers after. The thread that removes a watcher calls it.
    """

    __slots__ = (
        "_callbacks",
        "_process_token",
        "base_offset",
        "error",
        "is_complete",
        "log_append_time_ms",
        "partition",
        "pieces",
        "place_by_ticket",
        "timestamp_runs",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.is_complete = False
        self.error: ClientError | None = None
        self.base_offset: int | None = None
        self.timestamp_runs: Sequence[TimestampRun] = ()
        self.log_append_time_ms: int | None = None
        # Place of each ticket, if the records are not in the order of their tickets.
        self.place_by_ticket: dict[int, int] | None = None
        # The pieces this batch was divided into: where each begins, and its outcome.
        self.pieces: list[tuple[int, BatchOutcome]] = []
        self._callbacks: deque[tuple[DeliveryCallback, int]] = deque()
        self._process_token = get_process_token()

    def add_callback(self, callback: DeliveryCallback, ticket: int) -> None:
        """Call `callback` when settled; at once, in this thread, if it is settled already.

        Raises: IllegalState in a forked child, where the outcome is never settled [CLI-61].
        """
        if self._process_token is not get_process_token() and not self.is_complete:
            raise build_forked_error(_WAITING)
        self._callbacks.append((callback, ticket))
        if self.is_complete:
            self._notify()

    def complete(self, error: ClientError | None = None) -> None:
        """Settle the outcome and call the watchers; the fields beside `error` are set before."""
        self.error = error
        self.is_complete = True
        self._notify()

    def split(self, begins: Sequence[int]) -> "list[BatchOutcome]":
        """Return outcomes for pieces that begin at these places; this one is settled when all of them are."""
        pieces = [BatchOutcome(self.topic, self.partition) for _ in begins]
        self.pieces = list(zip(begins, pieces, strict=True))
        open_count = len(pieces)

        def count_down(delivery: "Delivery") -> None:
            nonlocal open_count
            open_count -= 1
            if not open_count:
                self.complete(next((piece.error for piece in pieces if piece.error is not None), None))

        for piece in pieces:
            piece.add_callback(count_down, 0)
        return pieces

    def build_metadata(self, ticket: int) -> RecordMetadata:
        """Return where a record is, once settled. Raise the error it failed with."""
        return self._build_metadata_at(
            ticket if self.place_by_ticket is None else self.place_by_ticket[ticket]
        )

    def _build_metadata_at(self, place: int) -> RecordMetadata:
        if self.pieces:
            begin, piece = self.pieces[bisect_right(self.pieces, place, key=_piece_begin) - 1]
            return piece._build_metadata_at(place - begin)
        if self.error is not None:
            raise self.error
        at = self.log_append_time_ms
        return RecordMetadata(
            self.topic,
            self.partition,
            None if self.base_offset is None else Offset(self.base_offset + place),
            TimestampMs(find_timestamp(self.timestamp_runs, place) if at is None else at),
        )

    def _notify(self) -> None:
        watchers = self._callbacks
        while watchers:
            try:
                callback, ticket = watchers.popleft()
            except IndexError:  # another thread took the last
                return
            try:
                _run_callback(callback, Delivery(self, ticket))
            except BaseException:
                self._notify()  # the others, who wait
                raise


def _piece_begin(part: tuple[int, BatchOutcome]) -> int:
    return part[0]


def _run_callback(callback: DeliveryCallback, delivery: "Delivery") -> None:
    try:
        callback(delivery)
    except BaseException as exc:
        # An error in a callback is logged and must not affect other records.
        if ends_program(exc):
            raise
        _log.exception("a delivery callback failed: %r", delivery)


class Delivery:
    """Future of one record: `result()` waits, `await` does so in an event loop."""

    __slots__ = ("outcome", "ticket")

    def __init__(self, outcome: BatchOutcome, ticket: int) -> None:
        self.outcome, self.ticket = outcome, ticket

    def done(self) -> bool:
        """Return whether the record has been written or has failed."""
        return self.outcome.is_complete

    def cancelled(self) -> bool:
        """Return False: an accepted record is sent, or fails with an error."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the record is; wait for it up to `timeout` seconds, without limit by default.

        The wait takes no longer than delivery.timeout.ms, which ends every batch.
        Raises: the error the record failed with; TimedOut when `timeout` is over first: the record stays in
            flight and may still be written; IllegalState in a callback, which would wait for itself [CLI-60].
        """
        self._wait(timeout)
        return self.outcome.build_metadata(self.ticket)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Return the error the record failed with, or None; wait like `result`."""
        self._wait(timeout)
        try:
            self.outcome.build_metadata(self.ticket)
        except ClientError as exc:
            return exc
        return None

    def _wait(self, timeout: float | None) -> None:
        if self.outcome.is_complete:
            return
        if timeout is None or timeout > 0:
            check_may_wait(_WAITING, Effect.UNKNOWN)  # still in flight, and possibly written already
        lock = threading.Lock()
        lock.acquire()
        self.outcome.add_callback(lambda _: lock.release(), self.ticket)
        if not lock.acquire(timeout=-1 if timeout is None else min(timeout, _WAIT_MAX_S)):
            timeout_error = TimedOut("timeout", int((timeout or 0) * 1000), _WAITING)
            raise timeout_error.after(Effect.UNKNOWN)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` with this delivery when it is done, in the engine's thread; at once if it is."""
        self.outcome.add_callback(lambda _: callback(self), self.ticket)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self.outcome.is_complete:
            yield from self._create_waiter()
        return self.result(0)

    def _create_waiter(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self.outcome.add_callback(lambda _: loop.call_soon_threadsafe(_resolve_waiter, waiter), self.ticket)
        return waiter

    def __repr__(self) -> str:
        outcome = self.outcome
        how = "pending" if not outcome.is_complete else "failed" if outcome.error else "done"
        return f"<Delivery {outcome.topic}-{outcome.partition} #{self.ticket} {how}>"


class BatchDelivery:
    """Future of many records that were sent in one call."""

    __slots__ = ("_deliveries", "_places", "topic")

    def __init__(self, topic: str, parts: Sequence[tuple[BatchOutcome, Sequence[int]]]) -> None:
        self.topic = topic
        self._deliveries = [Delivery(outcome, 0) for outcome, _ in parts]
        self._places = [rows for _, rows in parts]

    @property
    def parts(self) -> tuple[Delivery, ...]:
        """One delivery for each batch that the records went into."""
        return tuple(self._deliveries)

    def done(self) -> bool:
        """Return whether every record has been written or has failed."""
        return all(piece.done() for piece in self._deliveries)

    def result(self, timeout: float | None = None) -> BatchMetadata:
        """Return where the records are; wait up to `timeout` seconds for all of them together.

        Raises: the error of the first part that failed; TimedOut; IllegalState, as `Delivery.result`.
        """
        until = None if timeout is None else monotonic() + timeout
        for piece in self._deliveries:
            piece._wait(None if until is None else max(until - monotonic(), 0.0))
        pieces = zip(self._deliveries, self._places, strict=True)
        parts = tuple(part for piece, rows in pieces for part in _build_parts(piece, rows))
        return BatchMetadata(self.topic, sum(map(len, self._places)), parts)

    def __await__(self) -> Generator[object, None, BatchMetadata]:
        for piece in self._deliveries:
            if not piece.done():
                yield from piece._create_waiter()
        return self.result(0)


def _build_parts(piece: Delivery, rows: Sequence[int]) -> list[BatchPart]:
    outcome = piece.outcome
    begins = [begin for begin, _ in outcome.pieces] or [0]
    parts = []
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        first_record = outcome.build_metadata(begin)
        parts.append(BatchPart(first_record.partition, first_record.offset, rows[begin:end]))
    return parts


def _resolve_waiter(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
