"""The numbers of a partition, against a broker that checks them as Kafka does."""

from dataclasses import dataclass, field

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.client.sequences import OUTSTANDING_MAX, Lane, Verdict, after, bumped
from tallystick.kernel.ids import INT16_MAX, INT32_MAX, Identity, ProducerEpoch, ProducerId


@dataclass(eq=False)
class Made:
    """A batch."""

    name: int
    count: int
    signature: Identity | None = None
    base_sequence: int = -1
    serial: int = -1


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


def test_out_of_order_is_waited_out_unless_it_is_the_first() -> None:
    """KIP-360: 45 for the first outstanding batch proves that it and all after it are not written."""
    lane: Lane[Made] = Lane()
    batches = [Made(i, 2) for i in range(3)]
    for batch in batches:
        lane.sign(batch, ident(0))
        lane.sent(batch)
    assert lane.judge(batches[1], 45, alone=True) is Verdict.AGAIN
    lane.retry(batches[1])
    lane.done(batches[0], failed=True)
    assert lane.judge(batches[2], 45, alone=True) is Verdict.AGAIN
    lane.retry(batches[2])
    lane.sent(batches[1])
    assert lane.judge(batches[1], 45, alone=False) is Verdict.FAILED
    assert lane.judge(batches[1], 45, alone=True) is Verdict.RENUMBER
    lane.retry(batches[1])
    lane.renumber(ident(1))
    assert [(b.signature, b.base_sequence) for b in lane.again] == [(ident(1), 0), (ident(1), 2)]
    assert lane.judge(batches[1], 46, alone=True) is Verdict.WRITTEN


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
    """One partition of a broker: takes what continues, knows the last five again."""

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


FATES = st.sampled_from(["ok", "lost request", "lost answer", "refused", "failed"])


@settings(max_examples=examples(quick=50, full=300))
@given(st.lists(FATES, max_size=60), st.integers(1, OUTSTANDING_MAX))
def test_every_acknowledged_batch_is_in_the_log_once_and_in_order(fates: list[str], window: int) -> None:
    """[CLI-21] [CLI-23] Whatever becomes of requests and answers, as long as a connection keeps its order."""
    lane: Lane[Made] = Lane()
    broker, identity = Broker(), ident(0)
    acknowledged: list[int] = []
    given_up: set[int] = set()
    fate = iter(fates)
    name = 0
    for _ in range(150):
        if lane.refused and not lane.in_flight:
            moved = bumped(identity)
            assert moved is not None
            identity = moved
            lane.renumber(identity)
        if lane.gap and not lane.outstanding and identity == lane.identity:
            moved = bumped(identity)
            assert moved is not None
            identity = moved
        while lane.again and lane.may_repeat() and not lane.refused:
            lane.sent(lane.again[0])
        while not lane.refused and lane.may_sign(identity, window) and len(lane.in_flight) < window:
            lane.sign(batch := Made(name, 1 + name % 3), identity)
            lane.sent(batch)
            name += 1
        # The broker reads the connection in order; once a request is lost with it, so is what follows.
        broken = False
        for batch in list(lane.in_flight):
            event = "lost request" if broken else next(fate, "ok")
            if event == "lost request":
                broken = True
                lane.retry(batch)
                continue
            if event == "refused":
                lane.retry(batch)
                continue
            code = broker.produce(batch)
            if event == "lost answer":
                lane.retry(batch)
            elif event == "failed":
                given_up.add(batch.name)
                lane.done(batch, failed=True)
            elif code in (0, 46):
                acknowledged.append(batch.name)
                lane.done(batch, failed=False)
            else:
                assert lane.judge(batch, code, alone=True) in (Verdict.AGAIN, Verdict.RENUMBER)
                lane.retry(batch)
    assert broker.log == sorted(set(broker.log))
    assert set(acknowledged) <= set(broker.log) <= {*acknowledged, *given_up, *range(name - window, name)}
    assert len(acknowledged) > 20


@pytest.mark.parametrize("code", [45, 59])
def test_alone_in_flight_is_first(code: int) -> None:
    lane: Lane[Made] = Lane()
    lane.sign(batch := Made(0, 1), ident(0))
    lane.sent(batch)
    assert lane.judge(batch, code, alone=True) is Verdict.RENUMBER
