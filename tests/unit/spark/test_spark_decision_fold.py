"""The last decision of a prefix, out of a log that others write to."""

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
    DecisionState,
    build_decision_key,
    build_done_key,
    note_key,
)

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

    def done(self, nonce: str) -> None:
        offset = len(self.batches)
        record = Record(offset=offset, timestamp_ms=0, key=build_done_key("p"), value=nonce.encode())
        self.batches.append(encode_batch([record], BatchMeta(base_offset=offset)))

    def note(self, number: int | None) -> None:
        offset = len(self.batches)
        value = None if number is None else encode_decision_note(DecisionNote(number=number, description="x"))
        record = Record(offset=offset, timestamp_ms=0, key=note_key("p"), value=value)
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
    fold.cache_decision(encode_decision(mine), mine)
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
