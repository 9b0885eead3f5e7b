"""Sequence numbers of one partition, and what the broker's answers prove about them. Pure.

An idempotent producer numbers the records it writes to a partition, from 0 under each producer id and epoch.
The broker accepts a batch only if it continues the last one, and recognises the last five as duplicates;
after a restart Apache Kafka recognises only the last one (its snapshot holds no more). So:

    - a batch keeps its sequence numbers however often it is sent; batches are sent again in the order of
      their numbers, and only after everything in flight for that partition is answered [CLI-21]
    - at most five batches are outstanding, that is, sent and without a final answer [CLI-22]
    - numbers restart at 0 only under a new epoch, and only while nothing is outstanding, or while it is
      proved that nothing outstanding is written [CLI-23]

OUT_OF_ORDER_SEQUENCE_NUMBER (45) for one batch proves nothing by itself: either an earlier batch is missing,
or this batch is written and the broker no longer remembers it. These do prove something:

    - a later batch of the same epoch is written: then so is every earlier one, since a broker takes no gaps
    - every attempt to send a batch was answered: it is not written, and nothing after it is
    - every outstanding batch was refused in one round: none is written, since the broker would have
      recognised the last one. This fails if a batch that was given up may be written, now or later: its
      request, and those of later batches behind it, can still be queued at the broker on a lost connection
      and be processed after a newer connection was answered. Without such a batch this cannot happen: a
      queued request fits no better than its retry did, and what is missing before it is never sent again

Where none of these holds, the batch fails with an unknown effect.

After a batch failed for good, its numbers may be missing at the broker. Later outstanding batches are tried
first. If there are none, the producer moves to a new epoch (KIP-360).

Sources: KIP-98, KIP-360; Kafka TransactionManager, ProducerAppendInfo, ProducerStateManager; docs/adr/0026.
"""

from bisect import insort
from collections.abc import Sequence
from enum import Enum, auto
from itertools import accumulate
from typing import Final, Generic, Protocol, TypeVar

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT16_MAX, INT32_MAX, ProducerEpoch, ProducerIdAndEpoch
from tallystick.kernel.value import Value, replace

OUTSTANDING_MAX: Final = 5
_NO_SEQUENCE: Final = -1


def increment_sequence(sequence: int, count: int) -> int:
    """Return the sequence number `count` records later; INT32_MAX is followed by 0 [REC-3]."""
    return (sequence + count) & INT32_MAX


def bump_epoch(identity: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
    """Return the producer id at its next epoch; None if epochs are used up and a new id is needed.

    A producer without a transactional id may bump its epoch by itself: no other producer has its id.
    Source: KIP-360; TransactionManager.bumpIdempotentProducerEpoch.
    """
    if identity.epoch >= INT16_MAX:
        return None
    return ProducerIdAndEpoch(identity.producer_id, ProducerEpoch(identity.epoch + 1))


class BatchSequence(Value):
    """Numbers of a batch in its partition.

    serial         the number of records sent to the partition before it, under any producer id and epoch
    base_sequence  sequence number of its first record; as on the wire, -1 without a producer id
    """

    serial: int
    identity: ProducerIdAndEpoch | None
    base_sequence: int

    def skip(self, count: int) -> "BatchSequence":
        """Return the numbers of the records that follow the first `count`."""
        base = self.base_sequence if self.identity is None else increment_sequence(self.base_sequence, count)
        return BatchSequence(self.serial + count, self.identity, base)


class SequencedBatch(Protocol):
    """A batch as this module sees it.

    maybe_sent  an attempt to send it has no answer, or an answer that leaves open whether it is written
    """

    maybe_sent: bool
    sequence: BatchSequence

    @property
    def count(self) -> int: ...


B = TypeVar("B", bound=SequencedBatch)


class SequenceErrorMeaning(Enum):
    """Meaning of a sequence error (45, 46 or 59) for the batch that got it."""

    WRITTEN = auto()  # the broker has exactly these records
    RETRY = auto()  # an earlier batch is missing, and still outstanding
    AWAIT_RESOLUTION = auto()  # it is the first: the answers to all outstanding batches decide, see `resolve`
    FAILED = auto()  # the same, in a transaction, which has to be aborted


class Resolution(Enum):
    """Fate of the outstanding batches after the first of them was refused."""

    RESEND_ALL = auto()  # some have no answer in this round
    RENUMBER = auto()  # none is written: restart at 0 under a new epoch
    UNKNOWN = auto()  # the first may or may not be written


class PartitionInFlight(Generic[B]):
    """One partition's outstanding batches and sequence numbers. Owned by the engine's loop.

    unanswered          sent and unanswered, by serial
    retry_queue         to be sent again, by serial; nothing new is sent before them
    has_sequence_gap    numbers are missing at the broker, or may be
    _sequence_errors    error codes of the batches whose last answer was a sequence error, by serial
    _written_end        records below this serial are written under this producer id and epoch
    _maybe_written_end  records below this serial were given up and may be written
    """

    __slots__ = (
        "_maybe_written_end",
        "_next_serial",
        "_sequence_errors",
        "_written_end",
        "has_sequence_gap",
        "identity",
        "next_sequence",
        "retry_queue",
        "unanswered",
    )

    def __init__(self) -> None:
        self.unanswered: list[B] = []
        self.retry_queue: list[B] = []
        self._next_serial = 0
        self._reset(None)

    def _reset(self, identity: ProducerIdAndEpoch | None) -> None:
        """Restart at sequence 0 under another producer id and epoch, of which nothing is known yet."""
        self.identity, self.next_sequence, self.has_sequence_gap = identity, 0, False
        self._sequence_errors: dict[int, int] = {}
        self._written_end = self._maybe_written_end = -1

    @property
    def first_sequence_error(self) -> int | None:
        """Error code of the first batch in `retry_queue` if it was refused as out of order."""
        return self._sequence_errors.get(self.retry_queue[0].sequence.serial) if self.retry_queue else None

    @property
    def outstanding_count(self) -> int:
        return len(self.unanswered) + len(self.retry_queue)

    def may_assign_sequence(self, identity: ProducerIdAndEpoch | None, outstanding_max: int) -> bool:
        """Return whether a new batch may be numbered and sent.

        It waits for batches to be sent again, for room among those in flight, and until none in flight has
        another producer id or epoch.
        """
        if self.retry_queue or len(self.unanswered) >= outstanding_max:
            return False
        return not self.unanswered or (identity == self.identity and not self.has_sequence_gap)

    def may_retry(self) -> bool:
        """Return whether the first of `retry_queue` may be sent.

        Not while a later batch is in flight [CLI-21].
        """
        return (
            not self.unanswered or self.unanswered[-1].sequence.serial < self.retry_queue[0].sequence.serial
        )

    def assign_sequence(self, count: int, identity: ProducerIdAndEpoch | None) -> BatchSequence:
        """Return the sequence numbers of a batch of `count` records that was never sent.

        A new producer id or epoch begins at 0 [CLI-23].
        """
        if identity != self.identity:
            check(not self.outstanding_count, "numbers begin again only when nothing is outstanding [CLI-23]")
            self._reset(identity)
        check(
            identity is None or self.outstanding_count < OUTSTANDING_MAX, "five outstanding batches [CLI-22]"
        )
        sequence = BatchSequence(
            self._next_serial, identity, _NO_SEQUENCE if identity is None else self.next_sequence
        )
        self._next_serial += count
        if identity is not None:
            self.next_sequence = increment_sequence(self.next_sequence, count)
        return sequence

    def mark_sent(self, batch: B) -> None:
        """Mark a batch as in flight: the first of `retry_queue`, or one just signed."""
        if self.retry_queue:
            check(self.retry_queue[0] is batch, "sent again in the order of the first time [CLI-21]")
            del self.retry_queue[0]
        check(
            not self.unanswered or self.unanswered[-1].sequence.serial < batch.sequence.serial,
            "in order [CLI-21]",
        )
        self.unanswered.append(batch)
        self._sequence_errors.pop(batch.sequence.serial, None)

    def retry(self, batch: B) -> None:
        """Put a batch in flight back into `retry_queue`, by its serial [CLI-21]."""
        self.unanswered.remove(batch)
        insort(self.retry_queue, batch, key=_get_serial)

    def remove(self, batch: B, *, failed: bool) -> None:
        """Remove a batch that has its final answer or timed out. A failure may leave a gap in the numbers."""
        (self.unanswered if batch in self.unanswered else self.retry_queue).remove(batch)
        self._sequence_errors.pop(batch.sequence.serial, None)
        if not failed:
            self._written_end = max(self._written_end, batch.sequence.serial + batch.count)
        elif batch.sequence.identity is not None:
            self.has_sequence_gap = True
            self._note_abandoned(batch)

    def _note_abandoned(self, batch: B) -> None:
        if batch.maybe_sent:
            self._maybe_written_end = max(self._maybe_written_end, batch.sequence.serial + batch.count)

    def interpret_error(self, batch: B, code: int, *, alone: bool) -> SequenceErrorMeaning:
        """Return what a sequence error means for a batch in flight.

        Args:
            code: 45, 46 or 59.
            alone: no transaction: the producer may bump its epoch by itself.
        """
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER or batch.sequence.serial < self._written_end:
            return SequenceErrorMeaning.WRITTEN
        if alone:
            self._sequence_errors[batch.sequence.serial] = code
        if any(
            other.sequence.serial < batch.sequence.serial for other in (*self.unanswered, *self.retry_queue)
        ):
            return SequenceErrorMeaning.RETRY
        return SequenceErrorMeaning.AWAIT_RESOLUTION if alone else SequenceErrorMeaning.FAILED

    def find_proved_written(self) -> list[B]:
        """Return refused batches that a later written batch proves written: brokers take no gaps."""
        return [
            b
            for b in self.retry_queue
            if b.sequence.serial in self._sequence_errors and b.sequence.serial < self._written_end
        ]

    def resolve(self) -> Resolution:
        """Return what the answers to all outstanding batches prove [CLI-23].

        Order: the first of them was refused, and nothing is in flight.
        Source: Kafka ProducerStateManager: a snapshot, and so a restarted broker, has a producer's last batch
            and none before it.
        """
        check(
            self.first_sequence_error is not None and not self.unanswered,
            "all answers are there before they are weighed [CLI-23]",
        )
        if any(batch.sequence.serial not in self._sequence_errors for batch in self.retry_queue):
            return Resolution.RESEND_ALL
        first_batch = self.retry_queue[0]
        if not first_batch.maybe_sent:
            return Resolution.RENUMBER
        # 59: the broker has no state of this producer; 47: another epoch wrote. Neither proves anything here.
        remembers = all(
            code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER for code in self._sequence_errors.values()
        )
        none_open = (
            self._maybe_written_end <= self._written_end
        )  # a given-up batch is written if a later one is
        return Resolution.RENUMBER if remembers and none_open else Resolution.UNKNOWN

    def restart_round(self) -> None:
        """Send all outstanding batches once more, the refused ones too: one round has to answer for all."""
        self._sequence_errors.clear()

    def replace_with_pieces(self, batch: B, pieces: Sequence[B]) -> None:
        """Replace a batch that was refused as too large by its pieces, which have its sequence numbers."""
        check(
            [piece.sequence for piece in pieces] == _share_sequence(batch.sequence, pieces),
            "the pieces of a batch keep its numbers [CLI-21]",
        )
        self.unanswered.remove(batch)
        self._note_abandoned(batch)  # a broker that has the whole batch does not recognise its pieces
        for piece in pieces:
            insort(self.retry_queue, piece, key=_get_serial)

    def restart_sequences(self) -> None:
        """Begin at 0 with the next batch, under any producer id and epoch."""
        check(not self.outstanding_count, "numbers begin again only when nothing is outstanding [CLI-23]")
        self.identity, self.has_sequence_gap = None, False

    def renumber(self, identity: ProducerIdAndEpoch) -> None:
        """Assign all outstanding batches new sequence numbers, from 0 under a new epoch [CLI-23]."""
        check(not self.unanswered, "what is in flight keeps its numbers [CLI-21]")
        is_proved = self.resolve() is Resolution.RENUMBER
        check(is_proved, "without proof that they are not written they keep them, too [CLI-23]")
        self._reset(identity)
        for batch in self.retry_queue:
            batch.sequence = replace(batch.sequence, identity=identity, base_sequence=self.next_sequence)
            self.next_sequence = increment_sequence(self.next_sequence, batch.count)


def _get_serial(batch: SequencedBatch) -> int:
    return batch.sequence.serial


def _share_sequence(sequence: BatchSequence, pieces: Sequence[SequencedBatch]) -> list[BatchSequence]:
    """Return the numbers that each piece takes of those of the whole."""
    offsets = accumulate((piece.count for piece in pieces[:-1]), initial=0)
    return [sequence.skip(count) for count in offsets]
