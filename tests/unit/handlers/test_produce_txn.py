"""Transactional batches of Produce: who is asked, what a refusal is called, and who goes first."""

import asyncio
import struct

import pytest
from tests.support.hostile import with_crc
from tests.support.leading import (
    IMPLICIT,
    OLD,
    TOPIC,
    VERIFIED,
    Leader,
    T,
    batch,
    leader,
    request,
    told,
    turns,
)
from tests.support.memory_broker import memory_broker, on_a_loop

from tallystick.broker.authorizer.authorizer import Operation, transactional_id_resource
from tallystick.broker.handlers.data import produce
from tallystick.broker.partitions.topics import INTERNAL_TOPICS
from tallystick.broker.server.server import CloseConnection
from tallystick.broker.txn.logic import REFUSALS
from tallystick.broker.txn.machine.commands import InitProducerId
from tallystick.broker.txn.machine.model import OngoingPhase, TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TransactionalId
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.records import iter_records
from tallystick.protocol.records.control import ControlType, EndTransactionMarker, encode_marker
from tallystick.storage.log.log import TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin

VERIFICATION_OFF = {"transaction.partition.verification.enable": "false"}
OTHER = TransactionalId("pay-8")


def in_transaction(made: Leader) -> set[int]:
    entry = made.broker.transactions.get_entry(T)
    assert entry is not None
    assert not isinstance(entry, Reject)
    assert isinstance(entry.phase, OngoingPhase)
    return {partition.partition for partition in entry.phase.partitions}


def codes(body: object, version: int = IMPLICIT) -> list[ErrorCode]:
    return [ErrorCode(p.error_code) for p in told(body, version)]  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ who is asked


@on_a_loop
async def test_the_first_batch_adds_its_partition_and_the_next_ones_skip_the_coordinator() -> None:
    async with leader() as made:
        identity = await made.identity()
        before = made.records_of_coordinator()
        assert await made.write(identity) is ErrorCode.NONE
        assert in_transaction(made) == {0}
        assert made.records_of_coordinator() == before + 1
        for sequence in range(1, 4):
            sent = made.send(request({0: batch(identity, sequence)}))
            assert sent.done()
            assert codes(await sent) == [ErrorCode.NONE]
        assert made.records_of_coordinator() == before + 1
        assert made.partition().append_turns == {}


@on_a_loop
async def test_one_question_is_asked_for_all_partitions_of_a_request() -> None:
    async with leader() as made:
        identity = await made.identity()
        before = made.records_of_coordinator()
        answers = await made.produce(request({0: batch(identity), 1: batch(identity)}))
        assert [a.error_code for a in answers] == [0, 0]
        assert in_transaction(made) == {0, 1}
        assert made.records_of_coordinator() == before + 1


@on_a_loop
async def test_older_clients_are_looked_up_and_added_nowhere() -> None:
    """KIP-890 part 1. Their own AddPartitionsToTxn comes first."""
    async with leader() as made:
        identity = await made.identity()
        assert await made.write(identity, version=VERIFIED) is ErrorCode.TRANSACTION_ABORTABLE
        assert await made.write(identity, version=OLD) is ErrorCode.INVALID_TXN_STATE
        assert made.partition().log.log_end_offset == 0
        await made.add(identity, 0)
        assert await made.write(identity, version=OLD) is ErrorCode.NONE
        assert await made.write(identity, 1, version=VERIFIED) is ErrorCode.NONE
        assert in_transaction(made) == {0}


@on_a_loop
async def test_without_verification_only_newer_clients_are_asked_about() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.broker.alter_dynamic_configs("", lambda _: VERIFICATION_OFF)
        assert await made.write(identity, 7, version=OLD) is ErrorCode.NONE
        assert await made.write(identity, 0, 1) is ErrorCode.NONE
        assert in_transaction(made) == {1}
        await made.broker.alter_dynamic_configs("", lambda _: {})
        await made.end(identity, TransactionResult.ABORT, version=0)
        assert await made.write(identity, 1, 1, version=OLD) is ErrorCode.INVALID_TXN_STATE


# ------------------------------------------------------------------------- what is refused, and how


@on_a_loop
async def test_what_the_coordinator_refuses_reaches_the_producer_in_its_own_words() -> None:
    async with leader() as made:
        identity = await made.identity()
        unknown = ProducerIdAndEpoch(ProducerId(identity.producer_id + 500), ProducerEpoch(0))
        stale = await made.identity()  # the epoch after
        assert stale.epoch == identity.epoch + 1
        for version in (IMPLICIT, VERIFIED, OLD):
            assert await made.write(unknown, version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            # 90 at the coordinator; partition leaders say 47, after which a producer may abort and go on.
            assert await made.write(identity, version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
            (answer,) = await made.produce(request({0: batch(stale)}, name="nobody"), version)
            assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert made.partition().log.log_end_offset == 0


@on_a_loop
async def test_unknown_producers_leave_nothing_behind() -> None:
    """Whoever may write could otherwise fill the broker's memory with ids that it makes up."""
    async with leader() as made:
        identity = await made.identity()
        for n in range(50):
            await made.write(ProducerIdAndEpoch(ProducerId(identity.producer_id + 1 + n), ProducerEpoch(0)))
        assert not made.partition().log.producer_state_manager._verifications


@on_a_loop
async def test_pairs_that_were_replaced_leave_nothing_behind_either() -> None:
    """While a transaction is kept any producer id may be that of a former client, made up or not."""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity, 0, 1)
        await made.broker.transactions.execute(T, InitProducerId(timeout_ms=60_000, keep_prepared=True))
        for number in range(100):
            pair = ProducerIdAndEpoch(ProducerId(1_000 + number), ProducerEpoch(0))
            assert await made.write(pair) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await made.write(identity) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert not made.partition().log.producer_state_manager._verifications


@on_a_loop
async def test_a_refused_batch_is_not_overtaken_by_the_one_behind_it() -> None:
    """Version 1 of the protocol: what is unknown here may begin anywhere, but not past what was refused."""
    async with leader() as made:
        identity = await made.identity()
        assert await made.write(identity, 5, version=VERIFIED) is ErrorCode.TRANSACTION_ABORTABLE
        await made.add(identity, 0)
        assert await made.write(identity, 6, version=VERIFIED) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await made.write(identity, 5, version=VERIFIED) is ErrorCode.NONE
        assert await made.write(identity, 6, version=VERIFIED) is ErrorCode.NONE


@pytest.mark.parametrize("version", [IMPLICIT, VERIFIED, OLD])
@on_a_loop
async def test_a_coordinator_that_is_not_ready_means_try_the_same_batch_again(version: int) -> None:
    """14, 15 and 16 would have a producer look for a coordinator that it has; 19 only has it wait."""
    async with leader() as made:
        identity = await made.identity()
        made.broker.transactions.begin_shutdown()
        assert made.broker.transactions.get_entry(T) == REFUSALS.stopped
        assert await made.write(identity, version=version) is ErrorCode.NOT_ENOUGH_REPLICAS


@on_a_loop
async def test_while_an_outcome_is_being_written_older_clients_hear_19_and_newer_ones_wait() -> None:
    """KAFKA-18575: the next transaction of a producer need not know that markers are on their way."""
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        assert await made.write(identity) is ErrorCode.NONE
        made.disk.holding = True
        ending = asyncio.ensure_future(made.end(identity, TransactionResult.COMMIT))
        await turns()
        made.disk.sync("__transaction_state")  # decided, and the marker is not on the disk
        following = await ending
        assert await made.write(following, version=VERIFIED) is ErrorCode.NOT_ENOUGH_REPLICAS
        sent = made.send(request({0: batch(following)}))
        await turns()
        assert not sent.done()
        made.disk.release()
        assert codes(await sent) == [ErrorCode.NONE]
        assert in_transaction(made) == {0}


@on_a_loop
async def test_newer_clients_that_waited_long_enough_hear_51() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        assert await made.write(identity) is ErrorCode.NONE
        made.disk.holding = True
        ending = asyncio.ensure_future(made.end(identity, TransactionResult.COMMIT))
        await turns()
        made.disk.sync("__transaction_state")
        sent = made.send(request({0: batch(await ending)}))
        made.clock.advance(5_000)
        made.broker.transactions.tick()
        assert codes(await sent) == [ErrorCode.CONCURRENT_TRANSACTIONS]


@on_a_loop
async def test_two_producers_in_one_request_are_one_too_many() -> None:
    async with leader() as made:
        one, other = await made.identity(), await made.identity(OTHER)
        answers = await made.produce(request({0: batch(one), 1: batch(other)}))
        assert [a.error_code for a in answers] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert made.partition(0).log.log_end_offset == made.partition(1).log.log_end_offset == 0


@on_a_loop
async def test_a_transactional_batch_without_a_producer_is_no_question_of_rights() -> None:
    """No marker could ever end it."""
    async with leader() as made:
        written = batch(ProducerIdAndEpoch(ProducerId(5), ProducerEpoch(0)))
        nobodys = with_crc(written[:43] + struct.pack(">qhi", -1, -1, -1) + written[57:])
        (answer,) = await made.produce(request({0: nobodys}))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert made.partition().log.log_end_offset == 0


@on_a_loop
async def test_writing_as_a_transactional_id_takes_the_right_to_write_as_it() -> None:
    async with leader() as made:
        identity = await made.identity()
        made.deny((Operation.WRITE, transactional_id_resource(T)))
        assert await made.write(identity) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        made.deny()
        assert await made.write(identity, name=None) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert made.partition().log.log_end_offset == 0
        made.deny((Operation.WRITE, transactional_id_resource(T)))
        (plain,) = await made.produce(request({0: batch(None)}))
        assert plain.error_code == 0  # nothing of a transaction is in it


# ---------------------------------------------------------------------------------- who goes first


@on_a_loop
async def test_requests_on_their_way_enter_in_the_order_they_came() -> None:
    """max.in.flight.requests.per.connection=5: the second must not overtake the first that is asked about,
    nor be out of order because of it."""
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        before = made.records_of_coordinator()
        made.disk.holding = True
        sent = [made.send(request({0: batch(identity, n)})) for n in range(5)]
        await turns()
        assert made.partition().log.log_end_offset == 0
        assert not any(one.done() for one in sent)
        made.disk.sync("__transaction_state")
        await turns()
        assert made.partition().log.log_end_offset == 5
        made.disk.release()
        answers = [told(await one)[0] for one in sent]
        assert [a.error_code for a in answers] == [0] * 5
        assert [a.base_offset for a in answers] == [0, 1, 2, 3, 4]
        assert made.records_of_coordinator() == before + 1
        assert made.partition().append_turns == {}


@on_a_loop
async def test_who_comes_when_the_transaction_is_open_still_goes_behind_who_waits() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        first = [made.send(request({0: batch(identity, n)})) for n in range(2)]
        await turns()
        made.disk.sync("__transaction_state")
        while not made.partition().log.log_end_offset:
            await turns(1)
        last = made.send(request({0: batch(identity, 2)}))
        made.disk.release()
        answers = [told(await one)[0] for one in (*first, last)]
        assert [(a.error_code, a.base_offset) for a in answers] == [(0, 0), (0, 1), (0, 2)]


@on_a_loop
async def test_partitions_wait_for_their_own_predecessors_alone() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        sent = [
            made.send(request({0: batch(identity, 0)})),
            made.send(request({1: batch(identity, 0)})),
            made.send(request({1: batch(identity, 1), 0: batch(identity, 1)})),
        ]
        await turns()
        made.disk.release()
        await turns()
        made.disk.release()
        assert [codes(await one) for one in sent] == [
            [ErrorCode.NONE],
            [ErrorCode.NONE],
            [ErrorCode.NONE] * 2,
        ]
        assert in_transaction(made) == {0, 1}


@on_a_loop
async def test_nothing_is_written_to_a_partition_that_a_request_names_twice() -> None:
    """Kafka drops the first batch without a word; the partition beside it is served."""
    async with leader() as made:
        identity = await made.identity()
        rows = [(0, batch(identity, 0)), (1, batch(identity, 0)), (0, batch(identity, 1))]
        invalid = ErrorCode.INVALID_REQUEST
        assert codes(await made.send(request(rows))) == [invalid, ErrorCode.NONE, invalid]
        assert made.partition(0).log.log_end_offset == 0


@on_a_loop
async def test_a_batch_behind_a_refused_one_is_out_of_order_and_blocks_no_other() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        damaged = bytearray(batch(identity, 0))
        damaged[-1] ^= 1
        sent = [made.send(request({0: bytes(damaged)})), made.send(request({0: batch(identity, 1)}))]
        await turns()
        made.disk.release()
        assert codes(await sent[0]) == [ErrorCode.CORRUPT_MESSAGE]
        assert codes(await sent[1]) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        for sequence in (0, 1):
            assert await made.write(identity, sequence) is ErrorCode.NONE
        assert made.partition().append_turns == {}


# ---------------------------------------------------------------------------- what happens meanwhile


@on_a_loop
async def test_what_waits_is_a_copy_of_the_request() -> None:
    """KAFKA-15653: the buffer belongs to the next request as soon as the handler has returned."""
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        sent = made.send(request({0: batch(identity, count=3)}))
        await turns()
        made.disk.release()
        await sent
        (piece,) = made.partition().iter_batches(1 << 20)
        assert [record.value for record in iter_records(piece)] == [b"v0", b"v1", b"v2"]


@on_a_loop
async def test_a_marker_that_comes_before_the_answer_makes_the_answer_worthless() -> None:
    """[PRD-7] KAFKA-14402, ABA: the late write would open a transaction that nobody ends."""
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}))
        await turns()
        marker = encode_marker(
            EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0),
            identity,
            timestamp_ms=made.clock.now_ms(),
        )
        made.partition().append(marker, AppendOrigin.COORDINATOR, TxnGuard(transaction_version=0))
        made.disk.release()
        assert codes(await sent) == [ErrorCode.INVALID_TXN_STATE]
        assert made.partition().log.producer_state_manager.first_undecided_offset is None


@on_a_loop
async def test_a_topic_may_be_deleted_while_a_batch_waits() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}))
        await turns()
        assert await made.broker.topic_controller.delete(TOPIC) is None
        made.disk.release()
        assert codes(await sent) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@on_a_loop
async def test_a_client_never_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk hangs under the coordinator: what waited is refused, appended never, and may be sent again."""
    monkeypatch.setattr(produce, "VERIFICATION_S_MIN", 0.01)
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        sent = [made.send(request({0: batch(identity, n)}, timeout_ms=1)) for n in range(2)]
        assert [codes(await one) for one in sent] == [[ErrorCode.NOT_ENOUGH_REPLICAS]] * 2
        assert made.partition().append_turns == {}
        made.disk.release()
        await turns()
        assert made.partition().log.log_end_offset == 0
        for sequence in range(2):
            assert await made.write(identity, sequence) is ErrorCode.NONE


@on_a_loop
async def test_acks_0_is_answered_with_silence_and_refused_by_closing() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}, acks=0))
        await turns()
        assert not sent.done()
        made.disk.release()
        assert await sent is None
        assert made.partition().log.log_end_offset == 1
        unknown = ProducerIdAndEpoch(ProducerId(999), ProducerEpoch(0))
        with pytest.raises(CloseConnection, match="INVALID_PRODUCER_ID_MAPPING"):
            await made.send(request({1: batch(unknown)}, acks=0))


@on_a_loop
async def test_batches_that_wait_are_on_the_account_of_requests_until_they_are_appended() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        memory = made.broker.request_memory
        assert memory.used_bytes == 0
        made.disk.holding = True
        sent = made.send(request({0: batch(identity, 0)}))
        await turns()
        assert memory.used_bytes == len(batch(identity, 0))
        made.disk.release()
        await turns()
        made.disk.release()
        assert codes(await sent) == [ErrorCode.NONE]
        assert memory.used_bytes == 0


@on_a_loop
async def test_a_batch_that_would_wait_is_refused_for_now_while_memory_is_short() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        memory = made.broker.request_memory
        memory.acquire("elsewhere", made.broker.config.queued_max_request_bytes + 1)
        made.disk.holding = True
        assert codes(await made.send(request({0: batch(identity, 0)}))) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        memory.release("elsewhere", made.broker.config.queued_max_request_bytes + 1)
        again = made.send(request({0: batch(identity, 0)}))
        await turns()
        made.disk.release()
        await turns()
        made.disk.release()
        assert codes(await again) == [ErrorCode.NONE]
        assert memory.used_bytes == 0


@on_a_loop
async def test_a_batch_that_is_too_large_is_refused_before_anybody_is_asked() -> None:
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        made.disk.holding = True
        before = made.records_of_coordinator()
        large = batch(identity, 0) + bytes(2_000_000)
        header = (len(large) - 12).to_bytes(4, "big")
        sent = await made.send(request({0: large[:8] + header + large[12:]}))
        assert codes(sent) == [ErrorCode.MESSAGE_TOO_LARGE]
        assert made.records_of_coordinator() == before


# ------------------------------------------------------------------------------ beside transactions


@pytest.mark.parametrize("ahead", [0, 1, 5])
@on_a_loop
async def test_a_producer_id_of_a_transactional_id_writes_nothing_outside_of_transactions(ahead: int) -> None:
    """Its epochs are the coordinator's: with a later one anybody could fence the owner from a partition, and
    after a crash it would be taken for a decision that the transaction log has lost."""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        identity = await made.end(identity, TransactionResult.COMMIT)
        other = ProducerIdAndEpoch(identity.producer_id, ProducerEpoch(identity.epoch + ahead))
        for index in (0, 1):
            body = await made.produce(request({index: batch(other, transactional=False)}, name=None))
            assert ErrorCode(body[0].error_code) is ErrorCode.INVALID_TXN_STATE
            assert await made.write(identity, 0, index=index) is ErrorCode.NONE
        await made.end(identity, TransactionResult.COMMIT)


@pytest.mark.parametrize("client_id", ["client", "__admin_client"])
@on_a_loop
async def test_the_logs_of_the_coordinators_are_written_by_them_alone(client_id: str) -> None:
    """What they cannot read there costs them the partition, at every start."""
    async with memory_broker() as desk:
        await desk.broker.groups.ensure_topic()
        await desk.broker.transactions.ensure_topic()
        for name in INTERNAL_TOPICS:
            data = PartitionProduceData(index=0, records=batch(None))
            request = ProduceRequest(
                acks=-1, timeout_ms=1_000, topic_data=(TopicProduceData(name=name, partition_data=(data,)),)
            )
            answer = await desk.ask(request, 9, client_id)
            (told,) = answer.responses[0].partition_responses
            assert ErrorCode(told.error_code) is ErrorCode.INVALID_TOPIC_EXCEPTION
