"""Phases of a batch, each a type of its own: open, sealed, compressed, in flight.

    OpenBatch        senders store records in it, from any thread
    SealedBatch      its records are fixed; it waits in the queue of its partition
    CompressedBatch  a sealed batch whose record section is packed, right before it is first sent
    InFlightBatch    has sequence numbers, until its last answer: it is in flight, or is to be sent again

A batch that is divided because it is too large goes on as two batches of the same phase. Kafka's
`ProducerBatch` is all four at once.
"""

from bisect import bisect_left
from itertools import count as tickets

from tallystick.client.producer.batches.delivery import BatchOutcome
from tallystick.client.producer.batches.rows import ListRows, Rows, TimestampRun
from tallystick.client.producer.sequences.in_flight import BatchSequence
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.records import HEADER_SIZE, Headers


class OpenBatch:
    """Records for one partition, stored by any thread without a lock: see `accumulator`.

    free_bytes         estimated bytes that still fit
    opened_ms          when the first record came; None before
    timestamp_changes  (ticket, timestamp) of records whose millisecond differs from that of the record before
    """

    __slots__ = (
        "_capacity",
        "_sealed_count",
        "explicit_timestamps",
        "free_bytes",
        "headers",
        "is_sealed",
        "keys",
        "millisecond_end",
        "millisecond_start",
        "opened_ms",
        "outcome",
        "ticket",
        "timestamp_changes",
        "tp",
        "values",
    )

    def __init__(self, tp: TopicPartition, capacity: int) -> None:
        self.tp = tp
        self.outcome = BatchOutcome(tp.topic, tp.partition)
        self.ticket = tickets().__next__
        self.values: dict[int, bytes | None] = {}
        self.keys: dict[int, bytes] = {}
        self.headers: dict[int, Headers] = {}
        self.explicit_timestamps: dict[int, int] = {}
        self.timestamp_changes: list[tuple[int, int]] = []
        self.millisecond_start = self.millisecond_end = 0.0
        self.free_bytes = self._capacity = capacity
        self.opened_ms: int | None = None
        self.is_sealed = False
        self._sealed_count = 0

    def note_millisecond(self, ticket: int, now: float) -> None:
        """Record that the record and those after it have another millisecond than those before."""
        ms = int(now * 1000)
        self.timestamp_changes.append((ticket, ms))
        self.millisecond_start, self.millisecond_end = ms / 1000, (ms + 1) / 1000

    def seal(self, now_ms: int) -> "SealedBatch | None":
        """Close the batch for senders and put its records in columns, by ticket. Under the lock.

        Returns: the sealed batch; None if no record was stored.
        """
        self.is_sealed = True  # before anything is copied [CLI-24]
        order = list(self.values)
        if not order:
            return None
        values = list(self.values.values())[: len(order)]
        self._sealed_count = len(order)
        if order != list(range(len(order))):
            value_by_ticket = dict(zip(order, values, strict=True))
            order.sort()
            values = [value_by_ticket[ticket] for ticket in order]
            self.outcome.place_by_ticket = {ticket: place for place, ticket in enumerate(order)}
        rows = ListRows(
            values=values,
            keys=[self.keys.get(ticket) for ticket in order] if self.keys else None,
            headers=[self.headers.get(ticket, ()) for ticket in order] if self.headers else None,
            timestamp_runs=self._build_timestamp_runs(order),
        )
        size = HEADER_SIZE + self._capacity - self.free_bytes
        # A record stored after the mark, and copied all the same, did not open the batch.
        opened_ms = now_ms if self.opened_ms is None else self.opened_ms
        return SealedBatch(self.tp, self.outcome, rows, size=size, opened_ms=opened_ms)

    def has_ticket(self, ticket: int) -> bool:
        """Return whether the record is among those that were sealed."""
        places = self.outcome.place_by_ticket
        return ticket < self._sealed_count if places is None else ticket in places

    def _build_timestamp_runs(self, order: list[int]) -> list[TimestampRun]:
        """Return the timestamps by place, as runs of equal ones."""
        stamps = sorted(self.timestamp_changes)
        starts = {bisect_left(order, ticket): ms for ticket, ms in stamps}
        # A record may be stored before another thread notes the millisecond that both are in.
        ms = stamps[0][1] if stamps else 0
        runs: list[TimestampRun] = []
        for place in range(len(order)) if self.explicit_timestamps else sorted({0, *starts}):
            ms = starts.get(place, ms)
            record_ms = self.explicit_timestamps.get(order[place], ms) if place < len(order) else ms
            if place < len(order) and (not runs or runs[-1][1] != record_ms):
                runs.append((place, record_ms))
        return runs


class SealedBatch:
    """Records for one partition that do not change any more.

    size        bytes of buffer.memory that the batch holds
    is_counted  whether the pool has counted them
    opened_ms   when its first record came
    """

    __slots__ = ("count", "is_counted", "opened_ms", "outcome", "rows", "size", "tp")

    def __init__(
        self, tp: TopicPartition, outcome: BatchOutcome, rows: Rows, *, size: int, opened_ms: int
    ) -> None:
        self.tp, self.outcome, self.rows, self.count = tp, outcome, rows, rows.count
        self.size, self.opened_ms, self.is_counted = size, opened_ms, False
        outcome.timestamp_runs = rows.timestamp_runs

    def split(self) -> "list[SealedBatch]":
        """Return two halves, each with its own outcome; together they settle that of the whole."""
        middle = self.count // 2
        bounds = ((0, middle), (middle, self.count))
        outcomes = self.outcome.split([begin for begin, _ in bounds])
        return [
            SealedBatch(
                self.tp,
                outcome,
                self.rows.slice_rows(begin, end),
                # Together the halves hold as much of buffer.memory as the whole.
                size=self.size * end // self.count - self.size * begin // self.count,
                opened_ms=self.opened_ms,
            )
            for (begin, end), outcome in zip(bounds, outcomes, strict=True)
        ]


class CompressedBatch(SealedBatch):
    """A sealed batch with its packed record section, `payload`."""

    __slots__ = ("payload",)

    def __init__(self, batch: SealedBatch, payload: bytes) -> None:
        super().__init__(batch.tp, batch.outcome, batch.rows, size=batch.size, opened_ms=batch.opened_ms)
        self.payload = payload


class InFlightBatch:
    """A batch that has its sequence numbers and no final answer.

    maybe_sent  an attempt to send it may have had an effect
    """

    __slots__ = ("attempts", "content", "count", "maybe_sent", "sequence")

    def __init__(
        self,
        content: CompressedBatch,
        sequence: BatchSequence,
        *,
        attempts: int = 0,
        maybe_sent: bool = False,
    ) -> None:
        self.content, self.sequence, self.count = content, sequence, content.count
        self.attempts, self.maybe_sent = attempts, maybe_sent

    def split_into(self, parts: list[CompressedBatch]) -> "list[InFlightBatch]":
        """Return the batches that go on in place of this one: its parts, with their share of its numbers."""
        pieces, before = [], 0
        for part in parts:
            pieces.append(
                InFlightBatch(
                    part, self.sequence.skip(before), attempts=self.attempts, maybe_sent=self.maybe_sent
                )
            )
            before += part.count
        return pieces
