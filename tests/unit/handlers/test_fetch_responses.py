"""Fetch responses that say several things at once."""

import pytest
from tests.support.memory_broker import memory_broker, on_a_loop

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.messages.data.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tallystick.storage.disk.fs import CorruptLog
from tallystick.storage.log.log import AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.transaction_index import TransactionIndex

MARKER_WRITER = ProducerIdAndEpoch(ProducerId(42), ProducerEpoch(1))


@pytest.mark.parametrize("version", [12, 17])
@on_a_loop
async def test_a_diverging_epoch_does_not_hide_aborted_transactions(version: int) -> None:
    """[CLI-33] KIP-595's diverging epoch of one partition leaves the others their aborted transactions."""
    async with memory_broker(transaction_partition_verification_enable="false") as memory:
        await memory.make_topic("t", 2)
        partition, other = (memory.broker.topics.find_partition("t", number) for number in (0, 1))
        assert partition is not None
        assert other is not None
        records = [Record(offset=0, timestamp_ms=1, key=None, value=b"v", headers=())]
        meta = BatchMeta(producer_id=42, producer_epoch=0, base_sequence=0, is_transactional=True)
        marker = EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0)
        for appended in (
            partition.append(encode_batch(records, meta), AppendOrigin.COORDINATOR),
            partition.append(
                encode_marker(marker, MARKER_WRITER, timestamp_ms=2), AppendOrigin.COORDINATOR, TxnGuard()
            ),
            other.append(encode_batch(records, BatchMeta())),
        ):
            assert isinstance(appended, AppendResult)
        wanted = (
            FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20),
            FetchPartition(
                partition=1,
                fetch_offset=9,
                last_fetched_epoch=other.leader_epoch,
                partition_max_bytes=1 << 20,
            ),
        )
        topic = memory.broker.topics.find("t")
        assert topic is not None
        named = FetchTopic(topic="t", topic_id=topic.topic_id, partitions=wanted)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=1, topics=(named,))
        data, diverging = (await memory.ask(request, version)).responses[0].partitions
        assert data.records
        assert data.aborted_transactions == (AbortedTransaction(producer_id=42, first_offset=0),)
        assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (
            other.leader_epoch,
            1,
        )
        assert diverging.aborted_transactions is None
        assert not diverging.records


@on_a_loop
async def test_records_of_which_the_aborted_ones_are_not_known_are_not_returned() -> None:
    async with memory_broker() as memory:
        await memory.make_topic("t", 2)
        for number in (0, 1):
            partition = memory.broker.topics.find_partition("t", number)
            assert partition is not None
            records = [Record(offset=0, timestamp_ms=1, key=None, value=b"v", headers=())]
            assert isinstance(partition.append(encode_batch(records, BatchMeta())), AppendResult)
            if number == 0:
                index = partition.log.segments[0].transaction_index

                def fail() -> TransactionIndex:
                    raise CorruptLog("0.txnindex", 0, "an entry", "half of one")

                index.load = fail  # type: ignore[method-assign]
        wanted = tuple(
            FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20) for number in (0, 1)
        )
        named = FetchTopic(topic="t", partitions=wanted)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=1, topics=(named,))
        refused, other = (await memory.ask(request, 12)).responses[0].partitions
        assert (refused.error_code, bytes(refused.records or b"")) == (ErrorCode.CORRUPT_MESSAGE, b"")
        assert (other.error_code, bool(other.records)) == (0, True)
