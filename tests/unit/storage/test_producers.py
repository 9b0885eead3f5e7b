"""What a partition leader accepts from idempotent producers. Each test names Kafka's rule."""

import pytest

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import replace
from tallystick.protocol.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tallystick.protocol.records.control import ControlType, EndTransactionMarker
from tallystick.storage.state.producer_state import (
    ACCEPTED,
    AppendOrigin,
    DuplicateBatch,
    ProducerStateManager,
    VerificationStateEntry,
)

PID = 7
DAY_MS = 86_400_000


def batch(
    sequence: int,
    count: int = 10,
    *,
    epoch: int = 0,
    pid: int = PID,
    attributes: int = 0,
    timestamp: int = 1_000,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def write(states: ProducerStateManager, header: BatchHeader, offset: int) -> None:
    assert states.check_batch(header) is ACCEPTED
    states.apply_batch(header, offset, header.max_timestamp)


def abort(states: ProducerStateManager, offset: int) -> None:
    marker = EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0)
    header = batch(-1, 1, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    states.apply_marker(header, marker, offset, 1_000)


def code(answer: object) -> ErrorCode:
    assert isinstance(answer, Reject), answer
    return answer.code


def test_a_batch_without_producer_id_leaves_no_trace() -> None:
    states = ProducerStateManager()
    write(states, batch(-1, epoch=-1, pid=-1), 0)
    assert not states.active_producers


def test_the_last_five_batches_are_answered_with_their_offsets() -> None:
    """[PRD-2]"""
    states = ProducerStateManager()
    for n in range(7):
        write(states, batch(n * 10, timestamp=n), 100 + n * 10)
    for n in range(2, 7):
        assert states.check_batch(batch(n * 10)) == DuplicateBatch(100 + n * 10, 109 + n * 10, n)
    # The sixth last is forgotten. Source: a sequence gap it is then (KIP-360 took DUPLICATE away).
    assert code(states.check_batch(batch(10))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_numbers_of_an_aborted_transaction_are_no_repetition_in_the_next() -> None:
    """[PRD-9]: the answer was lost, the client aborted, and other records got the numbers."""
    states = ProducerStateManager()
    write(states, batch(0, attributes=TRANSACTIONAL_BIT), 0)
    abort(states, offset=10)
    assert (
        code(states.check_batch(batch(0, attributes=TRANSACTIONAL_BIT)))
        is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    write(states, batch(10, attributes=TRANSACTIONAL_BIT), 11)
    assert (
        code(states.check_batch(batch(0, attributes=TRANSACTIONAL_BIT)))
        is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


def test_a_repetition_inside_its_open_transaction_is_one_also_after_a_restart() -> None:
    """[PRD-9], [PRD-6]"""
    states, headers = ProducerStateManager(), []
    write(states, batch(0, attributes=TRANSACTIONAL_BIT), 0)
    abort(states, offset=10)
    for n in range(1, 4):
        header = batch(n * 10, attributes=TRANSACTIONAL_BIT)
        write(states, header, 1 + n * 10)
        headers.append(replace(header, base_offset=1 + n * 10))
    again = ProducerStateManager.from_snapshot(states.take_snapshot())
    again.restore_cached_batches([batch(0, attributes=TRANSACTIONAL_BIT), *headers])
    for known in (states, again):
        for n in range(1, 4):
            repeated = known.check_batch(batch(n * 10, attributes=TRANSACTIONAL_BIT))
            assert repeated == DuplicateBatch(1 + n * 10, 10 + n * 10, 1_000)
        assert code(known.check_batch(batch(0, attributes=TRANSACTIONAL_BIT))) is (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )


def test_a_batch_of_no_transaction_is_a_repetition_whatever_ended_in_between() -> None:
    """[PRD-2]: an administrator's marker says nothing about it."""
    states = ProducerStateManager()
    write(states, batch(0), 0)
    abort(states, offset=10)
    assert states.check_batch(batch(0)) == DuplicateBatch(0, 9, 1_000)


def test_who_writes_old_records_is_known_as_long_as_others() -> None:
    """[PRD-10]: a history of last year is replayed, and one of its answers is lost."""
    states = ProducerStateManager()
    now_ms = 400 * DAY_MS
    write(states, batch(0, timestamp=DAY_MS), 0)
    assert states.remove_expired(now_ms, DAY_MS) == 0
    assert states.check_batch(batch(0, timestamp=DAY_MS)) == DuplicateBatch(0, 9, DAY_MS)
    assert states.remove_expired(now_ms + DAY_MS - 1, DAY_MS) == 0
    assert states.remove_expired(now_ms + DAY_MS, DAY_MS) == 1


def test_who_was_silent_before_a_restart_is_forgotten_after_it() -> None:
    """Else a broker that is restarted often would know its producers for ever."""
    states = ProducerStateManager()
    write(states, batch(0, timestamp=DAY_MS), 0)
    again = ProducerStateManager.from_snapshot(states.take_snapshot())
    again.apply_batch(batch(10, timestamp=DAY_MS), 10, DAY_MS)
    again.finish_replay()
    assert again.remove_expired(2 * DAY_MS, DAY_MS) == 1


def test_half_a_duplicate_is_out_of_order() -> None:
    states = ProducerStateManager()
    write(states, batch(0, 10), 0)
    assert code(states.check_batch(batch(0, 9))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(states.check_batch(batch(5, 5))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(states.check_batch(batch(5, 10))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order_and_names_both_numbers() -> None:
    states = ProducerStateManager()
    write(states, batch(0), 0)
    answer = states.check_batch(batch(11))
    assert code(answer) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(answer, Reject)
    assert "11" in answer.reason
    assert "expected 10" in answer.reason


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """Retention or expiry removed what was known (KIP-360): no UNKNOWN_PRODUCER_ID any more."""
    write(ProducerStateManager(), batch(4_711), 0)


def test_sequences_wrap_to_zero_between_batches() -> None:
    """[PRD-3]"""
    states = ProducerStateManager()
    write(states, batch(INT32_MAX - 9), 0)
    assert states.active_producers[PID].last_sequence == INT32_MAX
    assert states.active_producers[PID].next_sequence == 0
    write(states, batch(0), 10)
    assert states.check_batch(batch(INT32_MAX - 9)) == DuplicateBatch(0, 9, 1_000)


def test_sequences_wrap_to_zero_inside_a_batch() -> None:
    """[PRD-3]"""
    states = ProducerStateManager()
    write(states, batch(INT32_MAX - 4), 0)
    assert states.active_producers[PID].last_sequence == 4
    assert states.check_batch(batch(INT32_MAX - 4)) == DuplicateBatch(0, 9, 1_000)
    write(states, batch(5), 10)


def test_an_older_epoch_is_refused_with_47() -> None:
    states = ProducerStateManager()
    write(states, batch(0, epoch=3), 0)
    assert code(states.check_batch(batch(10, epoch=2))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(states.check_batch(batch(0, epoch=2))) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_begins_at_zero_and_forgets_the_five() -> None:
    states = ProducerStateManager()
    write(states, batch(0), 0)
    assert code(states.check_batch(batch(10, epoch=1))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(states, batch(0, epoch=1), 10)
    assert states.check_batch(batch(0, epoch=1)) == DuplicateBatch(10, 19, 1_000)
    assert len(states.active_producers[PID].batches) == 1


def test_a_check_changes_nothing() -> None:
    """[PRD-1]"""
    states = ProducerStateManager()
    write(states, batch(0), 0)
    before = states.take_snapshot()
    for header in (
        batch(10),
        batch(0),
        batch(99),
        batch(0, epoch=1),
        batch(0, pid=8),
        batch(10, attributes=0x10),
    ):
        states.check_batch(header)
    assert states.take_snapshot() == before
    assert len(states.active_producers[PID].batches) == 1
    assert states.first_unstable_offset is None


def test_the_group_coordinator_has_no_sequences_but_an_epoch() -> None:
    states = ProducerStateManager()
    for offset in range(3):
        header = batch(-1, 1, epoch=4, attributes=0x10)
        assert states.check_batch(header, AppendOrigin.COORDINATOR) is ACCEPTED
        states.apply_batch(header, offset, 5)
    stale = batch(-1, 1, epoch=3, attributes=0x10)
    assert code(states.check_batch(stale, AppendOrigin.COORDINATOR)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_newer_epoch_does_not_join_a_transaction_that_was_never_ended() -> None:
    """[PRD-8] Its marker is lost; the next one would commit records that were perhaps aborted."""
    states = ProducerStateManager()
    write(states, batch(0, attributes=0x10), 0)
    newer = batch(0, epoch=1, attributes=0x10)
    assert code(states.check_batch(newer)) is ErrorCode.INVALID_TXN_STATE
    assert code(states.check_batch(newer, AppendOrigin.COORDINATOR)) is ErrorCode.INVALID_TXN_STATE
    guard = states.begin_verification(newer, supports_epoch_bump=True, now_ms=0)
    assert isinstance(guard, VerificationStateEntry), "one may ask: the marker may be on its way"
    assert code(states.check_batch(newer, verification=guard)) is ErrorCode.INVALID_TXN_STATE


def test_what_comes_from_a_leader_is_not_checked_again() -> None:
    states = ProducerStateManager()
    write(states, batch(0, epoch=3), 0)
    assert states.check_batch(batch(77, epoch=1), AppendOrigin.REPLICATION) is ACCEPTED


def test_silent_producers_expire_and_open_transactions_keep_theirs() -> None:
    """[PRD-5]"""
    states = ProducerStateManager()
    write(states, batch(0, pid=1, timestamp=0), 0)
    write(states, batch(0, pid=2, timestamp=0, attributes=0x10), 10)
    assert states.remove_expired(0, DAY_MS) == 0  # a first look, which sees that they wrote
    write(states, batch(0, pid=3, timestamp=1), 20)
    assert states.remove_expired(DAY_MS, DAY_MS) == 1
    assert set(states.active_producers) == {2, 3}
    assert states.remove_expired(DAY_MS * 2, DAY_MS) == 1
    assert set(states.active_producers) == {2}


def test_a_snapshot_keeps_the_last_batch_and_recall_the_others() -> None:
    """[PRD-6] A clean restart must not turn repetitions into gaps."""
    states = ProducerStateManager()
    headers = []
    for n in range(7):
        header = batch(n * 10, timestamp=n)
        write(states, header, n * 10)
        header = replace(header, base_offset=n * 10)
        headers.append(header)
    restarted = ProducerStateManager.from_snapshot(states.take_snapshot())
    assert code(restarted.check_batch(batch(30))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    restarted.restore_cached_batches(headers)
    assert restarted.active_producers[PID].batches == states.active_producers[PID].batches
    assert restarted.check_batch(batch(30)) == DuplicateBatch(30, 39, 3)
    write(restarted, batch(70), 70)


def test_recall_leaves_out_what_does_not_lead_up_to_the_snapshot() -> None:
    states = ProducerStateManager()
    headers = []
    for n, (sequence, epoch) in enumerate([(0, 0), (0, 1), (10, 1), (20, 1)]):
        header = batch(sequence, epoch=epoch, timestamp=n)
        write(states, header, n * 10)
        header = replace(header, base_offset=n * 10)
        headers.append(header)
    restarted = ProducerStateManager.from_snapshot(states.take_snapshot())
    restarted.restore_cached_batches(
        [headers[1], headers[3], batch(0, pid=99)]
    )  # 10 is missing: a compacted log
    assert len(restarted.active_producers[PID].batches) == 1
    restarted.restore_cached_batches(headers)
    assert restarted.active_producers[PID].batches == states.active_producers[PID].batches


@pytest.mark.parametrize("count", [1, 5, 6])
def test_replay_gives_the_state_that_live_appends_gave(count: int) -> None:
    """[PRD-1]"""
    live, replayed = ProducerStateManager(), ProducerStateManager()
    for n in range(count):
        write(live, batch(n * 10), n * 10)
    for n in range(count):
        replayed.apply_batch(batch(n * 10), n * 10, 1_000)
    assert replayed.take_snapshot() == live.take_snapshot()
    assert replayed.active_producers[PID].batches == live.active_producers[PID].batches
