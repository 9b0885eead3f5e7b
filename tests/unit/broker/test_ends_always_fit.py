"""What is begun can be ended, however small the limits are set meanwhile, and on a full disk [TXN-14]."""

from typing import cast

import pytest
from tests.support.leading import TOPIC, Leader, T, batch, leader, request
from tests.support.memory_broker import completed, loaded, memory_disk, on_a_loop

from harness.memory_fs import MemoryFileSystem
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC
from tallystick.broker.txn.machine.commands import (
    DONE,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    InitProducerId,
    InitProducerIdResult,
)
from tallystick.broker.txn.machine.model import TransactionResult, TxnEntry, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition, TransactionalId
from tallystick.kernel.limits import MIB
from tallystick.storage.state.producer_state import AppendOrigin

LIMIT_BYTES = 10_000


def state(made: Leader) -> TxnState:
    entry = made.broker.transactions.get_entry(T)
    assert isinstance(entry, TxnEntry)
    return entry.state


@pytest.mark.parametrize("outcome", TransactionResult)
def test_a_marker_enters_a_topic_that_takes_nothing_any_more(outcome: TransactionResult) -> None:
    @on_a_loop
    async def run() -> None:
        async with leader() as made:
            who = await made.identity()
            assert await made.write(who) is ErrorCode.NONE
            assert (
                await made.broker.topic_controller.alter_configs(TOPIC, lambda _: {"max.message.bytes": "50"})
                is None
            )
            assert await made.write(who, 1) is ErrorCode.MESSAGE_TOO_LARGE
            await made.end(who, outcome)
            await completed(made)
            assert made.partition().log.reader.last_stable_offset == 2

    run()


def added(who: ProducerIdAndEpoch, topic: str) -> AddPartitionsByLeader:
    return AddPartitionsByLeader(identity=who, partitions=frozenset({TopicPartition(topic, 0)}))


async def fill(made: Leader, who: ProducerIdAndEpoch) -> None:
    """Add partitions until the record of the transaction is as large as it may be."""
    for letters in (200, 20, 1):
        for number in range(1_000):
            answer = await made.broker.transactions.execute(T, added(who, f"{number}{'n' * letters}"))
            if answer != DONE:
                break
        assert isinstance(answer, Reject)
        assert answer.code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("policy", ["os", "ack"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_transaction_that_cannot_grow_can_be_kept_and_ended_and_read_again(policy: str, kept: bool) -> None:
    """Where a power loss may take markers, the last record is the largest: it says where they all are."""

    @on_a_loop
    async def run() -> None:
        disk = memory_disk()
        async with leader(disk, flush_policy=policy) as made:
            who = await made.identity()
            limits = {"max.message.bytes": str(LIMIT_BYTES), "cleanup.policy": "compact"}
            assert (
                await made.broker.topic_controller.alter_configs(TRANSACTION_STATE_TOPIC, lambda _: limits)
                is None
            )
            await made.produce(request({0: batch(who), 1: batch(who)}))
            await fill(made, who)
            if kept:
                asked = InitProducerId(timeout_ms=60_000, keep_prepared=True)
                answer = await made.broker.transactions.execute(T, asked)
                assert isinstance(answer, InitProducerIdResult)
                assert answer.ongoing_identity == who
                who = answer.client
            end = EndTxn(identity=who, outcome=TransactionResult.COMMIT, transaction_version=2)
            assert isinstance(await made.broker.transactions.execute(T, end), EndTxnResult)
            await completed(made)
        async with leader(disk, flush_policy=policy) as made:
            await loaded(made)
            assert state(made) is TxnState.COMPLETE_COMMIT

    run()


@on_a_loop
async def test_what_a_client_writes_is_limited_whatever_it_is() -> None:
    """[TXN-14] is for ends alone."""
    async with leader() as made:
        who = await made.identity()
        assert (
            await made.broker.topic_controller.alter_configs(TOPIC, lambda _: {"max.message.bytes": "50"})
            is None
        )
        for origin, code in (
            (AppendOrigin.CLIENT, ErrorCode.MESSAGE_TOO_LARGE),
            (AppendOrigin.COORDINATOR, ErrorCode.MESSAGE_TOO_LARGE),
        ):
            refused = made.partition().append(batch(who, transactional=False), origin)
            assert isinstance(refused, Reject)
            assert refused.code is code


@on_a_loop
async def test_who_begins_on_a_full_disk_leaves_the_reserve_to_who_has_prepared() -> None:
    """Clients try again for hours, and each attempt would take some of it."""
    disk = memory_disk()
    files = cast(MemoryFileSystem, disk.fs)
    async with leader(disk, log_reserve_bytes=str(MIB)) as made:
        who, other = await made.identity(), TransactionalId("other")
        idle = await made.identity(other)
        assert await made.write(who) is ErrorCode.NONE
        files.capacity = sum(map(len, files.files().values()))
        assert await made.write(who, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        refused = (
            await made.broker.transactions.execute(other, InitProducerId(timeout_ms=60_000)),
            await made.broker.transactions.execute(TransactionalId("new"), InitProducerId(timeout_ms=60_000)),
            await made.broker.transactions.execute(other, added(idle, "more")),
            await made.broker.transactions.execute(T, added(who, "more")),
        )
        assert {answer.code for answer in refused if isinstance(answer, Reject)} == {
            ErrorCode.NOT_COORDINATOR
        }
        assert all(isinstance(answer, Reject) for answer in refused)
        assert made.broker.data_directory.reserve.is_whole
        await made.end(who, TransactionResult.COMMIT)
        await completed(made)
        assert made.partition().log.reader.last_stable_offset == 2
        assert not made.broker.data_directory.reserve.is_whole
        files.capacity += MIB
