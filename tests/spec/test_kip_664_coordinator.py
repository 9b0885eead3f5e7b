"""KIP-664, "Provide tooling to detect and abort hanging transactions": what the coordinator can tell, and how
an abort that goes past it is remembered."""

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
    ident,
    unchanged,
)

from tallystick.broker.txn.machine.commands import DONE, EndTxnResult, MarkersWritten, RecordForcedMarker
from tallystick.broker.txn.machine.model import DecidedPhase, ForcedCause, OngoingPhase
from tallystick.kernel.ids import Offset, ProducerIdAndEpoch


@pytest.mark.parametrize("state", STATES)
def test_descriptions_name_the_pair_that_is_in_the_partitions(state: str) -> None:
    """KIP-664 "Analysis": producer ids from the partitions are looked up "to find the the TransactionalIds
    associated with these ProducerIdBlock"; a decided transaction shows the pair of its markers."""
    txn = Txn.in_state(state)
    assert txn.entry.described_identity == ident(42, 10 if state in ("Empty", "Ongoing") else 11)
    assert txn.state == state


def test_a_rotated_producer_id_stays_visible_until_its_markers_are_written() -> None:
    """KIP-664 "Analysis": else find-hanging takes the transaction for one that no coordinator knows."""
    txn = Txn.idle(ident(42, 32766))
    txn.add(ident(42, 32766))
    txn.commit(ident(42, 32766))
    assert txn.entry.described_identity.producer_id == 42
    txn.complete()
    assert txn.entry.described_identity.producer_id == 85


@pytest.mark.parametrize("state", DECIDED_STATES)
def test_while_decided_only_partitions_without_their_marker_count(state: str) -> None:
    """KIP-664 "DescribeTransactions": a partition that has its marker already is not part of what is
    pending."""
    txn = Txn.in_state(state)
    assert isinstance(txn.entry.phase, DecidedPhase)
    assert txn.entry.phase.unmarked_partitions == {P0, P1}
    txn.ask(MarkersWritten(marker_identity=ident(42, 11), offsets={P1: Offset(9)}))
    assert isinstance(txn.entry.phase, DecidedPhase)
    assert txn.entry.phase.unmarked_partitions == {P0}
    assert txn.entry.phase.partitions == {P0, P1}


def test_start_and_timeout_are_those_of_the_open_transaction() -> None:
    """KIP-664 "DescribeTransactions": how long it has been open, and how long it may be."""
    txn = Txn.idle(ident(42, 10))
    txn.world.pass_time(5_000)
    txn.add(ident(42, 10))
    began = txn.world.now_ms()
    txn.world.pass_time(5_000)
    txn.init(keep=True, timeout_ms=1)
    assert isinstance(txn.entry.phase, OngoingPhase)
    assert (txn.entry.phase.started_ms, txn.entry.phase.timeout_ms) == (began, TIMEOUT_MS)
    assert txn.entry.timeout_ms == 1


# ------------------------------------------------------------- markers an administrator wrote


def test_a_marker_past_the_coordinator_is_on_record() -> None:
    """KIP-664 "Recovery": an administrator's marker goes straight to the partition. The transaction goes on
    in the others, so that it is torn: which part of it was ended by force stays on record, restart or not."""
    txn = Txn.in_state("Ongoing")
    txn.world.pass_time(7)
    assert txn.ask(RecordForcedMarker(writer=ident(42, 10), partition=P1)) == DONE
    txn.world.restart()
    (forced,) = txn.entry.forced_outcomes
    assert (forced.writer, forced.cause, forced.partition, forced.at_ms) == (
        ident(42, 10),
        ForcedCause.MARKER,
        P1,
        txn.world.now_ms(),
    )
    assert txn.partitions == {P0, P1}
    assert txn.commit(ident(42, 10)) == EndTxnResult(client=ident(42, 11))
    assert txn.world.pending_markers[T].partitions == {P0, P1}


@pytest.mark.parametrize("writer", [ident(42, 9), ident(42, 11), ident(7, 10)], ids=str)
def test_a_marker_for_another_transaction_is_not(writer: ProducerIdAndEpoch) -> None:
    """KIP-664 "Recovery": "the producer epoch in the request to exactly match the latest value": a hanging
    transaction of an earlier epoch is none of this one's."""
    txn = Txn.in_state("Ongoing")
    before, records = txn.entry, len(txn.world.log)
    txn.ask(RecordForcedMarker(writer=writer, partition=P0))
    assert unchanged(txn, before, records)


@pytest.mark.parametrize("state", IDLE_STATES)
def test_a_marker_where_nothing_is_open_is_not(state: str) -> None:
    txn = Txn.in_state(state)
    before, records = txn.entry, len(txn.world.log)
    for epoch in (9, 10, 11):
        txn.ask(RecordForcedMarker(writer=ident(42, epoch), partition=P0))
    assert unchanged(txn, before, records)


@pytest.mark.parametrize("version", [0, 2])
def test_a_marker_into_a_committed_transaction_is_on_record(version: int) -> None:
    """KIP-664 "Recovery": the commit is decided and its marker is on the way when the administrator's ABORT
    comes first: that part of a committed transaction is lost, and somebody must be able to find out."""
    txn = Txn.in_state("PrepareCommit", version=version)
    marker = txn.marker
    txn.world.write_markers(T, only=[P0])
    for partition in (P0, P1):  # P0 has its COMMIT already: there, nothing was open
        assert txn.ask(RecordForcedMarker(writer=ident(42, 10), partition=partition)) == DONE
    txn.world.restart()
    assert [(f.writer, f.cause, f.partition) for f in txn.entry.forced_outcomes] == [
        (ident(42, 10), ForcedCause.MARKER, P1)
    ]
    assert (txn.state, txn.marker) == ("PrepareCommit", marker)
    txn.complete()
    assert txn.state == "CompleteCommit"
    assert len(txn.entry.forced_outcomes) == 1


def test_a_marker_into_an_aborted_transaction_changes_nothing() -> None:
    """It says what the coordinator's own marker says."""
    txn = Txn.in_state("PrepareAbort")
    before, records = txn.entry, len(txn.world.log)
    txn.ask(RecordForcedMarker(writer=ident(42, 10), partition=P0))
    assert unchanged(txn, before, records)


def test_a_marker_into_a_partition_it_does_not_have_is_not() -> None:
    txn = Txn.in_state("Ongoing")
    before, records = txn.entry, len(txn.world.log)
    txn.ask(RecordForcedMarker(writer=ident(42, 10), partition=P2))
    assert unchanged(txn, before, records)


def test_a_marker_for_an_unknown_id_creates_none() -> None:
    txn = Txn()
    txn.ask(RecordForcedMarker(writer=ident(42, 10), partition=P0))
    assert not txn.world.entries
    assert not txn.world.log
