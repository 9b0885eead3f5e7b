"""Stored bytes that cannot be read are not the client's: one partition's error, with its place in the log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, memory_disk, on_a_loop

from harness.memory_fs import MemoryFileSystem
from tallystick.broker.partitions.partition import Partition
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import LeaderEpoch, Offset
from tallystick.protocol.messages.data.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tallystick.protocol.messages.data.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tallystick.protocol.messages.txn.describe_producers import DescribeProducersRequest, TopicRequest
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.disk.fs import StorageFailure

PATH = "data/bad-0/00000000000000000000.log"


def make_batch(value: bytes) -> bytes:
    record = Record(offset=0, timestamp_ms=1_000, key=None, value=value, headers=())
    return encode_batch([record], BatchMeta())


@asynccontextmanager
async def damaged(at: int, data: bytes) -> AsyncIterator[tuple[MemoryBroker, Partition]]:
    """Run a broker with two sound batches in `good`, and in `bad` two of which the second is damaged."""
    fs = MemoryFileSystem()
    async with memory_broker(memory_disk(fs)) as memory:
        for topic in ("good", "bad"):
            await memory.make_topic(topic, 1)
            partition = memory.broker.topics.find_partition(topic, 0)
            assert partition is not None
            for value in (b"one", b"two"):
                partition.append(make_batch(value))
        stored = fs.node(PATH).data
        position = len(stored) // 2 + at
        stored[position : position + len(data)] = data
        yield memory, partition


def fetch(isolation: int) -> FetchRequest:
    want = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    topics = tuple(FetchTopic(topic=name, partitions=(want,)) for name in ("good", "bad"))
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation, topics=topics
    )


def codes_of(response: Any) -> dict[str, int]:
    return {topic.topic: topic.partitions[0].error_code for topic in response.responses}


@pytest.mark.parametrize(
    ("at", "data"), [(16, b"\x77"), (8, b"\0\0\xff\xff")], ids=["another format", "a length beyond the end"]
)
@on_a_loop
async def test_a_committed_read_fails_for_that_partition_and_the_log_says_where(
    at: int, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged(at, data) as (memory, partition):
        position = partition.log.reader.segments[0].size // 2
        for _ in range(3):
            response = await memory.ask(fetch(isolation=1), 12)
            assert codes_of(response) == {"good": 0, "bad": ErrorCode.CORRUPT_MESSAGE}
        assert len(response.responses[0].partitions[0].records) > 0
        (line,) = [each.getMessage() for each in caplog.records if "bad-0" in each.getMessage()]
        assert f"{PATH}: corrupt at byte {position}" in line


@on_a_loop
async def test_an_uncommitted_read_is_what_is_stored() -> None:
    """As in Kafka, whose client refuses the batch by name and offset."""
    async with damaged(16, b"\x77") as (memory, _):
        assert codes_of(await memory.ask(fetch(isolation=0), 12)) == {"good": 0, "bad": 0}


@pytest.mark.parametrize(("at", "data"), [(16, b"\x77"), (61, b"\xff" * 4)], ids=["header", "records"])
@on_a_loop
async def test_a_time_is_not_looked_up_in_what_cannot_be_read(
    at: int, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged(at, data) as (memory, partition):
        # The first batch is deleted, so that the second is read.
        assert partition.delete_records_before(Offset(partition.log.log_end_offset - 1)) is None
        want = ListOffsetsPartition(partition_index=0, timestamp=1_000)
        topics = tuple(ListOffsetsTopic(name=name, partitions=(want,)) for name in ("good", "bad"))
        response = await memory.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        codes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
        assert codes == {"good": 0, "bad": ErrorCode.CORRUPT_MESSAGE}
        assert f"{PATH}: corrupt at byte" in caplog.text


@on_a_loop
async def test_a_coordinator_hears_the_file_and_the_position() -> None:
    async with damaged(16, b"\x77") as (_, partition):
        with pytest.raises(StorageFailure, match=f"{PATH}: corrupt at byte"):
            list(partition.iter_batches(1 << 20))


@on_a_loop
async def test_what_reads_no_batches_goes_on() -> None:
    async with damaged(16, b"\x77") as (memory, _):
        epochs = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=(
                OffsetForLeaderTopic(
                    topic="bad",
                    partitions=(OffsetForLeaderPartition(partition=0, leader_epoch=LeaderEpoch(0)),),
                ),
            ),
        )
        assert (await memory.ask(epochs, 4)).topics[0].partitions[0].error_code == 0
        producers = DescribeProducersRequest(topics=(TopicRequest(name="bad", partition_indexes=(0,)),))
        assert (await memory.ask(producers, 0)).topics[0].partitions[0].error_code == 0
        deletion = DeleteRecordsRequest(
            topics=(
                DeleteRecordsTopic(
                    name="bad", partitions=(DeleteRecordsPartition(partition_index=0, offset=1),)
                ),
            ),
            timeout_ms=1_000,
        )
        assert (await memory.ask(deletion, 2)).topics[0].partitions[0].error_code == 0
