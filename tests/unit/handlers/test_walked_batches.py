"""Batches whose records take long, or cannot be read: walked beside the loop, or refused."""

import asyncio
import struct
from typing import Any

import pytest
from crc32c import crc32c
from tests.support.memory_broker import MemoryBroker, memory_broker, on_a_loop

from tallystick.broker.handlers.data import produce
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.limits import RECORD_ERRORS_MAX
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.records import (
    BatchMeta,
    Codec,
    Record,
    decode_records,
    encode_batch,
    native,
    read_header,
)
from tallystick.protocol.records.faults import _check_records, find_faults, find_section_faults
from tallystick.protocol.records.section import decompress_section
from tallystick.storage.state.validation import needs_prevalidation

NOW = 1_700_000_000_000
FAR = NOW + 10**12


def records(count: int, *, key: bytes | None = b"k", time: int = NOW) -> list[Record]:
    return [Record(offset=n, timestamp_ms=time, key=key, value=b"v", headers=()) for n in range(count)]


def a_batch(count: int, codec: Codec = Codec.ZSTD, **kwargs: Any) -> bytes:
    return encode_batch(records(count, **kwargs), BatchMeta(codec=codec))


def garbage(codec: Codec = Codec.NONE) -> bytes:
    """A batch of two records by its header, with rubbish in it and a right CRC."""
    whole = bytearray(encode_batch(records(2, key=b"k" * 40), BatchMeta(codec=codec)))
    whole[61:] = b"\xff" * (len(whole) - 61)
    whole[17:21] = struct.pack(">I", crc32c(bytes(whole[21:])))
    return bytes(whole)


async def make(memory: MemoryBroker, name: str, **configs: str) -> None:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    assert not hasattr(await memory.broker.topic_controller.create(TopicSpec(name, 1, given)), "code")


async def send(memory: MemoryBroker, topic: str, data: bytes) -> Any:
    part = PartitionProduceData(index=0, records=data)
    request = ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=(TopicProduceData(name=topic, partition_data=(part,)),)
    )
    return (await memory.ask(request, 9)).responses[0].partition_responses[0]


def stored(memory: MemoryBroker, topic: str) -> list[Record]:
    partition = memory.broker.topics.find_partition(topic, 0)
    assert partition is not None
    log = partition.log
    read = log.reader.read(0, 1 << 30, upper=log.log_end_offset)
    return decode_records(read.data) if getattr(read, "data", b"") else []  # type: ignore[union-attr]


@on_a_loop
async def test_a_late_batch_names_ten_records_at_most() -> None:
    async with memory_broker() as memory:
        await make(memory, "t")
        answer = await send(memory, "t", a_batch(5000, time=FAR))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [e.batch_index for e in answer.record_errors] == list(range(RECORD_ERRORS_MAX))
        assert stored(memory, "t") == []


@on_a_loop
async def test_records_without_keys_are_counted_and_ten_are_named() -> None:
    async with memory_broker() as memory:
        await make(memory, "t", cleanup_policy="compact")
        answer = await send(memory, "t", a_batch(5000, key=None))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert "5000 records have no key" in answer.error_message
        assert len(answer.record_errors) == RECORD_ERRORS_MAX


@pytest.mark.parametrize("walked", [False, True])
@on_a_loop
async def test_another_codec_keeps_the_records_as_they_are(walked: bool) -> None:
    async with memory_broker() as memory:
        await make(memory, "t", compression_type="lz4")
        data = a_batch(3000 if walked else 3, Codec.GZIP)
        partition = memory.broker.topics.find_partition("t", 0)
        assert partition is not None
        assert needs_prevalidation(data, partition.log.config, NOW) is walked
        assert (await send(memory, "t", data)).error_code == 0
        assert stored(memory, "t") == decode_records(data)


@on_a_loop
async def test_others_are_served_while_a_batch_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker() as memory:
        await make(memory, "slow", cleanup_policy="compact")
        await make(memory, "quick")
        walked, go_on = asyncio.Event(), asyncio.Event()

        async def held(call: Any, *args: Any) -> Any:
            walked.set()
            await go_on.wait()
            return call(*args)

        monkeypatch.setattr(produce.asyncio, "to_thread", held)
        sent = asyncio.ensure_future(send(memory, "slow", a_batch(10)))
        await walked.wait()
        assert (await send(memory, "quick", a_batch(10))).error_code == 0
        assert memory.broker.request_memory.used_bytes > 0
        assert not sent.done()
        go_on.set()
        assert (await sent).error_code == 0
        assert memory.broker.request_memory.used_bytes == 0


@pytest.mark.skipif(native.scan is None, reason="the extension is not built")
@on_a_loop
async def test_a_batch_whose_records_cannot_be_read_is_refused() -> None:
    async with memory_broker() as memory:
        await make(memory, "t")
        assert (await send(memory, "t", garbage())).error_code == ErrorCode.INVALID_RECORD
        assert stored(memory, "t") == []


@on_a_loop
async def test_one_unreadable_batch_fails_its_partition_alone_in_list_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the extension, or compressed, it gets into the log."""
    monkeypatch.setattr(native, "scan", None)
    async with memory_broker() as memory:
        await make(memory, "bad")
        await make(memory, "good")
        assert (await send(memory, "bad", garbage())).error_code == 0
        assert (await send(memory, "good", a_batch(1))).error_code == 0
        for timestamp in (NOW - 5000, -3):
            wanted = tuple(
                ListOffsetsTopic(
                    name=name, partitions=(ListOffsetsPartition(partition_index=0, timestamp=timestamp),)
                )
                for name in ("good", "bad")
            )
            answer = await memory.ask(ListOffsetsRequest(replica_id=-1, topics=wanted), 7)
            codes = [topic.partitions[0].error_code for topic in answer.topics]
            assert codes == [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE]


@pytest.mark.skipif(native.scan is None, reason="the extension is not built")
@pytest.mark.parametrize("times", [(0, 2**63 - 1), (NOW, NOW), (NOW + 1, FAR), (-(2**63), NOW - 1)])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 200])
def test_both_walks_find_the_same_faults(count: int, times: tuple[int, int]) -> None:
    mixed = [
        Record(offset=n, timestamp_ms=NOW + n % 3 - 1, key=None if n % 4 else b"", value=None, headers=())
        for n in range(count)
    ]
    data = encode_batch(mixed, BatchMeta())
    from_c = find_faults(data, 0, _header(data), times)
    assert from_c == _check_records(decompress_section(data, 0, _header(data)), _header(data), times)


@pytest.mark.skipif(native.scan is None, reason="the extension is not built")
def test_the_native_walk_believes_no_byte_of_a_section() -> None:
    """Every change of one byte is read as Python reads it, or refused as Python refuses it."""
    data = encode_batch(records(3, key=None), BatchMeta())
    header, section = _header(data), decompress_section(data, 0, _header(data))
    for at in range(len(section)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = section[:at] + bytes([value]) + section[at + 1 :]
            outcomes = []
            for walk in (find_section_faults, _check_records):
                try:
                    outcomes.append(repr(walk(changed, header, (0, NOW))))
                except Exception as exc:
                    outcomes.append(type(exc).__name__)
            assert outcomes[0] == outcomes[1], (at, value)


def _header(data: bytes) -> Any:
    return read_header(data)
