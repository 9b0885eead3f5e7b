"""The numbers of a partition, against a broker that checks them as Kafka does."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.client.producer.in_flight import OUTSTANDING_MAX, Lane, Resolution, Verdict, after, bumped
from tallystick.kernel.ids import INT16_MAX, INT32_MAX, Identity, ProducerEpoch, ProducerId


@dataclass(eq=False)
class Made:
    """A batch."""

    name: int
    count: int
    signature: Identity | None = None
    base_sequence: int = -1
    serial: int = -1
    doubtful: bool = False


def ident(epoch: int) -> Identity:
    return Identity(ProducerId(9), ProducerEpoch(epoch))


def test_numbers_wrap_to_zero() -> None:
    """Kafka DefaultRecordBatch.incrementSequence: past INT32_MAX comes 0 [REC-3]."""
    assert after(INT32_MAX, 1) == 0
    assert after(INT32_MAX - 2, 5) == 2


def test_a_producer_out_of_epochs_needs_another_id() -> None:
    assert bumped(ident(3)) == ident(4)
    assert bumped(ident(INT16_MAX - 1)) == ident(INT16_MAX)
    assert bumped(ident(INT16_MAX)) is None


def test_what_is_sent_again_keeps_its_numbers_and_its_place() -> None:
    """[CLI-21] Three in flight, answered with errors in any order: sent again as at first, nothing before."""
    lane: Lane[Made] = Lane()
    batches = [Made(i, 10) for i in range(3)]
    for batch in batches:
        lane.sign(batch, ident(0))
        lane.sent(batch)
    for i in (2, 0):
        lane.retry(batches[i])
    assert not lane.may_repeat()  # the second is still under way, and was sent after the first
    assert not lane.may_sign(ident(0), OUTSTANDING_MAX)
    lane.retry(batches[1])
    for _ in batches:
        assert lane.may_repeat()
        lane.sent(lane.again[0])
    assert [(b.name, b.base_sequence) for b in lane.in_flight] == [(0, 0), (1, 10), (2, 20)]


def test_five_outstanding_batches_are_the_most() -> None:
    """[CLI-22] A broker knows the last five again."""
    lane: Lane[Made] = Lane()
    for i in range(OUTSTANDING_MAX):
        assert lane.may_sign(ident(0), OUTSTANDING_MAX)
        lane.sign(batch := Made(i, 1), ident(0))
        lane.sent(batch)
    assert not lane.may_sign(ident(0), OUTSTANDING_MAX)


def test_a_new_epoch_waits_for_what_is_outstanding_and_begins_at_zero() -> None:
    """[CLI-23]"""
    lane: Lane[Made] = Lane()
    lane.sign(first := Made(0, 4), ident(0))
    lane.sent(first)
    assert not lane.may_sign(ident(1), OUTSTANDING_MAX)
    lane.done(first, failed=False)
    lane.sign(second := Made(1, 4), ident(1))
    assert (second.signature, second.base_sequence) == (ident(1), 0)


def test_out_of_order_is_waited_out_until_all_have_an_answer() -> None:
    """KIP-360, [CLI-23]: 45 for every outstanding batch in one round proves that none of them is written."""
    lane: Lane[Made] = Lane()
    batches = [Made(i, 2) for i in range(3)]
    for batch in batches:
        lane.sign(batch, ident(0))
        lane.sent(batch)
    assert lane.judge(batches[1], 45, alone=True) is Verdict.AGAIN
    lane.retry(batches[1])
    lane.done(batches[0], failed=True)
    assert lane.judge(batches[2], 45, alone=False) is Verdict.AGAIN
    lane.retry(batches[2])
    assert lane.resolve() is Resolution.ASK_AGAIN
    lane.ask_again()
    for batch in batches[1:]:
        lane.sent(batch)
    assert lane.judge(batches[1], 45, alone=False) is Verdict.FAILED
    assert lane.judge(batches[1], 45, alone=True) is Verdict.REFUSED
    lane.retry(batches[1])
    assert lane.judge(batches[2], 46, alone=True) is Verdict.WRITTEN
    assert lane.judge(batches[2], 45, alone=True) is Verdict.AGAIN
    lane.retry(batches[2])
    lane.renumber(ident(1))
    assert [(b.signature, b.base_sequence) for b in lane.again] == [(ident(1), 0), (ident(1), 2)]


def test_a_later_batch_that_is_written_proves_the_earlier_ones() -> None:
    """[CLI-23] A broker takes no gaps: 45 for an earlier one, before or afterwards, is a loss of memory."""
    lane: Lane[Made] = Lane()
    batches = [Made(i, 1, doubtful=True) for i in range(3)]
    for batch in batches:
        lane.sign(batch, ident(0))
        lane.sent(batch)
    assert lane.judge(batches[0], 45, alone=True) is Verdict.REFUSED
    lane.retry(batches[0])
    lane.done(batches[2], failed=False)
    assert lane.proved_written() == [batches[0]]
    assert lane.judge(batches[1], 45, alone=True) is Verdict.WRITTEN


@pytest.mark.parametrize("later_written", [False, True])
def test_a_batch_behind_one_that_was_given_up_may_yet_be_written(later_written: bool) -> None:
    """[CLI-23] Both may lie in a lost connection's queue, in order, and be read after a newer one's 45."""
    lane: Lane[Made] = Lane()
    given_up, second, third, first_left = [Made(i, 1, doubtful=i != 2) for i in range(4)]
    for batch in (given_up, second, third, first_left):
        lane.sign(batch, ident(0))
        lane.sent(batch)
    lane.done(given_up, failed=True)
    lane.done(third, failed=not later_written)
    if later_written:  # brokers take no gaps: so is what was given up
        lane.done(second, failed=False)
        lane.judge(first_left, 45, alone=True)
        lane.retry(first_left)
    else:
        for batch in (second, first_left):
            lane.judge(batch, 45, alone=True)
            lane.retry(batch)
    assert lane.resolve() is (Resolution.RENUMBER if later_written else Resolution.UNKNOWN)


def test_pieces_of_a_batch_that_may_be_written_prove_nothing() -> None:
    """[CLI-23] A broker that has the whole knows none of its pieces again."""
    lane: Lane[Made] = Lane()
    lane.sign(whole := Made(0, 10, doubtful=True), ident(0))
    lane.sent(whole)
    pieces = [Made(1, 6, doubtful=True), Made(2, 4, doubtful=True)]
    lane.divided(whole, pieces)
    for piece in pieces:
        lane.sent(piece)
    for piece in pieces:
        lane.judge(piece, 45, alone=True)
        lane.retry(piece)
    assert lane.resolve() is Resolution.UNKNOWN


def test_a_batch_in_pieces_keeps_its_numbers() -> None:
    lane: Lane[Made] = Lane()
    for batch in (whole := Made(0, 10), last := Made(1, 5)):
        lane.sign(batch, ident(0))
        lane.sent(batch)
    lane.divided(whole, [Made(2, 6), Made(3, 4)])
    lane.retry(last)
    assert [(b.name, b.base_sequence) for b in lane.again] == [(2, 0), (3, 6), (1, 10)]
    lane.sent(half := lane.again[0])
    lane.divided(half, [Made(4, 3), Made(5, 3)])
    assert [(b.name, b.base_sequence) for b in lane.again] == [(4, 0), (5, 3), (3, 6), (1, 10)]


@dataclass
class Broker:
    """One partition of a broker: takes what continues, knows the last five again, after a restart one."""

    log: list[int] = field(default_factory=list)
    epoch: int = -1
    next_sequence: int = 0
    recent: list[tuple[int, int]] = field(default_factory=list)

    def produce(self, batch: Made) -> int:
        assert batch.signature is not None
        if batch.signature.epoch > self.epoch:
            if batch.base_sequence:
                return 45
            self.epoch, self.next_sequence, self.recent = batch.signature.epoch, 0, []
        if batch.signature.epoch < self.epoch:
            return 47
        if (batch.base_sequence, batch.count) in self.recent:
            return 46
        if batch.base_sequence != self.next_sequence:
            return 45
        self.log.append(batch.name)
        self.recent = [*self.recent[-4:], (batch.base_sequence, batch.count)]
        self.next_sequence = after(batch.base_sequence, batch.count)
        return 0

    def restart(self) -> None:
        """Source: Kafka ProducerStateManager, whose snapshot has the last batch of a producer."""
        self.recent = self.recent[-1:]


class Writer:
    """What a dispatcher does with a lane, one round of requests and answers at a time."""

    def __init__(self) -> None:
        self.lane: Lane[Made] = Lane()
        self.broker, self.identity = Broker(), ident(0)
        self.made = 0
        self.acknowledged: list[int] = []
        self.lost: set[int] = set()
        """Ended as "it may have happened"."""
        self.refused: set[int] = set()
        """Ended as "nothing happened"."""

    def bump(self) -> None:
        moved = bumped(self.identity)
        assert moved is not None
        self.identity = moved

    def fail(self, batch: Made) -> None:
        (self.lost if batch.doubtful else self.refused).add(batch.name)
        self.lane.done(batch, failed=True)

    def send(self, window: int, upto: int) -> None:
        """Everything that may go."""
        lane = self.lane
        while lane.refusal is not None and not lane.in_flight:
            match lane.resolve():
                case Resolution.ASK_AGAIN:
                    lane.ask_again()
                case Resolution.UNKNOWN:
                    self.fail(lane.again[0])
                case Resolution.RENUMBER:
                    self.bump()
                    lane.renumber(self.identity)
        if lane.gap and not lane.outstanding and self.identity == lane.identity:
            self.bump()
        while lane.again and lane.may_repeat() and lane.refusal is None:
            lane.sent(lane.again[0])
        while lane.may_sign(self.identity, window) and self.made < upto:
            lane.sign(batch := Made(self.made, 1 + self.made % 3), self.identity)
            lane.sent(batch)
            self.made += 1

    def answers(self, fate: Iterator[str]) -> None:
        """What becomes of all in flight; a connection is read in order, and lost with all behind it."""
        broken = False
        for batch in list(self.lane.in_flight):
            event = "lost request" if broken else next(fate, "ok")
            if event == "restart":
                self.broker.restart()
                event = "lost request"
            if event in ("lost request", "refused"):
                broken = event == "lost request"
                batch.doubtful = batch.doubtful or broken
                self.lane.retry(batch)
            elif event == "failed":
                self.fail(batch)
            else:
                self._answer(batch, self.broker.produce(batch), lost=event == "lost answer")

    def _answer(self, batch: Made, code: int, *, lost: bool) -> None:
        if lost:
            batch.doubtful = True
            self.lane.retry(batch)
        elif code == 0 or self.lane.judge(batch, code, alone=True) is Verdict.WRITTEN:
            self.acknowledged.append(batch.name)
            self.lane.done(batch, failed=False)
            for earlier in self.lane.proved_written():
                self.acknowledged.append(earlier.name)
                self.lane.done(earlier, failed=False)
        else:
            self.lane.retry(batch)

    def check(self) -> None:
        log = self.broker.log
        assert log == sorted(set(log)), "twice, or out of order"
        assert set(self.acknowledged) <= set(log), "acknowledged and not written"
        assert not self.refused & set(log), "refused and written"
        assert len(self.acknowledged) == len(set(self.acknowledged))


EVENTS = ("ok", "lost answer", "lost request", "refused", "failed", "restart")


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
            assert not writer.lane.outstanding, (window, first, rest)
            assert {*writer.acknowledged, *writer.lost, *writer.refused} == {0, 1, 2}
            # A loss of memory alone makes nothing unknown: the later answers say it all.
            assert not writer.lost or "failed" in (first, *rest)


@settings(max_examples=examples(quick=50, full=300))
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
    lane: Lane[Made] = Lane()
    lane.sign(batch := Made(0, 1, doubtful=doubtful), ident(0))
    lane.sent(batch)
    assert lane.judge(batch, code, alone=True) is Verdict.REFUSED
    lane.retry(batch)
    proved = code == 45 or not doubtful
    assert lane.resolve() is (Resolution.RENUMBER if proved else Resolution.UNKNOWN)
