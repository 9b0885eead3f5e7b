"""KIP-890, "Transactions Server-Side Defense": the coordinator's part, and what older clients get beside it.

Part 1 lets partition leaders ask whether a transaction is open for them; part 2 moves the epoch at every end,
so that a repetition can be told from a new request. Errors by state are those of Kafka 4.x's coordinator.
"""

import pytest
from tests.support.txn_words import (
    DECIDED_STATES,
    IDLE_STATES,
    MAX,
    P0,
    P1,
    P2,
    STATES,
    TIMEOUT_MS,
    TWO_PHASE,
    T,
    Txn,
    code,
    ident,
    tc_state,
    unchanged,
)

from tallystick.broker.txn.machine.commands import (
    DONE,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    MarkersWritten,
    PendingPolicy,
    TxnAnswer,
    VerifyPartitionsResult,
    find_pending_policy,
)
from tallystick.broker.txn.machine.model import IdlePhase, OngoingPhase, TransactionResult, TxnConfig
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Offset, ProducerIdAndEpoch
from tallystick.kernel.value import replace

CLIENT, BEFORE, OLDER, OTHER = "the client", "the pair before it", "an older pair", "somebody else's"
FENCED, UNKNOWN = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING
WAIT, WRONG = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
NOTHING_OPEN = ErrorCode.TRANSACTION_ABORTABLE

LEVELS = [TxnConfig(transaction_version=level) for level in (0, 1)]
OLD_PROTOCOL = pytest.mark.parametrize(
    ("config", "version"),
    [(LEVELS[0], 0), (LEVELS[1], 0), (LEVELS[1], 2), (TWO_PHASE, 0)],
    ids=["level 0", "level 1", "EndTxn 5 at level 1", "EndTxn 4 at level 2"],
)


def pair(txn: Txn, who: str) -> ProducerIdAndEpoch:
    epoch = txn.client.epoch
    return {
        CLIENT: txn.client,
        BEFORE: ident(42, epoch - 1),
        OLDER: ident(42, epoch - 2),
        OTHER: ident(7, epoch),
    }[who]


# ------------------------------------------------------------- EndTxn of version 2, every state and pair

AGAIN = "as before"  # answered with the pair of the end that has been, nothing written
ENDED = "ended"  # the epoch moves

# (state, who): what a commit is answered, what an abort
END_TXN_5: dict[tuple[str, str], tuple[object, object]] = {
    ("Empty", CLIENT): (WRONG, ENDED),
    ("Empty", BEFORE): (FENCED, FENCED),
    ("Ongoing", CLIENT): (ENDED, ENDED),
    ("Ongoing", BEFORE): (FENCED, FENCED),
    ("PrepareCommit", BEFORE): (WAIT, WRONG),
    ("PrepareAbort", BEFORE): (WRONG, WAIT),
    # Kafka fences the pair that it has just handed out; it has been told the truth, if early.
    ("PrepareCommit", CLIENT): (WAIT, WAIT),
    ("PrepareAbort", CLIENT): (WAIT, WAIT),
    ("CompleteCommit", CLIENT): (WRONG, ENDED),
    ("CompleteCommit", BEFORE): (AGAIN, WRONG),
    ("CompleteAbort", CLIENT): (WRONG, ENDED),
    ("CompleteAbort", BEFORE): (WRONG, AGAIN),
    **{(state, OLDER): (FENCED, FENCED) for state in STATES},
    **{(state, OTHER): (UNKNOWN, UNKNOWN) for state in STATES},
}


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("outcome", TransactionResult)
@pytest.mark.parametrize(("state", "who"), END_TXN_5)
def test_end_txn_of_version_5(state: str, who: str, outcome: TransactionResult, restart: bool) -> None:
    """[TXN-6] [TXN-8] KIP-890 "Bump Epoch on Each Transaction for New Clients": Kafka's endTransaction, all
    of it."""
    txn = Txn.in_state(state)
    if restart:
        txn.world.restart()
    before, records = txn.entry, len(txn.world.log)
    expected = END_TXN_5[state, who][0 if outcome is TransactionResult.COMMIT else 1]
    answer = txn.end(pair(txn, who), outcome)
    if expected is ENDED:
        assert answer == EndTxnResult(client=ident(42, before.client.epoch + 1))
        assert txn.client == ident(42, before.client.epoch + 1)
    elif expected is AGAIN:
        assert answer == EndTxnResult(client=before.client)
        assert unchanged(txn, before, records)
    else:
        assert code(answer) == expected
        assert unchanged(txn, before, records)


def test_the_table_is_whole() -> None:
    assert len(END_TXN_5) == len(STATES) * 4


@pytest.mark.parametrize("outcome", TransactionResult)
def test_the_epoch_moves_with_the_decision(outcome: TransactionResult) -> None:
    """KIP-890 part 2: the decision has the next epoch, markers carry it, and the answer names it."""
    txn = Txn.in_state("Ongoing")
    assert txn.end(ident(42, 10), outcome) == EndTxnResult(client=ident(42, 11))
    send = txn.world.pending_markers[T]
    assert (send.marker_identity, send.outcome, send.transaction_version) == (ident(42, 11), outcome, 2)
    assert send.partitions == {P0, P1}
    txn.complete()
    assert (txn.client, txn.entry.previous_identity) == (ident(42, 11), ident(42, 10))


@pytest.mark.parametrize("state", IDLE_STATES)
def test_an_abort_with_nothing_written(state: str) -> None:
    """KAFKA-18401, KAFKA-18464: it moves the epoch as the client expects, needs no marker, and can be
    repeated."""
    txn = Txn.in_state(state)
    before = txn.client
    answer = txn.abort(before)
    assert answer == EndTxnResult(client=ident(42, before.epoch + 1))
    assert txn.state == "CompleteAbort"
    assert T not in txn.world.pending_markers
    for _ in range(2):
        assert txn.abort(before) == answer
        txn.world.restart()
    assert code(txn.commit(before)) == WRONG
    assert code(txn.add(ident(42, before.epoch + 1))) == ErrorCode.NONE


def test_an_abort_with_nothing_written_at_the_last_epoch() -> None:
    txn = Txn.idle(ident(42, MAX - 1))
    assert txn.abort(ident(42, MAX - 1)) == EndTxnResult(client=ident(85, 0))
    assert txn.abort(ident(42, MAX - 1)) == EndTxnResult(client=ident(85, 0))


def test_a_commit_with_nothing_written() -> None:
    """FLINK-31363: there is nothing that could be committed."""
    for state in IDLE_STATES:
        txn = Txn.in_state(state)
        assert code(txn.commit(txn.client)) == WRONG


# ------------------------------------------------------------- repetitions that come late


def test_a_late_repetition_does_not_end_the_next_transaction() -> None:
    """KAFKA-17754 and Jepsen's Bufstream report: an EndTxn delayed past its repetition, and past the next
    transaction's first partition, ended that one."""
    txn = Txn.in_state("CompleteCommit")
    txn.add(ident(42, 11))
    before, records = txn.entry, len(txn.world.log)
    for outcome in TransactionResult:
        assert code(txn.end(ident(42, 10), outcome)) == FENCED
    assert unchanged(txn, before, records)


@OLD_PROTOCOL
def test_older_versions_cannot_tell(config: TxnConfig, version: int) -> None:
    """KAFKA-17754: before version 2 the pair stays, and the late repetition is taken for the next end. This
    is Kafka's protocol, and the reason why two-phase commit needs version 2."""
    txn = Txn.in_state("CompleteCommit", config=config, version=version)
    txn.add(ident(42, 10), version=version)
    assert txn.commit(ident(42, 10), version) == EndTxnResult(client=ident(42, 10))
    assert txn.state == "PrepareCommit"


@pytest.mark.parametrize("outcome", TransactionResult)
def test_a_lost_reply_is_answered_again_with_the_same_pair(outcome: TransactionResult) -> None:
    """KAFKA-7763, KAFKA-9274: a client that heard nothing repeats the same decision, and learns that pair; of
    the other one it learns that it is too late."""
    other = TransactionResult.ABORT if outcome is TransactionResult.COMMIT else TransactionResult.COMMIT
    txn = Txn.in_state("Ongoing")
    answer = txn.end(ident(42, 10), outcome)
    assert code(txn.end(ident(42, 10), outcome)) == WAIT
    assert code(txn.end(ident(42, 10), other)) == WRONG
    txn.complete()
    assert txn.end(ident(42, 10), outcome) == answer
    assert code(txn.end(ident(42, 10), other)) == WRONG


def test_another_producer_id_at_the_end() -> None:
    """KAFKA-18660, KAFKA-20310: the decision is signed with the last epoch of the old producer id, the next
    transaction may be begun with the new one at once, and the repetition is known, restart or not."""
    txn = Txn.idle(ident(42, MAX - 1))
    txn.write(ident(42, MAX - 1))
    assert txn.commit(ident(42, MAX - 1)) == EndTxnResult(client=ident(85, 0))
    assert txn.marker == ident(42, MAX)
    for _ in range(2):
        assert code(txn.commit(ident(42, MAX - 1))) == WAIT
        assert code(txn.write(ident(85, 0))) == WAIT
        txn.world.restart()
    txn.complete()
    txn.world.restart()
    assert txn.commit(ident(42, MAX - 1)) == EndTxnResult(client=ident(85, 0))
    assert code(txn.abort(ident(42, MAX - 1))) == WRONG
    assert txn.write(ident(85, 0)) == DONE
    assert code(txn.commit(ident(42, MAX - 1))) in (FENCED, UNKNOWN)
    assert txn.commit(ident(85, 0)) == EndTxnResult(client=ident(85, 1))


# ------------------------------------------------------------- EndTxn of older versions

END_TXN_4: dict[str, tuple[object, object]] = {
    "Empty": (WRONG, WRONG),
    "Ongoing": (ENDED, ENDED),
    "PrepareCommit": (WAIT, WRONG),
    "PrepareAbort": (WRONG, WAIT),
    "CompleteCommit": (AGAIN, WRONG),
    "CompleteAbort": (WRONG, AGAIN),
}


@OLD_PROTOCOL
@pytest.mark.parametrize("outcome", TransactionResult)
@pytest.mark.parametrize("state", STATES)
def test_end_txn_of_older_versions(
    state: str, outcome: TransactionResult, config: TxnConfig, version: int
) -> None:
    """KIP-98: the pair stays; "CompleteCommit" answers a commit with success and an abort with 48."""
    txn = Txn.in_state(state, config=config, version=version)
    before, records = txn.entry, len(txn.world.log)
    assert txn.client == ident(42, 10)
    for stranger, refused in ((ident(42, 9), FENCED), (ident(42, 11), FENCED), (ident(7, 10), UNKNOWN)):
        assert code(txn.end(stranger, outcome, version)) == refused
    assert unchanged(txn, before, records)
    expected = END_TXN_4[state][0 if outcome is TransactionResult.COMMIT else 1]
    answer = txn.end(ident(42, 10), outcome, version)
    if expected is ENDED:
        assert txn.marker == ident(42, 10)
        assert txn.world.pending_markers[T].transaction_version < 2
    elif expected is AGAIN:
        assert code(answer) == ErrorCode.NONE
        assert unchanged(txn, before, records)
    else:
        assert code(answer) == expected
        assert unchanged(txn, before, records)


def test_a_client_of_an_older_version_on_a_new_broker() -> None:
    """KIP-890 "Compatibility": AddPartitionsToTxn 3, Produce 11 and EndTxn 4 go on as before at level 2."""
    txn = Txn.idle(ident(42, 10))
    for _ in range(3):
        assert txn.add(ident(42, 10), P0, version=0) == DONE
        assert txn.verify(ident(42, 10), P0) == VerifyPartitionsResult(errors={})
        assert code(txn.commit(ident(42, 10), version=0)) == ErrorCode.NONE
        assert tc_state(txn) == ("PrepareCommit", 42, 10, -1, -1, -1)
        txn.complete()
    assert txn.client == ident(42, 10)


def test_the_broker_ends_by_its_own_level() -> None:
    """KIP-890: the coordinator's own aborts follow the finalized level, whatever the client's version."""
    txn = Txn.in_state("Ongoing", version=0)
    txn.world.pass_time(TIMEOUT_MS + 1)
    assert (txn.marker, txn.world.pending_markers[T].transaction_version) == (ident(42, 11), 2)
    assert code(txn.abort(ident(42, 10), version=0)) == FENCED


@pytest.mark.parametrize("outcome", TransactionResult)
def test_the_level_is_raised_while_a_transaction_is_open(outcome: TransactionResult) -> None:
    """KAFKA-18227: a client ends with the protocol it began with, and then asks for the next epoch."""
    old = TxnConfig(transaction_version=1)
    txn = Txn.in_state("Ongoing", config=old, version=0)
    txn.world.config = replace(old, transaction_version=2)
    assert code(txn.end(ident(42, 10), outcome, version=0)) == ErrorCode.NONE
    assert txn.marker == ident(42, 10)
    txn.complete()
    answer = txn.init(expected=ident(42, 10))
    assert code(answer) == ErrorCode.NONE
    assert txn.client == ident(42, 11)
    assert txn.write(ident(42, 11)) == DONE
    assert txn.end(ident(42, 11), outcome) == EndTxnResult(client=ident(42, 12))


def test_the_level_is_raised_before_the_end() -> None:
    """A client that has seen the new level may end with it: the epoch moves and markers carry the next
    one."""
    old = TxnConfig(transaction_version=1)
    txn = Txn.in_state("Ongoing", config=old, version=0)
    txn.world.config = replace(old, transaction_version=2)
    assert txn.commit(ident(42, 10)) == EndTxnResult(client=ident(42, 11))
    assert txn.marker == ident(42, 11)


# ------------------------------------------------------------- adding partitions

WAYS_TO_ADD = ("add by version 0", "add by version 2", "implicit add")


def add(txn: Txn, way: str, identity: ProducerIdAndEpoch, *partitions: object) -> TxnAnswer:
    match way:
        case "implicit add":
            return txn.write(identity, *partitions)  # type: ignore[arg-type]
        case _:
            return txn.add(identity, *partitions, version=int(way[-1]))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS_TO_ADD)
@pytest.mark.parametrize("state", STATES)
def test_adding_partitions(way: str, state: str) -> None:
    """KIP-98 "AddPartitionsToTxnRequest", KIP-890 part 2 for the implicit way: one rule by state for all."""
    txn = Txn.in_state(state)
    client, before, records = txn.client, txn.entry, len(txn.world.log)
    for stranger, refused in ((ident(42, client.epoch - 1), FENCED), (ident(42, client.epoch + 1), FENCED)):
        assert code(add(txn, way, stranger, P2)) == refused
    assert code(add(txn, way, ident(7, client.epoch), P2)) == UNKNOWN
    assert unchanged(txn, before, records)
    txn.world.pass_time(1)
    answer = add(txn, way, client, P0, P2)
    if state in DECIDED_STATES:
        assert code(answer) == WAIT
        assert unchanged(txn, before, records)
        return
    assert answer == DONE
    assert (txn.state, txn.writer, txn.client) == ("Ongoing", client, client)
    assert txn.partitions == ({P0, P1, P2} if state == "Ongoing" else {P0, P2})
    assert isinstance(txn.entry.phase, OngoingPhase)
    began = txn.world.now_ms() - (1 if state == "Ongoing" else 0)
    assert txn.entry.phase.started_ms == began
    assert len(txn.world.log) == records + 1
    assert add(txn, way, client, P0, P2) == DONE
    assert len(txn.world.log) == records + 1, "all of them are in it: nothing to write"


@pytest.mark.parametrize("way", WAYS_TO_ADD)
def test_adding_to_an_unknown_id(way: str) -> None:
    txn = Txn()
    assert code(add(txn, way, ident(42, 10), P0)) == UNKNOWN
    assert not txn.world.entries


def test_what_is_written_while_markers_are_out_waits() -> None:
    """[TXN-5] KAFKA-18575, KAFKA-18654: the client has been told its next pair, and must see neither 48 nor a
    lost partition; the driver waits for the markers and decides again."""
    txn = Txn.in_state("PrepareCommit")
    early = AddPartitionsByLeader(identity=ident(42, 11), partitions=frozenset({P2}))
    assert code(txn.ask(early)) == WAIT
    assert find_pending_policy(early) is PendingPolicy.MERGE
    txn.complete()
    assert txn.ask(early) == DONE
    assert txn.partitions == {P2}


@pytest.mark.parametrize(
    "old", [ident(42, 10), ident(42, 9)], ids=["of the last transaction", "of one before"]
)
def test_a_late_batch_opens_no_transaction(old: ProducerIdAndEpoch) -> None:
    """KAFKA-14402: a batch that arrives after its transaction's marker does not get a new transaction."""
    for state in ("PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"):
        txn = Txn.in_state(state)
        before, records = txn.entry, len(txn.world.log)
        for answer in (txn.write(old), txn.verify(old), txn.add(old)):
            assert code(answer) == FENCED
        assert unchanged(txn, before, records)


def test_a_late_batch_after_the_time_is_up() -> None:
    """KAFKA-6119: the abort by time moves the epoch, so that the producer cannot go on unaware."""
    txn = Txn.in_state("Ongoing")
    txn.world.pass_time(TIMEOUT_MS + 1)
    for _ in range(2):
        for answer in (txn.write(ident(42, 10)), txn.verify(ident(42, 10)), txn.add(ident(42, 10))):
            assert code(answer) == FENCED
        assert code(txn.commit(ident(42, 10))) == WRONG
        txn.world.write_markers(T)
    # Nobody else took over: its owner may abort, and goes on with the next pair.
    assert txn.abort(ident(42, 10)) == EndTxnResult(client=ident(42, 11))


# ------------------------------------------------------------- verification, for older clients


@pytest.mark.parametrize("state", STATES)
def test_verifying_partitions(state: str) -> None:
    """KIP-890 part 1: a leader asks before the first batch; 120 for a partition the transaction does not
    have."""
    txn = Txn.in_state(state)
    client, before, records = txn.client, txn.entry, len(txn.world.log)
    assert code(txn.verify(ident(42, client.epoch - 1), P0)) == FENCED
    assert code(txn.verify(ident(42, client.epoch + 1), P0)) == FENCED
    assert code(txn.verify(ident(7, client.epoch), P0)) == UNKNOWN
    answer = txn.verify(client, P0, P2)
    if state in DECIDED_STATES:
        assert code(answer) == WAIT
    elif state == "Ongoing":
        assert answer == VerifyPartitionsResult(errors={P2: NOTHING_OPEN})
        assert txn.verify(client, P0, P1) == VerifyPartitionsResult(errors={})
    else:
        assert answer == VerifyPartitionsResult(errors={P0: NOTHING_OPEN, P2: NOTHING_OPEN})
    assert unchanged(txn, before, records)


def test_verifying_for_an_unknown_id() -> None:
    assert code(Txn().verify(ident(42, 10))) == UNKNOWN


# ------------------------------------------------------------- markers


def marked(txn: Txn, marker: ProducerIdAndEpoch, *partitions: object) -> TxnAnswer:
    return txn.ask(MarkersWritten(marker_identity=marker, offsets=dict.fromkeys(partitions, Offset(5))))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
def test_a_stale_report_of_markers_changes_nothing(state: str) -> None:
    """KAFKA-19446, KIP-1228: markers of an earlier decision complete no later one."""
    txn = Txn.in_state(state)
    before, records = txn.entry, len(txn.world.log)
    for stale in (ident(42, 9), ident(42, 10), ident(7, 11)):
        marked(txn, stale, P0, P1)
    assert unchanged(txn, before, records)
    assert txn.state == state


def test_markers_are_repeated_after_a_restart_and_may_be_there_already() -> None:
    """KAFKA-19999: a restart between the last marker and Complete sends all of them again, and gets
    through."""
    txn = Txn.in_state("PrepareAbort")
    txn.world.write_markers(T, only=[P0])
    assert txn.state == "PrepareAbort"
    assert txn.entry.phase.unmarked_partitions == {P1}  # type: ignore[union-attr]
    txn.world.restart()
    assert txn.world.pending_markers[T].partitions == {P0, P1}
    assert txn.world.pending_markers[T].marker_identity == ident(42, 11)
    txn.complete()
    assert (txn.state, txn.client) == ("CompleteAbort", ident(42, 11))
    assert isinstance(txn.entry.phase, IdlePhase)


def test_the_table_of_what_waits() -> None:
    """[TXN-5] KIP-890: from version 2 on EndTxn is refused at once while a Step is pending; before, the pair
    counts first. VerifyOnly passes on purpose (KAFKA-14904)."""
    old = EndTxn(identity=ident(42, 10), outcome=TransactionResult.COMMIT, transaction_version=0)
    assert find_pending_policy(old) is PendingPolicy.CHECK_IDENTITY
    assert find_pending_policy(replace(old, transaction_version=2)) is PendingPolicy.REFUSE
