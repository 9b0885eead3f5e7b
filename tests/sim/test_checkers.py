"""The checkers find what they are for: each is given a history that cannot be true."""

import pytest

from harness.sim import checkers
from harness.sim.actors.dual_write import SimDatabase
from harness.sim.checkers import LogBatch
from harness.sim.history import History, SimTxn
from harness.sim.network import RequestExchange
from tallystick.broker.txn.machine.model import ForcedCause
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


@pytest.fixture
def history() -> History:
    return History()


def transaction(history: History, *, told: bool | None, commit_asked: bool = True) -> SimTxn:
    """Two records, one in each partition, both acknowledged."""
    txn = history.begin("t", 2, two_phase=True)
    history.set_writer(txn, pair(1, txn.number))
    txn.records = {f"t:{txn.number}:0": A, f"t:{txn.number}:1": B}
    txn.acknowledged_texts = set(txn.records)
    txn.reported_outcome, txn.commit_requested = told, commit_asked
    return txn


def data(at: int, signer: ProducerIdAndEpoch, *texts: str) -> LogBatch:
    return LogBatch(at, at + len(texts), signer, True, texts)


def marker(at: int, signer: ProducerIdAndEpoch, *, commit: bool) -> LogBatch:
    return LogBatch(at, at + 1, signer, True, (), commit)


def test_a_transaction_that_was_committed_is_whole(history: History) -> None:
    transaction(history, told=True)
    assert not [*checkers.check_atomic(history, {A: ["t:0:0"], B: ["t:0:1"]})]
    assert [*checkers.check_atomic(history, {A: ["t:0:0"], B: []})]
    assert [*checkers.check_atomic(history, {A: [], B: []})]
    assert [*checkers.check_atomic(history, {B: ["t:0:0"], A: ["t:0:1"]})], "and where it was sent to"


def test_version_1_goes_unchecked_only_where_topics_can_be_confused(history: History) -> None:
    txn = transaction(history, told=False)
    txn.version = 1
    assert [*checkers.check_atomic(history, {A: ["t:0:0"], B: []})]
    history.version_1_unproven = True
    assert not [*checkers.check_atomic(history, {A: ["t:0:0"], B: []})]
    txn.version = 2
    assert [*checkers.check_atomic(history, {A: ["t:0:0"], B: []})]


def test_what_was_deleted_may_be_missing_and_nothing_else(history: History) -> None:
    transaction(history, told=True)
    history.may_be_deleted.add("t:0:1")
    assert not [*checkers.check_atomic(history, {A: ["t:0:0"], B: []})]
    assert not [*checkers.check_atomic(history, {A: ["t:0:0"], B: ["t:0:1"]})]
    assert [*checkers.check_atomic(history, {A: [], B: ["t:0:1"]})]


def test_what_was_ended_in_one_partition_may_be_missing_there(history: History) -> None:
    transaction(history, told=True).aborted_partitions.add(B)
    assert not [*checkers.check_atomic(history, {A: ["t:0:0"], B: []})]
    assert [*checkers.check_atomic(history, {A: [], B: ["t:0:1"]})]


def test_what_is_gone_does_not_come_back(history: History) -> None:
    history.deleted_texts.add("t:0:1")
    assert not [*checkers.check_deleted(history, {A: ["t:0:0"]})]
    assert [*checkers.check_deleted(history, {A: ["t:0:1"]})]


def test_what_was_aborted_is_not_seen(history: History) -> None:
    transaction(history, told=False)
    assert not [*checkers.check_atomic(history, {A: [], B: []})]
    assert [*checkers.check_atomic(history, {A: ["t:0:0"], B: ["t:0:1"]})]


@pytest.mark.parametrize("commit_asked", [True, False])
def test_a_transaction_of_unknown_outcome(history: History, commit_asked: bool) -> None:
    transaction(history, told=None, commit_asked=commit_asked)
    assert not [*checkers.check_atomic(history, {A: [], B: []})]
    whole = [*checkers.check_atomic(history, {A: ["t:0:0"], B: ["t:0:1"]})]
    assert bool(whole) is not commit_asked
    assert [*checkers.check_atomic(history, {A: ["t:0:0"], B: []})]


def test_a_record_is_there_once() -> None:
    once = [data(0, pair(1, 0), "x")]
    assert not [*checkers.check_texts({A: once})]
    assert [*checkers.check_texts({A: once, B: once})]


def test_records_of_one_client_keep_their_order(history: History) -> None:
    assert not [*checkers.check_order(history, {A: ["t:0:0", "u:5:0", "t:1:0", "t:1:1"]})]
    assert [*checkers.check_order(history, {A: ["t:1:0", "t:0:0"]})]


def test_transactions_are_worked_out_from_batches() -> None:
    """Aborted ones are left out, open ones hold back, and a marker above the mark is none."""
    one, two = pair(1, 0), pair(2, 0)
    batches = [
        data(0, one, "a"),
        data(1, two, "b"),
        marker(2, pair(2, 1), commit=False),
        data(3, two, "c"),
        marker(4, pair(1, 1), commit=True),
    ]
    found = checkers.decide_transactions(batches, upto=5)
    assert found.visible_texts == ["a"]
    assert found.open_transactions == {2: 3}
    assert checkers.decide_transactions(batches, upto=4).open_transactions == {1: 0, 2: 3}


def test_a_token_is_decided_once_and_its_markers_have_the_next_epoch(history: History) -> None:
    transaction(history, told=True)
    written = data(0, pair(1, 0), "t:0:0")

    def markers(signer: ProducerIdAndEpoch, *, commit: bool) -> checkers.PartitionTransactions:
        return checkers.decide_transactions([written, marker(1, signer, commit=commit)], upto=2)

    good = markers(pair(1, 1), commit=True)
    assert not [*checkers.check_markers(history, {A: good, B: good}, set())]
    assert [*checkers.check_markers(history, {A: good, B: markers(pair(1, 1), commit=False)}, set())]
    assert [*checkers.check_markers(history, {A: markers(pair(1, 0), commit=True)}, set())]


def test_database_and_log_agree(history: History) -> None:
    txn = transaction(history, told=None)
    database, visible = SimDatabase(), {A: ["t:0:0"], B: ["t:0:1"]}
    generation, _ = database.claim("t")
    assert [*checkers.check_database(history, database, visible, {})], "in the log alone"
    database.commit("t", generation, txn)
    assert not [*checkers.check_database(history, database, visible, {})]
    nothing: dict[TopicPartition, list[str]] = {A: [], B: []}
    assert [*checkers.check_database(history, database, nothing, {})], "in the row alone"
    forced = {pair(1, 0): ForcedCause.TERMINATED}
    assert not [*checkers.check_database(history, database, nothing, forced)], "and that is said"
    timed_out = {pair(1, 0): ForcedCause.TIMED_OUT}
    assert [*checkers.check_database(history, database, nothing, timed_out)], "a promise is kept (I6)"


def test_a_group_has_the_offset_of_the_last_commit(history: History) -> None:
    for told in (True, False, True, None):
        txn = transaction(history, told=told, commit_asked=told is not False)
        txn.offset, txn.offset_acknowledged = 100 + txn.number, True
    assert not [*checkers.check_offset(history, "t", 2)]
    assert not [*checkers.check_offset(history, "t", 3)], "nobody knows how the last one ended"
    assert [*checkers.check_offset(history, "t", 0)]
    assert [*checkers.check_offset(history, "t", 1)]
    assert [*checkers.check_offset(history, "t", None)]


def claimed(answer: ProducerIdAndEpoch) -> RequestExchange:
    return RequestExchange(
        "t",
        ApiKey.INIT_PRODUCER_ID,
        6,
        InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1),
        InitProducerIdResponse(producer_id=answer.producer_id, producer_epoch=answer.epoch),
        1,
    )


def ended(by: ProducerIdAndEpoch, answer: ProducerIdAndEpoch) -> RequestExchange:
    return RequestExchange(
        "t",
        ApiKey.END_TXN,
        5,
        EndTxnRequest(
            transactional_id="t", producer_id=by.producer_id, producer_epoch=by.epoch, committed=True
        ),
        EndTxnResponse(producer_id=answer.producer_id, producer_epoch=answer.epoch),
        1,
    )


def test_pairs_only_move_on(history: History) -> None:
    for exchange in (
        claimed(pair(1, 0)),
        claimed(pair(1, 1)),
        ended(pair(1, 1), pair(1, 2)),
        ended(pair(1, 1), pair(1, 2)),  # repeated: the same answer
        claimed(pair(2, 0)),
    ):
        checkers.check_producer_id(history, exchange)
    assert history.violations == []


@pytest.mark.parametrize(
    "wrong",
    [
        claimed(pair(1, 2)),  # handed out before
        claimed(pair(1, 1)),  # an earlier one
        claimed(pair(0, 9)),  # a producer id from before
        ended(pair(1, 2), pair(1, 2)),  # an end that moves nothing
        ended(pair(1, 0), pair(1, 2)),  # a fenced incarnation is told the newest pair
    ],
)
def test_a_pair_that_must_not_be_handed_out(history: History, wrong: RequestExchange) -> None:
    before = (claimed(pair(0, 0)), claimed(pair(1, 0)), claimed(pair(1, 1)), ended(pair(1, 1), pair(1, 2)))
    for exchange in before:
        checkers.check_producer_id(history, exchange)
    assert history.violations == []
    checkers.check_producer_id(history, wrong)
    assert len(history.violations) == 1
