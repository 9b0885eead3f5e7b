"""The numbers of a partition, against a broker that checks them as Kafka does."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples

from tallystick.client.producer.sequences.in_flight import (
    OUTSTANDING_MAX,
    BatchSequence,
    PartitionInFlight,
    Resolution,
    SequenceErrorMeaning,
    bump_epoch,
    increment_sequence,
)
from tallystick.kernel.ids import INT16_MAX, INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch


@dataclass(eq=False)
class Made:
    """A batch."""

    name: int
    count: int
    maybe_sent: bool = False
    sequence: BatchSequence = field(default_factory=lambda: BatchSequence(-1, None, -1))


def assign(in_flight: PartitionInFlight[Made], batch: Made, identity: ProducerIdAndEpoch) -> None:
    batch.sequence = in_flight.assign_sequence(batch.count, identity)


def cut(whole: Made, pieces: list[Made]) -> list[Made]:
    """The pieces, each with its share of the numbers of the whole."""
    before = 0
    for piece in pieces:
        piece.sequence = whole.sequence.skip(before)
        before += piece.count
    return pieces


def ident(epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(epoch))


def test_numbers_wrap_to_zero() -> None:
    """Kafka DefaultRecordBatch.incrementSequence: past INT32_MAX comes 0 [REC-3]."""
    assert increment_sequence(INT32_MAX, 1) == 0
    assert increment_sequence(INT32_MAX - 2, 5) == 2


def test_a_producer_out_of_epochs_needs_another_id() -> None:
    assert bump_epoch(ident(3)) == ident(4)
    assert bump_epoch(ident(INT16_MAX - 1)) == ident(INT16_MAX)
    assert bump_epoch(ident(INT16_MAX)) is None


def test_what_is_sent_again_keeps_its_numbers_and_its_place() -> None:
    """[CLI-21] Three in flight, answered with errors in any order: sent again as at first, nothing before."""
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    batches = [Made(i, 10) for i in range(3)]
    for batch in batches:
        assign(in_flight, batch, ident(0))
        in_flight.mark_sent(batch)
    for i in (2, 0):
        in_flight.retry(batches[i])
    assert not in_flight.may_retry()  # the second is still under way, and was sent after the first
    assert not in_flight.may_assign_sequence(ident(0), OUTSTANDING_MAX)
    in_flight.retry(batches[1])
    for _ in batches:
        assert in_flight.may_retry()
        in_flight.mark_sent(in_flight.retry_queue[0])
    assert [(b.name, b.sequence.base_sequence) for b in in_flight.unanswered] == [(0, 0), (1, 10), (2, 20)]


def test_five_outstanding_batches_are_the_most() -> None:
    """[CLI-22] A broker knows the last five again."""
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    for i in range(OUTSTANDING_MAX):
        assert in_flight.may_assign_sequence(ident(0), OUTSTANDING_MAX)
        assign(in_flight, batch := Made(i, 1), ident(0))
        in_flight.mark_sent(batch)
    assert not in_flight.may_assign_sequence(ident(0), OUTSTANDING_MAX)


def test_a_new_epoch_waits_for_what_is_outstanding_and_begins_at_zero() -> None:
    """[CLI-23]"""
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    assign(in_flight, first := Made(0, 4), ident(0))
    in_flight.mark_sent(first)
    assert not in_flight.may_assign_sequence(ident(1), OUTSTANDING_MAX)
    in_flight.remove(first, failed=False)
    assign(in_flight, second := Made(1, 4), ident(1))
    assert (second.sequence.identity, second.sequence.base_sequence) == (ident(1), 0)


def test_out_of_order_is_waited_out_until_all_have_an_answer() -> None:
    """KIP-360, [CLI-23]: 45 for every outstanding batch in one round proves that none of them is written."""
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    batches = [Made(i, 2) for i in range(3)]
    for batch in batches:
        assign(in_flight, batch, ident(0))
        in_flight.mark_sent(batch)
    assert in_flight.interpret_error(batches[1], 45, alone=True) is SequenceErrorMeaning.RETRY
    in_flight.retry(batches[1])
    in_flight.remove(batches[0], failed=True)
    assert in_flight.interpret_error(batches[2], 45, alone=False) is SequenceErrorMeaning.RETRY
    in_flight.retry(batches[2])
    assert in_flight.resolve() is Resolution.RESEND_ALL
    in_flight.restart_round()
    for batch in batches[1:]:
        in_flight.mark_sent(batch)
    assert in_flight.interpret_error(batches[1], 45, alone=False) is SequenceErrorMeaning.FAILED
    assert in_flight.interpret_error(batches[1], 45, alone=True) is SequenceErrorMeaning.AWAIT_RESOLUTION
    in_flight.retry(batches[1])
    assert in_flight.interpret_error(batches[2], 46, alone=True) is SequenceErrorMeaning.WRITTEN
    assert in_flight.interpret_error(batches[2], 45, alone=True) is SequenceErrorMeaning.RETRY
    in_flight.retry(batches[2])
    in_flight.renumber(ident(1))
    assert [(b.sequence.identity, b.sequence.base_sequence) for b in in_flight.retry_queue] == [
        (ident(1), 0),
        (ident(1), 2),
    ]


def test_a_later_batch_that_is_written_proves_the_earlier_ones() -> None:
    """[CLI-23] A broker takes no gaps: 45 for an earlier one, before or afterwards, is a loss of memory."""
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    batches = [Made(i, 1, maybe_sent=True) for i in range(3)]
    for batch in batches:
        assign(in_flight, batch, ident(0))
        in_flight.mark_sent(batch)
    assert in_flight.interpret_error(batches[0], 45, alone=True) is SequenceErrorMeaning.AWAIT_RESOLUTION
    in_flight.retry(batches[0])
    in_flight.remove(batches[2], failed=False)
    assert in_flight.find_proved_written() == [batches[0]]
    assert in_flight.interpret_error(batches[1], 45, alone=True) is SequenceErrorMeaning.WRITTEN


@pytest.mark.parametrize("later_written", [False, True])
def test_a_batch_behind_one_that_was_given_up_may_yet_be_written(later_written: bool) -> None:
    """[CLI-23] Both may lie in a lost connection's queue, in order, and be read after a newer one's 45."""
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    given_up, second, third, first_left = [Made(i, 1, maybe_sent=i != 2) for i in range(4)]
    for batch in (given_up, second, third, first_left):
        assign(in_flight, batch, ident(0))
        in_flight.mark_sent(batch)
    in_flight.remove(given_up, failed=True)
    in_flight.remove(third, failed=not later_written)
    if later_written:  # brokers take no gaps: so is what was given up
        in_flight.remove(second, failed=False)
        in_flight.interpret_error(first_left, 45, alone=True)
        in_flight.retry(first_left)
    else:
        for batch in (second, first_left):
            in_flight.interpret_error(batch, 45, alone=True)
            in_flight.retry(batch)
    assert in_flight.resolve() is (Resolution.RENUMBER if later_written else Resolution.UNKNOWN)


def test_pieces_of_a_batch_that_may_be_written_prove_nothing() -> None:
    """[CLI-23] A broker that has the whole knows none of its pieces again."""
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    assign(in_flight, whole := Made(0, 10, maybe_sent=True), ident(0))
    in_flight.mark_sent(whole)
    pieces = [Made(1, 6, maybe_sent=True), Made(2, 4, maybe_sent=True)]
    in_flight.replace_with_pieces(whole, cut(whole, pieces))
    for piece in pieces:
        in_flight.mark_sent(piece)
    for piece in pieces:
        in_flight.interpret_error(piece, 45, alone=True)
        in_flight.retry(piece)
    assert in_flight.resolve() is Resolution.UNKNOWN


def test_a_batch_in_pieces_keeps_its_numbers() -> None:
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    for batch in (whole := Made(0, 10), last := Made(1, 5)):
        assign(in_flight, batch, ident(0))
        in_flight.mark_sent(batch)
    in_flight.replace_with_pieces(whole, cut(whole, [Made(2, 6), Made(3, 4)]))
    in_flight.retry(last)
    assert [(b.name, b.sequence.base_sequence) for b in in_flight.retry_queue] == [(2, 0), (3, 6), (1, 10)]
    in_flight.mark_sent(half := in_flight.retry_queue[0])
    in_flight.replace_with_pieces(half, cut(half, [Made(4, 3), Made(5, 3)]))
    assert [(b.name, b.sequence.base_sequence) for b in in_flight.retry_queue] == [
        (4, 0),
        (5, 3),
        (3, 6),
        (1, 10),
    ]


@dataclass
class Broker:
    """One partition of a broker: takes what continues, knows the last five again, after a restart one."""

    log: list[int] = field(default_factory=list)
    epoch: int = -1
    next_sequence: int = 0
    recent: list[tuple[int, int]] = field(default_factory=list)

    def produce(self, batch: Made) -> int:
        assert batch.sequence.identity is not None
        if batch.sequence.identity.epoch > self.epoch:
            if batch.sequence.base_sequence:
                return 45
            self.epoch, self.next_sequence, self.recent = batch.sequence.identity.epoch, 0, []
        if batch.sequence.identity.epoch < self.epoch:
            return 47
        if (batch.sequence.base_sequence, batch.count) in self.recent:
            return 46
        if batch.sequence.base_sequence != self.next_sequence:
            return 45
        self.log.append(batch.name)
        self.recent = [*self.recent[-4:], (batch.sequence.base_sequence, batch.count)]
        self.next_sequence = increment_sequence(batch.sequence.base_sequence, batch.count)
        return 0

    def restart(self) -> None:
        """Source: Kafka ProducerStateManager, whose snapshot has the last batch of a producer."""
        self.recent = self.recent[-1:]


class Writer:
    """What a dispatcher does with a in_flight, one round of requests and answers at a time."""

    def __init__(self) -> None:
        self.in_flight: PartitionInFlight[Made] = PartitionInFlight()
        self.broker, self.identity = Broker(), ident(0)
        self.made = 0
        self.acknowledged: list[int] = []
        self.lost: set[int] = set()
        """Ended as "it may have happened"."""
        self.refused: set[int] = set()
        """Ended as "nothing happened"."""

    def bump(self) -> None:
        moved = bump_epoch(self.identity)
        assert moved is not None
        self.identity = moved

    def fail(self, batch: Made) -> None:
        (self.lost if batch.maybe_sent else self.refused).add(batch.name)
        self.in_flight.remove(batch, failed=True)

    def send(self, window: int, upto: int) -> None:
        """Everything that may go."""
        in_flight = self.in_flight
        while in_flight.first_sequence_error is not None and not in_flight.unanswered:
            match in_flight.resolve():
                case Resolution.RESEND_ALL:
                    in_flight.restart_round()
                case Resolution.UNKNOWN:
                    self.fail(in_flight.retry_queue[0])
                case Resolution.RENUMBER:
                    self.bump()
                    in_flight.renumber(self.identity)
        if (
            in_flight.has_sequence_gap
            and not in_flight.outstanding_count
            and self.identity == in_flight.identity
        ):
            self.bump()
        while in_flight.retry_queue and in_flight.may_retry() and in_flight.first_sequence_error is None:
            in_flight.mark_sent(in_flight.retry_queue[0])
        while in_flight.may_assign_sequence(self.identity, window) and self.made < upto:
            assign(in_flight, batch := Made(self.made, 1 + self.made % 3), self.identity)
            in_flight.mark_sent(batch)
            self.made += 1

    def answers(self, fate: Iterator[str]) -> None:
        """What becomes of all in flight; a connection is read in order, and lost with all behind it."""
        broken = False
        for batch in list(self.in_flight.unanswered):
            event = "lost request" if broken else next(fate, "ok")
            if event == "restart":
                self.broker.restart()
                event = "lost request"
            if event in ("lost request", "refused"):
                broken = event == "lost request"
                batch.maybe_sent = batch.maybe_sent or broken
                self.in_flight.retry(batch)
            elif event == "failed":
                self.fail(batch)
            else:
                self._answer(batch, self.broker.produce(batch), lost=event == "lost answer")

    def _answer(self, batch: Made, code: int, *, lost: bool) -> None:
        if lost:
            batch.maybe_sent = True
            self.in_flight.retry(batch)
        elif (
            code == 0
            or self.in_flight.interpret_error(batch, code, alone=True) is SequenceErrorMeaning.WRITTEN
        ):
            self.acknowledged.append(batch.name)
            self.in_flight.remove(batch, failed=False)
            for earlier in self.in_flight.find_proved_written():
                self.acknowledged.append(earlier.name)
                self.in_flight.remove(earlier, failed=False)
        else:
            self.in_flight.retry(batch)

    def check(self) -> None:
        log = self.broker.log
        assert log == sorted(set(log)), "twice, or out of order"
        assert set(self.acknowledged) <= set(log), "acknowledged and not written"
        assert not self.refused & set(log), "refused and written"
        assert len(self.acknowledged) == len(set(self.acknowledged))


EVENTS = ("ok", "lost answer", "lost request", "refused", "failed", "restart")


@pytest.mark.gate(2)
@pytest.mark.parametrize("first", EVENTS)
def test_what_small_numbers_of_batches_end_as_is_true(first: str) -> None:
    """[CLI-21] [CLI-23] Every fate of up to five attempts, of up to three batches outstanding together.

    Each batch ends once, as written, refused or unknown; what is written is in the log once and in order.
    """
    for window in (1, 2, 3):
        for rest in product(EVENTS, repeat=4):
            writer, fate = Writer(), iter((first, *rest))
            for _ in range(12):
                writer.send(window, upto=3)
                writer.answers(fate)
            writer.check()
            assert not writer.in_flight.outstanding_count, (window, first, rest)
            assert {*writer.acknowledged, *writer.lost, *writer.refused} == {0, 1, 2}
            # A loss of memory alone makes nothing unknown: the later answers say it all.
            assert not writer.lost or "failed" in (first, *rest)


@settings(max_examples=examples(quick=10, gate=60, full=300))
@given(st.lists(st.sampled_from(EVENTS), max_size=60), st.integers(1, OUTSTANDING_MAX))
def test_every_acknowledged_batch_is_in_the_log_once_and_in_order(fates: list[str], window: int) -> None:
    """[CLI-21] [CLI-23] Whatever becomes of requests and answers, as long as a connection keeps its order."""
    writer, fate = Writer(), iter(fates)
    for _ in range(150):
        writer.send(window, upto=1 << 30)
        writer.answers(fate)
    writer.check()
    assert len(writer.acknowledged) > 20


@pytest.mark.parametrize(("code", "doubtful"), list(product((45, 59, 47), (False, True))))
def test_alone_in_flight_is_first(code: int, doubtful: bool) -> None:
    in_flight: PartitionInFlight[Made] = PartitionInFlight()
    assign(in_flight, batch := Made(0, 1, maybe_sent=doubtful), ident(0))
    in_flight.mark_sent(batch)
    assert in_flight.interpret_error(batch, code, alone=True) is SequenceErrorMeaning.AWAIT_RESOLUTION
    in_flight.retry(batch)
    proved = code == 45 or not doubtful
    assert in_flight.resolve() is (Resolution.RENUMBER if proved else Resolution.UNKNOWN)
