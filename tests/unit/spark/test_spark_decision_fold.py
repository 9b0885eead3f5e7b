"""The last decision of a prefix, out of a log that others write to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tallystick.spark.protocol.committable import (
    Decision,
    DecisionNote,
    encode_decision,
    encode_decision_note,
)
from tallystick.spark.protocol.decision_fold import (
    DecisionFold,
    DecisionLogFold,
    DecisionState,
    build_decision_key,
    build_done_key,
    note_key,
)
from tallystick.spark.protocol.errors import BadCommittable

OURS, OTHER = 7, 8


def decision(nonce: str) -> Decision:
    return Decision(nonce=nonce, participants=(), transaction_version=2, decided_ms=0)


class Log:
    """A partition's batches, in order."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def decide(self, producer: int, nonce: str | None, prefix: str = "p") -> None:
        value = None if nonce is None else encode_decision(decision(nonce))
        offset = len(self.batches)
        meta = BatchMeta(
            base_offset=offset, producer_id=producer, producer_epoch=3, base_sequence=0, is_transactional=True
        )
        record = Record(offset=offset, timestamp_ms=0, key=build_decision_key(prefix), value=value)
        self.batches.append(encode_batch([record], meta))

    def mark(self, producer: int, outcome: ControlType) -> None:
        """Signed one epoch above the record (KIP-890)."""
        marker = EndTransactionMarker(control_type=outcome, coordinator_epoch=0)
        pair = ProducerIdAndEpoch(ProducerId(producer), ProducerEpoch(4))
        self.batches.append(encode_marker(marker, pair, timestamp_ms=0, offset=len(self.batches)))

    def done(self, nonce: str, prefix: str = "p") -> None:
        offset = len(self.batches)
        record = Record(offset=offset, timestamp_ms=0, key=build_done_key(prefix), value=nonce.encode())
        self.batches.append(encode_batch([record], BatchMeta(base_offset=offset)))

    def note(self, number: int | None, prefix: str = "p") -> None:
        value = None if number is None else encode_decision_note(DecisionNote(number=number, description="x"))
        self.put(note_key(prefix), value)

    def put(self, key: bytes | None, value: bytes | None) -> None:
        offset = len(self.batches)
        record = Record(offset=offset, timestamp_ms=0, key=key, value=value)
        self.batches.append(encode_batch([record], BatchMeta(base_offset=offset)))

    def known(self) -> DecisionState:
        fold = DecisionFold("p")
        fold.feed(b"".join(self.batches))
        assert fold.next_offset == len(self.batches)
        return fold.state


def test_a_decision_counts_when_its_marker_says_so() -> None:
    """[SPK-24]"""
    log = Log()
    log.decide(OURS, "a")
    assert log.known() == DecisionState()
    log.mark(OURS, ControlType.COMMIT)
    assert log.known() == DecisionState(decision=decision("a"))
    log.decide(OURS, "b")
    log.mark(OURS, ControlType.ABORT)
    assert log.known() == DecisionState(decision=decision("a"))


def test_the_highest_note_counts_until_it_is_taken_back() -> None:
    """[SPK-44] A driver that was replaced may be late with its own."""
    log = Log()
    for number, highest in ((1, 1), (3, 3), (2, 3), (None, None), (1, 1)):
        log.note(number)
        noted = log.known().note
        assert (None if noted is None else noted.number) == highest


def test_an_open_transaction_of_another_prefix_hides_nothing() -> None:
    """[SPK-24] Below the last stable offset nothing could be read here."""
    log = Log()
    log.decide(OTHER, "x", prefix="other")
    log.decide(OURS, "a")
    log.mark(OURS, ControlType.COMMIT)
    assert log.known().decision == decision("a")


def test_the_note_of_completion_is_about_one_decision() -> None:
    log = Log()
    log.decide(OURS, "a")
    log.mark(OURS, ControlType.COMMIT)
    log.done("a")
    assert log.known() == DecisionState(decision=decision("a"), is_complete=True)
    log.decide(OURS, "b")
    log.mark(OURS, ControlType.COMMIT)
    assert log.known() == DecisionState(decision=decision("b"), is_complete=False)


def test_what_is_known_is_decoded_once() -> None:
    """A decision tells of a hundred batches; a driver asks for it several times a batch."""
    log, fold, mine = Log(), DecisionFold("p"), decision("a")
    log.decide(OURS, "a")
    log.mark(OURS, ControlType.COMMIT)
    fold.cache(encode_decision(mine), mine)
    fold.feed(b"".join(log.batches))
    assert fold.state.decision is mine
    log.decide(OURS, "b")
    log.mark(OURS, ControlType.COMMIT)
    fold.feed(b"".join(log.batches))
    newer = fold.state.decision
    assert newer == decision("b")
    assert fold.state.decision is newer


def test_a_prefix_that_was_given_up_has_no_decision() -> None:
    log = Log()
    log.decide(OURS, "a")
    log.mark(OURS, ControlType.COMMIT)
    log.decide(OURS, None)
    log.mark(OURS, ControlType.COMMIT)
    assert log.known() == DecisionState()


def test_it_goes_on_where_it_was_cut_off() -> None:
    """A broker cuts its answer anywhere, and begins it with the batch that has the offset asked for."""
    log = Log()
    log.decide(OURS, "a")
    log.mark(OURS, ControlType.COMMIT)
    data = b"".join(log.batches)
    for cut in range(len(data)):
        fold = DecisionFold("p")
        fold.feed(data[:cut])
        fold.feed(b"".join(log.batches[fold.next_offset :]))
        assert fold.state.decision == decision("a")
        fold.feed(data)
        assert fold.next_offset == 2


def test_only_the_decision_that_is_asked_for_is_recalled() -> None:
    """[SPK-24] By its nonce: another process may have decided since, or nothing may be known here."""
    fold = DecisionFold("p")
    assert fold.recall("") is None
    fold.cache(encode_decision(decision("own")), decision("own"))
    assert fold.recall("own") == decision("own")
    assert fold.recall("newer") is None
    assert fold.recall("") is None


PREFIXES = ("p", "other", "a/b")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.sampled_from(PREFIXES), st.sampled_from(["x", "y", None])),
        st.tuples(st.just("mark"), st.sampled_from(PREFIXES), st.sampled_from(ControlType)),
        st.tuples(st.just("done"), st.sampled_from(PREFIXES), st.sampled_from(["x", "y"])),
        st.tuples(st.just("note"), st.sampled_from(PREFIXES), st.sampled_from([1, 2, None])),
    ),
    max_size=20,
)


@given(steps=steps)
def test_the_fold_of_all_prefixes_knows_of_each_what_its_own_fold_knows(
    steps: list[tuple[str, str, Any]],
) -> None:
    """A console reads the partition once; the driver of each query reads it for itself."""
    log, every = Log(), DecisionLogFold()
    for what, prefix, value in steps:
        producer = PREFIXES.index(prefix) + 1
        match what:
            case "decide":
                log.decide(producer, value, prefix)
            case "mark" if value in (ControlType.ABORT, ControlType.COMMIT):
                log.mark(producer, value)
            case "done":
                log.done(value, prefix)
            case "note":
                log.note(value, prefix)
        every.feed(b"".join(log.batches))
    known = set()
    for prefix in PREFIXES:
        alone = DecisionFold(prefix)
        alone.feed(b"".join(log.batches))
        assert every.find_state(prefix) == alone.state
        if alone.state != DecisionState():
            known.add(prefix)
    assert set(every.prefixes) == known


def test_records_that_are_no_decisions_are_passed_over() -> None:
    log, fold = Log(), DecisionLogFold()
    log.put(None, b"no key")
    log.put(b"p#later", b"of a later version")
    log.put(b"\xff#done", b"x")
    log.note(1)
    fold.feed(b"".join(log.batches))
    assert list(fold.prefixes) == ["p"]


def test_what_cannot_be_read_is_the_trouble_of_its_prefix() -> None:
    """A later version may write a note that this one cannot read; other queries are shown none the less."""
    log, fold = Log(), DecisionLogFold()
    log.note(1, "other")
    log.put(note_key("p"), b"{}")
    log.put(note_key("p"), b"[]")
    fold.feed(b"".join(log.batches))
    assert fold.find_state("other").note is not None
    with pytest.raises(BadCommittable):
        fold.find_state("p")
    log.note(4)
    fold.feed(b"".join(log.batches))
    assert fold.find_state("p").note == DecisionNote(number=4, description="x")
