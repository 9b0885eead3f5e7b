"""Transactions as a partition sees them: markers, stability, verification, lateness."""

import pytest

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.protocol.records.batch import BatchHeader
from tallystick.protocol.records.control import ControlType, EndTransactionMarker
from tallystick.storage.state.producer_state import (
    ACCEPTED,
    AppendOrigin,
    CompletedTxn,
    ProducerStateManager,
    VerificationStateEntry,
)
from tallystick.storage.state.transaction_index import AbortedTxn

TRANSACTIONAL = 0x10


def header(
    pid: int, epoch: int = 0, sequence: int = 0, *, count: int = 1, attributes: int = TRANSACTIONAL
) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, attributes, count - 1, 0, 0, pid, epoch, sequence, count)


def write(
    states: ProducerStateManager, pid: int, offset: int, *, epoch: int = 0, sequence: int = 0, at_ms: int = 1
) -> None:
    batch = header(pid, epoch, sequence)
    assert states.check_batch(batch) is ACCEPTED
    states.apply_batch(batch, offset, at_ms)


def end(
    states: ProducerStateManager,
    pid: int,
    offset: int,
    *,
    epoch: int = 0,
    commit: bool = True,
    coordinator: int = 0,
) -> CompletedTxn | None:
    marker = EndTransactionMarker(
        control_type=ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch=coordinator
    )
    return states.apply_marker(header(pid, epoch), marker, offset, 2)


def asked(
    states: ProducerStateManager, pid: int, epoch: int, *, version: int, coordinator: int = 0
) -> ErrorCode:
    answer = states.check_marker(
        header(pid, epoch),
        EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=coordinator),
        version,
    )
    return answer.code if isinstance(answer, Reject) else ErrorCode.NONE


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    """[PRD-4]"""
    states = ProducerStateManager()
    write(states, 1, 10)
    write(states, 2, 11)
    write(states, 1, 12, sequence=1)
    assert states.first_unstable_offset == states.first_undecided_offset == 10
    assert list(states.iter_open_transactions()) == [(10, 1), (11, 2)]


def test_a_decision_counts_when_its_marker_has_passed_the_high_watermark() -> None:
    """[PRD-4] The decision itself could still be lost."""
    states = ProducerStateManager()
    write(states, 1, 10)
    end(states, 1, 11)
    assert states.first_undecided_offset is None
    states.on_high_watermark_updated(11)  # exclusive: the marker is not below it
    assert states.first_unstable_offset == 10
    states.on_high_watermark_updated(12)
    assert states.first_unstable_offset is None


def test_an_older_transaction_decided_later_holds_the_longest() -> None:
    states = ProducerStateManager()
    write(states, 1, 10)
    write(states, 2, 11)
    write(states, 3, 12)
    end(states, 2, 13)
    end(states, 1, 14)
    end(states, 3, 15)
    states.on_high_watermark_updated(14)
    assert states.first_unstable_offset == 10
    states.on_high_watermark_updated(15)
    assert states.first_unstable_offset == 12
    states.on_high_watermark_updated(16)
    assert states.first_unstable_offset is None


def test_a_marker_reports_the_transaction_it_ended() -> None:
    states = ProducerStateManager()
    write(states, 1, 10)
    write(states, 2, 11)
    assert end(states, 2, 12, commit=False) == CompletedTxn(
        producer_id=2, first_offset=11, last_offset=12, last_stable_offset=10, is_aborted=True
    )
    ended = end(states, 1, 13, commit=False)
    assert ended is not None
    assert ended.to_aborted_txn() == AbortedTxn(1, 10, 13, 14)


def test_a_marker_without_a_transaction_ends_nothing_but_is_remembered() -> None:
    states = ProducerStateManager()
    assert end(states, 5, 0, epoch=3, coordinator=9) is None
    state = states.active_producers[5]
    assert (state.epoch, state.coordinator_epoch, state.last_timestamp_ms) == (3, 9, 2)
    assert state.batches == []
    assert states.first_unstable_offset is None


def test_a_marker_of_a_newer_epoch_resets_the_sequence() -> None:
    states = ProducerStateManager()
    write(states, 1, 10)
    end(states, 1, 11, epoch=1)
    assert states.active_producers[1].batches == []
    answer = states.check_batch(header(1, 1, 1))
    assert isinstance(answer, Reject)
    assert answer.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(states, 1, 12, epoch=1)


def test_a_marker_of_the_same_epoch_keeps_the_sequence() -> None:
    """Transaction versions 0 and 1 go on counting in the next transaction."""
    states = ProducerStateManager()
    write(states, 1, 10)
    end(states, 1, 11)
    write(states, 1, 12, sequence=1)


@pytest.mark.parametrize(
    ("version", "open_", "epoch", "expected"),
    [
        # Versions 0 and 1: the producer's own epoch, or a fenced one's successor.
        (0, True, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, True, 5, ErrorCode.NONE),
        (1, False, 5, ErrorCode.NONE),
        (1, True, 6, ErrorCode.NONE),
        # Version 2: newer than the data; the same epoch only where nothing is open any more.
        (2, True, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, True, 6, ErrorCode.NONE),
        (2, False, 5, ErrorCode.NONE),
        (2, False, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_which_epoch_a_marker_must_have(version: int, open_: bool, epoch: int, expected: ErrorCode) -> None:
    states = ProducerStateManager()
    write(states, 1, 10, epoch=5)
    if not open_:
        end(states, 1, 11, epoch=5)
    assert asked(states, 1, epoch, version=version) is expected


def test_with_the_epochs_used_up_a_marker_has_the_data_s() -> None:
    states = ProducerStateManager()
    write(states, 1, 10, epoch=EPOCH_MAX)
    assert asked(states, 1, EPOCH_MAX, version=2) is ErrorCode.NONE


def test_a_replaced_coordinator_ends_nothing() -> None:
    states = ProducerStateManager()
    write(states, 1, 10)
    end(states, 1, 11, coordinator=7)
    assert asked(states, 1, 0, version=1, coordinator=6) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert asked(states, 1, 0, version=1, coordinator=7) is ErrorCode.NONE


def test_data_outside_of_the_open_transaction_is_refused_with_48() -> None:
    states = ProducerStateManager()
    write(states, 1, 10)
    answer = states.check_batch(header(1, 0, 1, attributes=0))
    assert isinstance(answer, Reject)
    assert answer.code is ErrorCode.INVALID_TXN_STATE


def test_open_transactions_survive_a_snapshot_in_offset_order() -> None:
    states = ProducerStateManager()
    write(states, 2, 10)
    write(states, 1, 11)
    restored = ProducerStateManager.from_snapshot(
        sorted(states.take_snapshot(), key=lambda entry: entry.producer_id)
    )
    assert list(restored.iter_open_transactions()) == [(10, 2), (11, 1)]
    assert restored.take_snapshot() != ()
    end(restored, 2, 12)
    assert restored.first_undecided_offset == 11


# -- verification (KIP-890) ----------------------------------------------------------------------------


def begin(states: ProducerStateManager, batch: BatchHeader, *, bump: bool = True) -> VerificationStateEntry:
    guard = states.begin_verification(batch, supports_epoch_bump=bump, now_ms=0)
    assert isinstance(guard, VerificationStateEntry)
    return guard


def refusal(
    states: ProducerStateManager, batch: BatchHeader, guard: VerificationStateEntry | None = None
) -> ErrorCode:
    answer = states.check_batch(batch, AppendOrigin.CLIENT, guard)
    return answer.code if isinstance(answer, Reject) else ErrorCode.NONE


def test_an_unverified_transaction_starts_nothing() -> None:
    """KAFKA-14402: a late append must not hang a partition."""
    states = ProducerStateManager(verification_required=True)
    batch = header(1)
    assert refusal(states, batch) is ErrorCode.INVALID_TXN_STATE
    guard = begin(states, batch)
    assert refusal(states, batch) is ErrorCode.INVALID_TXN_STATE
    assert refusal(states, batch, guard) is ErrorCode.NONE
    states.apply_batch(batch, 10, 1)
    assert states.begin_verification(header(1, 0, 1), supports_epoch_bump=True, now_ms=0) is None
    assert refusal(states, header(1, 0, 1)) is ErrorCode.NONE


def test_an_answer_to_an_earlier_question_opens_nothing() -> None:
    """ABA: verified, ended by a marker, asked again; the first answer arrives late."""
    states = ProducerStateManager(verification_required=True)
    batch = header(1)
    late = begin(states, batch)
    end(states, 1, 10)
    assert refusal(states, batch, late) is ErrorCode.INVALID_TXN_STATE
    again = begin(states, batch)
    assert refusal(states, batch, late) is ErrorCode.INVALID_TXN_STATE
    assert refusal(states, batch, again) is ErrorCode.NONE


@pytest.mark.parametrize("known", [True, False])
def test_a_question_about_the_next_transaction_outlives_the_marker_of_the_last(known: bool) -> None:
    """KIP-890: an end is answered with the next pair before its markers are written, and they carry it."""
    states = ProducerStateManager(verification_required=True)
    if known:
        states.apply_batch(header(1), 10, 1)
    commit = EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=0)
    guard = begin(states, header(1, 1))
    states.apply_marker(header(1, 1), commit, 11, 2, transaction_version=2)
    assert refusal(states, header(1, 0, 1), guard) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(states, header(1, 1), guard) is ErrorCode.NONE
    states.apply_marker(header(1, 2), commit, 12, 2, transaction_version=2)
    assert refusal(states, header(1, 2), guard) is ErrorCode.INVALID_TXN_STATE


def test_the_lowest_sequence_asked_for_goes_first() -> None:
    states = ProducerStateManager(verification_required=True)
    guard = begin(states, header(1, 0, 5), bump=False)
    assert begin(states, header(1, 0, 0), bump=False) is guard
    assert refusal(states, header(1, 0, 5), guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, header(1, 0, 0), guard) is ErrorCode.NONE
    begin(states, header(1, 1, 3), bump=False)  # a newer epoch counts anew
    assert (guard.epoch, guard.lowest_sequence) == (1, 3)


def test_the_lowest_sequence_of_another_epoch_says_nothing() -> None:
    """A question with an epoch that nobody has is refused, and must not keep the owner's batch out."""
    states = ProducerStateManager(verification_required=True)
    guard = begin(states, header(1, 0, 5), bump=False)
    begin(states, header(1, 9, 0), bump=False)
    assert refusal(states, header(1, 0, 5), guard) is ErrorCode.NONE


def test_a_question_that_is_refused_for_good_does_not_take_the_guard_from_another() -> None:
    """Anybody may name somebody else's producer id with a transactional id of its own."""
    states = ProducerStateManager(verification_required=True)
    batch = header(1)
    guard = begin(states, batch)
    assert begin(states, batch) is guard
    states.drop_verification(1, guard)
    assert refusal(states, batch, guard) is ErrorCode.NONE
    states.drop_verification(1, guard)
    assert not states._verifications


@pytest.mark.parametrize(
    ("bump", "expected"), [(True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (False, ErrorCode.NONE)]
)
def test_a_transaction_the_broker_adds_begins_at_zero(bump: bool, expected: ErrorCode) -> None:
    """KAFKA-18202: with transaction version 2 an unknown producer begins at 0; before, anywhere."""
    states = ProducerStateManager(verification_required=True)
    batch = header(1, 0, 3)
    assert refusal(states, batch, begin(states, batch, bump=bump)) is expected


def test_a_stale_epoch_comes_before_a_missing_verification() -> None:
    states = ProducerStateManager(verification_required=True)
    end(states, 1, 10, epoch=4)
    assert refusal(states, header(1, 3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    answer = states.begin_verification(header(1, 3), supports_epoch_bump=True, now_ms=0)
    assert isinstance(answer, Reject)
    assert answer.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_guard_must_be_the_right_one_required_or_not() -> None:
    """[PRD-7] Produce 12+ asks even where older clients are not verified; its late write is refused, too."""
    states = ProducerStateManager()
    batch = header(1)
    late = begin(states, batch)
    end(states, 1, 10, epoch=0)
    assert refusal(states, batch, late) is ErrorCode.INVALID_TXN_STATE
    assert refusal(states, batch) is ErrorCode.NONE


def test_the_lowest_sequence_is_the_one_before_the_wrap() -> None:
    """Two first batches around 2147483647: the later one has the smaller number."""
    states = ProducerStateManager(verification_required=True)
    guard = begin(states, header(1, 0, INT32_MAX), bump=False)
    assert begin(states, header(1, 0, 0), bump=False) is guard
    assert refusal(states, header(1, 0, 0), guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, header(1, 0, INT32_MAX), guard) is ErrorCode.NONE


# -- markers of administrators (KIP-664) -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("pid", "epoch", "start", "expected"),
    [
        (1, 4, 10, ErrorCode.NONE),
        (1, 4, 9, ErrorCode.INVALID_TXN_STATE),
        (1, 4, 11, ErrorCode.INVALID_TXN_STATE),
        (2, 4, 10, ErrorCode.INVALID_TXN_STATE),  # of another producer
        (3, 4, 10, ErrorCode.INVALID_TXN_STATE),  # of one that is not known here
        (1, 3, 10, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 5, 10, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_guarded_marker_ends_one_transaction_and_no_other(
    pid: int, epoch: int, start: int, expected: ErrorCode
) -> None:
    """KIP-664: "only if there is an open transaction beginning at the offset specified"; the epoch exact."""
    states = ProducerStateManager()
    end(states, 1, 1, epoch=3, coordinator=8)
    write(states, 1, 10, epoch=4)
    write(states, 2, 11, epoch=4)
    answer = states.check_marker(
        header(pid, epoch),
        EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=-1),
        2,
        txn_start_offset=start,
    )
    assert (answer.code if isinstance(answer, Reject) else ErrorCode.NONE) is expected


def test_a_marker_of_no_coordinator_does_not_make_the_coordinator_older() -> None:
    states = ProducerStateManager()
    end(states, 1, 1, coordinator=8)
    write(states, 1, 10)
    end(states, 1, 11, coordinator=-1)
    assert states.active_producers[1].coordinator_epoch == 8
    assert asked(states, 1, 0, version=1, coordinator=7) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
