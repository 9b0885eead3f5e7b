"""KIP-939, "Support Participation in 2PC": the coordinator's part, sentence by sentence.

The KIP's names and ours: ProducerId and ProducerEpoch of the "TC STATE" are the pair that is in the
partitions (`writer`, then `marker_identity`); NextProducerId and NextProducerEpoch are `client` when it
differs.
"""

from collections.abc import Callable

import pytest
from tests.support.txn_words import (
    MAX,
    P0,
    P1,
    TIMEOUT_MS,
    TWO_PHASE,
    T,
    Txn,
    code,
    ident,
    tc_state,
    unchanged,
)

from harness.transactions import TxnMachineHarness
from tallystick.broker.txn.codec import decode_batches, encode_batch_of
from tallystick.broker.txn.machine.commands import EndTxnResult, EntryStored, InitProducerIdResult
from tallystick.broker.txn.machine.model import OngoingPhase, TransactionResult, TxnConfig
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX, ProducerIdAndEpoch, TimestampMs, TransactionalId
from tallystick.kernel.value import replace

MAY_NOT = TxnConfig()
DAY_MS = 86_400_000


def kept() -> Txn:
    """Ongoing as 42/10, handed on to 42/11 after a crash."""
    return Txn.kept(ident(42, 10), ident(42, 11))


# ------------------------------------------------------------- the worked examples, field by field


def test_vanilla_transaction_with_epoch_overflow() -> None:
    """KIP-939 "Persisted Data Format Changes", "Vanilla KIP-890 transaction case with epoch overflow"."""
    # 1. InitProducerId(false); TC STATE: Empty, ProducerId=42, ProducerEpoch=MAX-1 ...
    txn = Txn.idle(ident(42, MAX - 2), spares=(85, 86))
    assert txn.init() == InitProducerIdResult(client=ident(42, MAX - 1))
    assert tc_state(txn) == ("Empty", 42, MAX - 1, -1, -1, -1)

    # 2. AddPartitionsToTxn; REQUEST: ProducerId=42, ProducerEpoch=MAX-1
    assert code(txn.add(ident(42, MAX - 1))) == 0
    assert tc_state(txn) == ("Ongoing", 42, MAX - 1, -1, -1, -1)

    # 3. Commit; RESPONSE ProducerId=85, Epoch=0
    assert txn.commit(ident(42, MAX - 1)) == EndTxnResult(client=ident(85, 0))
    assert tc_state(txn) == ("PrepareCommit", 42, MAX, 42, 85, 0)
    assert txn.world.pending_markers[T].marker_identity == ident(42, MAX)

    # 4. (Transition in TC into CompleteCommit)
    txn.complete()
    assert tc_state(txn) == ("CompleteCommit", 85, 0, 42, -1, -1)


@pytest.mark.slow
def test_two_phase_commit_with_two_epoch_overflows() -> None:
    """KIP-939 "Persisted Data Format Changes", "2PC transaction case with two epoch overflows"."""
    # 1. InitProducerId(false)
    txn = Txn.idle(ident(42, MAX - 2), spares=(73, 85, 99))
    assert txn.init(two_phase=True) == InitProducerIdResult(client=ident(42, MAX - 1))
    assert tc_state(txn) == ("Empty", 42, MAX - 1, -1, -1, -1)

    # 2. AddPartitionsToTxn; REQUEST: ProducerId=42, ProducerEpoch=MAX-1
    assert code(txn.add(ident(42, MAX - 1))) == 0
    assert tc_state(txn) == ("Ongoing", 42, MAX - 1, -1, -1, -1)

    # 3. (Transaction is prepared on the client, then client crashed)
    # 4. InitProducerId(true)
    assert txn.init(two_phase=True, keep=True) == InitProducerIdResult(
        client=ident(73, 0), ongoing_identity=ident(42, MAX - 1)
    )
    assert tc_state(txn) == ("Ongoing", 42, MAX - 1, -1, 73, 0)

    # 5. (crash the client)
    # 6. InitProducerId(true)
    assert txn.init(two_phase=True, keep=True) == InitProducerIdResult(
        client=ident(73, 1), ongoing_identity=ident(42, MAX - 1)
    )
    assert tc_state(txn) == ("Ongoing", 42, MAX - 1, -1, 73, 1)

    # 7. (crash the client a few times to drive the NextProducerEpoch to MAX-1)
    for epoch in range(2, MAX):
        assert txn.init(two_phase=True, keep=True) == InitProducerIdResult(
            client=ident(73, epoch), ongoing_identity=ident(42, MAX - 1)
        )
    assert tc_state(txn) == ("Ongoing", 42, MAX - 1, -1, 73, MAX - 1)

    # 8. InitProducerId(true)
    assert txn.init(two_phase=True, keep=True) == InitProducerIdResult(
        client=ident(73, MAX), ongoing_identity=ident(42, MAX - 1)
    )
    assert tc_state(txn) == ("Ongoing", 42, MAX - 1, -1, 73, MAX)

    # 9. Commit; REQUEST: ProducerId=73, ProducerEpoch=MAX; RESPONSE ProducerId=85, Epoch=0
    assert txn.commit(ident(73, MAX)) == EndTxnResult(client=ident(85, 0))
    assert tc_state(txn) == ("PrepareCommit", 42, MAX, 73, 85, 0)
    assert txn.world.pending_markers[T].marker_identity == ident(42, MAX)

    # 10. (Transition in TC into CompleteCommit)
    txn.complete()
    assert tc_state(txn) == ("CompleteCommit", 85, 0, 73, -1, -1)


@pytest.mark.parametrize("crash_after", range(10))
def test_the_long_example_survives_a_restart_after_every_step(crash_after: int) -> None:
    """KIP-939 "Proposed Changes": "we need to persist two (producerId, epoch) pairs in the transaction
    state"."""
    txn = Txn.idle(ident(42, MAX - 2), spares=(73, 85, 99))
    steps: list[Callable[[], object]] = [
        lambda: txn.init(two_phase=True),
        lambda: txn.add(ident(42, MAX - 1)),
        lambda: txn.init(two_phase=True, keep=True),
        lambda: txn.init(two_phase=True, keep=True),
        lambda: txn.world.insert_entry(replace(txn.entry, client=ident(73, MAX - 1))),
        lambda: txn.init(two_phase=True, keep=True),
        lambda: txn.commit(ident(73, MAX)),
        lambda: txn.commit(ident(73, MAX)),
        lambda: txn.complete(),
        lambda: txn.commit(ident(73, MAX)),
    ]
    for number, step in enumerate(steps):
        step()
        if number == crash_after:
            txn.world.restart()
    assert txn.answers[-3] == EndTxnResult(client=ident(85, 0))
    assert code(txn.answers[-2]) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert txn.answers[-1] == EndTxnResult(client=ident(85, 0))
    assert tc_state(txn) == ("CompleteCommit", 85, 0, 73, -1, -1)


# ------------------------------------------------------------- InitProducerId, the four combinations


@pytest.mark.parametrize("two_phase", [False, True])
def test_keep_with_nothing_open_is_an_ordinary_bump(two_phase: bool) -> None:
    """KIP-939 "RPC Changes": "OngoingTxnProducerId and OngoingTxnEpoch can be set to -1 if there is no
    ongoing transaction"."""
    txn = Txn.idle(ident(42, 10))
    assert txn.init(keep=True, two_phase=two_phase) == InitProducerIdResult(
        client=ident(42, 11), ongoing_identity=None
    )
    assert txn.state == "Empty"


def test_keep_for_an_unknown_id_creates_it() -> None:
    """KIP-939 "Motivation", recovery recipe: "is used when committing the database transaction fails or after
    restarts": the first start looks like any other, and must not fail."""
    txn = Txn(spares=(42,))
    assert txn.init(keep=True, two_phase=True) == InitProducerIdResult(client=ident(42, 0))
    assert txn.entry.timeout_ms is None


@pytest.mark.parametrize("two_phase", [False, True])
def test_keep_moves_the_client_and_never_the_writer(two_phase: bool) -> None:
    """KIP-939 "Proposed Changes": "we want to increment the epoch ... so that we can fence requests from
    previous incarnations", "On the other hand, we want to preserve the producerId and epoch of the ongoing
    transaction"."""
    txn = Txn.idle(ident(42, 10))
    txn.init(two_phase=two_phase)
    txn.add(ident(42, 11), P0, P1)
    for epoch in range(12, 20):
        assert txn.init(keep=True, two_phase=two_phase) == InitProducerIdResult(
            client=ident(42, epoch), ongoing_identity=ident(42, 11)
        )
        assert txn.writer == ident(42, 11)
        assert txn.partitions == {P0, P1}


@pytest.mark.parametrize("two_phase", [False, True])
def test_init_without_keep_aborts_what_is_open(two_phase: bool) -> None:
    """KIP-939 "Kafka as a Participant in 2PC": "InitProducerId aborts the on-going transaction"; with
    two-phase commit too, when it does not ask to keep."""
    txn = Txn.idle(ident(42, 10))
    txn.init(two_phase=two_phase)
    txn.add(ident(42, 11))
    assert code(txn.init(two_phase=two_phase)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert txn.state == "PrepareAbort"
    assert txn.marker == ident(42, 12)
    txn.complete()
    assert txn.init(two_phase=two_phase) == InitProducerIdResult(client=ident(42, 13))


def test_keep_is_legal_without_two_phase_commit() -> None:
    """KIP-939 "RPC Changes": "KeepPreparedTxn could be set to true even if Enable2Pc is false"."""
    txn = Txn.idle(ident(42, 10), config=MAY_NOT)
    txn.add(ident(42, 10))
    assert txn.init(keep=True) == InitProducerIdResult(client=ident(42, 11), ongoing_identity=ident(42, 10))


def test_without_the_broker_setting_two_phase_commit_is_refused() -> None:
    """KIP-939 "Broker Configuration Changes": "clients that attempt to use this functionality would receive
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED error"."""
    txn = Txn(MAY_NOT)
    assert code(txn.init(two_phase=True)) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert not txn.world.entries
    open_txn = Txn.idle(ident(42, 10), config=MAY_NOT)
    open_txn.add(ident(42, 10))
    before, records = open_txn.entry, len(open_txn.world.log)
    for keep in (False, True):
        refused = open_txn.init(two_phase=True, keep=keep)
        assert code(refused) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert unchanged(open_txn, before, records)


@pytest.mark.parametrize("two_phase", [False, True])
def test_what_an_older_client_began_cannot_be_kept(two_phase: bool) -> None:
    """As below: its pair may have named the transaction before, too, and a database may say so."""
    txn = Txn.idle(ident(42, 10), config=TWO_PHASE)
    txn.add(ident(42, 10), version=0)
    before, records = txn.entry, len(txn.world.log)
    assert code(txn.init(keep=True, two_phase=two_phase)) == ErrorCode.UNSUPPORTED_VERSION
    assert unchanged(txn, before, records)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize(("keep", "two_phase"), [(True, False), (False, True), (True, True)])
def test_below_version_2_nothing_can_be_kept(level: int, keep: bool, two_phase: bool) -> None:
    """KIP-939 "Solution Requirements and Constraints": "We should also wait for KIP-890 ... so that we could
    use {producerId, epoch} to identify a transaction": below version 2 a pair names many transactions."""
    txn = Txn.idle(ident(42, 10), config=replace(TWO_PHASE, transaction_version=level))
    txn.add(ident(42, 10), version=0)
    before, records = txn.entry, len(txn.world.log)
    assert code(txn.init(keep=keep, two_phase=two_phase)) == ErrorCode.UNSUPPORTED_VERSION
    assert unchanged(txn, before, records)


# ------------------------------------------------------------- timeouts


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1, 2**31 - 1])
def test_the_timeout_is_not_looked_at_with_two_phase_commit(timeout_ms: int) -> None:
    """KIP-939 "RPC Changes": "TransactionTimeoutMs value is ignored if Enable2Pc is specified"."""
    txn = Txn(spares=(42,))
    assert txn.init(two_phase=True, timeout_ms=timeout_ms) == InitProducerIdResult(client=ident(42, 0))
    assert txn.entry.timeout_ms is None


def test_a_two_phase_transaction_is_never_aborted_by_time() -> None:
    """[TXN-7] KIP-939 "Proposed Changes": "the transaction is never aborted automatically"."""
    txn = Txn(spares=(42,))
    txn.init(two_phase=True)
    txn.add(ident(42, 0))
    txn.world.pass_time(10_000 * DAY_MS)
    assert txn.state == "Ongoing"
    txn.time_out()
    assert txn.state == "Ongoing"
    assert not txn.world.sent_markers
    txn.init(two_phase=True, keep=True)
    txn.world.restart()
    txn.world.pass_time(10_000 * DAY_MS)
    assert (txn.state, txn.writer, txn.client) == ("Ongoing", ident(42, 0), ident(42, 1))


def test_without_two_phase_commit_a_kept_transaction_times_out() -> None:
    """KIP-939 "Disallowing keepPreparedTxn=true without 2PC": "Without 2PC the notion of "prepared"
    transaction is subverted by the transaction.max.timeout.ms"."""
    txn = Txn.idle(ident(42, 10), config=MAY_NOT)
    txn.add(ident(42, 10))
    txn.world.pass_time(TIMEOUT_MS - 1)
    txn.init(keep=True)
    assert txn.state == "Ongoing"
    txn.world.pass_time(2)  # counted from the start of the transaction, not from the keep
    assert txn.state == "PrepareAbort"
    assert txn.marker == ident(42, 11)
    txn.complete()
    assert txn.client == ident(42, 12)
    assert code(txn.commit(ident(42, 11))) == ErrorCode.INVALID_TXN_STATE
    assert code(txn.commit(ident(42, 10))) == ErrorCode.PRODUCER_FENCED


def test_keep_with_two_phase_commit_lifts_a_timeout() -> None:
    """Not in the KIP: a transaction in doubt that is claimed for two-phase commit must not be ended by
    time."""
    txn = Txn.idle(ident(42, 10))
    txn.add(ident(42, 10))
    assert isinstance(txn.entry.phase, OngoingPhase)
    assert txn.entry.phase.timeout_ms == TIMEOUT_MS
    txn.init(keep=True, two_phase=True)
    txn.world.restart()
    txn.world.pass_time(10_000 * DAY_MS)
    assert txn.state == "Ongoing"
    assert txn.entry.is_two_phase


def test_keep_without_two_phase_commit_brings_no_timeout_back() -> None:
    """Not in the KIP: the promise was made to the transaction in doubt; the new timeout is for the next
    one."""
    txn = Txn(spares=(42,))
    txn.init(two_phase=True)
    txn.add(ident(42, 0))
    assert txn.init(keep=True, timeout_ms=1_000) == InitProducerIdResult(
        client=ident(42, 1), ongoing_identity=ident(42, 0)
    )
    txn.world.restart()
    txn.world.pass_time(10_000 * DAY_MS)
    assert txn.state == "Ongoing"
    txn.commit(ident(42, 1))
    txn.complete()
    txn.add(ident(42, 2))
    txn.world.pass_time(1_001)
    assert txn.state == "PrepareAbort"


# ------------------------------------------------------------- who may speak while a transaction is kept

OLD_PAIRS = pytest.mark.parametrize(
    "old", [ident(42, 10), ident(42, 11)], ids=["the ongoing pair", "an older next pair"]
)


def twice_kept() -> Txn:
    """42/10 wrote; 42/11 was told of it and crashed; 42/12 speaks now."""
    txn = kept()
    txn.init(keep=True)
    assert txn.client == ident(42, 12)
    return txn


def test_a_kept_transaction_takes_no_more_partitions() -> None:
    """KIP-939 "Proposed Changes": "the application is only allowed to call .commitTransaction,
    .abortTransaction, or .completeTransaction". Its records would carry a pair that the markers do not
    end."""
    txn = twice_kept()
    before, records = txn.entry, len(txn.world.log)
    for partition in (P0, P1):
        assert code(txn.add(ident(42, 12), partition, version=0)) == ErrorCode.INVALID_TXN_STATE
        assert code(txn.add(ident(42, 12), partition, version=2)) == ErrorCode.INVALID_TXN_STATE
        assert code(txn.write(ident(42, 12), partition)) == ErrorCode.INVALID_TXN_STATE
        assert code(txn.verify(ident(42, 12), partition)) != ErrorCode.NONE
    assert unchanged(txn, before, records)


@OLD_PAIRS
def test_former_incarnations_are_fenced(old: ProducerIdAndEpoch) -> None:
    """[TXN-8] KIP-939 "Proposed Changes": "so that we can fence requests from previous incarnations"."""
    txn = twice_kept()
    before, records = txn.entry, len(txn.world.log)
    for partition in (P0, P1):
        assert code(txn.add(old, partition, version=0)) == ErrorCode.PRODUCER_FENCED
        assert code(txn.add(old, partition, version=2)) == ErrorCode.PRODUCER_FENCED
        assert code(txn.write(old, partition)) == ErrorCode.PRODUCER_FENCED
        assert code(txn.verify(old, partition)) == ErrorCode.PRODUCER_FENCED
    for version in (0, 2):
        assert code(txn.commit(old, version)) == ErrorCode.PRODUCER_FENCED
        assert code(txn.abort(old, version)) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)


@OLD_PAIRS
def test_an_end_under_an_old_pair_hears_the_pair_that_ends_the_transaction(old: ProducerIdAndEpoch) -> None:
    """[TXN-8] Some clients end a kept transaction as KIP-939's rejected alternative would: it stays open."""
    txn = twice_kept()
    refused = txn.commit(old)
    assert isinstance(refused, Reject)
    assert f"not to {old}; nothing was changed" in refused.reason
    assert refused.reason.endswith("A later InitProducerId kept this transaction: end it as 42:12")
    assert txn.commit(ident(42, 12)) == EndTxnResult(client=ident(42, 13))


@pytest.mark.parametrize("old", [ident(42, MAX - 1), ident(73, 0)])
def test_former_incarnations_are_fenced_under_another_producer_id_too(old: ProducerIdAndEpoch) -> None:
    """KIP-939 "Proposed Changes": "and potentially allocate new producerId"; being fenced stays being fenced,
    and is not taken for a producer id that was never this id's."""
    txn = Txn.kept(ident(42, MAX - 1), ident(73, 1))
    before, records = txn.entry, len(txn.world.log)
    assert code(txn.write(old)) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert code(txn.commit(old)) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert code(txn.verify(old)) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert code(txn.commit(ident(42, MAX - 1))) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)


# ------------------------------------------------------------- the end of a kept transaction


@pytest.mark.parametrize("outcome", TransactionResult)
@pytest.mark.parametrize("version", [0, 2])
def test_markers_follow_the_writer_and_the_answer_follows_the_client(
    outcome: TransactionResult, version: int
) -> None:
    """KIP-939, details of the example: "We send out markers using the original ongoing transaction's
    ProducerId and ProducerEpoch + 1, but the next transaction will use the latest ProducerId and
    ProducerEpoch + 1". A client of an older version cannot know that, and its transaction is ended in the
    same way."""
    txn = Txn.kept(ident(42, 100), ident(42, 101))
    answer = txn.end(ident(42, 101), outcome, version)
    assert code(answer) == ErrorCode.NONE
    send = txn.world.pending_markers[T]
    assert (send.marker_identity, send.outcome, send.partitions) == (ident(42, 101), outcome, frozenset({P0}))
    assert send.transaction_version == 2
    assert txn.client == ident(42, 102)
    txn.complete()
    assert txn.client == ident(42, 102)


@pytest.mark.parametrize("outcome", TransactionResult)
def test_a_pair_of_two_phase_commit_names_one_transaction(outcome: TransactionResult) -> None:
    """KIP-939 "Solution Requirements and Constraints": "so that we could use {producerId, epoch} to identify
    a transaction". A token in a database must not come to name the next transaction, whatever version of
    EndTxn ended its own."""
    txn = Txn(spares=(42,))
    txn.init(two_phase=True)
    txn.write(ident(42, 0))
    assert code(txn.end(ident(42, 0), outcome, version=0)) == ErrorCode.NONE
    assert code(txn.end(ident(42, 0), outcome, version=0)) == ErrorCode.CONCURRENT_TRANSACTIONS
    txn.complete()
    assert txn.client == ident(42, 1)
    # The answer was lost: whoever asks again learns what was decided, with the older request, too.
    assert txn.end(ident(42, 0), outcome, version=0) == EndTxnResult(client=ident(42, 1))
    assert code(txn.write(ident(42, 0))) == ErrorCode.PRODUCER_FENCED


def test_a_delayed_commit_does_not_end_the_next_transaction() -> None:
    """[TXN-4] [TXN-8] Review of apache/kafka#21735, double bump: the first Commit(101) is delayed, its
    repetition completes the transaction, and must not find a transaction of 42/101 when it comes at last."""
    txn = Txn.kept(ident(42, 100), ident(42, 101))
    assert txn.commit(ident(42, 101)) == EndTxnResult(client=ident(42, 102))
    txn.complete()
    txn.add(ident(42, 102))
    before, records = txn.entry, len(txn.world.log)
    for version in (0, 2):
        assert code(txn.commit(ident(42, 101), version)) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)


@pytest.mark.parametrize("keeps", [1, 2, 5])
def test_force_terminate_moves_beyond_every_pair_handed_out(keeps: int) -> None:
    """[TXN-4] KIP-939 "AdminClient API Changes": forceTerminateTransaction "would just use InitProducerId
    call with keepPreparedTxn=false". Its fence is not measured from the ongoing epoch."""
    txn = Txn.idle(ident(42, 10))
    txn.add(ident(42, 10))
    for _ in range(keeps):
        txn.init(keep=True, two_phase=True)
    highest = txn.client
    assert code(txn.init()) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert txn.marker == ident(42, 11)
    assert txn.world.pending_markers[T].outcome is TransactionResult.ABORT
    assert txn.client > highest
    assert code(txn.init()) == ErrorCode.CONCURRENT_TRANSACTIONS
    txn.complete()
    answer = txn.init()
    assert isinstance(answer, InitProducerIdResult)
    assert answer.client > highest
    for epoch in range(10, highest.epoch + 1):
        assert code(txn.commit(ident(42, epoch))) == ErrorCode.PRODUCER_FENCED


def test_force_terminate_at_the_end_of_both_epochs() -> None:
    """[TXN-4] KAFKA-20090: the fence, too, may need another producer id."""
    txn = Txn.kept(ident(42, MAX - 1), ident(73, MAX), spares=(85, 99))
    assert code(txn.init()) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (txn.marker, txn.client) == (ident(42, MAX), ident(85, 0))
    txn.complete()
    assert txn.init() == InitProducerIdResult(client=ident(85, 1))


def test_a_decided_transaction_cannot_be_kept() -> None:
    """KIP-939 "Proposed Changes": kept is what is "indeed ongoing"; while markers are out, 51."""
    for outcome in TransactionResult:
        txn = kept()
        txn.end(ident(42, 11), outcome)
        before, records = txn.entry, len(txn.world.log)
        for keep in (False, True):
            assert code(txn.init(keep=keep, two_phase=True)) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert unchanged(txn, before, records)


def test_51_comes_before_any_look_at_the_pair() -> None:
    """Review of apache/kafka#21735: in the prepared states InitProducerId is answered before pairs are
    compared."""
    txn = kept()
    txn.commit(ident(42, 11))
    for expected in (None, ident(42, 10), ident(42, 11), ident(42, 12), ident(7, 7)):
        answer = txn.init(expected=expected, keep=True)
        assert code(answer) == ErrorCode.CONCURRENT_TRANSACTIONS


# ------------------------------------------------------------- repetitions


def test_a_commit_is_repeated_after_the_producer_id_changed_at_keep() -> None:
    """Review of apache/kafka#21735, rollover: ongoing {42,10}, next {73,85}: commit gives {73,86}, and a
    retry with {73,85} is an ordinary one."""
    txn = Txn.kept(ident(42, 10), ident(73, 85))
    assert txn.commit(ident(73, 85)) == EndTxnResult(client=ident(73, 86))
    assert tc_state(txn) == ("PrepareCommit", 42, 11, 73, 73, 86)
    assert code(txn.commit(ident(73, 85))) == ErrorCode.CONCURRENT_TRANSACTIONS
    txn.world.restart()
    txn.complete()
    assert tc_state(txn) == ("CompleteCommit", 73, 86, 73, -1, -1)
    assert txn.commit(ident(73, 85)) == EndTxnResult(client=ident(73, 86))
    assert code(txn.abort(ident(73, 85))) == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("last", [MAX - 1, MAX])
def test_a_commit_is_repeated_after_the_producer_id_changed_at_commit(last: int) -> None:
    """KIP-939, details of the example: "In order to support retries we store the previous ProducerId".
    Whichever epoch is the last, rotation and the recognition of retries agree on it."""
    txn = Txn.kept(ident(42, 10), ident(73, last))
    assert txn.commit(ident(73, last)) == EndTxnResult(client=ident(85, 0))
    assert tc_state(txn) == ("PrepareCommit", 42, 11, 73, 85, 0)
    assert code(txn.commit(ident(73, last))) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert code(txn.abort(ident(73, last))) == ErrorCode.INVALID_TXN_STATE
    txn.world.restart()
    txn.complete()
    txn.world.restart()
    assert txn.commit(ident(73, last)) == EndTxnResult(client=ident(85, 0))
    for other in (ident(73, last - 1), ident(42, 10), ident(42, 11)):
        assert code(txn.commit(other)) not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)


def test_keep_by_the_owner_and_its_repetition() -> None:
    """KIP-360 met with KIP-939, on which it is silent: only the newest pair, or a repetition of the request
    that made it, may speak."""
    txn = kept()
    assert txn.init(keep=True, expected=ident(42, 11)) == InitProducerIdResult(
        client=ident(42, 12), ongoing_identity=ident(42, 10)
    )
    before, records = txn.entry, len(txn.world.log)
    assert txn.init(keep=True, expected=ident(42, 11)) == InitProducerIdResult(
        client=ident(42, 12), ongoing_identity=ident(42, 10)
    )
    assert code(txn.init(keep=True, expected=ident(42, 10))) == ErrorCode.PRODUCER_FENCED
    assert code(txn.init(keep=True, expected=ident(7, 11))) == ErrorCode.PRODUCER_FENCED
    assert code(txn.init(keep=True, expected=ident(42, 13))) == ErrorCode.PRODUCER_FENCED
    for outcome in TransactionResult:
        assert code(txn.end(ident(42, 11), outcome)) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)


def test_a_keep_that_asks_for_more_is_no_repetition() -> None:
    """[TXN-8] KIP-939 "Client Configuration Changes": "transactions that this client starts never expire".
    Under the former pair nothing is promised and nothing is lifted; under the present one both are."""
    txn = kept()
    txn.init(keep=True, expected=ident(42, 11))
    before, records = txn.entry, len(txn.world.log)
    assert code(txn.init(keep=True, expected=ident(42, 11), two_phase=True)) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)
    assert code(txn.init(keep=True, expected=ident(42, 12), two_phase=True)) == ErrorCode.NONE
    assert txn.entry.is_two_phase


def test_keep_by_a_new_incarnation_is_no_repetition() -> None:
    """KIP-360: a former incarnation must not be told the pair of the one that took over."""
    txn = kept()
    txn.init(keep=True)
    assert code(txn.init(keep=True, expected=ident(42, 11))) == ErrorCode.PRODUCER_FENCED
    assert txn.client == ident(42, 12)


def test_two_instances_at_once_are_told_apart() -> None:
    """KIP-939 "Skip Epoch Bump When KeepPreparedTxn=true": "With the proper epoch bump, instance1 would get
    fenced at step 3"."""
    txn = Txn.idle(ident(42, 40))
    txn.add(ident(42, 40))
    first, second = txn.init(keep=True), txn.init(keep=True)
    assert isinstance(first, InitProducerIdResult)
    assert isinstance(second, InitProducerIdResult)
    assert first.client != second.client
    assert code(txn.commit(first.client)) == ErrorCode.PRODUCER_FENCED
    assert code(txn.commit(second.client)) == ErrorCode.NONE


# ------------------------------------------------------------- rollover


@pytest.mark.parametrize(
    ("writer", "client"),
    [(MAX - 3, ident(42, MAX - 2)), (MAX - 2, ident(42, MAX - 1)), (MAX - 1, ident(85, 0))],
)
def test_the_first_keep_leaves_an_epoch_for_the_marker(writer: int, client: ProducerIdAndEpoch) -> None:
    """KIP-939, details of the example: "we need to allocate producer id when ProducerEpoch=MAX-1, because we
    need to reserve one value for the PrepareCommit state"."""
    txn = Txn.idle(ident(42, writer))
    txn.add(ident(42, writer))
    assert txn.init(keep=True) == InitProducerIdResult(client=client, ongoing_identity=ident(42, writer))


def test_later_keeps_use_every_epoch() -> None:
    """KIP-939, details of the example: "we don't have a need for an extra value for NextProducerEpoch
    overflow"."""
    txn = Txn.kept(ident(42, 10), ident(73, MAX - 1), spares=(85, 99))
    assert txn.init(keep=True) == InitProducerIdResult(client=ident(73, MAX), ongoing_identity=ident(42, 10))
    assert txn.init(keep=True) == InitProducerIdResult(client=ident(85, 0), ongoing_identity=ident(42, 10))
    assert txn.init(keep=True) == InitProducerIdResult(client=ident(85, 1), ongoing_identity=ident(42, 10))
    assert txn.commit(ident(85, 1)) == EndTxnResult(client=ident(85, 2))
    txn.complete()
    assert txn.client == ident(85, 2)


def test_the_next_writer_can_always_be_marked() -> None:
    """[TXN-6] Whatever pair comes out of an end, the transaction it writes has an epoch left for its
    markers."""
    for writer in (10, MAX - 2, MAX - 1):
        for epoch in (MAX - 2, MAX - 1, MAX):
            txn = Txn.kept(ident(42, writer), ident(73, epoch))
            txn.commit(ident(73, epoch))
            txn.complete()
            assert txn.client.epoch < MAX
            txn.add(txn.client)
            txn.commit(txn.client)
            assert txn.marker.epoch == txn.world.sent_markers[-1].marker_identity.epoch <= MAX


def test_a_timeout_is_never_the_number_that_means_none() -> None:
    """KIP-939 as shipped: two-phase commit is a timeout of 2147483647 in the log. Who asks for that many
    milliseconds has not asked for two-phase commit, and must not be given it by the next restart."""
    txn = Txn(TxnConfig(transaction_max_timeout_ms=INT32_MAX), spares=(42,))
    assert txn.init(timeout_ms=INT32_MAX) == InitProducerIdResult(client=ident(42, 0))
    assert txn.entry.timeout_ms == INT32_MAX - 1
    (record,) = decode_batches(encode_batch_of([EntryStored(entry=txn.entry)], TimestampMs(0), 2))
    assert record == EntryStored(entry=txn.entry)


def test_ids_do_not_touch_each_other() -> None:
    world = TxnMachineHarness(TWO_PHASE, spares=(42, 43, 44))
    mine, other = Txn(world=world), Txn(world=world, transactional_id=TransactionalId("u"))
    assert mine.init(two_phase=True) == InitProducerIdResult(client=ident(42, 0))
    assert other.init() == InitProducerIdResult(client=ident(43, 0))
    mine.add(ident(42, 0))
    before = other.entry
    mine.init(two_phase=True, keep=True)
    assert code(mine.init()) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert other.entry == before
