"""KIP-939: what recovery, an operator and an older broker find when a client has crashed."""

import pytest
from tests.support.txn_words import (
    MAX,
    P0,
    Txn,
    code,
    ident,
    last_value,
    unchanged,
)

from tallystick.broker.txn.codec import decode_record, encode_record
from tallystick.broker.txn.machine.commands import EndTxnResult, EntryStored, RecordForcedMarker
from tallystick.broker.txn.machine.model import DecidedPhase, ForcedCause, IdlePhase, TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.value import replace
from tallystick.protocol import encode

DAY_MS = 86_400_000


def kept() -> Txn:
    """Ongoing as 42/10, handed on to 42/11 after a crash."""
    return Txn.kept(ident(42, 10), ident(42, 11))


# ------------------------------------------------------------- what can be learned afterwards


def test_forced_outcomes_are_remembered() -> None:
    """Not in the KIP, which leaves a heuristic decision undetectable: who ended what, and why, stays on
    record."""
    txn = kept()
    txn.init()
    assert [(f.writer, f.cause) for f in txn.entry.forced_outcomes] == [
        (ident(42, 10), ForcedCause.TERMINATED)
    ]
    txn.complete()
    txn.init(timeout_ms=1_000)
    writer = txn.client
    txn.add(writer)
    txn.world.pass_time(1_001)
    txn.complete()
    assert [(f.writer, f.cause) for f in txn.entry.forced_outcomes] == [
        (ident(42, 10), ForcedCause.TERMINATED),
        (writer, ForcedCause.TIMED_OUT),
    ]
    assert txn.entry.forced_outcomes[1].at_ms == txn.world.now_ms()
    txn.world.restart()
    txn.init()
    assert len(txn.entry.forced_outcomes) == 2


def test_a_decision_of_the_client_is_no_forced_outcome() -> None:
    for outcome in TransactionResult:
        txn = kept()
        txn.end(ident(42, 11), outcome)
        txn.complete()
        assert not txn.entry.forced_outcomes


def test_the_last_eight_forced_outcomes_are_kept() -> None:
    """They live in every record of the id: their number is bounded."""
    txn = Txn.idle(ident(42, 0))
    for _ in range(10):
        txn.add(txn.client)
        txn.init()
        txn.complete()
        txn.init()
    assert len(txn.entry.forced_outcomes) == 8
    assert txn.entry.forced_outcomes == tuple(sorted(txn.entry.forced_outcomes, key=lambda f: f.writer))
    assert txn.entry.forced_outcomes[-1].writer.epoch > txn.entry.forced_outcomes[0].writer.epoch > 0


def test_an_administrators_marker_is_on_record() -> None:
    """KIP-939 "AdminClient API Changes": abortTransaction of a hanging transaction goes past the coordinator;
    of a transaction that is open it breaks atomicity, and that must be visible."""
    txn = kept()
    txn.ask(RecordForcedMarker(writer=ident(42, 10), partition=P0))
    (forced,) = txn.entry.forced_outcomes
    assert (forced.writer, forced.cause, forced.partition) == (ident(42, 10), ForcedCause.MARKER, P0)
    assert (txn.state, txn.writer, txn.client) == ("Ongoing", ident(42, 10), ident(42, 11))
    assert txn.commit(ident(42, 11)) == EndTxnResult(client=ident(42, 12))


def test_a_token_can_be_looked_up_before_the_next_init() -> None:
    """Recovery may describe before it initialises: a Complete state with the pair after the token's tells how
    that transaction ended."""
    for outcome, state in (
        (TransactionResult.COMMIT, "CompleteCommit"),
        (TransactionResult.ABORT, "CompleteAbort"),
    ):
        txn = Txn.idle(ident(42, 10))
        txn.add(ident(42, 10))
        txn.end(ident(42, 10), outcome)
        txn.complete()
        txn.world.restart()
        assert (txn.state, txn.entry.described_identity) == (state, ident(42, 11))


def test_descriptions_show_the_ongoing_pair() -> None:
    """KIP-939 "Compatibility": "The ProducerId and ProducerEpoch fields contain the ongoing transaction
    information": find-hanging looks for the producer id that is in the partitions."""
    txn = Txn.kept(ident(42, MAX - 1), ident(73, 5))
    assert txn.entry.described_identity == ident(42, MAX - 1)
    txn.commit(ident(73, 5))
    assert txn.entry.described_identity == ident(42, MAX)
    txn.complete()
    assert txn.entry.described_identity == ident(73, 6)


@pytest.mark.parametrize("outcome", TransactionResult)
def test_an_older_broker_can_finish_a_kept_transaction(outcome: TransactionResult) -> None:
    """KIP-939 "Compatibility, Deprecation, and Migration Plan": "The ProducerId and ProducerEpoch fields
    contain the ongoing transaction information so an old broker would be able to properly commit or abort the
    transaction". Such a broker skips every tag after Kafka 4.0's three."""
    txn = Txn.kept(ident(42, MAX - 1), ident(73, 5))
    value = last_value(txn.world)
    bare = replace(
        value, next_producer_epoch=-1, next_producer_id=-1, superseded=None, next_transaction_timeout_ms=-1
    )
    key, _ = encode_record(EntryStored(entry=txn.entry), 2)
    read = decode_record(key, (1).to_bytes(2, "big") + encode(bare, 1))
    assert isinstance(read, EntryStored)
    old = Txn(spares=(99,))
    old.world.insert_entry(read.entry)
    assert (old.state, old.writer, old.client) == ("Ongoing", ident(42, MAX - 1), ident(42, MAX - 1))
    assert old.partitions == txn.partitions
    assert code(old.end(ident(42, MAX - 1), outcome)) == ErrorCode.NONE
    assert old.marker == ident(42, MAX)


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("outcome", TransactionResult)
def test_no_former_incarnation_ends_a_later_transaction(outcome: TransactionResult, two_phase: bool) -> None:
    """[TXN-8] KIP-939 with KAFKA-17754: an EndTxn of each incarnation is delayed past the end of its
    transaction, past another epoch's end and into the next transaction."""
    txn = Txn.idle(ident(42, 10))
    txn.init(two_phase=two_phase)
    incarnations = []
    for _ in range(3):
        txn.write(txn.client)
        for _ in range(3):
            incarnations.append(txn.client)
            txn.init(keep=True, two_phase=two_phase)
        incarnations.append(txn.client)
        txn.commit(txn.client)
        txn.complete()
    txn.write(txn.client)
    before, records = txn.entry, len(txn.world.log)
    for former in incarnations:
        for version in (0, 2):
            assert code(txn.end(former, outcome, version)) == ErrorCode.PRODUCER_FENCED
        assert code(txn.init(expected=former, keep=True, two_phase=two_phase)) == ErrorCode.PRODUCER_FENCED
        assert code(txn.init(expected=former, two_phase=two_phase)) == ErrorCode.PRODUCER_FENCED
    assert unchanged(txn, before, records)


def test_a_kept_transaction_does_not_expire() -> None:
    """KIP-939 "Proposed Changes": "it's possible to commit a prepared transaction even after producer
    restarts", however long that takes."""
    txn = Txn(spares=(42,))
    txn.init(two_phase=True)
    txn.write(ident(42, 0))
    txn.init(keep=True, two_phase=True)
    txn.world.pass_time(1_000 * DAY_MS)
    assert txn.commit(ident(42, 1)) == EndTxnResult(client=ident(42, 2))


def test_an_empty_prepared_transaction_gets_a_token_of_its_own() -> None:
    """KAFKA-18464 and the token: an end with nothing written moves the epoch, so that the token of an empty
    prepared transaction is not that of the next one."""
    txn = Txn.idle(ident(42, 10))
    assert txn.abort(ident(42, 10)) == EndTxnResult(client=ident(42, 11))
    assert isinstance(txn.entry.phase, IdlePhase | DecidedPhase)
    assert code(txn.commit(ident(42, 11))) == ErrorCode.INVALID_TXN_STATE
