"""The disk fails one write of a coordinator's record, and the write is taken back: one request is refused."""

import errno

from tests.support.memory_broker import MemoryBroker, loaded, memory_broker, memory_disk, on_a_loop

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest


async def init(desk: MemoryBroker) -> tuple[int, int, int]:
    said = await desk.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), 5)
    return said.error_code, said.producer_id, said.producer_epoch


async def commit(desk: MemoryBroker, offset: int) -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    topics = (OffsetCommitRequestTopic(name="data", partitions=(partition,)),)
    said = await desk.ask(OffsetCommitRequest(group_id="g", member_id="", topics=topics), 8)
    return int(said.topics[0].partitions[0].error_code)


async def end(desk: MemoryBroker, producer_id: int, epoch: int) -> int:
    request = EndTxnRequest(
        transactional_id="t", producer_id=producer_id, producer_epoch=epoch, committed=False
    )
    return int((await desk.ask(request, 5)).error_code)


@on_a_loop
async def test_a_write_that_fails_and_is_taken_back_costs_one_request() -> None:
    disk = memory_disk()
    fs = disk.fs
    assert isinstance(fs, MemoryFileSystem)
    async with memory_broker(disk) as desk:
        await desk.make_topic("data")
        await loaded(desk)
        await desk.broker.transactions.ensure_topic()
        await desk.broker.groups.ensure_topic()
        _, producer_id, epoch = await init(desk)
        assert await commit(desk, 1) == ErrorCode.NONE

        fs.write_failure = OSError(errno.EIO, "input/output error")
        assert (await init(desk))[0] == ErrorCode.NOT_COORDINATOR
        assert await commit(desk, 2) == ErrorCode.NOT_COORDINATOR
        fs.write_failure = None

        assert await commit(desk, 3) == ErrorCode.NONE
        assert await end(desk, producer_id, epoch) == ErrorCode.NONE
        assert await init(desk) == (ErrorCode.NONE, producer_id, epoch + 2)
        assert (
            desk.broker.transactions.offline_partition_count
            == desk.broker.groups.offline_partition_count
            == 0
        )
    async with memory_broker(disk) as again:
        await loaded(again)
        assert await init(again) == (ErrorCode.NONE, producer_id, epoch + 3)
