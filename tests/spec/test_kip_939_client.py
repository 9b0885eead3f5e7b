"""KIP-939, the producer's side: each test quotes the sentence it holds the client to.

Both machines are the real ones, the client's and the coordinator's; between them lies a function call.
"""

import pytest
from tests.support.txn_pair import PureClient, coordinator, shown
from tests.support.txn_words import MAX, Txn, ident

from tallystick.broker.txn.machine.model import DecidedPhase, IdlePhase, OngoingPhase, TransactionResult
from tallystick.client.errors import build_broker_error
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.modes import Mode, TxnFinding, TxnRecoveryAction, classify_outcome
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import IllegalCall, State, TxnCall, TxnProducerState
from tallystick.kernel.settings import BadConfig


def outcome(txn: Txn) -> TransactionResult | None:
    """How the last transaction was decided; None while it is open."""
    phase = txn.entry.phase
    return phase.outcome if isinstance(phase, DecidedPhase | IdlePhase) else None


def crashed_after_prepare(txn: Txn) -> PreparedTxnState:
    """A client prepares one transaction, and is gone."""
    one = PureClient(txn)
    one.init(keep=False)
    one.begin()
    one.write()
    return one.prepare()


# ---- the recipes


def test_normal_processing_recipe() -> None:
    """ "prepareTransaction in Kafka, get the preparedTransactionState" … "commitTransaction in Kafka"."""
    txn = coordinator()
    one = PureClient(txn)
    one.init(keep=False)
    stored = PreparedTxnState()
    for _ in range(3):
        one.begin()
        one.write()
        token = one.prepare()
        assert token not in (stored, PreparedTxnState()), "each transaction has a name of its own"
        assert isinstance(txn.entry.phase, OngoingPhase), "there is no prepare RPC"
        assert str(token) == f"{txn.writer.producer_id}:{txn.writer.epoch}"
        stored = token
        one.call(TxnCall.COMMIT)
        one.end()
        assert outcome(txn) is TransactionResult.COMMIT


@pytest.mark.parametrize("crashes", range(4))
def test_recovery_recipe(crashes: int) -> None:
    """ "Read preparedTransactionState from the database", "completePreparedTransaction with" it."""
    for stored_matches in (True, False):
        txn = coordinator()
        token = crashed_after_prepare(txn)
        for _ in range(crashes):
            PureClient(txn).init(keep=True)
        two = PureClient(txn)
        two.init(keep=True)
        two.complete(PreparedTxnState(str(token)) if stored_matches else PreparedTxnState("1:1"))
        assert outcome(txn) is (TransactionResult.COMMIT if stored_matches else TransactionResult.ABORT)
        assert two.machine.state is State.READY
        two.begin()
        assert two.write() == 0


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_commit_whose_answer_is_lost_is_repeated(lost: str) -> None:
    """ "if the commit request times out and the client retries with previous producer id, we can return
    success and new producer id"."""
    for start in (ident(42, 3), ident(42, MAX - 2), ident(42, MAX - 1)):
        txn = coordinator(start)
        token = crashed_after_prepare(txn)
        two = PureClient(txn)
        two.init(keep=True)
        two.complete(token, lost=lost)
        assert outcome(txn) is TransactionResult.COMMIT
        assert two.machine.client == txn.client


# ---- which calls


def test_what_is_allowed_after_prepare() -> None:
    """ "transition the producer into a mode where only .commitTransaction, .abortTransaction, or
    .completeTransaction could be called (calling other methods, e.g. .send, in that mode would result in
    IllegalStateException being thrown)"."""
    txn = coordinator()
    token = crashed_after_prepare(txn)
    two = PureClient(txn)
    two.init(keep=True)
    asked = len(txn.answers)
    for call in TxnCall:
        result = two.machine.apply_call(call)
        assert isinstance(result, TxnProducerState) == (call in (TxnCall.COMMIT, TxnCall.ABORT))
    assert isinstance(two.machine.complete(token), TxnProducerState)
    assert len(txn.answers) == asked, "nothing was sent"


def test_init_true_keeps_and_init_false_does_not() -> None:
    """ "Don't abort the ongoing transaction (so that it's possible to commit a prepared transaction even
    after producer restarts)"."""
    txn = coordinator()
    crashed_after_prepare(txn)
    PureClient(txn).init(keep=True)
    assert txn.state == "Ongoing"
    PureClient(txn).init(keep=False)
    assert txn.state == "Empty"
    assert outcome(txn) is None
    assert len(txn.entry.forced_outcomes) == 1


def test_prepare_fails_if_anything_was_not_flushed() -> None:
    """ "If the call is successful (all messages successfully got flushed to all partitions) the transaction
    is prepared."."""
    one = PureClient(coordinator())
    one.init(keep=False)
    one.begin()
    one.write()
    one.machine = one.machine.apply_failure("Produce", build_broker_error("Produce", "data-0", 10))
    assert isinstance(one.machine.apply_call(TxnCall.PREPARE), IllegalCall)
    one.call(TxnCall.ABORT)
    one.end()
    assert outcome(one.txn) is TransactionResult.ABORT


def test_prepare_without_two_phase_commit() -> None:
    """ "If the 2PC is not enabled, we return the INVALID_TXN_STATE error."."""
    machine = TxnProducerState().apply_call(TxnCall.INIT)
    assert isinstance(machine, TxnProducerState)
    machine = machine.apply_init(ident(42, 0), version=2, mode=None, keep=False).apply_call(TxnCall.BEGIN)
    assert isinstance(machine, TxnProducerState)
    refusal = machine.apply_call(TxnCall.PREPARE)
    assert isinstance(refusal, IllegalCall)
    assert refusal.is_invalid_txn_state


def test_complete_without_a_prepare() -> None:
    """ "If the producer is not in prepared state (i.e. neither prepareTransaction was called nor
    initTransaction(true) was called) we return an INVALID_TXN_STATE error."."""
    one = PureClient(coordinator())
    one.init(keep=False)
    for _ in range(2):
        refusal = one.machine.complete(PreparedTxnState("42:0"))
        assert isinstance(refusal, IllegalCall)
        assert refusal.is_invalid_txn_state
        one.begin() if one.machine.state is State.READY else None


def test_complete_with_nothing_ongoing() -> None:
    """ "OngoingTxnProducerId and OngoingTxnEpoch can be set to -1 if there is no ongoing transaction. In this
    case calling .completeTransaction would be a no-op."."""
    txn = coordinator()
    token = crashed_after_prepare(txn)
    two = PureClient(txn)
    two.init(keep=True)
    two.complete(token)
    three = PureClient(txn)
    three.init(keep=True)
    before, asked = txn.entry, len(txn.answers)
    assert three.complete(token) == three.machine
    assert (txn.entry, len(txn.answers)) == (before, asked)
    three.begin()
    assert three.write() == 0


# ---- two pairs


@pytest.mark.slow
def test_the_example_with_two_overflows() -> None:
    """ "2PC transaction case with two epoch overflows", all ten steps, from the client's chair."""
    txn = coordinator(ident(42, MAX - 2))
    token = crashed_after_prepare(txn)
    assert str(token) == f"42:{MAX - 1}"
    client = None
    for _ in range(MAX + 1):
        two = PureClient(txn)
        two.init(keep=True)
        assert two.machine.token == token, "the ProducerId and ProducerEpoch … always stay the same"
        client = two.machine.client
        if client is not None and client.epoch == MAX:
            break
    assert client == ident(73, MAX)
    two.complete(token)
    assert txn.marker == ident(42, MAX)
    assert two.machine.client == ident(74, 0)
    txn.complete()
    two.begin()
    assert two.write() == 0


def test_the_latest_pair_signs_and_the_first_names() -> None:
    """ "When a commit request is sent, it uses the latest ProducerId and ProducerEpoch."."""
    txn = coordinator(ident(42, 6))
    token = crashed_after_prepare(txn)
    two = PureClient(txn)
    two.init(keep=True)
    assert str(token) == "42:7"
    assert two.machine.client == ident(42, 8)
    two.complete(token)
    assert two.machine.client == ident(42, 9)


def test_split_brain() -> None:
    """ "Skip Epoch Bump When KeepPreparedTxn=true": "With the proper epoch bump, instance1 would get fenced
    at step 3."."""
    txn = coordinator()
    token = crashed_after_prepare(txn)
    one, two = PureClient(txn), PureClient(txn)
    one.init(keep=True)
    two.init(keep=True)
    one.complete(token)
    assert one.machine.state is State.FATAL
    assert txn.state == "Ongoing"
    two.complete(token)
    assert outcome(txn) is TransactionResult.COMMIT
    assert two.machine.state is State.READY


def test_a_fenced_client_learns_how_its_transaction_ended() -> None:
    """Not in the KIP: the first client lost the answer to its commit, and was replaced meanwhile."""
    txn = coordinator()
    one = PureClient(txn)
    one.init(keep=False)
    one.begin()
    one.write()
    token = one.prepare()
    committing = one.machine.complete(token)
    assert isinstance(committing, TxnProducerState)
    one.machine = committing
    assert one.look_up() == (TxnFinding.OPEN, TxnRecoveryAction.FENCED)
    txn.commit(ident(42, 0))
    assert one.look_up() == (TxnFinding.COMMITTED, TxnRecoveryAction.DONE)
    txn.complete()
    assert one.look_up() == (TxnFinding.COMMITTED, TxnRecoveryAction.DONE)
    PureClient(txn).init(keep=True)
    assert one.look_up() == (TxnFinding.MOVED_ON, TxnRecoveryAction.IN_DOUBT)


def test_the_timeout_without_two_phase_commit() -> None:
    """ "Without 2PC the notion of "prepared" transaction is subverted by the transaction.max.timeout.ms"."""
    txn = coordinator()
    one = PureClient(txn, Mode.KEEP)
    one.init(keep=False)
    one.begin()
    one.write()
    token = one.prepare()
    asked = one.machine.txn_to_resolve
    assert asked is not None
    txn.world.pass_time(10**9)
    assert classify_outcome(asked, shown(txn)) is TxnFinding.FORCED
    committing = one.machine.complete(token)
    assert isinstance(committing, TxnProducerState)
    one.machine = committing
    one.end()
    assert one.machine.state is State.ABORTABLE_ERROR, "never a success"
    one.call(TxnCall.ABORT)
    one.end()
    assert one.machine.state is State.READY
    one.begin()
    assert one.write() == 0


# ---- settings and text


def test_no_timeout_together_with_two_phase_commit() -> None:
    """ "it would be an error to set transaction.timeout.ms when two.phase.commit.enable is set to 'true'"."""
    given = {
        "bootstrap.servers": "b:1",
        "transactional.id": "t",
        "transaction.two.phase.commit.enable": "true",
        "transaction.timeout.ms": "1000",
    }
    with pytest.raises(BadConfig, match=r"transaction\.timeout\.ms"):
        ProducerConfig.parse(given)


def test_the_state_is_a_text() -> None:
    """ "The objects of this class can serialize to / deserialize from a string value"."""
    txn = coordinator(ident(42, 6))
    token = crashed_after_prepare(txn)
    assert str(token) == "42:7"
    assert PreparedTxnState(str(token)) == token
    assert str(PreparedTxnState()) == ""
