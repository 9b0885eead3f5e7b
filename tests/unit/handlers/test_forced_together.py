"""A transaction's first record and its data: forced to the disk together, and what a power loss leaves."""

import asyncio
from copy import deepcopy

import pytest
from tests.support.leading import IMPLICIT, TOPIC, Leader, T, batch, leader, request, told, turns
from tests.support.memory_broker import completed, loaded, memory_disk, on_a_loop

from harness.memory_fs import MemoryFileSystem
from tallystick.broker.handlers.dispatch import ResponseBody
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC
from tallystick.broker.txn.machine.model import OngoingPhase, TransactionResult, TxnEntry, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.storage.state.producer_state import AppendOrigin


async def ended_once(made: Leader, version: int = 2) -> ProducerIdAndEpoch:
    """Return a producer that has committed one record in partition 0."""
    identity = await made.identity()
    assert await made.write(identity) is ErrorCode.NONE
    identity = await made.end(identity, TransactionResult.COMMIT, version=version)
    await completed(made)
    return identity


def code(body: ResponseBody) -> ErrorCode:
    return ErrorCode(told(body, IMPLICIT)[0].error_code)


def entry_of(made: Leader) -> TxnEntry:
    entry = made.broker.transactions.get_entry(T)
    assert isinstance(entry, TxnEntry)
    return entry


@pytest.mark.parametrize("first", [TOPIC, TRANSACTION_STATE_TOPIC])
@on_a_loop
async def test_the_answer_follows_both_in_either_order(first: str) -> None:
    """[TXN-1] Both logs are in one round of the disk."""
    async with leader(flush_policy="ack") as made:
        identity = await ended_once(made)
        before = made.partition().log.log_end_offset
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}))
        assert made.partition().log.log_end_offset == before + 1
        assert made.disk.waiting == {TOPIC, TRANSACTION_STATE_TOPIC}
        made.disk.sync(first)
        await turns()
        assert not sent.done()
        made.disk.sync()
        assert code(await sent) is ErrorCode.NONE


@on_a_loop
async def test_a_later_batch_waits_for_the_record_too() -> None:
    """[TXN-1]"""
    async with leader(flush_policy="ack") as made:
        identity = await ended_once(made)
        made.disk.holding = True
        sent = [made.send(request({0: batch(identity, sequence)})) for sequence in range(2)]
        made.disk.sync(TOPIC)
        await turns()
        assert not any(each.done() for each in sent)
        made.disk.sync()
        assert [code(await each) for each in sent] == [ErrorCode.NONE] * 2


@on_a_loop
async def test_the_retry_of_a_batch_that_timed_out_waits_for_the_record() -> None:
    """[TXN-1] It is a duplicate of data that is durable."""
    async with leader(flush_policy="ack") as made:
        identity = await ended_once(made)
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}, timeout_ms=0))
        made.disk.sync(TOPIC)
        assert code(await sent) is ErrorCode.REQUEST_TIMED_OUT
        again = made.send(request({0: batch(identity)}))
        await turns()
        assert not again.done()
        made.disk.sync()
        assert code(await again) is ErrorCode.NONE
        assert made.partition().log.log_end_offset == 3


@on_a_loop
async def test_after_a_transaction_of_an_older_version_the_record_comes_first() -> None:
    """[TXN-1] Its markers have the epoch of the next transaction: sent again, they would end that one."""
    async with leader(flush_policy="ack") as made:
        identity = await ended_once(made, version=0)
        before = made.partition().log.log_end_offset
        made.disk.holding = True
        sent = made.send(request({0: batch(identity, 1)}))
        await turns()
        assert made.partition().log.log_end_offset == before
        made.disk.sync()
        await turns()
        assert made.partition().log.log_end_offset == before + 1
        made.disk.sync()
        assert code(await sent) is ErrorCode.NONE


@on_a_loop
async def test_a_change_of_the_rules_waits_for_the_record() -> None:
    """Lowering the version rests on a list of entries that a power loss must not change."""
    async with leader(flush_policy="ack") as made:
        identity = await ended_once(made)
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}))
        pause = made.broker.transactions.pause_commands()
        entered = asyncio.ensure_future(pause.__aenter__())
        await turns()
        assert not entered.done()
        made.disk.sync()
        assert await entered is None
        await pause.__aexit__(None, None, None)
        assert code(await sent) is ErrorCode.NONE


@on_a_loop
async def test_a_failed_sync_of_the_record_is_told_and_repaired_at_the_next_start() -> None:
    """[TXN-1] The data is durable, so that the next start adds the partition to the transaction."""
    fs = MemoryFileSystem()
    disk = memory_disk(fs)
    async with leader(disk, flush_policy="ack") as made:
        identity = await ended_once(made)
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}))
        made.disk.sync(TOPIC)
        made.disk.fail(TRANSACTION_STATE_TOPIC)
        assert code(await sent) is ErrorCode.KAFKA_STORAGE_ERROR
        assert made.broker.transactions.offline_partition_count == 1
        left = deepcopy(fs)
    left.crash("nothing")
    await check_open_and_abort(replace(disk, fs=left), identity)


@on_a_loop
async def test_a_power_loss_that_leaves_the_data_alone() -> None:
    """[TXN-1] CompleteCommit and Ongoing are lost, and the markers of the last transaction are sent again.

    They have the epoch of the open one, which they must not end.
    """
    fs = MemoryFileSystem()
    disk = memory_disk(fs)
    async with leader(disk, flush_policy="ack") as made:
        identity = await made.identity()
        assert await made.write(identity) is ErrorCode.NONE
        made.disk.holding = True
        made.disk.keep_syncing(TOPIC)
        ending = asyncio.ensure_future(made.end(identity, TransactionResult.COMMIT))
        await turns()
        made.disk.sync()  # PrepareCommit; what follows in that log stays behind
        identity = await ending
        await completed(made)
        sent = made.send(request({0: batch(identity)}))
        await turns()
        assert not sent.done()
        assert entry_of(made).state is TxnState.ONGOING
        left = deepcopy(fs)
    left.crash("nothing")
    await check_open_and_abort(replace(disk, fs=left), identity)


@on_a_loop
async def test_a_full_disk_does_not_keep_a_lost_addition_from_being_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[TXN-14] Otherwise the transaction would hang: no coordinator could end it."""
    origins = []
    append = Partition.append

    def note(partition: Partition, batches: bytes, origin: AppendOrigin, *rest: object) -> object:
        if partition.topic_partition.topic == TRANSACTION_STATE_TOPIC:
            origins.append(origin)
        return append(partition, batches, origin, *rest)  # type: ignore[arg-type]

    fs = MemoryFileSystem()
    disk = memory_disk(fs)
    async with leader(disk, flush_policy="ack") as made:
        identity = await ended_once(made)
        made.disk.holding = True
        sent = made.send(request({0: batch(identity)}))
        made.disk.sync(TOPIC)
        left = deepcopy(fs)
        made.disk.release()
        assert code(await sent) is ErrorCode.NONE
    left.crash("nothing")
    monkeypatch.setattr(Partition, "append", note)
    async with leader(replace(disk, fs=left), flush_policy="ack") as made:
        await loaded(made)
        await made.rest()
        assert entry_of(made).state is TxnState.ONGOING
        assert origins[-1] is AppendOrigin.DECISION  # which takes from the reserve


async def check_open_and_abort(disk: object, identity: ProducerIdAndEpoch) -> None:
    """Check that offset 2 is in an open transaction behind a committed one, and abort it."""
    async with leader(disk, flush_policy="ack") as made:  # type: ignore[arg-type]
        await loaded(made)
        await made.rest()
        phase = entry_of(made).phase
        assert isinstance(phase, OngoingPhase)
        assert phase.writer == identity
        assert made.partition().log.log_end_offset == 3
        assert await made.latest(isolation=1) == 2
        assert not made.broker.startup_comparison.hanging_transactions  # type: ignore[union-attr]
        await made.end(identity, TransactionResult.ABORT)
        await completed(made)
        fetched = await made.fetch(2)
        assert fetched.last_stable_offset == 4
        assert [aborted.first_offset for aborted in fetched.aborted_transactions or ()] == [2]
