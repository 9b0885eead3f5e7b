"""KIP-890, "Transactions Server-Side Defense": the partition leader's part. KIP-1228: whose marker ends what.

Each test names the report in Kafka's tracker that shows what happens without the rule.
"""

import asyncio
from itertools import product

import pytest
from tests.support.leading import (
    IMPLICIT,
    OLD,
    VERIFIED,
    Leader,
    T,
    batch,
    leader,
    orders,
    request,
    told,
    turns,
)
from tests.support.memory_broker import HeldMarkers, memory_disk, on_a_loop

from tallystick.broker.txn.logic import make_pending
from tallystick.broker.txn.machine.commands import (
    AbortTimedOut,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
)
from tallystick.broker.txn.machine.model import OngoingPhase, TransactionResult, TxnEntry, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.protocol.records.control import ControlType, EndTransactionMarker, encode_marker
from tallystick.storage.log.log import AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin

NONE = ErrorCode.NONE
STALE = ErrorCode.INVALID_PRODUCER_EPOCH
NOT_OPEN = ErrorCode.TRANSACTION_ABORTABLE
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def nothing_open(made: Leader) -> bool:
    return all(
        made.partition(index).log.producer_state_manager.first_undecided_offset is None for index in range(2)
    )


def entry(made: Leader) -> TxnEntry:
    found = made.broker.transactions.get_entry(T)
    assert isinstance(found, TxnEntry)
    return found


def mark(made: Leader, identity: ProducerIdAndEpoch, version: int, *, epoch: int | None = None) -> ErrorCode:
    """A marker as a coordinator sends it."""
    signed = ProducerIdAndEpoch(
        identity.producer_id, ProducerEpoch(identity.epoch if epoch is None else epoch)
    )
    data = encode_marker(
        EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=0),
        signed,
        timestamp_ms=made.clock.now_ms(),
    )
    result = made.partition().append(data, AppendOrigin.COORDINATOR, TxnGuard(transaction_version=version))
    return result.code if isinstance(result, Reject) else NONE


# --------------------------------------------------------------- writes that come too late (KAFKA-14402)


@pytest.mark.parametrize(("outcome", "version"), list(product(TransactionResult, (IMPLICIT, VERIFIED))))
@on_a_loop
async def test_a_write_after_the_end_opens_nothing(outcome: TransactionResult, version: int) -> None:
    """Part 2: after the end the pair is another one, and the late write is known as such wherever it goes."""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        await made.end(identity, outcome)
        assert await made.write(identity, 1, version=version) is STALE  # the leader has seen the marker
        assert await made.write(identity, 0, 1, version=version) is STALE  # the coordinator says so
        assert nothing_open(made)


@pytest.mark.parametrize("outcome", list(TransactionResult))
@on_a_loop
async def test_a_write_of_an_older_client_after_the_end_opens_nothing(outcome: TransactionResult) -> None:
    """Part 1: its pair stays the same, so only the coordinator can tell."""
    async with leader() as made:
        identity = await made.identity()
        await made.add(identity, 0)
        await made.write(identity, version=VERIFIED)
        await made.end(identity, outcome, version=0)
        assert await made.write(identity, 1, version=VERIFIED) is NOT_OPEN
        assert await made.write(identity, 1, version=OLD) is ErrorCode.INVALID_TXN_STATE
        assert nothing_open(made)


@on_a_loop
async def test_a_write_into_the_next_transaction_of_an_older_client_needs_its_partition_added() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.add(identity, 0)
        await made.write(identity, version=VERIFIED)
        await made.end(identity, TransactionResult.ABORT, version=0)
        await made.add(identity, 1)
        assert await made.write(identity, 1, version=VERIFIED) is NOT_OPEN
        assert nothing_open(made)


@on_a_loop
async def test_a_question_does_not_wait_for_what_the_transaction_is_becoming() -> None:
    """KAFKA-14904: another partition is being added, and nobody need try again because of that."""
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        await made.add(identity, 0)
        made.disk.holding = True
        adding = asyncio.ensure_future(made.add(identity, 1))
        await turns()
        sent = made.send(request({0: batch(identity)}), VERIFIED)
        assert made.partition().log.log_end_offset == 1
        assert not adding.done()
        made.disk.release()
        await adding
        assert [answer.error_code for answer in told(await sent, VERIFIED)] == [0]


@on_a_loop
async def test_a_write_after_the_timeout_opens_nothing() -> None:
    """KAFKA-6119: the coordinator's own abort moves the epoch, too."""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        made.clock.advance(60_001)
        await made.broker.transactions.execute(T, AbortTimedOut())
        await turns()
        assert nothing_open(made)
        for index, version in product((0, 1), (IMPLICIT, VERIFIED)):
            assert await made.write(identity, 1 - index, index, version=version) is STALE
        assert nothing_open(made)


@on_a_loop
async def test_a_client_that_was_replaced_writes_nothing_more() -> None:
    """[TXN-13] KIP-939 fences it at the coordinator alone: what it wrote to partitions that have its
    transaction open, after it had prepared, would be committed with it."""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        kept = await made.broker.transactions.execute(
            T, InitProducerId(timeout_ms=60_000, keep_prepared=True)
        )
        assert isinstance(kept, InitProducerIdResult)
        assert kept.ongoing_identity == identity
        for version in (IMPLICIT, VERIFIED):
            assert await made.write(identity, 0, 1, version=version) is STALE
            assert await made.write(identity, 1, 0, version=version) is STALE
            assert await made.write(kept.client, 0, 1, version=version) is ErrorCode.INVALID_TXN_STATE
        assert made.partition().log.log_end_offset == 1
        await made.end(kept.client, TransactionResult.COMMIT)
        assert nothing_open(made)


@on_a_loop
async def test_a_client_that_was_replaced_writes_nothing_after_a_restart_either() -> None:
    """[TXN-13]"""
    disk = memory_disk()
    async with leader(disk) as made:
        identity = await made.identity()
        await made.write(identity)
        await made.broker.transactions.execute(T, InitProducerId(timeout_ms=60_000, keep_prepared=True))
    async with leader(disk, transaction_partition_verification_enable="false") as made:
        await made.rest()
        for version in (IMPLICIT, VERIFIED):
            assert await made.write(identity, 1, version=version) is STALE


@on_a_loop
async def test_what_waits_while_its_client_is_replaced_is_not_written() -> None:
    """[TXN-13] Its question was answered before; it was not acknowledged, so it was not prepared."""
    async with leader(markers=HeldMarkers()) as made:
        identity = await made.identity()
        await made.write(identity)
        following = await made.end(identity, TransactionResult.COMMIT)
        sent = [made.send(request({0: batch(following, sequence)})) for sequence in range(2)]
        await turns()
        coordinator = made.broker.transactions
        written = MarkersWritten(marker_identity=following, offsets={orders(0): None})
        pending = make_pending(written)
        coordinator._runtime.submit_internal(T, pending)
        await pending.future
        kept = coordinator.submit(T, InitProducerId(timeout_ms=60_000, keep_prepared=True)).result()
        assert isinstance(kept, InitProducerIdResult)
        assert kept.ongoing_identity == following
        end = made.partition().log.log_end_offset
        assert [told(await each)[0].error_code for each in sent] == [STALE, STALE]
        assert made.partition().log.log_end_offset == end


@on_a_loop
async def test_an_end_closes_every_partition() -> None:
    """[TXN-9] (I4) Partitions added and not written to get their marker, too."""
    async with leader() as made:
        identity = await made.identity()
        await made.add(identity, 0, 1)
        await made.write(identity, version=VERIFIED)
        await made.end(identity, TransactionResult.COMMIT)
        assert nothing_open(made)
        assert entry(made).state is TxnState.COMPLETE_COMMIT
        assert made.partition(1).log.log_end_offset == 1


# ------------------------------------------------------------------------------- sequence numbers


@on_a_loop
async def test_a_transaction_of_version_2_begins_at_0() -> None:
    """KAFKA-18202: nothing is known of the producer here, and its first batch is not the first it sent."""
    async with leader() as made:
        identity = await made.identity()
        assert await made.write(identity, 3) is GAP
        assert await made.write(identity, 0) is NONE


@on_a_loop
async def test_an_older_one_begins_anywhere_when_nothing_is_known() -> None:
    """Its sequences go on from one transaction to the next, and the records before may be gone."""
    async with leader() as made:
        identity = await made.identity()
        await made.add(identity, 0)
        assert await made.write(identity, 3, version=VERIFIED) is NONE
        await made.end(identity, TransactionResult.COMMIT, version=0)
        await made.add(identity, 0)
        assert await made.write(identity, 5, version=VERIFIED) is GAP
        assert await made.write(identity, 4, version=VERIFIED) is NONE


@on_a_loop
async def test_version_2_counts_from_0_in_every_transaction() -> None:
    async with leader() as made:
        identity = await made.identity()
        for _ in range(3):
            assert [await made.write(identity, n) for n in (0, 1)] == [NONE, NONE]
            following = await made.end(identity, TransactionResult.COMMIT)
            assert following.epoch == identity.epoch + 1
            identity = following
            assert await made.write(identity, 2) is GAP


@on_a_loop
async def test_a_repeated_batch_is_answered_with_the_offsets_it_has() -> None:
    async with leader() as made:
        identity = await made.identity()
        for n in range(6):
            await made.write(identity, n)
        for n in range(1, 6):
            (answer,) = await made.produce(request({0: batch(identity, n)}))
            assert (answer.error_code, answer.base_offset) == (0, n)
        assert await made.write(identity, 0) is GAP
        assert made.partition().log.log_end_offset == 6


@on_a_loop
async def test_a_batch_beside_the_open_transaction_is_refused() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        (answer,) = await made.produce(request({0: batch(identity, 1, transactional=False)}, name=None))
        assert answer.error_code == ErrorCode.INVALID_TXN_STATE


@on_a_loop
async def test_two_codes_of_former_days_are_never_given() -> None:
    """After UNKNOWN_PRODUCER_ID a client begins anew; DUPLICATE_SEQUENCE_NUMBER it takes for success."""
    async with leader() as made:
        identity = await made.identity()
        found = {
            await made.write(
                ProducerIdAndEpoch(identity.producer_id, ProducerEpoch(epoch)), sequence, version=version
            )
            for epoch, sequence, version in product((0, 1), (0, 1, 2, 0, 9), (IMPLICIT, VERIFIED, OLD))
        }
        assert NONE in found
        assert not found & {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}


# --------------------------------------------------------------------------- whose marker ends what


@on_a_loop
async def test_a_marker_of_the_transaction_before_ends_nothing_of_the_next() -> None:
    """KAFKA-19446, KIP-1228: sent again by a coordinator that did not learn it had been written."""
    async with leader() as made:
        first = await made.identity()
        await made.write(first)
        second = await made.end(first, TransactionResult.COMMIT)
        await made.write(second)
        assert second.epoch == first.epoch + 1
        # The late marker of the first has the epoch that the second one writes with.
        assert mark(made, second, 2) is STALE
        assert made.partition().log.producer_state_manager.first_undecided_offset == 2
        assert mark(made, second, 1) is NONE  # which older markers could not tell


@on_a_loop
async def test_a_marker_may_be_repeated_while_nothing_is_open() -> None:
    """KAFKA-19999: else an id whose coordinator restarted between markers and completion never ends."""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        following = await made.end(identity, TransactionResult.COMMIT)
        end = made.partition().log.log_end_offset
        assert mark(made, following, 2) is NONE
        assert made.partition().log.log_end_offset == end + 1
        assert mark(made, identity, 2) is STALE


@on_a_loop
async def test_a_restart_between_markers_and_completion_ends_the_transaction() -> None:
    """KAFKA-19999, from end to end: the markers of a prepared transaction are sent again by a replay."""
    disk = memory_disk()
    async with leader(disk, markers=HeldMarkers()) as made:
        identity = await made.identity()
        await made.write(identity)
        following = await made.end(identity, TransactionResult.COMMIT)
        assert mark(made, following, 2) is NONE
        assert entry(made).state is TxnState.PREPARE_COMMIT
    async with leader(disk) as made:
        await made.rest()
        assert entry(made).state is TxnState.COMPLETE_COMMIT
        assert nothing_open(made)
        assert await made.write(following) is NONE
        assert isinstance(entry(made).phase, OngoingPhase)


@on_a_loop
async def test_with_the_epochs_used_up_the_marker_has_the_data_s_epoch() -> None:
    async with leader(transaction_partition_verification_enable="false") as made:
        last = ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(EPOCH_MAX))
        assert await made.write(last, version=VERIFIED) is NONE
        assert mark(made, last, 2) is NONE
        assert nothing_open(made)


@on_a_loop
async def test_a_marker_for_an_unknown_producer_is_written_and_remembered() -> None:
    """Its data may be gone, by retention say; a write of an earlier epoch still must not follow it."""
    async with leader() as made:
        identity = await made.identity()
        assert mark(made, identity, 2, epoch=5) is NONE
        assert made.partition().log.producer_state_manager.active_producers[identity.producer_id].epoch == 5
        assert await made.write(identity) is STALE


@on_a_loop
async def test_what_was_checked_where_it_came_from_is_not_checked_again() -> None:
    """Replicas take markers as they come. Source: ProducerAppendInfo with AppendOrigin.REPLICATION."""
    async with leader() as made:
        identity = await made.identity()
        assert mark(made, identity, 2, epoch=5) is NONE
        old = encode_marker(
            EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=-1),
            identity,
            timestamp_ms=1,
        )
        assert isinstance(made.partition().append(old, AppendOrigin.REPLICATION), AppendResult)


# ------------------------------------------------------------------- old and new clients side by side


@on_a_loop
async def test_an_old_client_on_a_new_broker() -> None:
    """Produce 11, AddPartitionsToTxn 3, EndTxn 4: the pair stays, and the sequence numbers go on."""
    async with leader() as made:
        identity = await made.identity()
        for n in range(3):
            await made.add(identity, 0)
            assert await made.write(identity, n, version=VERIFIED) is NONE
            assert await made.end(identity, TransactionResult.COMMIT, version=0) == identity
            assert (
                made.partition().log.producer_state_manager.active_producers[identity.producer_id].epoch
                == identity.epoch
            )
        assert made.partition().log.reader.last_stable_offset == made.partition().log.log_end_offset == 6


@on_a_loop
async def test_a_client_that_learned_of_version_2_goes_on_in_it() -> None:
    """KAFKA-18227: one transaction the old way, the next one the new way, with the epoch after."""
    async with leader() as made:
        identity = await made.identity()
        await made.add(identity, 0)
        await made.write(identity, version=VERIFIED)
        await made.end(identity, TransactionResult.COMMIT, version=0)
        answer = await made.broker.transactions.execute(
            T, InitProducerId(timeout_ms=60_000, expected_identity=identity)
        )
        assert isinstance(answer, InitProducerIdResult)
        assert answer.client.epoch == identity.epoch + 1
        assert await made.write(answer.client) is NONE
        assert (await made.end(answer.client, TransactionResult.COMMIT)).epoch == identity.epoch + 2
        assert nothing_open(made)
