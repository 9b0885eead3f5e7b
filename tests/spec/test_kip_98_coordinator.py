"""KIP-98, "Exactly Once Delivery and Transactional Messaging": the life of a transaction at its
coordinator."""

from types import MappingProxyType
from typing import get_args

import pytest
from tests.support.txn_words import (
    DECIDED_STATES,
    IDLE_STATES,
    P0,
    P1,
    P2,
    STATES,
    TIMEOUT_MS,
    T,
    Txn,
    code,
    ident,
    last_value,
    unchanged,
)

from harness.transactions import durable_view
from tallystick.broker.txn.machine.apply import apply_event, check_transition
from tallystick.broker.txn.machine.commands import (
    DONE,
    PENDING_POLICIES,
    AbortTimedOut,
    AddPartitions,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    InitProducerId,
    InitProducerIdResult,
    MarkerProgress,
    MarkersWritten,
    PendingPolicy,
    RecordForcedMarker,
    RemoveExpiredId,
    TxnCommand,
    TxnStep,
    VerifyPartitions,
    find_pending_policy,
)
from tallystick.broker.txn.machine.decide import decide, refuse_while_pending
from tallystick.broker.txn.machine.model import (
    PREVIOUS_STATES,
    DecidedPhase,
    ForcedCause,
    IdlePhase,
    TransactionResult,
    TxnConfig,
    TxnState,
    is_expired,
    is_timed_out,
)
from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Offset, ProducerIdAndEpoch, TimestampMs
from tallystick.kernel.value import replace

WEEK_MS = 604_800_000


# ------------------------------------------------------------- one transaction


@pytest.mark.parametrize("outcome", TransactionResult)
@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction(outcome: TransactionResult, version: int) -> None:
    """[TXN-9] KIP-98: initialise, add, decide, mark every partition, complete."""
    txn = Txn(TxnConfig(), spares=(42,))
    assert txn.init() == InitProducerIdResult(client=ident(42, 0))
    assert txn.add(ident(42, 0), P0, version=version) == DONE
    assert txn.add(ident(42, 0), P1, P2, version=version) == DONE
    answer = txn.end(ident(42, 0), outcome, version)
    assert isinstance(answer, EndTxnResult)
    (send,) = txn.world.sent_markers
    assert (send.outcome, send.partitions) == (outcome, frozenset({P0, P1, P2}))
    for number, partition in enumerate((P2, P0)):
        txn.world.write_markers(T, only=[partition])
        assert isinstance(txn.entry.phase, DecidedPhase)
        assert len(txn.entry.phase.unmarked_partitions) == 2 - number
    txn.world.write_markers(T, only=[P1])
    assert isinstance(txn.entry.phase, IdlePhase)
    assert txn.entry.phase.outcome is outcome
    assert txn.client == answer.client


def test_what_each_state_has_in_the_log() -> None:
    """KIP-98: Empty has neither partitions nor a start; Ongoing only grows; a decision
    keeps partitions, timeout and start; complete keeps the start."""
    txn = Txn(TxnConfig(), spares=(42,))
    txn.init()
    value = last_value(txn.world)
    assert (value.transaction_partitions, value.transaction_start_timestamp_ms) == (None, -1)
    txn.world.pass_time(5)
    began = txn.world.now_ms()
    for partitions, count in (((P0,), 1), ((P1, P2), 3)):
        txn.add(ident(42, 0), *partitions)
        txn.world.pass_time(5)
        value = last_value(txn.world)
        assert value.transaction_start_timestamp_ms == began
        assert sum(len(t.partition_ids) for t in value.transaction_partitions or ()) == count
        assert value.transaction_timeout_ms == TIMEOUT_MS
    txn.commit(ident(42, 0))
    assert last_value(txn.world).transaction_start_timestamp_ms == began
    assert last_value(txn.world).transaction_partitions == value.transaction_partitions
    assert last_value(txn.world).transaction_timeout_ms == TIMEOUT_MS
    txn.complete()
    value = last_value(txn.world)
    assert (value.transaction_partitions, value.transaction_start_timestamp_ms) == ((), began)


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    """A deleted topic holds back no transaction; there is nothing in it to end."""
    txn = Txn.in_state("PrepareCommit")
    txn.world.write_markers(T, deleted_partitions=[P0])
    assert txn.state == "CompleteCommit"


@pytest.mark.parametrize("remember", [False, True])
def test_where_markers_are_is_remembered_if_they_can_be_lost(remember: bool) -> None:
    """Kafka trusts replicas; alone under `os` or `interval` a power loss may take markers back, and the
    comparison at the next start needs to know where they were."""
    txn = Txn.in_state("PrepareCommit", config=TxnConfig(remember_marker_offsets=remember))
    txn.ask(MarkersWritten(marker_identity=ident(42, 11), offsets={P0: Offset(7)}))
    txn.ask(MarkersWritten(marker_identity=ident(42, 11), offsets={P1: None}))
    txn.world.restart()
    assert isinstance(txn.entry.phase, IdlePhase)
    assert txn.entry.phase.marker_offsets == ({P0: 7} if remember else {})


def test_what_may_follow_before_it_is_durable() -> None:
    """[TXN-1] A decision waits for the disk; that all markers are written may be found out again."""
    txn = Txn.in_state("Ongoing")
    env = txn.world.new_env(T)
    decision = decide(
        txn.entry,
        EndTxn(identity=ident(42, 10), outcome=TransactionResult.COMMIT, transaction_version=2),
        env,
    )
    assert isinstance(decision, TxnStep)
    assert decision.needs_durable
    txn.commit(ident(42, 10))
    complete = decide(
        txn.entry,
        MarkersWritten(marker_identity=ident(42, 11), offsets=dict.fromkeys((P0, P1), Offset(5))),
        env,
    )
    assert isinstance(complete, TxnStep)
    assert not complete.needs_durable
    assert complete.records


@pytest.mark.parametrize(
    ("version", "finalized", "waits", "needs_durable"),
    [(2, 2, False, False), (2, 2, True, True), (0, 2, False, True), (2, 1, False, True)],
)
def test_an_addition_may_follow_before_it_is_durable_if_a_pair_names_one_transaction(
    version: int, finalized: int, waits: bool, needs_durable: bool
) -> None:
    """[TXN-1] [TXN-12] Only then the data alone says what was lost, for a leader that answers when both are
    durable; and only then a marker of the last transaction cannot end this one."""
    txn = Txn.in_state("Ongoing")
    txn.end(ident(42, 10), TransactionResult.COMMIT, version)
    txn.complete()
    env = replace(txn.world.new_env(T), config=TxnConfig(transaction_version=finalized))
    add = AddPartitionsByLeader(identity=txn.client, partitions=frozenset({P0}), needs_durable=waits)
    step = decide(txn.entry, add, env)
    assert isinstance(step, TxnStep)
    assert step.needs_durable is needs_durable
    assert step.records


@pytest.mark.parametrize("state", STATES)
def test_a_restart_finds_every_state(state: str) -> None:
    """[TXN-2] KIP-98: a coordinator begins with its log; decided transactions send their markers
    again."""
    txn = Txn.in_state(state)
    live = durable_view(txn.entry)
    txn.world.restart()
    assert txn.entry == live
    assert (T in txn.world.pending_markers) == (state in DECIDED_STATES)
    if state in DECIDED_STATES:
        assert txn.world.sent_markers[-1] == txn.world.sent_markers[0]
        txn.complete()


# ------------------------------------------------------------- transitions


def test_previous_states_are_kafkas() -> None:
    """[TXN-3] KIP-98, as of Kafka 4: the valid previous states, without the two that are never in a log."""
    idle = {TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}
    assert {
        TxnState.EMPTY: idle,
        TxnState.ONGOING: idle | {TxnState.ONGOING},
        # After itself: an administrator's marker is noted. Kafka has no such record, and minds none.
        TxnState.PREPARE_COMMIT: {TxnState.ONGOING, TxnState.PREPARE_COMMIT},
        TxnState.PREPARE_ABORT: idle | {TxnState.ONGOING},
        TxnState.COMPLETE_COMMIT: {TxnState.PREPARE_COMMIT},
        TxnState.COMPLETE_ABORT: {TxnState.PREPARE_ABORT},
    } == PREVIOUS_STATES


@pytest.mark.parametrize("after", STATES)
@pytest.mark.parametrize("before", STATES)
def test_transitions_off_the_table_are_caught(before: str, after: str) -> None:
    """[TXN-3]"""
    first, second = Txn.in_state(before).entry, replace(Txn.in_state(after).entry, client=ident(42, 12))
    if first.state in PREVIOUS_STATES[second.state]:
        check_transition(first, second)
    else:
        with pytest.raises(InvariantBroken, match=f"{first.state.label} -> {second.state.label}"):
            check_transition(first, second)


def test_numbers_and_names_of_states() -> None:
    """KIP-664 and the log: Kafka's numbers and the names its tools print."""
    assert [state.label for state in TxnState] == [*STATES, "Dead", "PrepareEpochFence"]
    assert list(TxnState) == list(range(8))


def test_markers_of_another_decision_are_not_noted() -> None:
    """[TXN-2] `apply_event` is total: what replay or a late marker brings never breaks an entry."""
    late = MarkerProgress(marker_identity=ident(42, 10), offsets={P0: Offset(5)})
    assert apply_event(None, late) is None
    for state in STATES:
        entry = Txn.in_state(state).entry
        assert apply_event(entry, late) == entry


# ------------------------------------------------------------- time


def test_a_transaction_times_out_after_its_timeout() -> None:
    """KIP-98, transaction.timeout.ms: the start of the transaction counts, not
    its last partition; and a transaction of just that age is left alone."""
    txn = Txn.idle(ident(42, 10))
    txn.world.pass_time(1_000_000)
    assert txn.state == "Empty"
    txn.add(ident(42, 10), P0)
    txn.world.pass_time(TIMEOUT_MS)
    txn.add(ident(42, 10), P1)
    assert txn.state == "Ongoing"
    assert not is_timed_out(txn.entry, txn.world.now_ms())
    txn.world.pass_time(1)
    assert txn.state == "PrepareAbort"
    assert txn.world.pending_markers[T].partitions == {P0, P1}
    assert txn.entry.forced_outcomes[-1].cause is ForcedCause.TIMED_OUT


@pytest.mark.parametrize("state", [s for s in STATES if s != "Ongoing"])
def test_time_is_up_for_open_transactions_alone(state: str) -> None:
    txn = Txn.in_state(state)
    before, records = txn.entry, len(txn.world.log)
    assert not is_timed_out(txn.entry, TimestampMs(2**62))
    assert txn.time_out() == DONE
    assert unchanged(txn, before, records)


def test_a_decision_that_comes_first_has_won() -> None:
    """[TXN-6] The scan had seen the transaction open; EndTxn was decided before the scan's command."""
    txn = Txn.in_state("Ongoing")
    txn.world.elapsed_ms += TIMEOUT_MS + 1
    assert is_timed_out(txn.entry, txn.world.now_ms())
    txn.commit(ident(42, 10))
    before, records = txn.entry, len(txn.world.log)
    assert txn.time_out() == DONE
    assert unchanged(txn, before, records)
    txn.complete()
    assert txn.state == "CompleteCommit"


def test_an_early_command_changes_nothing() -> None:
    """The transaction the scan meant has ended, and another is open since: its time has not come."""
    txn = Txn.in_state("Ongoing")
    before, records = txn.entry, len(txn.world.log)
    assert txn.time_out() == DONE
    assert txn.ask(RemoveExpiredId()) == DONE
    assert unchanged(txn, before, records)


@pytest.mark.parametrize("state", IDLE_STATES)
def test_an_idle_id_expires(state: str) -> None:
    """KIP-98, transactional.id.expiration.ms: without a word, counted from the last
    record."""
    txn = Txn.in_state(state)
    assert not is_expired(txn.entry, TimestampMs(txn.entry.updated_ms + WEEK_MS - 1), txn.world.config)
    assert is_expired(txn.entry, TimestampMs(txn.entry.updated_ms + WEEK_MS), txn.world.config)
    txn.world.pass_time(WEEK_MS - 1)
    assert txn.state == state
    txn.world.pass_time(1)
    assert not txn.world.entries
    assert not txn.world.replay_entries()


@pytest.mark.parametrize("state", ["Ongoing", *DECIDED_STATES])
def test_an_id_with_a_transaction_does_not_expire(state: str) -> None:
    """Not even where nothing else would end it: two-phase commit, markers that cannot be written."""
    txn = Txn.in_state(state)
    assert not is_expired(txn.entry, TimestampMs(2**62), txn.world.config)
    before, records = txn.entry, len(txn.world.log)
    txn.world.elapsed_ms += 100 * WEEK_MS
    assert txn.ask(RemoveExpiredId()) == DONE
    assert unchanged(txn, before, records)


def test_using_an_id_puts_off_its_expiry() -> None:
    txn = Txn.idle(ident(42, 10))
    for _ in range(3):
        txn.world.pass_time(WEEK_MS - 1)
        txn.init()
        assert txn.entry.updated_ms == txn.world.now_ms()
    txn.world.pass_time(WEEK_MS - 1)
    assert T in txn.world.entries


def test_an_id_that_was_used_again_is_not_removed_by_a_late_scan() -> None:
    txn = Txn.idle(ident(42, 10))
    txn.world.elapsed_ms += WEEK_MS
    assert is_expired(txn.entry, txn.world.now_ms(), txn.world.config)
    txn.init()
    assert txn.ask(RemoveExpiredId()) == DONE
    assert T in txn.world.entries


# ------------------------------------------------------------- commands while a Step is pending


def test_what_a_pending_step_does_to_each_command() -> None:
    """[TXN-5] KIP-98 and Kafka's pendingState: 51 for clients; the internal ones wait, and leaders' adds are
    merged."""
    assert set(PENDING_POLICIES) == set(get_args(TxnCommand))
    assert (
        MappingProxyType(
            {
                InitProducerId: PendingPolicy.REFUSE,
                AddPartitions: PendingPolicy.REFUSE,
                AddPartitionsByLeader: PendingPolicy.MERGE,
                VerifyPartitions: PendingPolicy.DECIDE_AT_ONCE,
                EndTxn: PendingPolicy.CHECK_IDENTITY,
                AbortTimedOut: PendingPolicy.WAIT,
                MarkersWritten: PendingPolicy.WAIT,
                RecordForcedMarker: PendingPolicy.WAIT,
                RemoveExpiredId: PendingPolicy.WAIT,
            }
        )
        == PENDING_POLICIES
    )
    assert find_pending_policy(AbortTimedOut()) is PendingPolicy.WAIT


@pytest.mark.parametrize(
    ("identity", "refused"),
    [
        (ident(42, 10), ErrorCode.CONCURRENT_TRANSACTIONS),
        (ident(42, 9), ErrorCode.PRODUCER_FENCED),
        (ident(42, 11), ErrorCode.PRODUCER_FENCED),
        (ident(7, 10), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_the_older_end_txn_looks_at_the_pair_first(identity: ProducerIdAndEpoch, refused: ErrorCode) -> None:
    """[TXN-5] KIP-98: an EndTxn of versions 0 to 4 from a fenced producer hears that before it hears 51."""
    entry = Txn.in_state("Ongoing").entry
    for version, expected in ((0, refused), (2, ErrorCode.CONCURRENT_TRANSACTIONS)):
        command = EndTxn(identity=identity, outcome=TransactionResult.COMMIT, transaction_version=version)
        assert refuse_while_pending(entry, command).code == expected


@pytest.mark.parametrize(
    "command",
    [
        InitProducerId(timeout_ms=TIMEOUT_MS),
        InitProducerId(timeout_ms=TIMEOUT_MS, expected_identity=ident(7, 7), keep_prepared=True),
        AddPartitions(identity=ident(7, 7), partitions=frozenset({P0}), transaction_version=0),
    ],
)
def test_others_are_refused_without_a_look(command: TxnCommand) -> None:
    """[TXN-5] KIP-98: 51 first."""
    for entry in (None, Txn.in_state("Ongoing").entry):
        assert refuse_while_pending(entry, command).code == ErrorCode.CONCURRENT_TRANSACTIONS


# ------------------------------------------------------------- every state has an exit


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_whatever_the_state_an_operator_gets_out(state: str, kept: bool, two_phase: bool) -> None:
    """KIP-664 "Recovery" and KIP-939 forceTerminateTransaction: InitProducerId and markers are always
    enough."""
    txn = Txn(TxnConfig(transaction_two_phase_commit_enable=True), spares=(42, 43))
    txn.init(two_phase=two_phase)
    if state != "Empty":
        txn.add(ident(42, 0))
        if kept:
            txn.init(keep=True, two_phase=two_phase)
    if state not in ("Empty", "Ongoing"):
        txn.end(txn.client, TransactionResult.COMMIT if "Commit" in state else TransactionResult.ABORT)
    if state.startswith("Complete"):
        txn.complete()
    assert txn.state == state
    seen = txn.client
    answer = txn.init()
    for _ in range(2):
        if code(answer) == ErrorCode.CONCURRENT_TRANSACTIONS:
            txn.complete()
            answer = txn.init()
    assert isinstance(answer, InitProducerIdResult)
    assert answer.client > seen
    assert isinstance(txn.entry.phase, IdlePhase)
