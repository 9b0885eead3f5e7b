"""The sequence numbers of one partition, and what an answer says about them. Pure.

An idempotent producer numbers the records it writes to a partition, from 0 under each (producer id, epoch).
The broker takes a batch only if it continues the last one, and knows the last five again; after a restart
Apache Kafka knows the last one alone (its snapshot holds no more). So:

    - a batch keeps its numbers however often it is sent; it is sent again in the order of its numbers, and
      only after everything of that partition that was under way has been answered [CLI-21]
    - at most five batches are outstanding, that is, sent and without a final answer [CLI-22]
    - numbers begin at 0 again only under a new epoch, and only while nothing is outstanding, or while it is
      proved that nothing outstanding is written [CLI-23]

45 (out of order) for a batch alone proves nothing: what came before it is missing, or it is written and the
broker no longer remembers. What proves something:

    - a later batch of the same epoch is written: so is every earlier one, since a broker takes no gaps
    - no attempt to send a batch lacks its answer: it is not written, and nothing after it is
    - every outstanding batch was refused in one round: none is written, since the broker would have known the
      last one again. That fails where a batch that was given up may be written, or may yet be: its request
      can still lie in a lost connection's queue at the broker, with the later ones' behind it, and be worked
      off after a newer connection was answered. Without such a batch it cannot: what lies in the queue fits
      no better than its repetition did, and what is missing before it is never sent again

Where none of these holds, the batch ends as "it may have happened".

When a batch failed for good, its numbers may be missing at the broker. If later batches are outstanding they
are tried first. If there are none, a new epoch does it (KIP-360).

Sources: KIP-98, KIP-360; Kafka TransactionManager, ProducerAppendInfo, ProducerStateManager; docs/adr/0026.
"""

from bisect import insort
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT16_MAX, INT32_MAX, Identity, ProducerEpoch

OUTSTANDING_MAX: Final = 5


def after(sequence: int, count: int) -> int:
    """The number `count` records later: past INT32_MAX comes 0 [REC-3]."""
    return (sequence + count) & INT32_MAX


def bumped(identity: Identity) -> Identity | None:
    """The same producer at its next epoch; None when epochs are used up and a new id is needed.

    A producer without a transactional id bumps its epoch by itself: nobody else has its id.
    Source: KIP-360; TransactionManager.bumpIdempotentProducerEpoch.
    """
    if identity.epoch >= INT16_MAX:
        return None
    return Identity(identity.producer_id, ProducerEpoch(identity.epoch + 1))


class Numbered(Protocol):
    """A batch as this module sees it.

    serial      how many records were signed for its partition before
    doubtful    an attempt to send it has no answer, or one that leaves open whether it is written
    """

    doubtful: bool
    signature: Identity | None
    base_sequence: int
    serial: int

    @property
    def count(self) -> int: ...


B = TypeVar("B", bound=Numbered)


class Verdict(Enum):
    """What 45, 46 or 59 means for the batch that got it."""

    WRITTEN = auto()  # the broker has these very records
    AGAIN = auto()  # something before it is missing, and is on its way
    REFUSED = auto()  # it is the first: the answers to all outstanding ones will say, see `resolve`
    FAILED = auto()  # the same, in a transaction, which has to be aborted


class Resolution(Enum):
    """What becomes of the outstanding batches after the first of them was refused."""

    ASK_AGAIN = auto()  # not all of them have an answer of this round
    RENUMBER = auto()  # none of them is written: a new epoch, from 0
    UNKNOWN = auto()  # of the first nothing can be known: it may be written


class Lane(Generic[B]):
    """What is outstanding in one partition, and the numbers. Owned by the engine's loop.

    in_flight       sent and unanswered, by serial
    again           to be sent again, by serial; nothing new is sent before them
    gap             numbers are missing at the broker, or may be
    _refusals       the codes of those whose last answer was a sequence error, by serial
    _written_end    under this identity records up to here are written; a serial, exclusive
    _lost_end       up to here records were given up that may be written; a serial, exclusive
    """

    __slots__ = (
        "_lost_end",
        "_refusals",
        "_serial",
        "_written_end",
        "again",
        "gap",
        "identity",
        "in_flight",
        "next_sequence",
    )

    def __init__(self) -> None:
        self.in_flight: list[B] = []
        self.again: list[B] = []
        self._serial = 0
        self._begin(None)

    def _begin(self, identity: Identity | None) -> None:
        """From 0 under an identity, of which nothing is known yet."""
        self.identity, self.next_sequence, self.gap = identity, 0, False
        self._refusals: dict[int, int] = {}
        self._written_end = self._lost_end = -1

    @property
    def refusal(self) -> int | None:
        """The code, if the first batch that is to be sent again was refused as out of order."""
        return self._refusals.get(self.again[0].serial) if self.again else None

    @property
    def outstanding(self) -> int:
        return len(self.in_flight) + len(self.again)

    def may_sign(self, identity: Identity | None, outstanding_max: int) -> bool:
        """May a new batch be numbered and sent?

        Not before what is to be sent again, not beside five others, not under another identity than those.
        """
        if self.again or len(self.in_flight) >= outstanding_max:
            return False
        return not self.in_flight or (identity == self.identity and not self.gap)

    def may_repeat(self) -> bool:
        """May the first of `again` be sent? Not beside something that was sent after it [CLI-21]."""
        return not self.in_flight or self.in_flight[-1].serial < self.again[0].serial

    def sign(self, batch: B, identity: Identity | None) -> None:
        """Number a batch that was never sent. A new identity begins at 0 [CLI-23]."""
        if identity != self.identity:
            check(not self.outstanding, "numbers begin again only when nothing is outstanding [CLI-23]")
            self._begin(identity)
        check(identity is None or self.outstanding < OUTSTANDING_MAX, "five outstanding batches [CLI-22]")
        batch.signature, batch.serial = identity, self._serial
        self._serial += batch.count
        if identity is not None:
            batch.base_sequence = self.next_sequence
            self.next_sequence = after(self.next_sequence, batch.count)

    def sent(self, batch: B) -> None:
        """A batch goes out: the first of `again`, or one just signed."""
        if self.again:
            check(self.again[0] is batch, "sent again in the order of the first time [CLI-21]")
            del self.again[0]
        check(not self.in_flight or self.in_flight[-1].serial < batch.serial, "in order [CLI-21]")
        self.in_flight.append(batch)
        self._refusals.pop(batch.serial, None)

    def retry(self, batch: B) -> None:
        """Back in line, in its old place [CLI-21]."""
        self.in_flight.remove(batch)
        insort(self.again, batch, key=_serial_of)

    def done(self, batch: B, *, failed: bool) -> None:
        """A final answer, or none in time. A failure may leave a gap in the numbers."""
        (self.in_flight if batch in self.in_flight else self.again).remove(batch)
        self._refusals.pop(batch.serial, None)
        if not failed:
            self._written_end = max(self._written_end, batch.serial + batch.count)
        elif batch.signature is not None:
            self.gap = True
            self._give_up(batch)

    def _give_up(self, batch: B) -> None:
        if batch.doubtful:
            self._lost_end = max(self._lost_end, batch.serial + batch.count)

    def judge(self, batch: B, code: int, *, alone: bool) -> Verdict:
        """What a sequence error means for a batch still in flight.

        Args:
            code: 45, 46 or 59.
            alone: no transaction: a new epoch is this producer's own affair.
        """
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER or batch.serial < self._written_end:
            return Verdict.WRITTEN
        if alone:
            self._refusals[batch.serial] = code
        if any(other.serial < batch.serial for other in (*self.in_flight, *self.again)):
            return Verdict.AGAIN
        return Verdict.REFUSED if alone else Verdict.FAILED

    def proved_written(self) -> list[B]:
        """Those that were refused and are written, as a later one of their epoch is: brokers take no gaps."""
        return [b for b in self.again if b.serial in self._refusals and b.serial < self._written_end]

    def resolve(self) -> Resolution:
        """What the answers to all outstanding batches prove [CLI-23].

        Order: the first of them was refused, and nothing is in flight.
        Source: Kafka ProducerStateManager: a snapshot, and so a broker that was restarted, has a producer's
            last batch and none before it.
        """
        check(
            self.refusal is not None and not self.in_flight,
            "all answers are there before they are weighed [CLI-23]",
        )
        if any(batch.serial not in self._refusals for batch in self.again):
            return Resolution.ASK_AGAIN
        first = self.again[0]
        if not first.doubtful:
            return Resolution.RENUMBER
        # 59 says that the broker remembers nothing, and 47 that another epoch wrote: no word of these.
        remembers = all(code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER for code in self._refusals.values())
        none_open = self._lost_end <= self._written_end  # what was given up is written, if a later one is
        return Resolution.RENUMBER if remembers and none_open else Resolution.UNKNOWN

    def ask_again(self) -> None:
        """Send everything outstanding once more, the refused ones too: one round has to answer for all."""
        self._refusals.clear()

    def divided(self, batch: B, pieces: Sequence[B]) -> None:
        """A batch that was refused as too large is sent again in pieces, under its own numbers."""
        self.in_flight.remove(batch)
        self._give_up(batch)  # a broker that has the whole does not know its pieces again
        before = 0
        for piece in pieces:
            piece.signature, piece.serial = batch.signature, batch.serial + before
            if batch.signature is not None:
                piece.base_sequence = after(batch.base_sequence, before)
            before += piece.count
            insort(self.again, piece, key=_serial_of)

    def restart(self) -> None:
        """From 0 with the next batch, whoever signs it."""
        check(not self.outstanding, "numbers begin again only when nothing is outstanding [CLI-23]")
        self.identity, self.gap = None, False

    def renumber(self, identity: Identity) -> None:
        """Everything outstanding, from 0 under a new epoch [CLI-23]."""
        check(not self.in_flight, "what is in flight keeps its numbers [CLI-21]")
        proved = self.resolve() is Resolution.RENUMBER
        check(proved, "without proof that they are not written they keep them, too [CLI-23]")
        self._begin(identity)
        for batch in self.again:
            batch.signature, batch.base_sequence = identity, self.next_sequence
            self.next_sequence = after(self.next_sequence, batch.count)


def _serial_of(batch: Numbered) -> int:
    return batch.serial
