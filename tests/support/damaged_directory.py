"""Data directories with something of everything, after a clean stop and a kill, and ways to damage a file."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.memory_broker import SETTINGS, MemoryBroker, completed, loaded
from tests.support.txn_requests import Pair, claimed, end

from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorRequest
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.testing import FakeClock

RESERVE_BYTES: Final = 64 * 1024
PREPARED: Final = "prepared"
GROUP: Final = "g"
COMMITTED_OFFSET: Final = 1_000
RECORD: Final = Record(offset=0, timestamp_ms=1_000, key=b"k", value=b"v" * 100, headers=())

Damage = Callable[[bytes], bytes | None]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def empty(_: bytes) -> bytes:
    return b""


def flip(data: bytes) -> bytes:
    """Flip one bit in the middle; of nothing, nothing. A letter of a random id becomes another letter."""
    if not data:
        return data
    at = len(data) // 2
    while chr(data[at]).isalnum() and not chr(data[at] ^ 0x04).isalnum():
        at += 1
    return data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :]


def foreign(_: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n\xff\xfe another program's file\n" * 8


def remove(_: bytes) -> None:
    return None


@asynccontextmanager
async def broker_on(path: Path) -> AsyncIterator[MemoryBroker]:
    """Run a broker without sockets on a directory of the disk."""
    given = {
        "log.dirs": str(path),
        "log.reserve.bytes": str(RESERVE_BYTES),
        "log.index.interval.bytes": "10",
        "transaction.state.log.num.partitions": "1",
        "offsets.topic.num.partitions": "1",
    }
    broker = Broker(BrokerConfig.parse(SETTINGS | given), path, FakeClock())
    broker.address = Endpoint("h", 9092)
    broker.open()
    await broker.start()
    desk = MemoryBroker(broker)
    try:
        await loaded(desk)
        yield desk
    finally:
        await broker.stop()


def find(desk: MemoryBroker, topic: str) -> Partition:
    partition = desk.broker.topics.find_partition(topic, 0)
    assert partition is not None
    return partition


def append(partition: Partition) -> None:
    result = partition.append(encode_batch([RECORD], BatchMeta()))
    assert not isinstance(result, Reject), result


async def _produce(desk: MemoryBroker, pair: Pair, transactional_id: str) -> None:
    """Write one record in a transaction, whose partition the broker adds to it (KIP-890)."""
    meta = BatchMeta(
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = PartitionProduceData(index=0, records=encode_batch([RECORD], meta))
    topics = (TopicProduceData(name="t", partition_data=(data,)),)
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1_000, topic_data=topics)
    answer = await desk.ask(request, 12)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def _fill(desk: MemoryBroker) -> None:
    """Write a closed segment with an aborted transaction, a prepared transaction, and a group's offset."""
    await desk.broker.topic_controller.create_if_absent(TopicSpec("t", 1))
    await desk.ask(FindCoordinatorRequest(coordinator_keys=(GROUP,), key_type=0), 4)
    partition = find(desk, "t")
    append(partition)
    pair = await claimed(desk, "aborted")
    await _produce(desk, pair, "aborted")
    assert (await desk.ask(end(pair, "aborted", committed=False), 5)).error_code == 0
    await completed(desk)
    append(partition)
    partition.log.roll(2_000)
    append(partition)
    pair = await claimed(desk, PREPARED, enable_2pc=True)
    await _produce(desk, pair, PREPARED)
    commit = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=COMMITTED_OFFSET, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(OffsetCommitRequestTopic(name="t", partitions=(commit,)),),
    )
    answer = await desk.ask(request, 8)
    assert answer.topics[0].partitions[0].error_code == 0


async def make_directories(under: Path) -> dict[str, Path]:
    """Return the same directory twice: after a clean stop, and after a kill."""
    clean, killed = under / "clean", under / "killed"
    clean.mkdir()
    async with broker_on(clean) as desk:
        await _fill(desk)
        for each in desk.broker.topics.list_partitions():
            each.log.sync()
        desk.broker.data_directory._log_dir.checkpoint()
        shutil.copytree(clean, killed)
        (killed / ".lock").unlink()
    return {"clean": clean, "killed": killed}


def damage(file: Path, how: Damage) -> None:
    """Leave in a file what `how` returns for its bytes."""
    data = how(file.read_bytes() if file.exists() else b"")
    if data is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(data)
