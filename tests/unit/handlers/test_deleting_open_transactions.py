"""No open transaction loses records because somebody deletes them [TXN-10]."""

import asyncio
import errno
import logging
import threading
from typing import Any

import pytest
from tests.support.leading import TOPIC, Leader, T, batch, leader, orders, request, turns
from tests.support.memory_broker import HeldMarkers, completed, on_a_loop

from tallystick.broker.txn.machine.commands import (
    DONE,
    AddPartitionsByLeader,
    InitProducerId,
    InitProducerIdResult,
)
from tallystick.broker.txn.machine.model import TransactionResult, TxnEntry, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.data.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tallystick.protocol.messages.topics.delete_topics import DeletableTopicResult, DeleteTopicsRequest


async def delete_records(made: Leader, before: int) -> DeleteRecordsPartitionResult:
    wanted = (DeleteRecordsPartition(partition_index=0, offset=before),)
    asked = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=TOPIC, partitions=wanted),), timeout_ms=1_000
    )
    found: DeleteRecordsPartitionResult = (await made.ask(asked, 2)).topics[0].partitions[0]
    return found


async def delete_topic(made: Leader) -> DeletableTopicResult:
    answer = await made.ask(DeleteTopicsRequest(topic_names=(TOPIC,), timeout_ms=1_000), 5)
    found: DeletableTopicResult = answer.responses[0]
    return found


async def three_plain_records_then_a_transaction(
    made: Leader, *, two_phase: bool = False
) -> ProducerIdAndEpoch:
    identity = await made.identity(two_phase=two_phase)
    await made.produce(request({0: batch(None)}, name=None))
    await made.produce(request({0: batch(None)}, name=None))
    await made.produce(request({0: batch(None)}, name=None))
    await made.write(identity)
    return identity


@on_a_loop
async def test_records_before_the_transaction_may_go_and_its_own_may_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with leader() as made:
        identity = await three_plain_records_then_a_transaction(made)
        with caplog.at_level(logging.WARNING):
            for target in (4, -1):
                assert (await delete_records(made, target)).error_code == ErrorCode.POLICY_VIOLATION
        assert "'pay-7' in orders-0 since offset 3" in caplog.text
        before = await delete_records(made, 3)
        assert (before.error_code, before.low_watermark) == (0, 3)
        await made.end(identity, TransactionResult.COMMIT)
        after = await delete_records(made, -1)
        assert (after.error_code, after.low_watermark) == (0, 5)


@on_a_loop
async def test_a_topic_is_not_deleted_under_a_two_phase_transaction_which_is_named() -> None:
    async with leader() as made:
        identity = await three_plain_records_then_a_transaction(made, two_phase=True)
        refused = await delete_topic(made)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert refused.error_message is not None
        assert "'pay-7' in orders-0 since offset 3" in refused.error_message
        await made.end(identity, TransactionResult.ABORT)
        assert (await delete_topic(made)).error_code == 0


@on_a_loop
async def test_nothing_is_written_to_a_topic_that_is_being_deleted() -> None:
    """Else a transaction would be told that a record is kept, commit it, and not have it."""
    async with leader() as made:
        identity = await made.identity(two_phase=True)
        deleting = asyncio.ensure_future(delete_topic(made))
        codes: list[Any] = []
        while not deleting.done():
            await asyncio.sleep(0)
            codes.append(await made.write(identity, len(codes)))
        assert (await deleting).error_code in (ErrorCode.NONE, ErrorCode.POLICY_VIOLATION)
        written = ErrorCode.NONE in codes
        assert written is ((await deleting).error_code == ErrorCode.POLICY_VIOLATION)
        assert (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in codes) is not written


@on_a_loop
async def test_a_topic_that_cannot_be_deleted_is_there_as_before() -> None:
    async with leader() as made:
        identity, store = await made.identity(), made.broker.metadata_store
        made.broker.topic_controller._store = Unwritable()  # type: ignore[assignment]
        with pytest.raises(OSError, match="full"):
            await made.broker.topic_controller.delete(TOPIC)
        made.broker.topic_controller._store = store
        assert await made.write(identity) is ErrorCode.NONE
        await made.end(identity, TransactionResult.COMMIT)
        assert (await delete_topic(made)).error_code == 0


class Unwritable:
    """Metadata on a disk that is full."""

    def delete_topics(self, topics: object) -> None:
        raise OSError("disk full")


@on_a_loop
async def test_a_transaction_that_no_coordinator_knows_is_named_by_its_producer() -> None:
    async with leader(transaction_partition_verification_enable="false") as made:
        hanging = ProducerIdAndEpoch(ProducerId(4711), ProducerEpoch(0))
        assert await made.write(hanging, version=11) is ErrorCode.NONE
        message = (await delete_topic(made)).error_message or ""
        assert "producer id 4711 in orders-0" in message


@on_a_loop
async def test_of_many_some_are_named() -> None:
    async with leader(transaction_partition_verification_enable="false") as made:
        for n in range(13):
            await made.write(ProducerIdAndEpoch(ProducerId(1_000 + n), ProducerEpoch(0)), version=11)
        message = (await delete_topic(made)).error_message or ""
        assert message.count("producer id") == 10
        assert "and 3 more" in message


@on_a_loop
async def test_who_says_so_may_delete_all_the_same() -> None:
    """delete.open.transactions=true is Kafka's way. The coordinator finds the partition gone, and goes on."""
    async with leader(delete_open_transactions="true") as made:
        identity = await three_plain_records_then_a_transaction(made)
        assert (await delete_records(made, -1)).low_watermark == 4
        assert (await delete_topic(made)).error_code == 0
        await made.end(identity, TransactionResult.COMMIT)
        await made.make_topic(TOPIC)
        assert await made.write(await made.identity()) is ErrorCode.NONE


@on_a_loop
async def test_retention_waits_for_the_transaction_whatever_the_switch_says() -> None:
    """[RET-1] The switch is for administrators: what merely grew old is not deleted by decision."""
    async with leader(delete_open_transactions="true", log_retention_ms="1000") as made:
        identity = await three_plain_records_then_a_transaction(made)
        made.clock.advance(1_000_000)
        cleaning = made.broker.data_directory._log_cleaner
        assert cleaning.apply_retention(orders(0)) == 0
        assert made.partition().log.log_start_offset == 0
        await made.end(identity, TransactionResult.COMMIT)
        made.clock.advance(1_000_000)
        assert cleaning.apply_retention(orders(0)) > 0
        assert made.partition().log.log_start_offset == 5


@on_a_loop
async def test_the_setting_can_be_changed_while_running() -> None:
    async with leader() as made:
        await three_plain_records_then_a_transaction(made, two_phase=True)
        assert (await delete_topic(made)).error_code == ErrorCode.POLICY_VIOLATION
        await made.broker.alter_dynamic_configs("", lambda _: {"delete.open.transactions": "true"})
        assert (await delete_topic(made)).error_code == 0


# ---- an ordinary transaction


def phase(made: Leader) -> object:
    entry = made.broker.transactions.get_entry(T)
    assert isinstance(entry, TxnEntry)
    return entry.state


@on_a_loop
async def test_an_ordinary_transaction_loses_its_records_with_the_topic_and_ends_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kafka's answer: the deletion is done, and the coordinator skips what is gone."""
    async with leader() as made:
        await made.make_topic("other", 1)
        identity = await three_plain_records_then_a_transaction(made)
        other = TopicPartition("other", 0)
        command = AddPartitionsByLeader(identity=identity, partitions=frozenset({other}))
        assert await made.broker.transactions.execute(T, command) == DONE
        assert (await delete_topic(made)).error_code == 0
        assert "a topic was deleted, and with it records of open transactions" in caplog.text
        assert "'pay-7' in orders-0 since offset 3" in caplog.text
        assert await made.write(identity, 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await made.end(identity, TransactionResult.COMMIT)
        await completed(made)
        assert phase(made) is TxnState.COMPLETE_COMMIT
        await made.make_topic(TOPIC)
        assert await made.write(await made.identity()) is ErrorCode.NONE


@on_a_loop
async def test_a_topic_of_that_name_made_before_the_end_is_not_held_back_by_it() -> None:
    async with leader() as made:
        identity = await three_plain_records_then_a_transaction(made)
        assert (await delete_topic(made)).error_code == 0
        await made.make_topic(TOPIC)
        await made.produce(request({0: batch(None)}, name=None))
        await made.end(identity, TransactionResult.COMMIT)
        await completed(made)
        log = made.partition().log
        assert log.reader.last_stable_offset == log.reader.high_watermark


@on_a_loop
async def test_what_is_decided_keeps_no_topic() -> None:
    """Its outcome is known to all; markers that are still on their way have nowhere to go."""
    held = HeldMarkers()
    async with leader(markers=held) as made:
        identity = await three_plain_records_then_a_transaction(made, two_phase=True)
        await made.end(identity, TransactionResult.COMMIT)
        assert (await delete_topic(made)).error_code == 0


@on_a_loop
async def test_a_transaction_that_was_kept_keeps_its_topic() -> None:
    """Its client has come back and has yet to decide: that is what "prepared" looks like here."""
    async with leader() as made:
        identity = await three_plain_records_then_a_transaction(made)
        kept = await made.broker.transactions.execute(
            T, InitProducerId(timeout_ms=60_000, keep_prepared=True)
        )
        assert isinstance(kept, InitProducerIdResult)
        assert kept.ongoing_identity == identity
        assert (await delete_topic(made)).error_code == ErrorCode.POLICY_VIOLATION


@on_a_loop
async def test_what_the_coordinator_does_not_have_in_that_partition_keeps_the_topic() -> None:
    """It may be anything, of two-phase commit too: an administrator ends it first."""
    async with leader(transaction_partition_verification_enable="false") as made:
        identity = await made.identity()
        assert await made.write(identity, version=11) is ErrorCode.NONE
        refused = await delete_topic(made)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "'pay-7' in orders-0" in (refused.error_message or "")


@on_a_loop
async def test_a_marker_waits_until_it_is_known_whether_the_topic_is_gone() -> None:
    """Else the transaction would be complete, and open in a partition that the disk gave back."""
    async with leader() as made:
        identity = await three_plain_records_then_a_transaction(made)
        store = made.broker.metadata_store
        slow = Slow()
        made.broker.topic_controller._store = slow  # type: ignore[assignment]
        deleting = asyncio.ensure_future(delete_topic(made))
        await turns()
        await made.end(identity, TransactionResult.COMMIT)
        await turns()
        assert phase(made) is TxnState.PREPARE_COMMIT
        slow.go_on.set()
        assert (await deleting).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        made.broker.topic_controller._store = store
        made.clock.advance(60_000)
        made.broker.transactions.tick()
        await completed(made)
        log = made.partition().log
        assert log.reader.last_stable_offset == log.reader.high_watermark == 5


class Slow:
    """Metadata that takes its time, and then has no room."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def delete_topics(self, topics: object) -> None:
        self.go_on.wait(30)
        raise OSError(errno.ENOSPC, "no space left on device")
