"""KIP-360, "Improve handling of unknown producer": who may ask for the next epoch.

The KIP's instance epoch is our `previous_identity`: the pair whose repeated request is answered with the
present one."""

import pytest
from tests.support.txn_words import (
    DECIDED_STATES,
    IDLE_STATES,
    MAX,
    STATES,
    TIMEOUT_MS,
    T,
    Txn,
    code,
    ident,
    unchanged,
)

from tallystick.broker.txn.machine.commands import EndTxnResult, InitProducerId, InitProducerIdResult, TxnStep
from tallystick.broker.txn.machine.decide import decide
from tallystick.broker.txn.machine.model import OngoingPhase, TransactionResult, TxnConfig
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerIdAndEpoch

STRANGERS = (ident(42, 8), ident(42, 12), ident(42, MAX), ident(7, 9), ident(7, 10), ident(7, 0))


# ------------------------------------------------------------- an idle id


def test_an_unknown_id_gets_a_producer_id_of_its_own() -> None:
    """KIP-98: InitProducerId of an id nobody knows; the first epoch is 0."""
    txn = Txn(TxnConfig(), spares=(42, 43))
    assert txn.init() == InitProducerIdResult(client=ident(42, 0))
    assert txn.state == "Empty"
    assert txn.entry.previous_identity is None


@pytest.mark.parametrize("state", IDLE_STATES)
def test_no_epoch_is_provided(state: str) -> None:
    """KIP-360 "Proposed Changes": "No epoch is provided: the current epoch will be bumped and the instance
    epoch will be set to the new value": nobody before it can ask for a repetition."""
    txn = Txn.in_state(state)
    before = txn.client
    assert txn.init(timeout_ms=777) == InitProducerIdResult(client=ident(42, before.epoch + 1))
    assert (txn.state, txn.entry.previous_identity, txn.entry.timeout_ms) == ("Empty", None, 777)
    for former in (ident(42, 9), ident(42, 10), before):
        assert code(txn.init(expected=former)) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", IDLE_STATES)
def test_the_owner_is_bumped_and_may_repeat_itself(state: str) -> None:
    """KIP-360 "Proposed Changes": "Matches current epoch: the current epoch is bumped, but the instance epoch
    will stay the same", and of a retry: "it will simply return the latest epoch"."""
    txn = Txn.in_state(state)
    before = txn.client
    bumped = InitProducerIdResult(client=ident(42, before.epoch + 1))
    assert txn.init(expected=before) == bumped
    records, entry = len(txn.world.log), txn.entry
    for _ in range(3):
        assert txn.init(expected=before) == bumped
    assert unchanged(txn, entry, records)
    assert txn.init(expected=bumped.client) == InitProducerIdResult(client=ident(42, before.epoch + 2))
    assert code(txn.init(expected=before)) == ErrorCode.PRODUCER_FENCED


def test_a_repetition_is_known_after_a_restart() -> None:
    """KIP-360 "Proposed Changes": "In the worst case, a retry may span coordinator failover, so we need to
    record in the transaction log whether the bump was the result of a new producer instance or not"
    (KAFKA-20357)."""
    txn = Txn.in_state("Empty")
    txn.init(expected=ident(42, 10))
    txn.world.restart()
    assert txn.init(expected=ident(42, 10)) == InitProducerIdResult(client=ident(42, 11))
    txn.init()
    txn.world.restart()
    assert code(txn.init(expected=ident(42, 11))) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(("timeout_ms", "two_phase"), [(5, False), (TIMEOUT_MS, True)])
def test_a_request_that_differs_is_no_repetition(timeout_ms: int, two_phase: bool) -> None:
    """[TXN-8] KIP-360 "Proposed Changes" lets a client ask again after a lost answer, and that request says
    what the first said. Kafka takes another timeout over; the first request, delayed, would take it back."""
    txn = Txn.in_state("Empty")
    txn.init(expected=ident(42, 10))
    before, records = txn.entry, len(txn.world.log)
    answer = txn.init(expected=ident(42, 10), timeout_ms=timeout_ms, two_phase=two_phase)
    assert code(answer) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)
    assert txn.init(expected=ident(42, 10)) == InitProducerIdResult(client=ident(42, 11))
    answer = txn.init(expected=ident(42, 11), timeout_ms=timeout_ms, two_phase=two_phase)
    assert answer == InitProducerIdResult(client=ident(42, 12))


@pytest.mark.parametrize("stranger", STRANGERS, ids=str)
@pytest.mark.parametrize("state", ["Empty", "Ongoing"])
def test_any_other_pair_is_fenced(state: str, stranger: ProducerIdAndEpoch) -> None:
    """[TXN-8] KIP-360 "Proposed Changes": "Epoch is less than instance epoch: return INVALID_PRODUCER_EPOCH",
    "Epoch is greater than current epoch: return INVALID_PRODUCER_EPOCH"; error 90 since version 4, which the
    handler turns into 47 for older clients. Kafka goes on to abort what is open."""
    txn = Txn.in_state(state)
    before, records = txn.entry, len(txn.world.log)
    for keep in (False, True):
        assert code(txn.init(expected=stranger, keep=keep)) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)


def test_the_end_of_a_transaction_counts_as_a_bump_by_the_owner() -> None:
    """KIP-890 with KIP-360: EndTxn has moved the epoch; whose reply was lost may ask InitProducerId."""
    txn = Txn.in_state("CompleteCommit")
    assert txn.init(expected=ident(42, 10)) == InitProducerIdResult(client=ident(42, 11))
    assert txn.init(expected=ident(42, 11)) == InitProducerIdResult(client=ident(42, 12))


# ------------------------------------------------------------- the last epoch


@pytest.mark.parametrize("epoch", [MAX - 3, MAX - 2])
def test_epochs_are_used_up_to_the_one_before_the_last(epoch: int) -> None:
    """[TXN-6] KAFKA-5283: 32767 is held back for markers."""
    for expected in (None, ident(42, epoch)):
        answer = Txn.idle(ident(42, epoch)).init(expected=expected)
        assert answer == InitProducerIdResult(client=ident(42, epoch + 1))


@pytest.mark.parametrize("epoch", [MAX - 1, MAX])
@pytest.mark.parametrize("owner", [False, True])
def test_after_the_last_epoch_comes_another_producer_id(epoch: int, owner: bool) -> None:
    """[TXN-4] KAFKA-5283, KAFKA-20310: and the owner may repeat itself with the pair of the old one, restart
    or not."""
    old = ident(42, epoch)
    txn = Txn.idle(old, spares=(85, 99))
    assert txn.init(expected=old if owner else None) == InitProducerIdResult(client=ident(85, 0))
    for restart in (False, True):
        if restart:
            txn.world.restart()
        repeated = txn.init(expected=old)
        assert repeated == (InitProducerIdResult(client=ident(85, 0)) if owner else repeated)
        assert owner or code(repeated) == ErrorCode.PRODUCER_FENCED
    assert code(txn.init(expected=ident(42, epoch - 1))) == ErrorCode.PRODUCER_FENCED


def test_a_stale_pair_does_not_use_up_a_producer_id() -> None:
    """Facts of InitProducerId: another producer id only without a pair, or with the present one."""
    txn = Txn.idle(ident(42, MAX - 1))
    before, records = txn.entry, len(txn.world.log)
    assert code(txn.init(expected=ident(42, MAX - 2))) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)
    assert txn.init() == InitProducerIdResult(client=ident(85, 0))


def test_a_producer_id_is_taken_only_when_it_is_used() -> None:
    """[TXN-4] Spare producer ids are handed out once: a Step says whether it took the one it was offered."""
    txn = Txn(TxnConfig(), spares=(42, 43, 44))
    txn.init()
    for _ in range(5):
        txn.init()
        txn.add(txn.client)
        txn.commit(txn.client)
        txn.complete()
    other = Txn(world=txn.world, transactional_id=type(T)("other"))
    assert other.init() == InitProducerIdResult(client=ident(43, 0))


# ------------------------------------------------------------- a transaction is open, or decided


@pytest.mark.parametrize("owner", [False, True])
def test_an_open_transaction_is_aborted_with_one_bump_for_the_abort(owner: bool) -> None:
    """KAFKA-19367: the abort takes one epoch, a new incarnation's repetition another, and no more."""
    txn = Txn.in_state("Ongoing")
    expected = ident(42, 10) if owner else None
    assert code(txn.init(expected=expected)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (txn.state, txn.marker, txn.client) == ("PrepareAbort", ident(42, 11), ident(42, 11))
    for _ in range(3):
        assert code(txn.init(expected=expected)) == ErrorCode.CONCURRENT_TRANSACTIONS
    txn.world.restart()
    txn.complete()
    # The owner is answered with the pair that the abort made; a new incarnation gets one of its own.
    assert txn.init(expected=expected) == InitProducerIdResult(client=ident(42, 11 if owner else 12))


def test_a_fenced_incarnation_is_not_told_the_next_pair() -> None:
    """KIP-360: what makes it safe to return the current pair is that only its owner can ask. An incarnation
    whose transaction was taken over must not learn the pair from the repetition of its own abort."""
    for outcome in TransactionResult:
        txn = Txn.in_state("Ongoing")
        txn.init()
        assert code(txn.end(ident(42, 10), outcome)) == ErrorCode.PRODUCER_FENCED
        txn.complete()
        assert code(txn.end(ident(42, 10), outcome)) == ErrorCode.PRODUCER_FENCED
        assert code(txn.init(expected=ident(42, 10))) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("level", [0, 1])
def test_a_fence_moves_the_epoch_under_older_versions_too(level: int) -> None:
    """KIP-98: InitProducerId fences the instance before; with the epoch unmoved it would write on."""
    txn = Txn.in_state("Ongoing", config=TxnConfig(transaction_version=level), version=0)
    assert code(txn.init()) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (txn.state, txn.marker) == ("PrepareAbort", ident(42, 11))
    assert code(txn.abort(ident(42, 10), version=0)) == ErrorCode.PRODUCER_FENCED
    assert code(txn.add(ident(42, 10), version=0)) == ErrorCode.PRODUCER_FENCED
    txn.complete()
    assert txn.init() == InitProducerIdResult(client=ident(42, 12))


def test_a_fence_whose_record_cannot_be_written_burns_no_epoch() -> None:
    """KAFKA-9666: nothing changes before the log has it, so that the fence can be decided again and again."""
    txn = Txn.in_state("Ongoing")
    command = InitProducerId(timeout_ms=TIMEOUT_MS)
    steps = [decide(txn.entry, command, txn.world.new_env(T)) for _ in range(3)]
    assert isinstance(steps[0], TxnStep)
    assert steps[0] == steps[1] == steps[2]
    assert isinstance(txn.entry.phase, OngoingPhase)


@pytest.mark.parametrize("state", DECIDED_STATES)
@pytest.mark.parametrize("expected", [None, ident(42, 9), ident(42, 10), ident(42, 11), ident(7, 7)])
def test_while_markers_are_written_everybody_waits(state: str, expected: ProducerIdAndEpoch | None) -> None:
    """KIP-98: 51 until the transaction is complete, whoever asks."""
    txn = Txn.in_state(state)
    before, records = txn.entry, len(txn.world.log)
    assert code(txn.init(expected=expected)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert unchanged(txn, before, records)


# ------------------------------------------------------------- timeouts and expiry


@pytest.mark.parametrize("timeout_ms", [-(2**31), -1, 0, 900_001, 2**31 - 1])
@pytest.mark.parametrize("state", STATES)
def test_a_timeout_out_of_range_is_refused_before_anything_else(timeout_ms: int, state: str) -> None:
    """KIP-98, transaction.max.timeout.ms: above it error 50."""
    txn = Txn.in_state(state)
    before, records = txn.entry, len(txn.world.log)
    for keep in (False, True):
        answer = txn.init(timeout_ms=timeout_ms, keep=keep)
        assert code(answer) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert unchanged(txn, before, records)
    unknown = Txn(TxnConfig())
    assert code(unknown.init(timeout_ms=timeout_ms)) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not unknown.world.entries


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_timeouts_in_range(timeout_ms: int) -> None:
    txn = Txn(TxnConfig(), spares=(42,))
    assert txn.init(timeout_ms=timeout_ms) == InitProducerIdResult(client=ident(42, 0))
    assert txn.entry.timeout_ms == timeout_ms


def test_an_id_that_expired_under_its_producer() -> None:
    """KIP-360 "Public Interfaces": "After a transactional id has expired, its state is removed from the log.
    If the id is used again in the future, a new producerId will be generated" (KAFKA-18019 for what the
    client makes of 49)."""
    txn = Txn.in_state("CompleteCommit")
    txn.world.pass_time(txn.world.config.transactional_id_expiration_ms)
    assert not txn.world.entries
    txn.world.restart()
    assert not txn.world.entries
    for answer in (txn.add(ident(42, 11)), txn.write(ident(42, 11)), txn.verify(ident(42, 11))):
        assert code(answer) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for version in (0, 2):
        assert code(txn.commit(ident(42, 11), version)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not txn.world.entries
    assert txn.init() == InitProducerIdResult(client=ident(85, 0))
    assert code(txn.commit(ident(42, 11))) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# ------------------------------------------------------------- every way across the last epoch


def crossing(kind: str, txn: Txn) -> None:
    """One round of a client's life that moves the epoch, however it moves it."""
    txn.add(txn.client)
    match kind:
        case "commit" | "abort":
            txn.end(txn.client, TransactionResult(kind))
        case "fence":
            txn.init()
        case "timeout":
            txn.world.pass_time(TIMEOUT_MS + 1)
        case "keep":
            txn.init(keep=True)
            txn.init(keep=True)
            txn.commit(txn.client)
    txn.complete()


@pytest.mark.parametrize("failover", [False, True], ids=["", "failover"])
@pytest.mark.parametrize("start", range(MAX - 4, MAX))
@pytest.mark.parametrize("kind", ["commit", "abort", "fence", "timeout", "keep"])
def test_epochs_run_out_in_every_way(kind: str, start: int, failover: bool) -> None:
    """[TXN-4] KAFKA-5283, KAFKA-20090, KAFKA-20310, KAFKA-20357: pairs only rise, markers always fit, one new
    producer id is enough, and a client can always go on."""
    txn = Txn.idle(ident(42, start), spares=(85, 99))
    seen = [txn.client]
    for _ in range(5):
        crossing(kind, txn)
        if failover:
            txn.world.restart()
        seen.append(txn.client)
        answer = txn.init()
        assert isinstance(answer, InitProducerIdResult)
        seen.append(answer.client)
    assert seen == sorted(set(seen))
    assert {identity.producer_id for identity in seen} == {42, 85}
    assert all(identity.epoch < MAX for identity in seen)
    assert all(send.marker_identity.epoch <= MAX for send in txn.world.sent_markers)
    assert code(txn.add(txn.client)) == ErrorCode.NONE
    assert isinstance(txn.commit(txn.client), EndTxnResult)


def test_a_pair_at_the_very_end_writes_nothing_more() -> None:
    """An abort under an older version may leave 32767 behind: no marker of version 2 could follow its
    data."""
    txn = Txn.idle(ident(42, MAX))
    before, records = txn.entry, len(txn.world.log)
    for answer in (txn.add(ident(42, MAX)), txn.write(ident(42, MAX)), txn.abort(ident(42, MAX))):
        assert code(answer) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)
    assert txn.init() == InitProducerIdResult(client=ident(85, 0))
